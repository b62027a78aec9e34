//! The terminal that the view draws on: taken over, returned, suspended, resized, gone.
//!
//! The screen is the alternate one, and the terminal is restored however the view ends: on a key,
//! on an error, on a panic (by a hook, since the program aborts on one), and while the process is
//! stopped. Pictures are drawn into memory, and a thread of its own writes them: a stalled terminal
//! misses updates and delays nothing.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use crossterm::cursor::Show;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal};
use runtime::output::{Output, Piece, Refused};
use sys::{Error, Result, job_control};

use super::keys::{Key, Keys};

/// What becomes of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It shows the picture.
    Shown,
    /// The process is to stop as soon as what was drawn is written.
    Leaving,
    /// The other side was closed.
    Gone,
}

/// A terminal that was taken over.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Canvas>>,
    canvas: Canvas,
    /// Writes what was drawn.
    out: Output,
    keys: Keys,
    state: State,
    /// The process is to stop.
    suspend: bool,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// If it cannot be taken over.
    pub fn start(out: &Output) -> Result<Screen> {
        let failed =
            |e| Error::from_io("draw on the terminal", e).with_hint("--plain draws nothing");
        let keys = Keys::new().map_err(failed)?;
        job_control::watch()?;
        let mut canvas = Canvas::default();
        enable_raw_mode().map_err(failed)?;
        restore_on_panic();
        let terminal = queue!(canvas, EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(canvas.clone())));
        let terminal = terminal.map_err(|e| {
            drop(disable_raw_mode());
            failed(e)
        })?;
        Ok(Screen {
            terminal,
            canvas,
            out: out.clone(),
            keys,
            state: State::Shown,
            suspend: false,
        })
    }

    /// Whether the terminal has gone away.
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Answers signals of job control, and returns the keys pressed since the last time. Blocks
    /// only while the process is stopped.
    pub fn keys(&mut self) -> Vec<Key> {
        self.job_control();
        if self.state != State::Shown {
            return Vec::new();
        }
        let keys = self.keys.read().unwrap_or_else(|_| {
            self.state = State::Gone;
            Vec::new()
        });
        for key in &keys {
            match key {
                Key::Suspend => job_control::suspend_group(),
                Key::Redraw => self.redraw(),
                _ => {}
            }
        }
        keys
    }

    fn job_control(&mut self) {
        let changes = job_control::changes();
        self.suspend |= changes.suspend;
        // After the last picture, once that is written.
        if self.suspend && self.state == State::Shown && self.out.is_idle() {
            self.suspend = false;
            drop(queue!(self.canvas, LeaveAlternateScreen, Show));
            self.give();
            if self.state == State::Shown {
                self.state = State::Leaving;
            }
        }
        if self.state == State::Leaving && self.out.is_idle() {
            drop(disable_raw_mode());
            // It fails only where signals cannot be caught any more, and then it was continued.
            drop(job_control::suspend());
            self.state = State::Shown;
            self.enter();
        } else if changes.continued && self.state == State::Shown {
            // Stopped without being asked (`SIGSTOP`): the shell has set the terminal back.
            drop(disable_raw_mode());
            self.enter();
        }
        if changes.resized {
            self.redraw();
        }
    }

    fn enter(&mut self) {
        drop(enable_raw_mode());
        drop(queue!(self.canvas, EnterAlternateScreen));
        self.redraw();
    }

    /// The next picture is drawn as a whole: what the terminal shows is unknown.
    fn redraw(&mut self) {
        if self.state != State::Shown {
            return;
        }
        // `Terminal::clear` would ask the terminal for its cursor, and wait for the answer.
        if let Ok(size) = self.terminal.size() {
            let area = Rect::new(0, 0, size.width, size.height);
            drop(self.terminal.resize(area));
        }
    }

    /// Draws, unless the picture before is not written yet: what is drawn is the difference to it.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) {
        if self.state != State::Shown || !self.out.is_idle() {
            return;
        }
        match self.terminal.draw(picture) {
            Ok(_) => self.give(),
            // Its size is not known any more.
            Err(_) => self.state = State::Gone,
        }
    }

    fn give(&mut self) {
        let piece = Piece {
            bytes: self.canvas.0.take(),
            ..Piece::default()
        };
        // A terminal that takes nothing stays as it is; one that cannot be written is gone.
        if let Err(Refused::Failed(_)) = self.out.try_give(piece) {
            self.state = State::Gone;
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.state != State::Gone {
            // After the last picture, if the terminal takes that.
            drop(queue!(self.canvas, LeaveAlternateScreen, Show));
            self.give();
            drop(self.out.drain(&crate::out::patience()));
        }
        drop(disable_raw_mode());
    }
}

/// What was drawn and is not written yet. Clones are the same.
#[derive(Clone, Default)]
struct Canvas(Rc<RefCell<Vec<u8>>>);

impl Write for Canvas {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The program aborts on a panic, so nothing is dropped then.
fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        drop(disable_raw_mode());
        drop(execute!(io::stdout(), LeaveAlternateScreen, Show));
        before(info);
    }));
}
