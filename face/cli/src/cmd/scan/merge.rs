//! `barewire scan merge FILES`: the results of shards or runs as one, each answer once.

mod coverage;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sys::{Error, Result};

use self::coverage::{Coverage, Run};
use self::layout::{Layout, Row};
use super::refused;
use crate::out::warning;

/// Maximum length of a line in bytes: a banner has less.
const LINE_MAX: u64 = 1 << 20;
/// Maximum number of answers and banners.
const ROWS_MAX: usize = 1 << 24;
/// Totals of runs that add up.
const SUMS: [&str; 15] = [
    "sent",
    "resent",
    "sent_bytes",
    "failed",
    "unreachable",
    "own",
    "received",
    "answers",
    "unrelated",
    "maybe_repeated",
    "lost",
    "connections",
    "silent",
    "not_connected",
    "rate_changes",
];
/// Totals that are counted anew.
const STATES: [&str; 5] = ["open", "closed", "filtered", "unfiltered", "up"];

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct MergeArgs {
    /// Files that `scan --json`, -oD, -oJ or -oC has written, or masscan's -oJ
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

const HELP: &str = "\
The output has the lines of --json: each response and banner once, and then the totals of all \
runs. \"complete\" is true if the files cover all probes of the scan.

Examples:
  barewire scan merge shard1.ndjson shard2.ndjson shard3.ndjson > all.ndjson";

/// Prints the answers and banners of files, each once, and their totals.
///
/// # Errors
/// A file that cannot be read, or a line that a scan has not written, with its number.
pub fn run(files: &[PathBuf]) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut merged = Merged::default();
    for path in files {
        let what = || format!("read {}", path.display());
        let file = File::open(path).map_err(|error| Error::from_io(what(), error))?;
        merged.file(path, BufReader::new(file), &mut out)?;
    }
    let totals = format!("{}\n", merged.totals());
    let written = out.write_all(totals.as_bytes()).and_then(|()| out.flush());
    written.map_err(to_stdout)
}

fn to_stdout(error: io::Error) -> Error {
    Error::from_io("write to standard output", error)
}

/// What was merged so far.
#[derive(Default)]
struct Merged {
    /// Hashes of the rows, by both keys; 128 bits, so that no two rows have the same one.
    seen: HashSet<u128>,
    keys: [RandomState; 2],
    /// Counts of states, and sums of totals.
    counts: Map<String, Value>,
    runs: u64,
    files: u64,
    /// Number of files that end with totals, other than those of an incomplete scan whose range is
    /// not known.
    ended: u64,
    /// The totals that the last line of the current file was.
    last: Option<Run>,
    /// The probes that were sent.
    coverage: Coverage,
    repeated: u64,
    banners: u64,
}

impl Merged {
    fn file(&mut self, path: &Path, mut file: impl BufRead, out: &mut impl Write) -> Result<()> {
        let mut line = Vec::new();
        let mut layout = Layout::Lines;
        self.last = None;
        for number in 1u64.. {
            line.clear();
            let len = file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            let what = || format!("read line {number} of {}", path.display());
            if len.map_err(|error| Error::from_io(what(), error))? == 0 {
                break;
            }
            if number == 1 {
                layout = Layout::of(&line);
            }
            if (line.len() as u64) < LINE_MAX && layout.is_cut(&line) {
                warning!(
                    "{}: line {number} is cut off; it is skipped",
                    path.display()
                );
                self.last = None;
                break;
            }
            let wrong = || "it is not a line of scan --json, -oD, -oJ or -oC".to_owned();
            let rows = layout.rows(&line).ok_or_else(wrong);
            for row in rows.map_err(|why| refused(&what(), why))? {
                if !self.row(&row).map_err(|why| refused(&what(), why))? {
                    continue;
                }
                if layout != Layout::Lines {
                    line = Value::Object(row).to_string().into_bytes();
                }
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                out.write_all(&line).map_err(to_stdout)?;
            }
        }
        self.files += 1;
        let is_ended = layout.has_totals() && self.last.is_some_and(|run| run != Run::Incomplete);
        self.ended += u64::from(is_ended);
        Ok(())
    }

    /// Whether a row is printed.
    fn row(&mut self, row: &Row) -> std::result::Result<bool, String> {
        let word = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = word("type");
        // Rows after totals are those of another run, which must end as well.
        self.last = None;
        match kind {
            "totals" => {
                self.add(row);
                return Ok(false);
            }
            "rate" | "link" | "status" => return Ok(false),
            "answer" | "banner" => {}
            _ => return Err("it is neither an answer nor a banner".to_owned()),
        }
        let port = row.get("port").map(Value::to_string).unwrap_or_default();
        let state = word("state");
        let (address, protocol) = (word("address"), word("protocol"));
        let key = [kind, address, protocol, &port, state, word("name")];
        let [high, low] = [0, 1].map(|index| u128::from(self.keys[index].hash_one(key)));
        let key = high << 64 | low;
        if self.seen.contains(&key) {
            self.repeated += 1;
            return Ok(false);
        }
        if self.seen.len() == ROWS_MAX {
            return Err(format!("there are more than {ROWS_MAX} answers"));
        }
        self.seen.insert(key);
        match STATES.contains(&state) {
            true => self.sum(state, 1),
            false => self.banners += u64::from(kind == "banner"),
        }
        Ok(true)
    }

    /// Adds the totals of a run.
    fn add(&mut self, totals: &Row) {
        self.runs += 1;
        self.last = Some(self.coverage.add(totals));
        for name in SUMS {
            let value = totals.get(name).and_then(Value::as_u64);
            self.sum(name, value.unwrap_or(0));
        }
    }

    fn sum(&mut self, name: &str, value: u64) {
        let before = self.counts.get(name).and_then(Value::as_u64).unwrap_or(0);
        self.counts
            .insert(name.into(), before.saturating_add(value).into());
    }

    /// The totals of all runs. A file that does not end with totals is that of a scan that was
    /// killed.
    fn totals(mut self) -> Value {
        for name in STATES {
            self.sum(name, 0);
        }
        let mut totals = json!({
            "type": "totals",
            "runs": self.runs,
            "complete": self.ended == self.files && self.files != 0 && self.coverage.is_whole(),
            "repeated": self.repeated,
            "banners": self.banners,
        });
        if let Some(object) = totals.as_object_mut() {
            object.extend(self.counts);
        }
        totals
    }
}
