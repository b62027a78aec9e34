//! The record of what a card was like before: a text file below `/run`, a line for each fact.

use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use sys::ethtool::RuleSpec;
use sys::{Error, ErrorKind, Result};

use super::Device;
use crate::records;

/// First line of a record.
const HEAD: &str = "barewire isolated queue 1";
/// What to do if the directory cannot be used.
const HINT: &str = "run as root; /run must exist; delete what another user made";

/// What a card was like before one of its queues was isolated, and what was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Name of the interface at that time.
    pub interface: String,
    /// Driver and bus address.
    pub card: String,
    /// The isolated queue.
    pub queue: u32,
    /// Whether the feature `ntuple` was off and has been switched on.
    pub ntuple_was_off: bool,
    /// The indirection table before.
    pub before: Vec<u32>,
    /// Whether that was the kernel's default.
    pub is_default: bool,
    /// The indirection table since then.
    pub after: Vec<u32>,
    /// Locations of rules that existed before.
    pub locations: Vec<u32>,
    /// The added rules.
    pub rules: Vec<RuleSpec>,
    /// Locations of the added rules: until all steps are done, those that are known.
    pub added: Vec<u32>,
    /// Whether all steps are done.
    pub is_complete: bool,
}

impl Record {
    fn to_text(&self) -> String {
        let list = |list: &[u32]| {
            let words: Vec<_> = list.iter().map(u32::to_string).collect();
            words.join(" ")
        };
        let yes_or_no = |is| if is { "yes" } else { "no" };
        let mut text = format!("{HEAD}\ninterface {}\ncard {}\n", self.interface, self.card);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "queue {}\nntuple_was_off {}\nbefore {}\nis_default {}\nafter {}\nlocations {}\n\
             added {}\nis_complete {}\n",
            self.queue,
            yes_or_no(self.ntuple_was_off),
            list(&self.before),
            yes_or_no(self.is_default),
            list(&self.after),
            list(&self.locations),
            list(&self.added),
            yes_or_no(self.is_complete),
        );
        for rule in &self.rules {
            text += &format!("rule {}\n", rule.to_hex());
        }
        text + "end\n"
    }

    /// Parses the text of a record; `None` if it is anything else.
    fn parse(text: &str) -> Option<Record> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let mut field = |name: &str| {
            let line = lines.next()?;
            let rest = line.strip_prefix(name)?;
            Some(rest.strip_prefix(' ').unwrap_or(rest))
        };
        let mut record = Record {
            interface: field("interface")?.to_owned(),
            card: field("card")?.to_owned(),
            queue: field("queue")?.parse().ok()?,
            ntuple_was_off: yes_or_no(field("ntuple_was_off")?)?,
            before: numbers(field("before")?)?,
            is_default: yes_or_no(field("is_default")?)?,
            after: numbers(field("after")?)?,
            locations: numbers(field("locations")?)?,
            added: numbers(field("added")?)?,
            is_complete: yes_or_no(field("is_complete")?)?,
            rules: Vec::new(),
        };
        for line in lines.by_ref() {
            match line.strip_prefix("rule ") {
                Some(digits) => record.rules.push(RuleSpec::from_hex(digits)?),
                None if line == "end" => return Some(record),
                None => return None,
            }
        }
        None
    }
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    let words = text.split_ascii_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// A directory of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
}

impl Default for Store {
    fn default() -> Self {
        Self::in_folder(records::FOLDER)
    }
}

impl Store {
    /// The records in a directory, which is created when needed; it is refused if other users can
    /// write in it.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The file of an interface's record.
    pub fn file(&self, device: &dyn Device) -> PathBuf {
        self.folder.join(format!("isolate-{}", device.key()))
    }

    /// Waits until no other process changes records or cards, until the result is dropped.
    pub(super) fn turn(&self) -> Result<File> {
        let failed = |error| Error::from_io(format!("lock {}", self.folder.display()), error);
        records::open_folder(&self.folder)
            .and_then(|folder| folder.lock().map(|()| folder))
            .map_err(|error| failed(error).with_hint(HINT))
    }

    /// The record of an interface, if it has an isolated queue.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(&self, device: &dyn Device) -> Result<Option<Record>> {
        let file = self.file(device);
        let what = || format!("read the record {}", file.display());
        let text =
            records::read(&file).map_err(|error| Error::from_io(what(), error).with_hint(HINT))?;
        let Some(text) = text else {
            return Ok(None);
        };
        let Some(record) = Record::parse(&text) else {
            let name = device.name();
            let why = "it is damaged";
            return Err(Error::new(ErrorKind::Damaged, what(), why).with_hint(format!(
                "`ethtool -X {name} default` and `ethtool -N {name} delete N` restore the card; \
                 then delete the file"
            )));
        };
        // Another card may have the index now.
        Ok(Some(record).filter(|record| record.card == device.card()))
    }

    /// Writes a record completely or not at all; the result marks it as in use.
    pub(super) fn write(&self, device: &dyn Device, record: &Record) -> Result<File> {
        records::write(&self.file(device), &record.to_text()).map_err(|error| {
            let what = format!("record the state of {}", record.interface);
            Error::from_io(what, error).with_hint(HINT)
        })
    }

    /// Whether a process that lives uses the record.
    pub(super) fn is_owned(&self, device: &dyn Device) -> bool {
        let open = records::open(&self.file(device)).ok().flatten();
        open.is_some_and(|open| matches!(open.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    pub(super) fn remove(&self, device: &dyn Device) -> Result<()> {
        let file: &Path = &self.file(device);
        fs::remove_file(file)
            .map_err(|error| Error::from_io(format!("delete {}", file.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_written_and_parsed() {
        let mut record = Record {
            interface: "eth0".into(),
            card: "igb 0000:01:00.0".into(),
            queue: 3,
            ntuple_was_off: true,
            before: vec![0, 1, 2, 3],
            is_default: true,
            after: vec![0, 1, 2, 0],
            locations: Vec::new(),
            rules: Vec::new(),
            added: Vec::new(),
            is_complete: false,
        };
        assert_eq!(Record::parse(&record.to_text()), Some(record.clone()));
        record.locations = vec![7, 9];
        (record.added, record.is_complete) = (vec![62, 61], true);
        record.rules = vec![RuleSpec::from_hex(&"a0".repeat(148)).unwrap(); 2];
        let text = record.to_text();
        assert_eq!(Record::parse(&text), Some(record));
        // No part of it is a record.
        for end in 0..text.len() - 1 {
            assert_eq!(Record::parse(&text[..end]), None, "{end}");
        }
        assert_eq!(Record::parse(&text.replace("queue 3", "queue x")), None);
    }
}
