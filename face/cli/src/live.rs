//! The live view: rates, the largest flows, applications, talkers and the loss account on a
//! terminal. [`Once`] prints one snapshot of it as text.

mod keys;
mod once;
mod picture;
mod screen;
mod view;

use flow::top::Order;
use flow::{EndReason, Extra, KnownFlows, Record};
use port::PortDescription;
use runtime::Stop;
use runtime::flows::{Outlet, RecordOutcome, Status};
use runtime::output::Output;
use sys::Result;

use crate::cmd::flows::Origins;
use keys::Key;
pub use once::Once;
use picture::{Shown, Theme};
use screen::Screen;
pub use view::ROW_COUNT;
use view::View;

/// The view on a terminal.
pub struct Live {
    screen: Screen,
    view: View,
    /// Set when the terminal is closed, as on a hang-up.
    stop: Stop,
}

impl Live {
    /// Takes over the terminal. If it is closed, `stop` is set.
    ///
    /// # Errors
    /// If it cannot be taken over.
    pub fn start(
        out: &Output,
        stop: &Stop,
        name: &str,
        description: &PortDescription,
        memory_len: usize,
        order: Order,
    ) -> Result<Live> {
        let mut view = View::new(name, description, memory_len, order);
        view.picture.theme = Theme::from_environment();
        Ok(Live {
            screen: Screen::start(out)?,
            view,
            stop: stop.clone(),
        })
    }

    /// Shows the enrichment of addresses as well.
    pub fn show_origins(&mut self, origins: Origins) {
        self.view.origins = origins;
    }

    /// Restores the terminal; returns decoded fields, for the final table.
    pub fn end(self) -> KnownFlows {
        self.view.into_known_flows()
    }

    /// What the flows are sorted by.
    pub fn order(&self) -> Order {
        self.view.picture.order
    }

    fn key(&mut self, key: Key, status: &Status<'_>) {
        let picture = &mut self.view.picture;
        match key {
            // As on a signal: exports are not waited for on a terminal that no longer reacts to
            // keys.
            Key::Interrupt => return self.stop.set(),
            _ if picture.is_typing => return self.type_filter(key),
            // Any key: back to the previous screen.
            _ if picture.has_help => return picture.has_help = false,
            _ => {}
        }
        match key {
            Key::Char('q') => self.stop.set(),
            Key::Char('?' | 'h') => picture.has_help = true,
            Key::Escape => self.back(),
            Key::Enter if picture.opened.is_some() => self.view.close(),
            Key::Enter if picture.shown == Shown::Flows => self.view.open(status),
            Key::Char('r') => self.view.sort(status, Order::Rate),
            Key::Char('b') => self.view.sort(status, Order::Bytes),
            Key::Char('p') => self.view.sort(status, Order::Packets),
            Key::Char('d') => self.view.sort(status, Order::Duration),
            Key::Char('/') => {
                picture.is_typing = true;
                picture.filter.clear();
            }
            Key::Char('n') => picture.has_names = !picture.has_names,
            Key::Char('a') => picture.by_queue = !picture.by_queue,
            Key::Char(' ') => picture.held = !picture.held,
            Key::Tab => {
                let next = picture.shown.next();
                self.show(next);
            }
            Key::Char('1') => self.show(Shown::Flows),
            Key::Char('2') => self.show(Shown::Applications),
            Key::Char('3') => self.show(Shown::Talkers),
            Key::Char('4') => self.show(Shown::Losses),
            Key::Char('5') => self.show(Shown::Networks),
            Key::Down => picture.go(1),
            Key::Up => picture.go(-1),
            Key::PageDown => picture.go(10),
            Key::PageUp => picture.go(-10),
            Key::Home => picture.go(isize::MIN + 1),
            Key::End => picture.go(isize::MAX),
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        let picture = &mut self.view.picture;
        // There may be far fewer rows in the other list.
        picture.first = 0;
        match key {
            Key::Enter => picture.is_typing = false,
            Key::Escape => {
                picture.filter.clear();
                picture.is_typing = false;
            }
            Key::Backspace => drop(picture.filter.pop()),
            Key::Char(letter) if picture.filter.len() < 64 => picture.filter.push(letter),
            _ => {}
        }
    }

    /// Closes what was opened last.
    fn back(&mut self) {
        let picture = &mut self.view.picture;
        if picture.opened.is_some() {
            self.view.close();
        } else if !picture.filter.is_empty() {
            picture.filter.clear();
            picture.first = 0;
        } else if picture.selected.is_some() {
            picture.selected = None;
        } else {
            self.stop.set();
        }
    }

    fn show(&mut self, shown: Shown) {
        self.view.close();
        self.view.picture.show(shown);
    }
}

impl Live {
    /// Shows an event before there is any of the port.
    pub fn show_event(&mut self, text: String) {
        self.view.picture.event = text;
    }
}

impl Outlet for Live {
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        self.view.ended(record, extra, reason);
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        for event in status.events {
            self.view.picture.event = event.to_string();
        }
        for key in self.screen.keys() {
            self.key(key, status);
        }
        if self.screen.is_closed() {
            // The terminal was closed: end as on SIGHUP.
            self.stop.set();
            return Ok(());
        }
        self.view.pulse(status);
        let picture = &self.view.picture;
        self.screen.draw(|frame| picture.draw(frame));
        Ok(())
    }
}
