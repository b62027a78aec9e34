//! The thread of a cluster: adopts packets, chooses their queues, hands them over, and takes back
//! the frames that readers have returned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::vec::Drain;

use port::{Intake, RxBatch, RxQueue};
use ring::shared::{Offer, OwnerEnd};
use ring::slot::Slot;
use ring::{Frame, FrameCache, Pool};
use sys::{Error, Result};

use super::application::{Application, WhenFull};
use super::back::Back;
use super::inputs::Inputs;
use super::merge::{Merge, now_ns};
use super::select::{Selector, Usual};
use super::{Shared, Totals};
use crate::Stop;
use crate::worker::{self, Engine, Verdict};

/// Sleep of the thread while a queue has no room.
pub(super) const NAP: Duration = Duration::from_micros(200);

/// Packets adopted at once: few enough that headers, records and slots stay in the L1 cache until
/// they are handed over.
const BLOCK: usize = 128;

/// What the mover does.
pub(super) struct Plan {
    pub applications: Vec<Application>,
    pub selector: Selector,
    /// What happens to packets without room, of each application.
    pub when_full: Vec<WhenFull>,
    pub intake: Intake,
    pub count: Option<u64>,
    /// How long packets wait for earlier ones of other inputs.
    pub merge: Option<Duration>,
    /// Where packets go that readers send.
    pub back: Back,
    /// The queues that ports of this process read.
    pub read_inside: Vec<usize>,
    pub inputs: Inputs,
}

/// The queues of one application, and what happens to packets for which they have no room.
pub(super) struct Group {
    /// One bit for each queue.
    pub(super) queues: u64,
    pub(super) when_full: WhenFull,
    /// Packets that went to another queue of the application.
    spilled: u64,
    /// Packets without tunnel headers, and how many of them were copied.
    pub(super) detunnelled: u64,
    pub(super) copied: u64,
}

/// The receiving queues, and everything behind them.
pub(super) struct Mover {
    pub(super) rx: Vec<RxQueue>,
    pub(super) out: Out,
}

pub(super) struct Out {
    pub(super) ends: Vec<OwnerEnd>,
    pub(super) applications: Vec<Application>,
    /// The process that reads each queue, or 0.
    pub(super) readers: Vec<u32>,
    pub(super) cache: FrameCache,
    pub(super) shared: Arc<Shared>,
    pub(super) offer: Arc<Offer>,
    pub(super) selector: Selector,
    pub(super) groups: Vec<Group>,
    pub(super) back: Back,
    pub(super) has_way_back: bool,
    /// Whether a port takes frames from this pool, too.
    has_takers: bool,
    /// Whether an application does something else than to drop packets without room.
    has_policies: bool,
    intake: Intake,
    pub(super) stop: Stop,
    /// Packets that may still be handed over.
    left: Option<u64>,
    totals: Totals,
    pub(super) frames: Vec<Frame>,
    /// The frames of one packet.
    pub(super) chain: Vec<Frame>,
    merge: Option<Merge>,
    /// Queues that had no room within the bound: packets for them are dropped until they have.
    pub(super) stuck: u64,
    is_draining: bool,
    pub(super) inputs: Inputs,
}

impl Mover {
    pub fn new(
        rx: Vec<RxQueue>,
        ends: Vec<OwnerEnd>,
        cache: FrameCache,
        plan: Plan,
        shared: Arc<Shared>,
        offer: Arc<Offer>,
        stop: &Stop,
    ) -> Self {
        let mut first = 0;
        let group = |(application, &when_full): (&Application, &WhenFull)| {
            let queues = first..first + application.queue_count;
            first = queues.end;
            Group {
                queues: queues.map(|queue| 1 << queue).sum(),
                when_full,
                spilled: 0,
                detunnelled: 0,
                copied: 0,
            }
        };
        let groups = plan.applications.iter().zip(&plan.when_full);
        let groups: Vec<Group> = groups.map(group).collect();
        // One queue is in order.
        let merge = plan.merge.filter(|_| rx.len() > 1);
        let has_way_back = plan.back.is_used();
        let mut readers = vec![0; ends.len()];
        for queue in plan.read_inside {
            readers[queue] = std::process::id();
            let its = &shared.queues[queue];
            its.reader.store(readers[queue].into(), Ordering::Relaxed);
            its.readers.store(1, Ordering::Relaxed);
        }
        let mut mover = Self {
            rx,
            out: Out {
                readers,
                has_way_back,
                has_takers: false,
                back: plan.back,
                ends,
                applications: plan.applications,
                cache,
                shared,
                offer,
                groups,
                has_policies: plan.when_full.iter().any(|it| *it != WhenFull::Drop),
                selector: plan.selector,
                intake: plan.intake,
                stop: stop.clone(),
                left: plan.count,
                totals: Totals::default(),
                frames: Vec::new(),
                chain: Vec::new(),
                merge: merge.map(Merge::new),
                stuck: 0,
                is_draining: false,
                inputs: plan.inputs,
            },
        };
        mover.out.find_takers(&mover.rx);
        mover
    }

    /// Handles what is still in the rings of the ports, after their intake was stopped.
    pub fn drain(&mut self) -> Result<()> {
        let mut result = Ok(());
        // The rest of a file can be read another time.
        if self.out.intake != Intake::File {
            self.out.is_draining = true;
            for rx in &mut self.rx {
                result = result.and(worker::drain(rx, &mut self.out));
            }
        }
        self.out.release(true);
        result
    }
}

impl Engine for Out {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        self.totals.received += batch.len() as u64;
        self.totals.received_bytes += batch.received_bytes();
        self.set_now();
        self.all(batch);
        self.release(false);
        self.flush();
        self.collect();
        self.publish();
        self.serve();
        Ok(self.verdict())
    }

    fn idle(&mut self) -> Result<Verdict> {
        self.set_now();
        self.release(false);
        self.flush();
        self.collect();
        self.publish();
        self.serve();
        Ok(match self.inputs.has_changed {
            true => Verdict::Finish,
            false => Verdict::Continue,
        })
    }

    fn failed(&mut self, queue: &RxQueue, error: Error) -> Result<()> {
        self.lose(queue, error)
    }
}

impl Out {
    /// The last packet ends the loop, and so does a change of the inputs.
    fn verdict(&self) -> Verdict {
        let is_over = self.left == Some(0) || self.inputs.has_changed;
        match is_over && !self.is_draining {
            true => Verdict::Finish,
            false => Verdict::Continue,
        }
    }

    /// Finds out whether a port takes frames from this pool.
    pub(super) fn find_takers(&mut self, rx: &[RxQueue]) {
        let pool = self.cache.pool();
        self.has_takers = self.has_way_back || rx.iter().any(|rx| rx.has_frames_of(pool));
    }

    /// Hands over the packets of a batch, until it is empty.
    fn all(&mut self, batch: &mut RxBatch<'_>) {
        while !batch.is_empty() {
            let max = self.left.unwrap_or(u64::MAX);
            if max == 0 {
                self.totals.surplus += batch.len() as u64;
                batch.skip(batch.len());
                return;
            }
            let max = usize::try_from(max).map_or(BLOCK, |max| max.min(BLOCK));
            let are_read = self.selector.reads_packets();
            let adopted = batch.adopt(&mut self.cache, &mut self.frames, max, are_read);
            self.totals.adopted += adopted.packets as u64;
            self.totals.copied += adopted.copied as u64;
            self.totals.too_long += adopted.too_long as u64;
            if let Some(left) = &mut self.left {
                *left -= (adopted.packets + adopted.too_long) as u64;
            }
            self.hand_over();
            let is_done = batch.is_empty() || self.left == Some(0);
            if !is_done && adopted.packets + adopted.too_long == 0 && !self.wait_for_frames() {
                let rest = batch.len();
                match self.intake {
                    Intake::Live => self.totals.pool_empty += rest as u64,
                    _ => self.totals.abandoned += rest as u64,
                }
                batch.skip(rest);
            }
        }
    }

    /// Waits until readers have returned frames. Returns false for an input that does not wait.
    fn wait_for_frames(&mut self) -> bool {
        self.flush();
        if self.collect() != 0 {
            return true;
        }
        let may_wait = self.intake != Intake::Live && !self.stop.is_set();
        if may_wait {
            self.serve();
            std::thread::sleep(NAP);
        }
        may_wait
    }

    fn set_now(&mut self) {
        if self.merge.is_none() && !self.selector.is_timed() {
            return;
        }
        let now = now_ns();
        self.selector.set_now(now);
        if let Some(merge) = &mut self.merge {
            merge.set_now(now);
        }
    }

    /// Passes adopted packets on: to the queues, or to the others that wait for earlier ones.
    fn hand_over(&mut self) {
        let Some(merge) = &mut self.merge else {
            return self.hand_all();
        };
        let pool = self.cache.pool();
        let mut frames = self.frames.drain(..);
        while let Some(first) = frames.next() {
            let descriptor = pool.descriptor(&first);
            let mut rest = Vec::new();
            let mut continues = descriptor.continues();
            while continues && let Some(frame) = frames.next() {
                continues = pool.continues(&frame);
                rest.push(frame);
            }
            let has_time = descriptor.info & u64::from(Slot::TIME) != 0;
            // Without a time, now.
            let time_ns = if has_time {
                descriptor.time_ns
            } else {
                u64::MAX
            };
            merge.add(time_ns, first, rest);
        }
        drop(frames);
        self.totals.late = merge.late();
        // More than fit.
        self.release(false);
    }

    /// Hands over the packets that have waited for earlier ones of other inputs; with `is_end`, all
    /// of them.
    pub(super) fn release(&mut self, is_end: bool) {
        let Some(merge) = &mut self.merge else {
            return;
        };
        while let Some((first, rest)) = merge.next(is_end) {
            self.frames.push(first);
            self.frames.extend(rest);
        }
        if !self.frames.is_empty() {
            self.hand_all();
        }
    }

    /// Hands each packet to one queue of every application.
    fn hand_all(&mut self) {
        if self.selector.detunnelled() != [0; 2] {
            return self.hand_each();
        }
        let mut frames = std::mem::take(&mut self.frames);
        let pool = self.cache.pool().clone();
        let mut run = frames.drain(..);
        while let Some((frame, selected)) = self.hand_run(&pool, &mut run) {
            if pool.continues(&frame) {
                self.hand_chain(&pool, frame, &mut run);
                continue;
            }
            // One of the selected queues has no room.
            let selected = self.with_room(selected, 1);
            if let Err(frame) = OwnerEnd::hand_frame(&mut self.ends, selected, frame) {
                // A frame of this pool is accepted.
                let _ = self.cache.give(frame);
            }
        }
        drop(run);
        self.frames = frames;
    }

    /// Hands over packets of one frame each, until one of their queues has no room.
    fn hand_run(&mut self, pool: &Pool, run: &mut Drain<'_, Frame>) -> Option<(Frame, u64)> {
        let (ends, cache, selector) = (&mut self.ends, &mut self.cache, &mut self.selector);
        match selector.usual() {
            Some(Usual::Only(queue)) => OwnerEnd::hand_run(ends, cache, run, |_| queue),
            Some(Usual::RoundRobin(mut by)) => {
                OwnerEnd::hand_run(ends, cache, run, |_| by.select())
            }
            Some(Usual::Hash(mut by)) => {
                OwnerEnd::hand_run(ends, cache, run, |frame| by.select(pool, frame))
            }
            None => {
                let readers = &self.readers;
                let select =
                    |frame: &Frame| selector.select(pool, std::slice::from_ref(frame), readers);
                OwnerEnd::hand_run(ends, cache, run, select)
            }
        }
    }

    /// Hands over a packet of several frames, of which `run` has the others.
    fn hand_chain(&mut self, pool: &Pool, first: Frame, run: &mut Drain<'_, Frame>) {
        let mut chain = std::mem::take(&mut self.chain);
        chain.push(first);
        for frame in run {
            let continues = pool.continues(&frame);
            chain.push(frame);
            if !continues {
                break;
            }
        }
        let selected = self.selector.select(pool, &chain, &self.readers);
        let selected = self.with_room(selected, chain.len() as u32);
        OwnerEnd::hand_frames(&mut self.ends, selected, &mut chain);
        for frame in chain.drain(..) {
            let _ = self.cache.give(frame);
        }
        self.chain = chain;
    }

    /// The queues to which a packet of `count` frames goes, of those selected.
    #[inline]
    pub(super) fn with_room(&mut self, selected: u64, count: u32) -> u64 {
        match self.has_policies {
            true => self.make_room(selected, count),
            false => selected,
        }
    }

    /// Waits for room in the selected queues, or selects others, if their applications want it.
    #[inline]
    fn make_room(&mut self, mut selected: u64, count: u32) -> u64 {
        let ready = OwnerEnd::with_room(&mut self.ends, selected, count);
        self.stuck &= !ready;
        if ready != selected {
            selected = self.spill(selected, ready, count);
            self.block(selected & !self.stuck, count);
        }
        selected
    }

    /// Replaces queues without room by others of their applications, where these spill.
    pub(super) fn spill(&mut self, mut selected: u64, ready: u64, count: u32) -> u64 {
        for group in &mut self.groups {
            let full = selected & !ready & group.queues;
            if group.when_full != WhenFull::Spill || full == 0 {
                continue;
            }
            let others = OwnerEnd::with_room(&mut self.ends, group.queues & !full, count);
            // The next one behind it, or else the first.
            let behind = others & !(full | (full - 1));
            let chosen = if behind == 0 { others } else { behind };
            if chosen != 0 {
                selected = selected & !full | 1 << chosen.trailing_zeros();
                group.spilled += 1;
            }
        }
        selected
    }

    /// Waits for room in the wanted queues, as far as and as long as their applications block.
    #[cold]
    fn block(&mut self, wanted: u64, count: u32) {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let (mut blocking, mut late) = (0, 0);
            for group in &self.groups {
                match group.when_full {
                    WhenFull::Block(limit) if limit.is_none_or(|limit| waited < limit) => {
                        blocking |= group.queues & wanted;
                    }
                    WhenFull::Block(_) => late |= group.queues & wanted,
                    WhenFull::Drop | WhenFull::Spill => {}
                }
            }
            let missing = |ends: &mut [OwnerEnd], queues: u64| {
                queues & !OwnerEnd::with_room(ends, queues, count)
            };
            self.stuck |= missing(&mut self.ends, late);
            let missing = missing(&mut self.ends, blocking);
            if missing == 0 {
                return;
            }
            if self.stop.is_set() {
                self.stuck |= missing;
                return;
            }
            self.flush();
            self.collect();
            self.publish();
            self.serve();
            if missing & !OwnerEnd::with_room(&mut self.ends, missing, count) != 0 {
                std::thread::sleep(NAP);
            }
        }
    }

    pub(super) fn flush(&mut self) {
        OwnerEnd::flush_all(&mut self.ends);
    }

    /// Takes back returned frames; returns their number.
    pub(super) fn collect(&mut self) -> u32 {
        self.bounce();
        let frames = OwnerEnd::collect_all(&mut self.ends, &mut self.cache).frames;
        if self.has_takers {
            // The ports' caches fetch them from the shared list.
            self.cache.keep_an_eighth();
        }
        frames
    }

    /// Publishes the counts, once a batch.
    pub(super) fn publish(&mut self) {
        self.shared.set_totals(&self.totals);
        for (end, shared) in self.ends.iter().zip(&self.shared.queues) {
            shared.set(&end.counts(), end.depth());
        }
        if self.has_way_back {
            for (sent, shared) in self.sent().zip(&self.shared.queues) {
                shared.set_sent(&sent);
            }
        }
        let counts = self.groups.iter().zip(self.selector.counts());
        for ((group, mut counts), shared) in counts.zip(&self.shared.applications) {
            counts.spilled = group.spilled;
            (counts.detunnelled, counts.copied) = (group.detunnelled, group.copied);
            for (place, (_, count)) in shared.0.iter().zip(counts.named()) {
                place.store(count, Ordering::Relaxed);
            }
        }
    }

    /// Handles requests of the other thread.
    #[inline]
    pub(super) fn serve(&mut self) {
        let shared = &self.shared;
        if shared.look.load(Ordering::Relaxed) {
            shared.look.store(false, Ordering::Relaxed);
            self.look();
        }
        if self.shared.has_callers.load(Ordering::Acquire) {
            self.admit_all();
        }
        if self.shared.has_arrived.load(Ordering::Acquire) {
            self.take_arrived();
        }
    }
}
