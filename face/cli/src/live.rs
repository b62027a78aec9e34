//! The live view: rates, the largest flows, applications, talkers, the loss account, on a terminal.
//!
//! The screen is the alternate one, and the terminal is put back however the view ends: on `q`, on
//! Ctrl-C (a key here, not a signal), on an error, on a panic (by a hook, since the program aborts
//! on one). It is drawn into memory, and a thread of its own writes that: a terminal that takes
//! nothing misses pictures, and nobody waits for it. [`Once`] prints the same picture one time, as
//! text.

mod picture;
mod view;

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use crossterm::cursor::Show;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use flow::top::Order;
use flow::{EndReason, Extra, Record};
use port::PortDescription;
use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use runtime::flows::{Fate, Outlet, Status};
use runtime::output::{Output, Piece};
use sys::{Error, Result};

use crate::cmd::flows::Origins;
use picture::Shown;
use view::View;

/// How long [`Once`] looks unless told: rates take a second, and one more to settle.
const ONCE: Duration = Duration::from_millis(2200);
/// Rows and columns of the picture that [`Once`] prints, unless `COLUMNS` and `LINES` say.
const ONCE_SIZE: [u16; 2] = [80, 40];

/// The view on a terminal.
pub struct Live {
    terminal: Terminal<CrosstermBackend<Canvas>>,
    canvas: Canvas,
    /// Writes what was drawn.
    out: Output,
    view: View,
    /// The filter is being typed.
    is_typing: bool,
}

impl Live {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// If it cannot be taken over.
    pub fn start(
        out: &Output,
        name: &str,
        description: &PortDescription,
        memory_len: usize,
        order: Order,
    ) -> Result<Live> {
        let failed =
            |e| Error::from_io("draw on the terminal", e).with_hint("--plain draws nothing");
        let mut canvas = Canvas::default();
        enable_raw_mode().map_err(failed)?;
        put_back_on_panic();
        let terminal = queue!(canvas, EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(canvas.clone())));
        let terminal = terminal.map_err(|e| {
            drop(disable_raw_mode());
            failed(e)
        })?;
        Ok(Live {
            terminal,
            canvas,
            out: out.clone(),
            view: View::new(name, description, memory_len, order),
            is_typing: false,
        })
    }

    /// Shows the enrichment of addresses too.
    pub fn show_origins(&mut self, origins: Origins) {
        self.view.origins = origins;
    }

    /// What the flows are sorted by.
    pub fn order(&self) -> Order {
        self.view.picture.order
    }

    /// Answers keys.
    fn keys(&mut self, status: &Status<'_>) -> std::io::Result<()> {
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                self.key(&key, status);
            }
        }
        Ok(())
    }

    fn key(&mut self, key: &KeyEvent, status: &Status<'_>) {
        let picture = &mut self.view.picture;
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return status.switch.end();
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    picture.filter.clear();
                    self.is_typing = false;
                }
                KeyCode::Backspace => drop(picture.filter.pop()),
                KeyCode::Char(letter) if picture.filter.len() < 64 => picture.filter.push(letter),
                _ => {}
            }
            picture.is_typing = self.is_typing;
            return;
        }
        let rows = picture.row_count();
        match key.code {
            KeyCode::Char('q') => status.switch.end(),
            // What was asked for last is taken back first.
            KeyCode::Esc if !picture.filter.is_empty() => picture.filter.clear(),
            KeyCode::Esc => status.switch.end(),
            KeyCode::Char('b') => self.view.sort(status, Order::Bytes),
            KeyCode::Char('p') => self.view.sort(status, Order::Packets),
            KeyCode::Char('d') => self.view.sort(status, Order::Duration),
            KeyCode::Char('/') => {
                self.is_typing = true;
                picture.is_typing = true;
                picture.filter.clear();
            }
            KeyCode::Char('n') => picture.has_names = !picture.has_names,
            KeyCode::Char(' ') => picture.held = !picture.held,
            KeyCode::Tab => picture.show(picture.shown.next(!picture.networks.is_empty())),
            KeyCode::Char('1') => picture.show(Shown::Flows),
            KeyCode::Char('2') => picture.show(Shown::Applications),
            KeyCode::Char('3') => picture.show(Shown::Talkers),
            KeyCode::Char('4') => picture.show(Shown::Losses),
            KeyCode::Char('5') => picture.show(Shown::Networks),
            KeyCode::Down => picture.first = (picture.first + 1).min(rows.saturating_sub(1)),
            KeyCode::Up => picture.first = picture.first.saturating_sub(1),
            KeyCode::PageDown => picture.first = (picture.first + 10).min(rows.saturating_sub(1)),
            KeyCode::PageUp => picture.first = picture.first.saturating_sub(10),
            KeyCode::Home => picture.first = 0,
            _ => {}
        }
    }
}

impl Outlet for Live {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, _: EndReason) -> Result<Fate> {
        self.view.ended(record, extra);
        Ok(Fate::Told)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        let failed = |e| Error::from_io("draw on the terminal", e);
        for event in status.events {
            self.view.picture.event = event.to_string();
        }
        self.keys(status).map_err(failed)?;
        self.view.pulse(status);
        // What is drawn is the difference to the picture before, so that one is written first.
        if !self.out.is_idle() {
            return Ok(());
        }
        let picture = &self.view.picture;
        self.terminal
            .draw(|frame| picture.draw(frame))
            .map_err(failed)?;
        self.canvas.give(&self.out);
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Behind the last picture, if the terminal takes that.
        drop(queue!(self.canvas, LeaveAlternateScreen, Show));
        self.canvas.give(&self.out);
        drop(self.out.drain(&crate::out::patience()));
        drop(disable_raw_mode());
    }
}

/// What was drawn and is not written yet. Clones are the same.
#[derive(Clone, Default)]
struct Canvas(Rc<RefCell<Vec<u8>>>);

impl Canvas {
    fn give(&self, out: &Output) {
        let piece = Piece {
            bytes: self.0.take(),
            ..Piece::default()
        };
        // A terminal that is gone, or takes nothing: the probe goes on.
        drop(out.try_give(piece));
    }
}

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
fn put_back_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        drop(disable_raw_mode());
        drop(execute!(io::stdout(), LeaveAlternateScreen, Show));
        before(info);
    }));
}

/// The picture, once, as text on standard output; then the probe ends.
pub struct Once {
    view: View,
    at: Duration,
    is_done: bool,
}

impl Once {
    /// Looks for so long, or a little more than two seconds.
    pub fn new(
        name: &str,
        description: &PortDescription,
        memory_len: usize,
        order: Order,
        duration: Option<Duration>,
    ) -> Once {
        Once {
            view: View::new(name, description, memory_len, order).once(),
            at: duration.unwrap_or(ONCE),
            is_done: false,
        }
    }

    /// Shows the enrichment of addresses too.
    pub fn show_origins(&mut self, origins: Origins) {
        self.view.origins = origins;
    }

    /// The picture as it stands.
    pub fn text(&self) -> String {
        let size = ["COLUMNS", "LINES"].map(|name| {
            let text = std::env::var(name).ok();
            text.and_then(|text| text.parse::<u16>().ok())
        });
        let columns = size[0].unwrap_or(ONCE_SIZE[0]).clamp(20, 500);
        let rows = size[1].unwrap_or(ONCE_SIZE[1]).clamp(5, 500);
        // Drawing into memory does not fail.
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        let Ok(_) = terminal.draw(|frame| self.view.picture.draw(frame));
        let buffer = terminal.backend().buffer();
        let mut out = String::new();
        let mut empty = 0;
        for y in 0..rows {
            let line: String = (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
            // Room that no flow took is left out.
            match line.trim_end() {
                "" => empty += 1,
                line => {
                    out.push_str(if empty > 0 { "\n" } else { "" });
                    empty = 0;
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        out
    }
}

impl Outlet for Once {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, _: EndReason) -> Result<Fate> {
        self.view.ended(record, extra);
        Ok(Fate::Told)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        if self.is_done {
            return Ok(());
        }
        self.view.pulse(status);
        if status.elapsed >= self.at {
            self.is_done = true;
            status.switch.end();
        }
        Ok(())
    }
}
