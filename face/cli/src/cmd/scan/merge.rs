//! `barewire scan merge FILES`: the results of shards or runs as one, each answer once.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sys::{Error, Result};

use super::refused;
use crate::out::warning;

/// Maximum length of a line in bytes: a banner has less.
const LINE_MAX: u64 = 1 << 20;
/// Maximum number of answers and banners.
const ROWS_MAX: usize = 1 << 24;
/// Totals of runs that add up.
const SUMS: [&str; 14] = [
    "sent",
    "resent",
    "sent_bytes",
    "failed",
    "unreachable",
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

/// Prints the answers and banners of files of JSON lines, each once, and their totals.
///
/// # Errors
/// A file that cannot be read, or a line that a scan has not written, with its number.
pub fn run(files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        let error = refused("merge scans", "no file is given".into());
        return Err(error.with_hint("give files that scan --json or -oD has written"));
    }
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
    /// Number of files that end with the totals of a complete scan.
    complete: u64,
    /// Whether the last line of the current file was such totals.
    is_complete: bool,
    repeated: u64,
    banners: u64,
}

impl Merged {
    fn file(&mut self, path: &Path, mut file: impl BufRead, out: &mut impl Write) -> Result<()> {
        let mut line = Vec::new();
        self.is_complete = false;
        for number in 1u64.. {
            line.clear();
            let len = file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            let what = || format!("read line {number} of {}", path.display());
            if len.map_err(|error| Error::from_io(what(), error))? == 0 {
                break;
            }
            if is_cut(&line) {
                warning!(
                    "{}: line {number} is cut off; it is skipped",
                    path.display()
                );
                self.is_complete = false;
                break;
            }
            if self.row(&line).map_err(|why| refused(&what(), why))? {
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                out.write_all(&line).map_err(to_stdout)?;
            }
        }
        self.files += 1;
        self.complete += u64::from(self.is_complete);
        Ok(())
    }

    /// Whether a line is printed.
    fn row(&mut self, line: &[u8]) -> std::result::Result<bool, String> {
        let wrong = || "it is not a line of scan --json".to_owned();
        let row: Map<String, Value> = serde_json::from_slice(line).map_err(|_| wrong())?;
        let word = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = word("type");
        // Rows after totals are those of another run, which must end as well.
        self.is_complete = false;
        match kind {
            "totals" => {
                self.add(&row);
                return Ok(false);
            }
            "rate" | "link" | "status" => return Ok(false),
            "answer" | "banner" => {}
            _ => return Err(wrong()),
        }
        let port = row.get("port").map(Value::to_string).unwrap_or_default();
        let state = word("state");
        let key = [kind, word("address"), word("protocol"), &port, state];
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
    fn add(&mut self, totals: &Map<String, Value>) {
        self.runs += 1;
        self.is_complete = totals.get("complete") == Some(&Value::Bool(true));
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
            "complete": self.complete == self.files && self.files != 0,
            "repeated": self.repeated,
            "banners": self.banners,
        });
        if let Some(object) = totals.as_object_mut() {
            object.extend(self.counts);
        }
        totals
    }
}

/// Whether a line is the beginning of a row that a killed scan, or a full disk, left.
fn is_cut(line: &[u8]) -> bool {
    let is_last = line.last() != Some(&b'\n') && (line.len() as u64) < LINE_MAX;
    let parse = || serde_json::from_slice::<Map<String, Value>>(line);
    is_last && line.starts_with(b"{") && parse().is_err_and(|error| error.is_eof())
}

/// The files of `merge`, if these are its arguments.
pub fn files(targets: &[String]) -> Option<Vec<PathBuf>> {
    let (first, files) = targets.split_first()?;
    (first == "merge").then(|| files.iter().map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(files: &[&str]) -> Result<(Vec<Value>, Value)> {
        let (mut merged, mut out) = (Merged::default(), Vec::new());
        for file in files {
            merged.file(Path::new("file"), file.as_bytes(), &mut out)?;
        }
        let text = String::from_utf8(out).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        Ok((rows.collect(), merged.totals()))
    }

    fn answer(addr: &str, state: &str) -> String {
        format!(
            "{{\"type\":\"answer\",\"address\":\"{addr}\",\"protocol\":\"tcp\",\"port\":80,\
             \"state\":\"{state}\",\"ttl\":64}}\n"
        )
    }

    const TOTALS: &str = "{\"type\":\"totals\",\"sent\":3,\"lost\":1,\"complete\":true}\n";

    #[test]
    fn each_answer_is_printed_once_and_totals_add_up() {
        let banner =
            "{\"type\":\"banner\",\"address\":\"192.0.2.1\",\"protocol\":\"tcp\",\"port\":80}\n";
        let rate = "{\"type\":\"rate\",\"to_pps\":9}\n";
        let link = "{\"type\":\"link\",\"state\":\"down\"}\n";
        let status = "{\"type\":\"status\",\"sent\":2,\"open\":1}\n";
        let first = [
            &answer("192.0.2.1", "open"),
            banner,
            rate,
            link,
            status,
            TOTALS,
        ]
        .concat();
        let second = [
            &answer("192.0.2.1", "open"),
            &answer("192.0.2.1", "filtered"),
            TOTALS,
        ]
        .concat();
        let third = [&answer("192.0.2.2", "closed"), banner.trim_end()].concat();
        let (rows, totals) = merged(&[&first, &second, &third]).unwrap();
        assert_eq!(rows.len(), 4, "{rows:?}");
        for (name, count) in [
            ("open", 1),
            ("filtered", 1),
            ("closed", 1),
            ("up", 0),
            ("repeated", 2),
            ("banners", 1),
            ("sent", 6),
            ("lost", 2),
            ("runs", 2),
        ] {
            assert_eq!(totals[name], count, "{name}: {totals}");
        }
        assert_eq!(totals["complete"], false, "the third file has no totals");
    }

    #[test]
    fn a_merged_scan_is_complete_if_each_file_ends_with_totals_that_say_so() {
        let row = answer("192.0.2.1", "open");
        let interrupted = TOTALS.replace("true", "false");
        let whole = [&row, TOTALS].concat();
        for (second, complete) in [
            ([&row, TOTALS].concat(), true),
            // The file of an interrupted run, continued by the run that resumed it.
            ([&row, &interrupted, &row, TOTALS].concat(), true),
            (format!("{row}{interrupted}"), false),
            // Killed: without totals, after those of an earlier run, and in its last line.
            (row.clone(), false),
            (String::new(), false),
            ([&row, TOTALS, &row].concat(), false),
            ([&row, TOTALS, &row[..30]].concat(), false),
            ([&row, &TOTALS[..TOTALS.len() - 3]].concat(), false),
        ] {
            for files in [[&whole, &second], [&second, &whole]] {
                let (rows, totals) = merged(&files.map(String::as_str)).unwrap();
                assert_eq!(rows.len(), 1, "{files:?}");
                assert_eq!(totals["complete"], complete, "{files:?}");
            }
        }
        assert_eq!(merged(&[]).unwrap().1["complete"], false);
    }

    #[test]
    fn a_row_that_is_cut_off_at_the_end_is_skipped() {
        let (first, second) = (
            answer("192.0.2.1", "open"),
            answer("192.0.2.2", "\u{e9}\\u00e9"),
        );
        let len = second.trim_end().len();
        for end in 1..len {
            let bytes = [first.as_bytes(), &second.as_bytes()[..end]].concat();
            let (mut merged, mut out) = (Merged::default(), Vec::new());
            merged
                .file(Path::new("file"), &bytes[..], &mut out)
                .unwrap();
            assert_eq!(out, first.as_bytes(), "{end}");
        }
        // Whole, without the end of the line.
        let (rows, _) = merged(&[&[&first, &second[..len]].concat()]).unwrap();
        assert_eq!(rows.len(), 2);
        // Not at the end.
        let text = [&first, &second[..30], "\n", &first].concat();
        let error = merged(&[&text]).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn other_files_are_refused_with_the_number_of_the_line() {
        for bad in ["x", "[]", "{}", "{\"type\":\"flow\"}", "\n"] {
            let text = format!("{}{bad}", answer("192.0.2.1", "open"));
            let error = merged(&[&text]).expect_err(bad).to_string();
            assert!(error.contains("line 2"), "{error}");
        }
        assert_eq!(files(&["merge".into(), "a".into()]), Some(vec!["a".into()]));
        assert_eq!(files(&["merge.example".into()]), None);
    }
}
