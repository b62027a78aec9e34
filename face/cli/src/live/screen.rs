//! The terminal of the view: taken over, restored, suspended, resized, closed.
//!
//! The view uses the alternate screen, and the terminal is restored however the view ends: on a
//! key, on an error, on a panic (by a hook, since the program aborts), and while the process is
//! stopped. Screens are drawn to memory, and a separate thread writes them: a stalled terminal
//! misses updates and does not delay anything.

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

/// State of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The view is shown.
    Shown,
    /// The process stops as soon as the last screen is written.
    Leaving,
    /// The terminal was closed.
    Gone,
}

/// A terminal taken over by the view.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Canvas>>,
    canvas: Canvas,
    /// Writes the screens.
    out: Output,
    keys: Keys,
    state: State,
    /// Whether the process is to be suspended.
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

    /// Whether the terminal was closed.
    pub fn is_closed(&self) -> bool {
        self.state == State::Gone
    }

    /// Handles job control signals, and returns the keys pressed since the last call. Blocks only
    /// while the process is stopped.
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
        // Only once the last screen is written.
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
            // It fails only if signals can no longer be caught, and then it was continued.
            drop(job_control::suspend());
            self.state = State::Shown;
            self.enter();
        } else if changes.continued && self.state == State::Shown {
            // Stopped by `SIGSTOP`: the shell has reset the terminal.
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

    /// Redraws the next screen completely: the terminal's contents are unknown.
    fn redraw(&mut self) {
        if self.state != State::Shown {
            return;
        }
        // `Terminal::clear` would query the terminal's cursor, and wait for the reply.
        if let Ok(size) = self.terminal.size() {
            let area = Rect::new(0, 0, size.width, size.height);
            drop(self.terminal.resize(area));
        }
    }

    /// Draws, unless the previous screen is not written yet: only differences to it are drawn.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) {
        if self.state != State::Shown || !self.out.is_idle() {
            return;
        }
        match self.terminal.draw(picture) {
            Ok(_) => self.give(),
            // Its size is no longer available.
            Err(_) => self.state = State::Gone,
        }
    }

    fn give(&mut self) {
        let piece = Piece {
            bytes: self.canvas.0.take(),
            ..Piece::default()
        };
        // A stalled terminal stays unchanged; one that cannot be written was closed.
        if let Err(Refused::Failed(_)) = self.out.try_give(piece) {
            self.state = State::Gone;
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.state != State::Gone {
            // After the last screen, if the terminal accepts it.
            drop(queue!(self.canvas, LeaveAlternateScreen, Show));
            self.give();
            drop(self.out.drain(&crate::out::patience()));
        }
        drop(disable_raw_mode());
    }
}

/// Output that was drawn and is not written yet. Clones share it.
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

/// The program aborts on a panic, so destructors do not run.
fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        drop(disable_raw_mode());
        drop(execute!(io::stdout(), LeaveAlternateScreen, Show));
        before(info);
    }));
}
