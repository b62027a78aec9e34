//! Files in formats that are not text.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use ::scan::report::{Ending, Run, TableFile, TableFormat, TableOptions};
use sys::{Error, Result};

use super::{Notice, Outcome, Rotation, Totals, WAIT_MAX, ended, next_number, numbered};
use crate::scan::now;

/// A file in a format that is not text.
pub(super) struct TableOutput {
    format: &'static TableFormat,
    /// The name as given, and the number of this file in its series.
    name: PathBuf,
    number: u32,
    path: PathBuf,
    file: Box<dyn TableFile>,
    run: Run,
    opened: Instant,
    has_rows: bool,
    totals: Totals,
    committed: Instant,
    /// Whether a write has failed.
    is_broken: bool,
}

impl std::fmt::Debug for TableOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.format, self.path.display())
    }
}

/// Opens the file with this number of a series.
fn open(
    format: &TableFormat,
    (name, number): (&PathBuf, u32),
    run: &Run,
    (append, keep): (bool, &[(u64, u64)]),
) -> Result<Box<dyn TableFile>> {
    let path = &numbered(name, number);
    let options = TableOptions {
        path,
        run,
        append,
        keep,
    };
    (format.open)(&options).map_err(|error| {
        let is_other = append && error.kind() == io::ErrorKind::InvalidInput;
        let error = Error::from_io(format!("write {}", path.display()), error);
        match is_other {
            true => error.with_hint("write to another file, or remove this one"),
            false => error,
        }
    })
}

impl TableOutput {
    /// Opens a file. Nothing is in it yet, unless it is continued.
    pub fn open(
        format: &'static TableFormat,
        (name, number): (PathBuf, u32),
        run: &Run,
        append: bool,
        keep: &[(u64, u64)],
    ) -> Result<Self> {
        let file = open(format, (&name, number), run, (append, keep))?;
        let mut opened = Self {
            format,
            number,
            path: numbered(&name, number),
            name,
            file,
            run: run.clone(),
            opened: Instant::now(),
            has_rows: false,
            totals: Totals::default(),
            committed: Instant::now(),
            is_broken: false,
        };
        opened.commit(&Totals::default(), None)?;
        Ok(opened)
    }

    /// Device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.file.identity()
    }

    /// Records a notice.
    pub fn note(&mut self, notice: &Notice<'_>) -> Result<()> {
        if self.is_broken {
            return Ok(());
        }
        let added = match notice {
            Notice::Found(found) => self.file.answer(found),
            Notice::Banner(banner, time) => self.file.banner(banner, *time),
            Notice::Progress(totals, _) => {
                self.totals = **totals;
                return self.commit(totals, None);
            }
            _ => return Ok(()),
        };
        self.has_rows = true;
        self.checked(added)?;
        if self.committed.elapsed() >= WAIT_MAX {
            let totals = self.totals;
            return self.commit(&totals, None);
        }
        Ok(())
    }

    /// Whether the next file is to be begun.
    pub fn is_due(&self, rotation: Rotation) -> bool {
        let is_over = match rotation {
            Rotation::Size(len) => self.file.len() >= len,
            Rotation::Age(age) => self.opened.elapsed() >= age,
        };
        is_over && self.has_rows && !self.is_broken
    }

    /// Begins the next file.
    pub fn rotate(&mut self, keep: &mut Vec<(u64, u64)>) -> Result<()> {
        let totals = self.totals;
        let last = Ending {
            totals: &totals,
            now: now(),
            result: None,
        };
        let committed = self.file.commit(&last).and_then(|()| self.file.close());
        self.checked(committed)?;
        let place = (self.name.clone(), next_number(&self.name, self.number));
        let opened = Self::open(self.format, place, &self.run, false, keep);
        let mut next = opened.inspect_err(|_| self.is_broken = true)?;
        keep.push(next.identity());
        next.totals = totals;
        *self = next;
        Ok(())
    }

    /// Writes the new rows; with an outcome, the file is complete then.
    pub fn commit(&mut self, totals: &Totals, outcome: Option<&Outcome>) -> Result<()> {
        self.committed = Instant::now();
        if self.is_broken {
            return Ok(());
        }
        let error = outcome.and_then(|outcome| outcome.error.as_ref());
        let error = error.map(ToString::to_string);
        let ending = Ending {
            totals,
            now: now(),
            result: outcome.map(|outcome| ended(outcome, error.as_deref())),
        };
        let mut written = self.file.commit(&ending);
        if outcome.is_some() {
            written = written.and_then(|()| self.file.close());
        }
        self.checked(written)
    }

    fn checked(&mut self, result: io::Result<()>) -> Result<()> {
        self.is_broken |= result.is_err();
        let what = || format!("write {}", self.path.display());
        result.map_err(|error| Error::from_io(what(), error))
    }
}
