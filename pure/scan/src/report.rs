//! Results of a scan as text: one file and one row for each format.
//!
//! A [`Report`] collects rows as bytes; what writes them decides when, and where to. Formats with a
//! closing part (XML, JSON) are written so that it follows the last row at any time: the next rows
//! overwrite it.

mod csv;
mod found;
mod grepable;
mod json;
mod list;
mod ndjson;
mod text;
mod xml;

use std::fmt::Write as _;

use wire::Timestamp;

use crate::grab::Banner;
use crate::plan::Plan;
use crate::probe::Probe;

pub use found::{Found, Totals};
pub use text::{first_line, safe, title};

/// What is known of a run before its first result.
#[derive(Clone, Debug)]
pub struct Run {
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub arguments: String,
    /// When it began.
    pub start: Timestamp,
    /// Seed of the order.
    pub seed: u64,
    /// Number of addresses.
    pub target_count: u128,
    /// Each kind of probe, with the number of its ports, and the ports as ranges: `80,443-445`.
    pub services: Vec<(Probe, usize, String)>,
}

impl Run {
    /// The run of a plan.
    pub fn new(plan: &Plan, version: &str, arguments: String, start: Timestamp) -> Self {
        let probes = plan.ports().probes().iter();
        let services = probes.map(|probe| {
            let entries = plan.ports().as_slice().iter();
            let ports = entries.filter(|entry| entry.probe == *probe && entry.port != 0);
            let mut ports: Vec<u16> = ports.map(|entry| entry.port).collect();
            ports.dedup();
            (*probe, ports.len(), ranges(&ports))
        });
        Self {
            version: version.to_owned(),
            arguments,
            start,
            seed: plan.order().seed,
            target_count: plan.targets().count(),
            services: services.collect(),
        }
    }
}

/// Sorted ports as ranges.
fn ranges(ports: &[u16]) -> String {
    let mut text = String::new();
    for run in ports.chunk_by(|before, port| before.checked_add(1) == Some(*port)) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing into a string does not fail.
        let _ = match run {
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            [first] => write!(text, "{comma}{first}"),
            [] => Ok(()),
        };
    }
    text
}

/// How far a run is when its closing part is written.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// What was counted.
    pub totals: &'a Totals,
    /// The time.
    pub now: Timestamp,
    /// The result of the run; `None` if it has not ended.
    pub result: Option<Ended<'a>>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// From the first probe to the end.
    pub seconds: f64,
    /// All probes were sent.
    pub is_complete: bool,
    /// The error that ended it.
    pub error: Option<&'a str>,
}

/// A format of results.
pub struct Format {
    /// The word on the command line.
    pub word: &'static str,
    /// The letter of the short option: `X` of `-oX`.
    pub letter: char,
    /// Extension of a file in this format.
    pub extension: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    begin: fn(run: &Run, out: &mut Vec<u8>),
    answer: fn(found: &Found, out: &mut Vec<u8>),
    banner: fn(banner: &Banner, time: Timestamp, out: &mut Vec<u8>),
    /// What separates two results.
    between: &'static [u8],
    /// The closing part. Formats that need none write it only when the run has ended.
    end: fn(run: &Run, rows: u64, ending: &Ending<'_>, out: &mut Vec<u8>),
    /// Where the closing part begins in the last bytes of a file, and whether a result is before
    /// it.
    closing: fn(end: &[u8]) -> Option<(usize, bool)>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word)
    }
}

/// The formats.
pub static FORMATS: [&Format; 6] = [
    &xml::FORMAT,
    &grepable::FORMAT,
    &list::FORMAT,
    &json::FORMAT,
    &ndjson::FORMAT,
    &csv::FORMAT,
];

/// JSON objects, one a line.
pub static NDJSON: &Format = &ndjson::FORMAT;

/// Last bytes of a file in which the closing part is looked for.
pub const CLOSING_MAX: usize = 4096;

/// The results of one run in one format.
#[derive(Clone, Debug)]
pub struct Report {
    format: &'static Format,
    run: Run,
    /// What is not written yet.
    bytes: Vec<u8>,
    row_count: u64,
    /// A result was written before.
    has_rows: bool,
}

impl Report {
    /// A new report.
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

    /// A report that is continued in a file with these last bytes, and how many of them are
    /// overwritten; `None` if the file does not end as one in this format does.
    pub fn continued(format: &'static Format, run: Run, end: &[u8]) -> Option<(Self, usize)> {
        let (at, has_rows) = (format.closing)(end)?;
        let report = Self {
            format,
            run,
            bytes: Vec::new(),
            row_count: 0,
            has_rows,
        };
        Some((report, end.len() - at))
    }

    /// Its format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Adds an answer.
    pub fn answer(&mut self, found: &Found) {
        self.separate();
        (self.format.answer)(found, &mut self.bytes);
    }

    /// Adds what a service said.
    pub fn banner(&mut self, banner: &Banner, time: Timestamp) {
        self.separate();
        (self.format.banner)(banner, time, &mut self.bytes);
    }

    fn separate(&mut self) {
        self.row_count += 1;
        if std::mem::replace(&mut self.has_rows, true) {
            self.bytes.extend(self.format.between);
        }
    }

    /// Bytes of rows that were not taken yet.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
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

/// For formats of lines: a new one begins after the last that is whole.
fn after_last_line(end: &[u8]) -> Option<(usize, bool)> {
    let at = end.iter().rposition(|byte| *byte == b'\n');
    at.map(|at| (at + 1, true))
}

/// Where the last occurrence of `what` begins.
fn last(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut places = bytes.windows(what.len());
    places.rposition(|part| part == what)
}

/// Text into bytes.
struct Out<'a>(&'a mut Vec<u8>);

impl std::fmt::Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend(text.as_bytes());
        Ok(())
    }
}

/// Appends formatted text; writing into a vector does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = std::fmt::Write::write_fmt(&mut $crate::report::Out($out), format_args!($($arg)*));
    }};
}
use put;

#[cfg(test)]
mod tests;
