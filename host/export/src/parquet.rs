//! Parquet: files in directories by time, `date=2026-11-22/hour=01/NAME.parquet`, as Hive names
//! them.
//!
//! Records are held in memory until they fill a row group, or until files are rotated by the clock;
//! then they are sorted by start time and written to the files of their hours. Records in a file
//! that is complete, under its final name and on disk, count as exported; others do not.
//!
//! Bounds: at most [`Config::group_len`] records are held; a row group of them is built in memory,
//! column by column; at most [`FILES_MAX`] files are open at a time.

mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use flow::encode::Sum;
use flow::encode::extra_fields::ExtraFields;
use flow::{EndReason, Extra, OwnedExtra, Record};
use sys::{Error, ErrorKind, Result};
use wire::Timestamp;

pub(crate) use self::file::properties;
use self::file::{File, Layout};
use crate::account::DropReason;
use crate::columns::Rows;
use crate::exporters::Setup;
use crate::part::Part;
use crate::rotation::Rotation;
use crate::target::{Partition, Place, Target};
use crate::worker::{Batch, Records, Shared, lock, now_ns};

/// Default number of records in a row group.
pub(crate) const GROUP_LEN: usize = 128 << 10;
/// Maximum number of open files: for another hour's records, the file started first is completed.
const FILES_MAX: usize = 4;
/// Maximum number of row groups in a file: each costs some kilobytes of memory until the file is
/// completed.
const GROUPS_MAX: usize = 256;
/// Default rotation of files.
const ROTATION: Rotation = Rotation {
    interval: Some(Duration::from_secs(300)),
    len_max: Some(256 << 20),
};
/// Interval at which the clock is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Memory in bytes per record of a row group: the record, its place in the order, and its part of
/// the current column and of the group built from them.
pub(crate) const ROW_MEMORY_LEN: usize = size_of::<(Record, EndReason)>() + size_of::<u32>() + 128;

/// Destination and options.
struct Config {
    root: PathBuf,
    group_len: usize,
    rotation: Rotation,
    partition: Partition,
    extra_fields: ExtraFields,
}

/// An open file, and its hour or day.
struct Open {
    period: u64,
    file: File,
}

/// The store of a destination: all its files.
pub(crate) struct Store {
    config: Config,
    layout: Arc<Layout>,
    /// Records held.
    waiting: Records,
    open: Vec<Open>,
    /// When files were last rotated by the clock.
    began_ns: u64,
    /// Number of files started.
    number: u64,
    tally: Tally,
    shared: Arc<Shared>,
}

/// Counts since the account was last updated.
#[derive(Default)]
struct Tally {
    exported: Sum,
    lost: Sum,
    files: u64,
    groups: u64,
    bytes: u64,
    failures: u64,
    last_failure: Option<String>,
    time_clamped: u64,
}

/// The path that a file started now would have.
pub(crate) fn first_file(root: &Path, partition: Partition) -> PathBuf {
    let period = partition.period(now_ns());
    partition.folder(root, period).join("probe.parquet")
}

/// Opens the store of a target, and checks at once that files can be created.
pub(crate) fn open(target: &Target, setup: &Setup, shared: Arc<Shared>) -> Result<Store> {
    let what = || format!("export to {:?}", target.text);
    let root = match &target.place {
        Place::Path(path) if path.as_os_str() != "-" => path.clone(),
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                what(),
                "a directory is required",
            ));
        }
    };
    Part::create(&root.join("probe.parquet")).map_err(|e| Error::from_io(what(), e))?;
    let options = &target.options;
    let layout = Layout::new(options.is_nano, &setup.extra_fields)
        .map_err(|e| Error::new(ErrorKind::InvalidInput, what(), e.to_string()))?;
    let rotation = if options.rotation.is_some() {
        options.rotation
    } else {
        ROTATION
    };
    Ok(Store {
        config: Config {
            root,
            group_len: options.group_len.unwrap_or(group_len(&setup.extra_fields)),
            rotation: Rotation {
                interval: rotation.interval,
                len_max: rotation.len_max.or(ROTATION.len_max),
            },
            partition: options.partition,
            extra_fields: setup.extra_fields,
        },
        layout: Arc::new(layout),
        waiting: Records::default(),
        open: Vec::new(),
        began_ns: now_ns(),
        number: 0,
        tally: Tally::default(),
        shared,
    })
}

impl Store {
    /// Runs until the queue has no sender any more and is empty.
    pub fn run(mut self, batches: &Receiver<Batch>) {
        {
            let mut account = lock(&self.shared.account);
            account.sessions = 1;
            account.is_connected = true;
        }
        loop {
            match batches.recv_timeout(CHECK_INTERVAL) {
                Ok(batch) => self.take(&batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.due(now_ns());
            self.report();
        }
        self.end_files();
        self.report();
        lock(&self.shared.account).is_connected = false;
    }

    fn take(&mut self, batch: &Records) {
        for (at, (record, reason)) in batch.records.iter().enumerate() {
            let waiting = &mut self.waiting;
            if let Some(extra) = batch.extras.get(at) {
                // Records before it had none.
                waiting
                    .extras
                    .resize_with(waiting.records.len(), OwnedExtra::default);
                let mut kept = OwnedExtra::default();
                let extra = extra.get();
                // Lists and histograms without a column are not kept.
                let fields = &self.config.extra_fields;
                kept.set(&Extra {
                    packets: if fields.packets { extra.packets } else { &[] },
                    timing: extra.timing.filter(|_| fields.timing),
                    bytes: extra.bytes.filter(|_| fields.bytes),
                    ..extra
                });
                waiting.extras.push(kept);
            }
            waiting.records.push((*record, *reason));
            if waiting.records.len() >= self.config.group_len {
                self.write();
            }
        }
    }

    /// Does what is due by the clock.
    fn due(&mut self, now_ns: u64) {
        if self.config.rotation.is_due(self.began_ns, now_ns, 0) {
            self.end_files();
            self.began_ns = now_ns;
        }
    }

    /// Writes the records held and completes all files.
    fn end_files(&mut self) {
        self.write();
        for open in std::mem::take(&mut self.open) {
            self.complete(open.file);
        }
    }

    /// Writes the records held: a row group per hour.
    fn write(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let start = |at: &u32| waiting.records[*at as usize].0.start_ns();
        let mut order: Vec<u32> = (0..waiting.records.len() as u32).collect();
        order.sort_unstable_by_key(start);
        let partition = self.config.partition;
        let period = |at: &u32| partition.period(start(at));
        for order in order.chunk_by(|a, b| period(a) == period(b)) {
            let rows = Rows {
                waiting: &waiting,
                order,
                extra_fields: self.config.extra_fields,
            };
            self.append(order.first().map_or(0, period), &rows);
        }
        let records = waiting.records.iter();
        let is_clamped = records.filter(|(record, _)| self.layout.clamps(record.end_ns()));
        self.tally.time_clamped += is_clamped.count() as u64;
        waiting.records.clear();
        waiting.extras.clear();
        self.waiting = waiting;
    }

    /// Appends a row group to the file of its hour or day.
    fn append(&mut self, period: u64, rows: &Rows<'_>) {
        let at = match self.open.iter().position(|open| open.period == period) {
            Some(at) => at,
            None => match self.begin(period) {
                Ok(at) => at,
                Err(error) => return self.lose(rows, &error),
            },
        };
        let file = &mut self.open[at].file;
        let written = file.append(rows, &self.shared.progress);
        let len_max = self.config.rotation.len_max.unwrap_or(u64::MAX);
        let is_full = file.len() >= len_max || file.group_count() >= GROUPS_MAX;
        if is_full || written.is_err() {
            let open = self.open.remove(at);
            self.complete(open.file);
        }
        if let Err(error) = written {
            self.lose(rows, &error);
        }
    }

    /// Starts a file; another one is completed if there are too many.
    fn begin(&mut self, period: u64) -> std::io::Result<usize> {
        if self.open.len() >= FILES_MAX {
            let first = self.open.remove(0);
            self.complete(first.file);
        }
        self.number += 1;
        let mut path = self.config.partition.folder(&self.config.root, period);
        path.push(name(now_ns(), self.number));
        let file = File::create(&path, &self.layout)?;
        self.open.push(Open { period, file });
        Ok(self.open.len() - 1)
    }

    fn complete(&mut self, file: File) {
        let (held, groups) = (file.held, file.group_count() as u64);
        match file.complete() {
            Ok(Some((_, len))) => {
                self.tally.exported.add(&held);
                self.tally.files += 1;
                self.tally.groups += groups;
                self.tally.bytes += len;
            }
            Ok(None) => {}
            Err(error) => {
                self.tally.lost.add(&held);
                self.failed(&error);
            }
        }
    }

    fn lose(&mut self, rows: &Rows<'_>, error: &std::io::Error) {
        rows.iter()
            .for_each(|row| self.tally.lost.count(row.record));
        self.failed(error);
    }

    fn failed(&mut self, error: &std::io::Error) {
        self.tally.failures += 1;
        self.tally.last_failure = Some(error.to_string());
    }

    fn report(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        if tally.files == 0 && tally.failures == 0 && tally.time_clamped == 0 {
            return;
        }
        let mut account = lock(&self.shared.account);
        account.exported.add(&tally.exported);
        account.dropped[DropReason::WriteFailed as usize].add(&tally.lost);
        account.data_records += tally.exported.flows;
        account.messages += tally.groups;
        account.files += tally.files;
        account.bytes += tally.bytes;
        account.failures += tally.failures;
        account.time_clamped += tally.time_clamped;
        if tally.last_failure.is_some() {
            account.last_failure = tally.last_failure;
        }
    }
}

impl Partition {
    /// The number of the hour or day that contains a time.
    fn period(self, time_ns: u64) -> u64 {
        let seconds = time_ns / 1_000_000_000;
        match self {
            Partition::Hour => seconds / 3600,
            Partition::Day => seconds / 86_400,
            Partition::None => 0,
        }
    }

    /// The directory of its files.
    fn folder(self, root: &Path, period: u64) -> PathBuf {
        let date = |hours: u64| {
            let (year, month, day) = Timestamp(hours * 3_600_000_000_000).date();
            format!("date={year:04}-{month:02}-{day:02}")
        };
        match self {
            Partition::Hour => root
                .join(date(period))
                .join(format!("hour={:02}", period % 24)),
            Partition::Day => root.join(date(period * 24)),
            Partition::None => root.to_owned(),
        }
    }
}

/// A name that is unique across processes and runs: `20261122T013000Z-4711-1.parquet`.
fn name(time_ns: u64, number: u64) -> String {
    let time = Timestamp(time_ns);
    let (year, month, day) = time.date();
    let second = time.seconds() % 86_400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let process = std::process::id();
    format!(
        "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z-{process}-{number}.parquet"
    )
}

/// Default number of rows in a row group: an eighth if each has two histograms of 1 KiB.
fn group_len(extra_fields: &ExtraFields) -> usize {
    match extra_fields.bytes {
        true => GROUP_LEN / 8,
        false => GROUP_LEN,
    }
}

#[cfg(test)]
mod tests;
