//! What readers send: their packets go to the ports of the topology's return path, or to the
//! applications that continue the pipeline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use port::TxQueue;
use ring::shared::{OwnerEnd, Taken};
use ring::{Frame, Pool};

use super::application::{Application, WhenFull};
use super::mover::Out;
use super::returns::{self, Return, distinct};

/// Packets taken from a reader before others have their turn.
const ROUND: usize = 256;

/// Packets of one queue's readers: `sent = passed + dropped`, and those that were refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentQueue {
    /// Packets that its readers have sent.
    pub sent: u64,
    /// Packets passed to a port or to other applications.
    pub passed: u64,
    /// Packets that had to be copied: changed or new ones, and those that others read as well.
    pub copied: u64,
    /// Dropped: no frame was free for the copy, no port was named for packets of this input, or
    /// there is no such input.
    pub dropped: u64,
    /// Dropped: a frame that the reader did not hold, or bytes beyond one.
    pub refused: u64,
}

/// Where the packets of an application's readers go.
#[derive(Default)]
struct Route {
    /// The applications that continue the pipeline, as their numbers.
    next: Vec<usize>,
    /// Ports, each for the packets of one input or of all: the first that fits.
    ports: Vec<(Option<u16>, usize)>,
}

/// The ring to the thread of a port.
struct Output {
    tx: TxQueue,
    /// Frames of one packet for which there was no room.
    rest: VecDeque<Frame>,
}

/// A packet that waits for room.
struct Held {
    frames: Vec<Frame>,
    /// The queues that it is for, if they are those of a pipeline, and since when.
    waits: Option<(u64, Instant)>,
}

/// The way back of all queues.
pub(super) struct Back {
    /// By application.
    routes: Vec<Route>,
    /// By queue: its application.
    application_of: Vec<usize>,
    held: Vec<Option<Held>>,
    counts: Vec<SentQueue>,
    outputs: Vec<Output>,
    frames: Vec<Frame>,
    /// Number of interfaces of packets; `None` if more may be found in capture files.
    interface_count: Option<u16>,
}

/// Whether a packet was passed on.
enum Passed {
    Yes,
    Dropped,
    /// There is no room yet.
    Later,
}

impl Output {
    /// Passes on what is left of the last packet; returns whether there is room for the next.
    fn is_ready(&mut self, pool: &Pool) -> bool {
        while let Some(frame) = self.rest.pop_front() {
            debug_assert_eq!(frame.pool_tag(), pool.tag());
            match self.tx.send(frame) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    self.rest.push_front(frame);
                    return false;
                }
                // Of another pool: there are none.
                Err(_) => {}
            }
        }
        true
    }
}

/// The depth of each application in its pipeline: 0 for those that receive from the inputs.
pub(super) fn depths(applications: &[Application]) -> Vec<usize> {
    let number = |name: &String| applications.iter().position(|other| other.name == *name);
    let depth = |application: &Application| {
        let (mut depth, mut at) = (0, application);
        while let Some(source) = at.source.as_ref().and_then(number) {
            (depth, at) = (depth + 1, &applications[source]);
            if depth > applications.len() {
                break;
            }
        }
        depth
    };
    applications.iter().map(depth).collect()
}

impl Back {
    pub fn new(
        applications: &[Application],
        returns: &[Return],
        inputs: &[String],
        outputs: Vec<TxQueue>,
        interface_count: Option<u16>,
    ) -> Self {
        let ports = distinct(applications, returns);
        let mut routes: Vec<Route> = applications.iter().map(|_| Route::default()).collect();
        for (number, application) in applications.iter().enumerate() {
            let source = application.source.as_ref();
            let source =
                source.and_then(|name| applications.iter().position(|it| it.name == *name));
            if let Some(source) = source {
                routes[source].next.push(number);
            }
        }
        for (application, route) in applications.iter().zip(&mut routes) {
            // Those for one input first.
            let number = |from: &String| inputs.iter().position(|input| input == from);
            let rules = returns::rules(application, applications, returns);
            let rules = rules.map(|it| {
                let from = it.from.as_ref().and_then(number);
                let output = ports.iter().position(|port| port.port == it.port);
                (from.map(|from| from as u16), output.unwrap_or_default())
            });
            route.ports = rules.collect();
            route.ports.sort_by_key(|(from, _)| from.is_none());
        }
        let counted = applications.iter().enumerate();
        let of = counted.flat_map(|(at, it)| (0..it.queue_count).map(move |_| at));
        let application_of: Vec<usize> = of.collect();
        Self {
            routes,
            held: application_of.iter().map(|_| None).collect(),
            counts: vec![SentQueue::default(); application_of.len()],
            application_of,
            outputs: outputs
                .into_iter()
                .map(|tx| Output {
                    tx,
                    rest: VecDeque::new(),
                })
                .collect(),
            frames: Vec::new(),
            interface_count,
        }
    }

    /// Whether readers of a queue may send.
    pub fn may_send(&self, queue: usize) -> bool {
        let route = &self.routes[self.application_of[queue]];
        !route.next.is_empty() || !route.ports.is_empty()
    }

    /// Whether readers of any queue may.
    pub fn is_used(&self) -> bool {
        (0..self.held.len()).any(|queue| self.may_send(queue))
    }

    /// Ends the threads of the ports, once they have sent what they were given.
    pub fn close(&mut self) {
        self.outputs.clear();
    }

    fn has_held(&self) -> bool {
        self.held.iter().any(Option::is_some)
    }
}

impl Out {
    /// Passes on what readers have sent.
    pub(super) fn bounce(&mut self) {
        if !self.has_way_back {
            return;
        }
        for queue in 0..self.ends.len() {
            self.bounce_queue(queue, ROUND);
        }
        for output in &mut self.back.outputs {
            output.is_ready(self.cache.pool());
            // A ring in memory: nothing can fail.
            let _ = output.tx.flush();
        }
        // What went to other applications.
        self.flush();
    }

    /// Whether a reader has sent packets that were not passed on yet.
    pub(super) fn is_bouncing(&mut self) -> bool {
        self.has_way_back
            && (self.back.has_held()
                || self
                    .back
                    .outputs
                    .iter()
                    .any(|output| !output.rest.is_empty())
                || self.ends.iter_mut().any(OwnerEnd::has_sent))
    }

    /// Passes on everything that a reader has sent which has exited; false if there is no room yet.
    pub(super) fn bounce_last(&mut self, queue: usize) -> bool {
        if !self.has_way_back {
            return true;
        }
        // No more than its ring holds.
        self.bounce_queue(queue, ring::shared::SEND_COUNT_MAX as usize);
        self.back.held[queue].is_none() && !self.ends[queue].has_sent()
    }

    /// Passes on what a reader has sent, at most so many parts of packets.
    fn bounce_queue(&mut self, queue: usize, count: usize) {
        if self.back.held[queue].is_none() && !self.ends[queue].has_sent() {
            return;
        }
        let pool = self.cache.pool().clone();
        let began = self.ends[queue].sent_position();
        // Each part may have to be copied.
        while (self.ends[queue].sent_position().wrapping_sub(began) as usize) < count {
            let mut held = match self.back.held[queue].take() {
                Some(held) => held,
                None => {
                    let mut frames = std::mem::take(&mut self.back.frames);
                    let taken = self.ends[queue].take_sent(&mut self.cache, &mut frames);
                    if taken != Taken::Packet {
                        self.back.frames = frames;
                        match taken {
                            Taken::Nothing => break,
                            _ => continue,
                        }
                    }
                    Held {
                        frames,
                        waits: None,
                    }
                }
            };
            let passed = self.pass_on(&pool, queue, &mut held);
            let counts = &mut self.back.counts[queue];
            match passed {
                Passed::Yes => counts.passed += 1,
                Passed::Dropped => counts.dropped += 1,
                Passed::Later => {
                    self.back.held[queue] = Some(held);
                    break;
                }
            }
            for frame in held.frames.drain(..) {
                // A frame of this pool is accepted.
                let _ = self.cache.give(frame);
            }
            self.back.frames = held.frames;
        }
    }

    /// Passes a packet on; its frames that are left are free then.
    fn pass_on(&mut self, pool: &Pool, queue: usize, held: &mut Held) -> Passed {
        let application = self.back.application_of[queue];
        let interface = (pool.descriptor(&held.frames[0]).info >> 16) as u16;
        let count = self.back.interface_count;
        if count.is_some_and(|count| interface >= count) {
            // The readers behind know no such interface.
            return Passed::Dropped;
        }
        if !self.back.routes[application].next.is_empty() {
            return self.pass_to_next(pool, application, held);
        }
        let back = &mut self.back;
        let ports = back.routes[application].ports.iter();
        let fits = |(from, _): &&(Option<u16>, usize)| from.is_none_or(|from| from == interface);
        let output = ports
            .copied()
            .find(|it| fits(&it))
            .map(|(_, output)| output);
        let Some(output) = output.and_then(|output| back.outputs.get_mut(output)) else {
            return Passed::Dropped;
        };
        if !output.is_ready(pool) {
            let _ = output.tx.flush();
            return Passed::Later;
        }
        output.rest.extend(held.frames.drain(..));
        output.is_ready(pool);
        Passed::Yes
    }

    /// Hands a packet to one queue of each application behind this one.
    fn pass_to_next(&mut self, pool: &Pool, application: usize, held: &mut Held) -> Passed {
        let count = held.frames.len() as u32;
        let next = &self.back.routes[application].next;
        let readers = &self.readers;
        let mut selected = match held.waits {
            None => self.selector.select_of(next, pool, &held.frames, readers),
            Some((selected, _)) => selected,
        };
        if selected == 0 {
            return Passed::Yes;
        }
        let ready = OwnerEnd::with_room(&mut self.ends, selected, count);
        self.stuck &= !ready;
        if ready != selected {
            selected = self.spill(selected, ready, count);
            let missing = selected & !OwnerEnd::with_room(&mut self.ends, selected, count);
            let missing = missing & !self.stuck;
            let (_, since) = *held.waits.get_or_insert_with(|| (selected, Instant::now()));
            if self.waits(missing, since.elapsed()) {
                return Passed::Later;
            }
            self.stuck |= missing;
        }
        match held.frames.len() {
            1 => {
                if let Some(frame) = held.frames.pop()
                    && let Err(frame) = OwnerEnd::hand_frame(&mut self.ends, selected, frame)
                {
                    held.frames.push(frame);
                }
            }
            _ => drop(OwnerEnd::hand_frames(
                &mut self.ends,
                selected,
                &mut held.frames,
            )),
        }
        Passed::Yes
    }

    /// Whether one of these queues without room makes its packets wait, which have waited so long.
    fn waits(&self, missing: u64, waited: Duration) -> bool {
        if missing == 0 {
            return false;
        }
        self.groups.iter().any(|group| {
            group.queues & missing != 0
                && match group.when_full {
                    WhenFull::Block(limit) => limit.is_none_or(|limit| waited < limit),
                    WhenFull::Drop | WhenFull::Spill => false,
                }
        })
    }

    /// What the readers of each queue have sent.
    pub(super) fn sent(&self) -> impl Iterator<Item = SentQueue> {
        let ends = self.ends.iter().zip(&self.back.counts);
        ends.map(|(end, counts)| {
            let taken = end.sent_counts();
            SentQueue {
                sent: taken.sent,
                copied: taken.copied,
                refused: taken.refused,
                dropped: counts.dropped + taken.pool_empty,
                passed: counts.passed,
            }
        })
    }

    /// Frees packets that wait for room; they were not sent.
    pub(super) fn drop_held(&mut self) {
        for queue in 0..self.back.held.len() {
            let Some(held) = self.back.held[queue].take() else {
                continue;
            };
            self.back.counts[queue].dropped += 1;
            for frame in held.frames {
                let _ = self.cache.give(frame);
            }
        }
    }
}
