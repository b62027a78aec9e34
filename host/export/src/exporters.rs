//! All destinations of a probe: which records they get, and their accounts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flow::element::Column;
use flow::encode::Sum;
use flow::encode::extra_fields::ExtraFields;
use flow::{EndReason, Extra, HashKey, OwnedExtra, Record, Sampling};
use sys::{Error, Result};

use crate::account::{Account, DropReason};
use crate::end::{self, Patience};
use crate::folder::{self, Later};
use crate::format::{Make, Work};
use crate::target::{Place, Target};
use crate::worker::{Batch, Records, Shared, Worker, lock};

/// Records in a batch.
const BATCH_LEN: usize = 256;
/// Default number of queued records per destination.
const QUEUE_LEN: usize = 64 << 10;
/// The default if the input waits: more would only fall out of the caches before their turn.
const QUEUE_LEN_WAITING: usize = 4 << 10;
/// Maximum number of batches tracked for reuse. They keep their memory until then, so they are few:
/// after congestion the others are freed.
const BORROWED_MAX: usize = QUEUE_LEN_WAITING / BATCH_LEN + 2;
/// Default time that a file's reader waits for a stalled destination.
const WAIT: Duration = Duration::from_secs(30);
/// How long to wait for a file at the end: a busy disk may take seconds to sync.
const WAIT_ASKED_FILE: Duration = Duration::from_secs(30);

/// First pause before a full queue is checked again; doubled each time.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Distribution of records to destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanOut {
    /// Every destination gets all records.
    #[default]
    All,
    /// Each gets a share, by a hash of the key without a secret ([`flow::FlowKey::hash_with`]): all
    /// records of a flow go to the same one, also in the next run and in the next version.
    Hash,
}

/// What formats need in addition to the records.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Distribution of records to destinations.
    pub fan_out: FanOut,
    /// Fields added to the standard record.
    pub extra_fields: ExtraFields,
    /// The port receives one in N packets.
    pub sampling: u32,
    /// Sampling of packets, then of records, in this process.
    pub selectors: [Sampling; 2],
    /// The kernel's index of the packets' interface; 0 if unknown.
    pub interface: u32,
    /// Names of interfaces.
    pub interfaces: Vec<(u32, String)>,
    /// Columns of the key.
    pub columns: Vec<Column>,
    /// Whether byte counts include link headers.
    pub is_layer2: bool,
    /// Whether the input can wait; then full queues are waited for.
    pub can_wait: bool,
    /// Owner of directories created here, in which files are created later.
    pub owner: Option<(u32, u32)>,
}

/// Statistics of the metering process, for options records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Flows started.
    pub flows: u64,
    /// Packets that belong to no flow.
    pub ignored_packets: u64,
    /// Packets lost before they were metered.
    pub dropped_packets: u64,
    /// No more will follow.
    pub(crate) is_over: bool,
}

/// The job of a destination's thread.
enum Job {
    /// Send messages.
    Worker(Box<Worker>),
    /// Write a store of files.
    Store(Work),
}

impl Job {
    fn run(self) {
        match self {
            Job::Worker(worker) => worker.run(),
            Job::Store(work) => work(),
        }
    }
}

/// A destination as seen by its owner.
pub(crate) struct Handle {
    name: String,
    gathered: Gathered,
    /// `None` once the end was signalled.
    queue: Option<SyncSender<Batch>>,
    /// The job of the thread; `None` once it runs.
    job: Option<Job>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Option<JoinHandle<()>>,
    /// Set once the destination was waited for long enough; it is not waited for again before it
    /// accepts data: the number of its steps, and the time of the last one.
    pub(crate) stall: Option<(u64, Instant)>,
    /// How long it is waited for while stalled.
    pub(crate) patience: Patience,
    /// The file that it writes: device and inode.
    file: Option<(u64, u64)>,
    /// The files that it creates while it runs.
    later: Option<Later>,
    /// Records passed and dropped since the account was last updated.
    offered: Sum,
    queue_full: Sum,
}

/// The destinations of a probe. [`Exporters::finish`] ends them, and so does dropping.
pub struct Exporters {
    handles: Vec<Handle>,
    /// With [`FanOut::All`]: one batch shared by all.
    gathered: Gathered,
    fan_out: FanOut,
    can_wait: bool,
    /// Sampling as reported to collectors.
    sampling: (u32, [Sampling; 2]),
    /// Removed destinations that still send what they have.
    leaving: Vec<Handle>,
    /// When a stop was requested.
    asked_at: Box<dyn Fn() -> Option<Instant> + Send>,
}

/// The result of replacing destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New destinations.
    pub begun: Vec<String>,
    /// Destinations whose file was moved away and was created again.
    pub renewed: Vec<String>,
    /// Destinations that start a new session because the reported sampling has changed.
    pub resampled: Vec<String>,
    /// Files whose sampling records are outdated.
    pub outdated: Vec<String>,
    /// Removed destinations.
    pub ended: Vec<String>,
}

impl Exporters {
    /// Opens all destinations: creates files, reads certificates. Connections are made later, by
    /// the threads that [`Exporters::start`] starts.
    ///
    /// # Errors
    /// If a file cannot be written, a certificate cannot be read, or a protocol is unavailable.
    pub fn open(targets: &[Target], setup: &Setup) -> Result<Exporters> {
        let handles = targets.iter().map(|target| Handle::open(target, setup));
        let handles = handles.collect::<Result<Vec<Handle>>>()?;
        Ok(Exporters {
            handles,
            gathered: Gathered::default(),
            fan_out: setup.fan_out,
            can_wait: setup.can_wait,
            sampling: (setup.sampling, setup.selectors),
            leaving: Vec::new(),
            asked_at: Box::new(|| None),
        })
    }

    /// Once `asked_at` returns the time of a stop request, a stalled destination gets less than a
    /// second from that moment, unless it is a file or `wait=` is set; unsent records are counted.
    pub fn end_when(&mut self, asked_at: impl Fn() -> Option<Instant> + Send + 'static) {
        self.asked_at = Box::new(asked_at);
    }

    /// Replaces the destinations. Those with the same URL continue, unless the file that they write
    /// is no longer at its path: then it is created again; or the reported sampling has changed:
    /// then a new session starts. Removed ones send what they have while the probe continues.
    ///
    /// # Errors
    /// As [`Exporters::open`] and [`Exporters::start`]; then nothing has changed.
    pub fn replace(&mut self, targets: &[Target], setup: &Setup) -> Result<Changes> {
        let mut changes = Changes::default();
        let mut begun = Vec::new();
        let sampling = (setup.sampling, setup.selectors);
        for target in targets {
            let old = self
                .handles
                .iter()
                .find(|handle| handle.name == target.text);
            let is_wrong = sampling != self.sampling && target.format.reports_sampling;
            let is_file = old.is_some_and(|old| old.file.is_some());
            let list = match old {
                None => &mut changes.begun,
                Some(old) if old.has_moved(target) => &mut changes.renewed,
                Some(_) if is_wrong && is_file => {
                    changes.outdated.push(target.text.clone());
                    continue;
                }
                Some(_) if is_wrong => &mut changes.resampled,
                Some(_) => continue,
            };
            begun.push(Handle::open(target, setup)?);
            list.push(target.text.clone());
        }
        start(&mut begun, self.handles.len() + self.leaving.len())?;
        self.flush();
        let mut all = std::mem::take(&mut self.handles);
        for target in targets {
            // The new one, if any.
            let place = begun.iter().position(|handle| handle.name == target.text);
            if let Some(place) = place {
                self.handles.push(begun.remove(place));
            } else if let Some(place) = all.iter().position(|h| h.name == target.text) {
                self.handles.push(all.remove(place));
            }
        }
        for mut handle in all {
            if !targets.iter().any(|target| target.text == handle.name) {
                changes.ended.push(handle.name.clone());
            }
            handle.report();
            handle.close();
            self.leaving.push(handle);
        }
        self.fan_out = setup.fan_out;
        self.sampling = sampling;
        Ok(changes)
    }

    /// Whether files are created while the probe runs.
    pub fn creates_files(&self) -> bool {
        self.handles.iter().any(|handle| handle.later.is_some())
    }

    /// Starts a thread for each destination. Privileges are per thread: drop them before.
    ///
    /// # Errors
    /// If files to be created later could not be created with the current privileges; if a thread
    /// cannot be started.
    pub fn start(&mut self) -> Result<()> {
        start(&mut self.handles, 0)
    }

    /// Maximum memory of the queues in bytes.
    pub fn memory_len(targets: &[Target]) -> usize {
        let bytes = targets.iter().map(|target| {
            let queue = target.options.queue.unwrap_or(QUEUE_LEN);
            let records = (queue.div_ceil(BATCH_LEN) + 2) * BATCH_LEN;
            let queue = records * size_of::<(Record, EndReason)>();
            queue + (target.format.memory_len)(target) + target.sink.memory_len
        });
        bytes.sum()
    }

    /// Exports a record.
    #[inline]
    pub fn ended(&mut self, record: &Record, reason: EndReason) {
        self.take(record, None, reason);
    }

    /// Exports a record with extra fields.
    pub fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        self.take(record, (!extra.is_empty()).then_some(extra), reason);
    }

    #[inline]
    fn take(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        if self.fan_out == FanOut::Hash {
            return self.take_by_hash(record, extra, reason);
        }
        if self.gathered.records.add(record, extra, reason) {
            self.flush();
        }
    }

    fn take_by_hash(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        let hash = record.key().hash_with(&HashKey::from_seed(0));
        let count = self.handles.len().max(1) as u64;
        let index = (hash % count) as usize;
        let Some(handle) = self.handles.get_mut(index) else {
            return;
        };
        if handle.gathered.records.add(record, extra, reason) {
            let batch = handle.gathered.take_batch();
            handle.hand_over(batch, Instant::now(), self.can_wait, &self.asked_at);
        }
    }

    /// Hands over the collected records.
    pub fn flush(&mut self) {
        let (can_wait, asked_at) = (self.can_wait, &self.asked_at);
        // One start time for all: waiting for one must not extend the wait for the next.
        let since = Instant::now();
        if !self.gathered.records.records.is_empty() {
            let batch = self.gathered.take_batch();
            for handle in &mut self.handles {
                handle.hand_over(batch.clone(), since, can_wait, asked_at);
            }
        }
        for handle in &mut self.handles {
            if !handle.gathered.records.records.is_empty() {
                let batch = handle.gathered.take_batch();
                handle.hand_over(batch, since, can_wait, asked_at);
            }
        }
    }

    /// Hands over the collected records and the metering statistics; called about ten times a
    /// second.
    pub fn pulse(&mut self, observed: Observed) {
        self.flush();
        for handle in &mut self.handles {
            handle.report();
            let mut reported = lock(&handle.shared.observed);
            *reported = Observed {
                is_over: reported.is_over,
                ..observed
            };
        }
    }

    /// Whether standard output was the only destination and has failed.
    pub fn is_over(&self) -> bool {
        let mut handles = self.handles.iter();
        !self.handles.is_empty() && handles.all(|handle| lock(&handle.shared.account).is_over)
    }

    /// Destinations and their current accounts.
    pub fn accounts(&mut self) -> Vec<(String, Account)> {
        let mut accounts: Vec<(String, Account)> = Vec::new();
        for handle in self.handles.iter_mut().chain(&mut self.leaving) {
            handle.report();
            let account = lock(&handle.shared.account);
            match accounts.iter_mut().find(|(name, _)| *name == handle.name) {
                Some((_, sum)) => sum.add(&account),
                None => accounts.push((handle.name.clone(), account.clone())),
            }
        }
        accounts
    }

    /// Sends everything that can be sent, and ends. It waits some seconds for an unreachable
    /// collector, less once a stop is requested ([`Exporters::end_when`]). A thread that is then
    /// still blocked is abandoned.
    pub fn finish(&mut self, observed: Observed) -> Vec<(String, Account)> {
        self.pulse(observed);
        self.end();
        self.accounts()
    }

    fn end(&mut self) {
        for handle in &mut self.handles {
            handle.close();
        }
        let handles = self.handles.iter_mut().chain(&mut self.leaving);
        end::wait(handles.collect(), &self.asked_at);
    }
}

/// Starts a thread per destination; they are numbered from `first`.
fn start(handles: &mut [Handle], first: usize) -> Result<()> {
    for later in handles.iter().filter_map(|handle| handle.later.as_ref()) {
        folder::check(&later.file)?;
    }
    for (index, handle) in handles.iter_mut().enumerate() {
        let Some(mut job) = handle.job.take() else {
            continue;
        };
        if let Job::Worker(worker) = &mut job {
            worker.sink.start()?;
        }
        let thread = std::thread::Builder::new()
            .name(format!("export-{}", first + index))
            .spawn(move || job.run())
            .map_err(|e| Error::from_io("start an export thread", e))?;
        handle.thread = Some(thread);
    }
    Ok(())
}

impl Drop for Exporters {
    fn drop(&mut self) {
        self.end();
    }
}

/// The next batch, and the batches still in use by threads.
#[derive(Default)]
struct Gathered {
    records: Records,
    /// In the order in which they were handed over, which is also the order in which they return.
    borrowed: VecDeque<Batch>,
}

impl Gathered {
    /// Takes the collected batch. The next one reuses the memory of one that is no longer in use:
    /// freed and allocated anew for each batch, its pages would have to be faulted in again.
    fn take_batch(&mut self) -> Batch {
        let mut next = Records::default();
        if let Some(first) = self.borrowed.pop_front() {
            match Arc::try_unwrap(first) {
                Ok(mut back) => {
                    back.records.clear();
                    back.extras.clear();
                    next = back;
                }
                Err(first) if self.borrowed.len() < BORROWED_MAX => self.borrowed.push_front(first),
                Err(_) => {}
            }
        }
        let batch = Arc::new(std::mem::replace(&mut self.records, next));
        self.borrowed.push_back(batch.clone());
        batch
    }
}

impl Records {
    /// Adds a record; true when the batch is full.
    #[inline]
    fn add(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) -> bool {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(BATCH_LEN);
        }
        if let Some(extra) = extra {
            // Records before it had none.
            self.extras
                .resize_with(self.records.len(), OwnedExtra::default);
            let mut owned = OwnedExtra::default();
            owned.set(extra);
            self.extras.push(owned);
        }
        self.records.push((*record, reason));
        self.records.len() == BATCH_LEN
    }
}

/// Device and inode of the regular file at a target's path.
fn file_of(target: &Target) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let Place::Path(path) = &target.place else {
        return None;
    };
    let data = std::fs::metadata(path).ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

impl Handle {
    fn open(target: &Target, setup: &Setup) -> Result<Handle> {
        let records = target.options.queue.unwrap_or(match setup.can_wait {
            true => QUEUE_LEN_WAITING,
            false => QUEUE_LEN,
        });
        let (queue, batches) = sync_channel(records.div_ceil(BATCH_LEN));
        let shared = Arc::new(Shared::default());
        let later = Later::of(target);
        if let Some(Later { folder, .. }) = &later {
            folder::create(folder, setup.owner)
                .map_err(|e| Error::from_io(format!("create {}", folder.display()), e))?;
        }
        let mut patience = Patience {
            unasked: target.options.wait.unwrap_or(WAIT),
            asked: Some(target.options.wait.unwrap_or(WAIT_ASKED_FILE)),
        };
        let job = match target.format.make {
            Make::Messages(make) => {
                let sink = (target.sink.open)(target)?;
                let encoder = make(target, setup);
                let worker = Worker::new(target, encoder, sink, batches, shared.clone());
                if file_of(target).is_none() && later.is_none() {
                    patience.asked = worker.patience.asked;
                }
                Job::Worker(Box::new(worker))
            }
            Make::Store(make) => Job::Store(make(target, setup, batches, shared.clone())?),
        };
        Ok(Handle {
            name: target.text.clone(),
            gathered: Gathered::default(),
            queue: Some(queue),
            job: Some(job),
            shared,
            thread: None,
            stall: None,
            patience,
            file: file_of(target),
            later,
            offered: Sum::default(),
            queue_full: Sum::default(),
        })
    }

    /// Whether its file is no longer at its path.
    fn has_moved(&self, target: &Target) -> bool {
        self.file.is_some() && self.file != file_of(target)
    }

    /// Signals that no more records follow: the thread sends what it has, and ends.
    fn close(&mut self) {
        lock(&self.shared.observed).is_over = true;
        self.queue = None;
    }

    /// Hands a batch to the thread. If its queue is full and the input can wait, waits, counting
    /// from `since`.
    fn hand_over(
        &mut self,
        batch: Batch,
        mut since: Instant,
        can_wait: bool,
        asked_at: &dyn Fn() -> Option<Instant>,
    ) {
        let mut sum = Sum::default();
        for (record, _) in &batch.records {
            sum.count(record);
        }
        self.offered.add(&sum);
        let Some(queue) = &self.queue else {
            self.queue_full.add(&sum);
            return;
        };
        let mut waits = can_wait && self.stall.is_none();
        let progress = &self.shared.progress;
        let mut steps = progress.count();
        let mut batch = batch;
        let mut pause = PAUSE_MIN;
        loop {
            match queue.try_send(batch) {
                Ok(()) => {
                    self.stall = None;
                    return;
                }
                Err(TrySendError::Full(back)) if waits => {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(PAUSE_MAX);
                    batch = back;
                    // The thread is waiting for a busy destination.
                    if progress.count() != steps {
                        (steps, since) = (progress.count(), Instant::now());
                    }
                    let left = self.patience.left(asked_at(), since, Instant::now());
                    waits = !left.is_zero();
                }
                Err(_) => {
                    if can_wait {
                        self.stall.get_or_insert((steps, since));
                    }
                    self.queue_full.add(&sum);
                    return;
                }
            }
        }
    }

    /// Updates the account.
    pub(crate) fn report(&mut self) {
        let mut account = lock(&self.shared.account);
        account.offered.add(&std::mem::take(&mut self.offered));
        account.dropped[DropReason::QueueFull as usize].add(&std::mem::take(&mut self.queue_full));
    }
}

#[cfg(test)]
pub(crate) mod tests;
