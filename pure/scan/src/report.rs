//! Formats the results of a scan as text: each format is one source file and one row of
//! [`FORMATS`].
//!
//! A [`Report`] collects rows as bytes; the caller decides when and where to write them. In formats
//! with a closing part (XML, JSON), it follows the last row at any time, and the next rows
//! overwrite it.

mod csv;
mod entity;
mod found;
mod grepable;
mod json;
mod list;
mod ndjson;
mod pem;
mod sql;
mod table;
mod text;
mod xml;

use std::fmt::Write as _;
use std::time::Duration;

use wire::Timestamp;

use crate::adapt::RateChange;
use crate::grab::Banner;
use crate::plan::Plan;
use crate::probe::Probe;

pub use found::{Found, Totals};
pub use table::{OpenTable, TableFile, TableFormat, TableOptions};
pub use text::{certificate, first_line, safe, service, title};

/// The properties of a run that are known before its first result.
#[derive(Clone, Debug)]
pub struct Run {
    /// Version of barewire.
    pub version: String,
    /// The command line.
    pub arguments: String,
    /// Start time.
    pub start: Timestamp,
    /// Seed of the probe order.
    pub seed: u64,
    /// Pairs between two attempts at a target; with the seed, the order of probes.
    pub block: u64,
    /// A hash of what is scanned, which a run that resumes this one shares.
    pub fingerprint: u64,
    /// The rate as asked for.
    pub rate: AskedRate,
    /// Number of target addresses.
    pub target_count: u128,
    /// Each type of probe, with the number of its ports and the ports as ranges: `80,443-445`.
    pub services: Vec<(Probe, usize, String)>,
}

/// The rate as asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AskedRate {
    /// The rate, or the highest one.
    pub max: f64,
    /// The lowest rate, if it follows the answers.
    pub min: Option<f64>,
    /// `pps` or `bps`.
    pub unit: &'static str,
}

impl Run {
    /// Describes the run of a plan with this fingerprint.
    pub fn new(
        (plan, fingerprint): (&Plan, u64),
        version: &str,
        arguments: String,
        (start, rate): (Timestamp, AskedRate),
    ) -> Self {
        let services = plan.kinds().iter().map(|probe| {
            let entries = plan.ports().as_slice().iter().map(|e| (e.probe, e.port));
            let pairs = plan.pairs().iter().map(|(pair, _)| (pair.probe, pair.port));
            let ports = entries.chain(pairs);
            let ports = ports.filter(|(of, _)| of == probe && probe.has_ports());
            let mut ports: Vec<u16> = ports.map(|(_, port)| port).collect();
            ports.sort_unstable();
            ports.dedup();
            (*probe, ports.len(), ranges(&ports))
        });
        Self {
            version: version.to_owned(),
            arguments,
            start,
            seed: plan.order().seed,
            block: plan.order().block,
            fingerprint,
            rate,
            target_count: plan.addr_count(),
            services: services.collect(),
        }
    }
}

/// Formats sorted ports as ranges.
fn ranges(ports: &[u16]) -> String {
    let mut text = String::new();
    for run in ports.chunk_by(|before, port| before.checked_add(1) == Some(*port)) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = match run {
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            [first] => write!(text, "{comma}{first}"),
            [] => Ok(()),
        };
    }
    text
}

/// The state of a run at the time its closing part is written.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The counters so far.
    pub totals: &'a Totals,
    /// The current time.
    pub now: Timestamp,
    /// The result of the run; `None` if it has not ended.
    pub result: Option<Ended<'a>>,
}

/// The result of a run that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// Seconds from the first probe to the end.
    pub seconds: f64,
    /// Seconds from the first probe to the last.
    pub sending_seconds: f64,
    /// Whether all probes were sent.
    pub is_complete: bool,
    /// The error that ended the run, if any.
    pub error: Option<&'a str>,
}

/// A change of the link while the scan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It is down: nothing is sent until it is up.
    Down,
    /// It is up again, after this time.
    Up(Duration),
}

impl LinkChange {
    /// The state of the link in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up(_) => "up",
        }
    }
}

/// An event of the scan itself.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// The rate has changed.
    Rate(RateChange),
    /// The link has changed.
    Link(LinkChange),
}

/// Writes an event of the scan.
type WriteNote = fn(run: &Run, note: &Note, time: Timestamp, out: &mut Vec<u8>);

/// An output format.
pub struct Format {
    /// Name of the format on the command line.
    pub word: &'static str,
    /// Letter of the short option: `X` in `-oX`.
    pub letter: char,
    /// File name extension.
    pub extension: &'static str,
    /// A short description.
    pub about: &'static str,
    begin: fn(run: &Run, out: &mut Vec<u8>),
    answer: fn(found: &Found, out: &mut Vec<u8>),
    banner: fn(banner: &Banner, time: Timestamp, out: &mut Vec<u8>),
    /// Writes an event of the scan, in formats that have such rows.
    note: Option<WriteNote>,
    /// The separator between two results.
    between: &'static [u8],
    /// Writes the closing part. Formats that need none write it only after the run has ended.
    end: fn(run: &Run, rows: u64, ending: &Ending<'_>, out: &mut Vec<u8>),
    /// Finds the start of the closing part in the last bytes of a file, and whether a result
    /// precedes it.
    closing: fn(end: &[u8]) -> Option<(usize, bool)>,
    /// How a file without its closing part is recognized and continued; `None`: every file that
    /// ends in a line is continued.
    cut: Option<Cut>,
}

/// A format whose files need a closing part, which a kill in the middle of a write can cut off.
struct Cut {
    /// Whether a file with these first bytes is a report of this format.
    is_own: fn(start: &[u8]) -> bool,
    /// Finds the end of the last whole row, or of what precedes all rows, in the last bytes of a
    /// file, and whether it is a row.
    last_row: fn(end: &[u8]) -> Option<(usize, bool)>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word)
    }
}

/// All output formats.
pub static FORMATS: [&Format; 8] = [
    &xml::FORMAT,
    &grepable::FORMAT,
    &list::FORMAT,
    &json::FORMAT,
    &ndjson::FORMAT,
    &csv::FORMAT,
    &pem::FORMAT,
    &sql::FORMAT,
];

/// JSON objects, one per line.
pub static NDJSON: &Format = &ndjson::FORMAT;

/// Number of first bytes by which a file is recognized; the closing part is shorter.
pub const CLOSING_MAX: usize = 4096;
/// Number of bytes at the end of a cut file that are searched for the last whole row: the longest
/// row, with a banner of 1,024 bytes and a certificate of 32 KiB of text of which each byte takes
/// six, is shorter.
pub const ROW_MAX: usize = 256 << 10;

/// The results of one run in one format.
#[derive(Clone, Debug)]
pub struct Report {
    format: &'static Format,
    run: Run,
    /// Formatted text that has not been taken yet.
    bytes: Vec<u8>,
    row_count: u64,
    /// Whether there is a result before the next one, also from an earlier run.
    has_rows: bool,
}

impl Report {
    /// Creates a new report.
    pub fn new(format: &'static Format, run: Run) -> Self {
        let mut bytes = Vec::new();
        (format.begin)(&run, &mut bytes);
        Self {
            format,
            run,
            bytes,
            row_count: 0,
            has_rows: false,
        }
    }

    /// Creates a report that continues a file with these last bytes, and returns it with the number
    /// of bytes to overwrite; `None` if the file does not end as this format requires.
    pub fn continued(format: &'static Format, run: Run, end: &[u8]) -> Option<(Self, usize)> {
        let found = (format.closing)(end)?;
        Some(Self::after(format, run, found, end))
    }

    /// Creates a report that continues a file whose last write was cut off, with these first and
    /// last bytes; the number of bytes to overwrite is that after the last whole row. `None` if it
    /// is not a file of this format, or has no such row.
    pub fn repaired(
        format: &'static Format,
        run: Run,
        (start, end): (&[u8], &[u8]),
    ) -> Option<(Self, usize)> {
        let cut = format.cut.as_ref().filter(|cut| (cut.is_own)(start))?;
        let found = (cut.last_row)(end)?;
        Some(Self::after(format, run, found, end))
    }

    /// Continues a file whose last bytes are kept up to `at`.
    fn after(
        format: &'static Format,
        run: Run,
        (at, has_rows): (usize, bool),
        end: &[u8],
    ) -> (Self, usize) {
        let report = Self {
            format,
            run,
            bytes: Vec::new(),
            row_count: 0,
            has_rows,
        };
        (report, end.len() - at)
    }

    /// The format of the report.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Adds an answer.
    pub fn answer(&mut self, found: &Found) {
        self.separate();
        (self.format.answer)(found, &mut self.bytes);
    }

    /// Adds a banner of a service.
    pub fn banner(&mut self, banner: &Banner, time: Timestamp) {
        self.separate();
        (self.format.banner)(banner, time, &mut self.bytes);
    }

    /// Adds an event of the scan, if the format has rows for it.
    pub fn note(&mut self, note: &Note, time: Timestamp) {
        if let Some(write) = self.format.note {
            write(&self.run, note, time, &mut self.bytes);
        }
    }

    fn separate(&mut self) {
        self.row_count += 1;
        if std::mem::replace(&mut self.has_rows, true) {
            self.bytes.extend(self.format.between);
        }
    }

    /// Number of bytes that have not been taken yet.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether all bytes have been taken.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Moves the rows to the end of `out`.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.bytes);
    }

    /// Appends the closing part.
    pub fn close(&self, ending: &Ending<'_>, out: &mut Vec<u8>) {
        (self.format.end)(&self.run, self.row_count, ending, out);
    }
}

/// For line-based formats: new lines start after the last complete one.
fn after_last_line(end: &[u8]) -> Option<(usize, bool)> {
    let at = end.iter().rposition(|byte| *byte == b'\n');
    at.map(|at| (at + 1, true))
}

/// Finds the start of the last occurrence of `what`.
fn last(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut places = bytes.windows(what.len());
    places.rposition(|part| part == what)
}

/// A writer that appends text to bytes.
struct Out<'a>(&'a mut Vec<u8>);

impl std::fmt::Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend(text.as_bytes());
        Ok(())
    }
}

/// Appends formatted text; writing to a vector cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = std::fmt::Write::write_fmt(&mut $crate::report::Out($out), format_args!($($arg)*));
    }};
}
use put;

#[cfg(test)]
mod tests;
