//! One snapshot of the live view as text.

use std::time::Duration;

use flow::top::Order;
use flow::{EndReason, Extra, Record};
use port::PortDescription;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use runtime::flows::{Outlet, RecordOutcome, Status};
use sys::Result;

use super::view::View;
use crate::cmd::flows::Origins;

/// Default time before the snapshot: rates take a second, and one more to settle.
const ONCE: Duration = Duration::from_millis(2200);
/// Default columns and rows of the snapshot that [`Once`] prints, without `COLUMNS` and `LINES`.
const ONCE_SIZE: [u16; 2] = [80, 40];

/// Prints one snapshot on standard output; then the probe ends.
pub struct Once {
    view: View,
    at: Duration,
    is_done: bool,
}

impl Once {
    /// Takes the snapshot after `duration`, or a little more than two seconds.
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

    /// Shows the enrichment of addresses as well.
    pub fn show_origins(&mut self, origins: Origins) {
        self.view.origins = origins;
    }

    /// The current snapshot.
    pub fn text(&self) -> String {
        let size = ["COLUMNS", "LINES"].map(|name| {
            let text = std::env::var(name).ok();
            text.and_then(|text| text.parse::<u16>().ok())
        });
        let columns = size[0].unwrap_or(ONCE_SIZE[0]).clamp(20, 500);
        let rows = size[1].unwrap_or(ONCE_SIZE[1]).clamp(5, 500);
        // Drawing to memory cannot fail.
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        let Ok(_) = terminal.draw(|frame| self.view.picture.draw(frame));
        let buffer = terminal.backend().buffer();
        let mut out = String::new();
        let mut empty = 0;
        for y in 0..rows {
            let line: String = (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
            // Empty rows are left out.
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
