//! Output without the live view: a line of rates per second on standard error, unless that is the
//! systemd journal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use flow::{EndReason, Extra, KnownFlows, Record};
use port::{Intake, PortDescription};
use runtime::flows::{Outlet, RecordOutcome, Status};
use sys::Result;

use super::report::Memory;
use crate::inputs::{self, Inputs};
use crate::out::{self, say};
use crate::report::{bytes, counted, event_level, event_line, si};

const INTERVAL: Duration = Duration::from_secs(1);

/// Rates since the last line.
pub struct Rates {
    name: String,
    /// Size in bytes of the input files, if none is compressed.
    file_len: Option<u64>,
    /// Whether one line of a terminal is overwritten.
    overwrite: bool,
    reported: bool,
    at: Duration,
    packets: u64,
    wire_bytes: u64,
    /// Decoded fields, for the final table.
    pub known: KnownFlows,
}

impl Rates {
    /// Creates it for these ports, and their names in one line.
    pub fn new(name: &str, inputs: &Inputs, is_file: bool) -> Self {
        Self {
            name: name.to_owned(),
            file_len: is_file.then(|| inputs.file_len()).flatten(),
            overwrite: is_file && io::stderr().is_terminal(),
            reported: false,
            at: Duration::ZERO,
            packets: 0,
            wire_bytes: 0,
            known: KnownFlows::default(),
        }
    }

    /// Ends the last line.
    pub fn end(&self) {
        if self.reported && self.overwrite {
            say!("");
        }
    }

    /// Progress in the file.
    fn progress(&self, status: &Status<'_>) -> Option<String> {
        let len = self.file_len?;
        let total = status.account.rx_total();
        let part = (inputs::read_len(&total) * 100 / len.max(1)).min(99);
        Some(format!("{part:3} %  "))
    }
}

/// Prints what will be metered, for live ports.
pub fn start(name: &str, description: &PortDescription, queue_count: usize, memory: &Memory) {
    if description.intake == Intake::File {
        return;
    }
    let mut facts = String::new();
    for (name, value) in &description.facts {
        facts += &format!(", {name} {value}");
    }
    let queues = if queue_count == 1 { "queue" } else { "queues" };
    say!(
        "{name}: {} on {}, {queue_count} {queues}{facts}; uses at most {} of memory",
        description.scheme,
        description.target,
        bytes(memory.total() as u64)
    );
}

/// Prints events of the device on standard error, for an outlet that does not.
pub struct WithEvents<'a> {
    /// The port, as given by the user.
    pub name: &'a str,
    /// The wrapped outlet.
    pub inner: &'a mut dyn Outlet,
}

impl Outlet for WithEvents<'_> {
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        self.inner.ended(record, extra, reason)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        print_events(self.name, status);
        self.inner.pulse(status)
    }
}

fn print_events(name: &str, status: &Status<'_>) {
    for event in status.events {
        out::line(event_level(event), event_line(name, event));
    }
}

impl Outlet for Rates {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, _: EndReason) -> Result<RecordOutcome> {
        self.known.add(record, extra);
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        print_events(&self.name, status);
        let passed = status.elapsed.saturating_sub(self.at);
        // In the journal this would be a line per second forever; the service manager gets the
        // status instead.
        if passed < INTERVAL || out::is_journal() {
            return Ok(());
        }
        let total = status.total();
        let seconds = passed.as_secs_f64();
        let packets = total.meter.packets.saturating_sub(self.packets) as f64 / seconds;
        let bits = total.wire_bytes.saturating_sub(self.wire_bytes) as f64 * 8.0 / seconds;
        let line = format!(
            "{}{:7.1} s  {:>12}  {:>14}  {} in the table, {} ended, {} lost",
            self.progress(status).unwrap_or_default(),
            status.elapsed.as_secs_f64(),
            si(packets, "pps"),
            si(bits, "bit/s"),
            counted(total.meter.table.live, "flow"),
            total.meter.table.flows - total.meter.table.live,
            counted(status.account.rx_total().lost(), "packet"),
        );
        match self.overwrite {
            true => out::words(format!("\r{line:100}").into_bytes()),
            false => say!("{line}"),
        }
        self.reported = true;
        self.at = status.elapsed;
        self.packets = total.meter.packets;
        self.wire_bytes = total.wire_bytes;
        Ok(())
    }
}
