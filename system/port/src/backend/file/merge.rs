//! Several files as one port: their packets in timestamp order.
//!
//! A run of packets is read ahead from each input, as slots over its memory; the input whose first
//! packet is the earliest delivers packets up to the time of the second. Continuing to read an
//! input may move the memory that its slots point to, so that happens only between batches, when
//! none of them is in use: a batch ends where a run does.
//!
//! The order within a file is kept, packets with equal times come in the order of the inputs
//! (mergecap reverses that), and a packet without a time comes right after the previous one in its
//! file. A damaged input ends, and the others are read to their ends; then
//! [`RxQueue::receive`](crate::RxQueue::receive) fails with the reason.

mod control;
mod interfaces;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::{Error, ErrorKind, Result};

use self::control::{Control, Merged};
use self::interfaces::{Interfaces, Numbers};
use self::waiting::Waiting;
use super::Shared;
use super::control::Facts;
use super::rx::Rx;
use super::source::shown;
use crate::account::RxCounters;
use crate::options::PortOptions;
use crate::port::Port;
use crate::registry::PortName;
use crate::rx::{Filled, Ready, RxBackend};

/// Maximum number of inputs. The process's descriptor limit may be lower.
const INPUTS_MAX: usize = 1 << 16;

/// Number of inputs up to which all are open from the start.
const OPEN_AT_START: usize = 16;

/// Packets read ahead per input: its slots, 12 KiB, stay in the cache with those of some others.
const RUN_LEN: usize = 256;

/// Maximum number of damaged inputs named in an error.
const NAMED_MAX: usize = 3;

/// Opens several files as one port.
///
/// # Errors
/// As for opening each; `InvalidInput` for too many, and for standard input twice. An input that is
/// damaged before its first packet counts as one that ends there.
pub(super) fn open(targets: &[(PortName, PortOptions)]) -> Result<Port> {
    let names: Vec<&str> = targets
        .iter()
        .map(|(name, _)| name.target.as_str())
        .collect();
    check(&names)?;
    let target: Vec<&str> = names.iter().map(|name| shown(name)).collect();
    let target = target.join(", ");
    let counters = Arc::new(RxCounters::default());
    let mut merge = Merge {
        inputs: Vec::with_capacity(targets.len()),
        counters: counters.clone(),
        heads: BinaryHeap::with_capacity(targets.len()),
        spent: Vec::with_capacity(targets.len()),
        over: Vec::new(),
        interfaces: Interfaces::default(),
        errors: Vec::new(),
        waiting: 0,
        shared: Arc::default(),
    };
    for (name, options) in targets {
        merge.add(&name.target, options, &counters)?;
    }
    let inputs = merge.inputs.iter();
    let control = Control {
        target: target.clone(),
        counters: counters.clone(),
        inputs: inputs.filter_map(Input::for_control).collect(),
        shared: merge.shared.clone(),
    };
    let options = targets.first().map(|(_, options)| options.clone());
    let options = options.unwrap_or_default();
    let (merge, control) = (Box::new(merge), Box::new(control));
    Ok(super::receiving(
        &target, merge, control, &options, counters,
    ))
}

fn check(names: &[&str]) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, "merge files", why));
    if names.len() > INPUTS_MAX {
        let count = names.len();
        return refuse(format!("{count} inputs; the limit is {INPUTS_MAX}"));
    }
    match names.iter().filter(|name| **name == "-").count() {
        0 | 1 => Ok(()),
        _ => refuse("standard input is named twice".into()),
    }
}

/// The first packet of a run: its sort key, and its input. The lowest comes first.
type Head = Reverse<(u64, usize)>;

struct Merge {
    inputs: Vec<Input>,
    counters: Arc<RxCounters>,
    /// Heads of the inputs with packets read ahead.
    heads: BinaryHeap<Head>,
    /// Inputs whose runs are used up and that have not ended: each must be read further before the
    /// next packet is known.
    spent: Vec<usize>,
    /// Inputs that have ended, whose memory slots may still use.
    over: Vec<usize>,
    interfaces: Interfaces,
    /// Why inputs ended early; reported when all have ended.
    errors: Vec<Error>,
    /// Packets read ahead and not delivered.
    waiting: u64,
    shared: Arc<Merged>,
}

/// How far an input is.
enum Progress {
    Waiting(Box<Waiting>),
    Reading(Box<Rx>),
    Over,
}

struct Input {
    progress: Progress,
    /// Packets read ahead in reverse order, so that the first is popped off the end.
    run: Vec<Slot>,
    numbers: Numbers,
}

/// Sort key of a packet. One without a time is first: it comes right after the packet that was just
/// taken from its file.
#[inline]
fn place(slot: &Slot) -> u64 {
    match slot.has(Slot::TIME) {
        true => slot.time_ns,
        false => 0,
    }
}

impl Input {
    fn new(progress: Progress) -> Self {
        Self {
            progress,
            run: Vec::new(),
            numbers: Numbers::default(),
        }
    }

    fn for_control(&self) -> Option<(Facts, Arc<Shared>)> {
        match &self.progress {
            Progress::Waiting(waiting) => Some((waiting.facts, waiting.shared.clone())),
            Progress::Reading(rx) => Some((Facts::of(rx), rx.shared.clone())),
            Progress::Over => None,
        }
    }

    fn rx(&mut self) -> Option<&mut Rx> {
        match &mut self.progress {
            Progress::Reading(rx) => Some(rx),
            Progress::Waiting(_) | Progress::Over => None,
        }
    }

    /// Whether there is nothing more to read.
    fn is_over(&self) -> bool {
        match &self.progress {
            Progress::Waiting(_) => false,
            Progress::Reading(rx) => rx.is_over(),
            Progress::Over => true,
        }
    }

    /// Delivers at most `room` packets while they come before `other`; returns how many.
    #[inline]
    fn give(
        &mut self,
        slots: &mut Vec<Slot>,
        room: usize,
        own: usize,
        other: Option<Head>,
    ) -> usize {
        let before = slots.len();
        while slots.len() - before < room
            && let Some(slot) = self.run.last()
        {
            if other.is_some_and(|Reverse(other)| other < (place(slot), own)) {
                break;
            }
            // There is one, as was just checked.
            slots.extend(self.run.pop());
        }
        if !self.numbers.are_the_same() {
            for slot in &mut slots[before..] {
                slot.interface_index = self.numbers.of(slot.interface_index);
            }
        }
        slots.len() - before
    }
}

impl Merge {
    /// Opens an input.
    fn add(&mut self, path: &str, options: &PortOptions, counters: &Arc<RxCounters>) -> Result<()> {
        let index = self.inputs.len();
        if index >= OPEN_AT_START
            && let Some(waiting) = Waiting::new(path, options)
        {
            self.heads.push(Reverse((waiting.first, index)));
            let progress = Progress::Waiting(Box::new(waiting));
            self.inputs.push(Input::new(progress));
            return Ok(());
        }
        let mut rx = Rx::new(path, options, counters.clone())?;
        let opened = rx.open(true);
        let progress = Progress::Reading(Box::new(rx));
        self.inputs.push(Input::new(progress));
        match opened {
            Ok(()) => self.spent.push(index),
            Err(error) if error.kind() == ErrorKind::Damaged => self.errors.push(error),
            Err(error) => return Err(error),
        }
        self.learn(index)
    }

    /// Assigns port-wide numbers to the interfaces read from an input since the last call.
    ///
    /// # Errors
    /// `Unsupported` if there are more interfaces than numbers.
    fn learn(&mut self, index: usize) -> Result<()> {
        let Input {
            progress: Progress::Reading(rx),
            numbers,
            ..
        } = &mut self.inputs[index]
        else {
            return Ok(());
        };
        if rx.interface_count() <= numbers.len() {
            return Ok(());
        }
        let met = rx.shared.interfaces_from(numbers.len());
        let mut known = self.shared.interfaces();
        self.interfaces.number(met, numbers, &mut known)
    }

    /// Reads all inputs whose runs are used up. None of their slots may be in use.
    fn refill(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.spent.get(at) {
            match self.read_on(index) {
                // Nothing yet: a pipe is empty, or a filter rejected everything.
                Ok(true) => at += 1,
                Ok(false) => drop(self.spent.swap_remove(at)),
                Err(error) => {
                    self.errors.push(error);
                    self.spent.swap_remove(at);
                }
            }
        }
        self.shared.waiting.store(self.waiting, Ordering::Relaxed);
    }

    /// Reads an input further; returns whether it has neither packets nor ended.
    ///
    /// # Errors
    /// Why it ended early. Earlier packets are in the run.
    fn read_on(&mut self, index: usize) -> Result<bool> {
        let input = &mut self.inputs[index];
        if matches!(input.progress, Progress::Waiting(_))
            && let Progress::Waiting(waiting) =
                std::mem::replace(&mut input.progress, Progress::Over)
        {
            let rx = waiting.open(&self.counters)?;
            input.progress = Progress::Reading(Box::new(rx));
        }
        let Input {
            progress: Progress::Reading(rx),
            run,
            ..
        } = input
        else {
            return Ok(false);
        };
        rx.fill(run, RUN_LEN)?;
        self.waiting += run.len() as u64;
        let learned = self.learn(index);
        let Input {
            progress: Progress::Reading(rx),
            run,
            numbers,
        } = &mut self.inputs[index]
        else {
            return Ok(false);
        };
        if learned.is_err() {
            // Packets of an interface without a number, and those after them, stay in the file.
            let known = numbers.len();
            let is_unknown = |slot: &Slot| usize::from(slot.interface_index) >= known;
            let first = run.iter().position(is_unknown);
            run.truncate(first.unwrap_or(run.len()));
            rx.abandon();
        }
        run.reverse();
        let first = run.last().map(place);
        self.heads
            .extend(first.map(|place| Reverse((place, index))));
        let is_over = rx.is_over();
        if first.is_none() && is_over {
            self.over.push(index);
        }
        learned.map(|()| first.is_none() && !is_over)
    }

    /// Closes inputs that have ended. None of their slots may be in use. The first stays, because
    /// packets are kept in its pool.
    fn close_over(&mut self) {
        for index in self.over.drain(..).filter(|index| *index != 0) {
            let input = &mut self.inputs[index];
            (input.progress, input.run) = (Progress::Over, Vec::new());
        }
    }

    /// Delivers packets in order, until an input must be read further.
    fn hand_over(&mut self, slots: &mut Vec<Slot>, max: usize) {
        let before = slots.len();
        slots.reserve(max);
        while slots.len() - before < max
            && let Some(Reverse((_, index))) = self.heads.pop()
        {
            let room = max - (slots.len() - before);
            let input = &mut self.inputs[index];
            let other = self.heads.peek().copied();
            self.waiting -= input.give(slots, room, index, other) as u64;
            match input.run.last().map(place) {
                Some(place) => self.heads.push(Reverse((place, index))),
                None if input.is_over() => self.over.push(index),
                None => {
                    // Reading further would move what its slots point to.
                    self.spent.push(index);
                    break;
                }
            }
        }
        self.shared.waiting.store(self.waiting, Ordering::Relaxed);
    }

    /// All errors combined into one.
    fn error(&mut self) -> Option<Error> {
        let mut errors = std::mem::take(&mut self.errors).into_iter();
        let first = errors.next()?;
        let count = errors.len();
        let mut why = first.why().to_owned();
        for error in errors.by_ref().take(NAMED_MAX) {
            why.push_str(&format!("; {error}"));
        }
        if count > NAMED_MAX {
            why.push_str(&format!("; so do {} other inputs", count - NAMED_MAX));
        }
        Some(first.with_why(why))
    }
}

impl RxBackend for Merge {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let before = slots.len();
        if self.shared.is_stopped() {
            return Ok(Filled::of(&[]));
        }
        self.close_over();
        if !self.spent.is_empty() {
            self.refill();
        }
        if self.spent.is_empty() {
            self.hand_over(slots, max);
        }
        let is_over = self.heads.is_empty() && self.spent.is_empty();
        if is_over
            && slots.len() == before
            && let Some(error) = self.error()
        {
            return Err(error);
        }
        Ok(Filled::of(&slots[before..]))
    }

    fn release(&mut self, slots: &mut Vec<Slot>) {
        slots.clear();
    }

    fn end_filter(&mut self) {
        for input in &mut self.inputs {
            match &mut input.progress {
                Progress::Waiting(waiting) => waiting.end_filter(),
                Progress::Reading(rx) => rx.end_filter(),
                Progress::Over => {}
            }
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // A copy into the pool, which is the first input's, from any memory.
        match self.inputs[0].rx() {
            Some(rx) => rx.detach(slot),
            None => {
                let why = "the first input is closed";
                Err(Error::new(ErrorKind::Io, "keep a packet of a file", why))
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if self.shared.is_stopped() {
            return Ok(Ready::End);
        }
        let is_over = self.heads.is_empty() && self.errors.is_empty();
        match self.spent.first() {
            None if is_over => Ok(Ready::End),
            None => Ok(Ready::Packets),
            // All of them are needed: it is enough to wait for the first.
            Some(&index) => match self.inputs[index].rx() {
                None => Ok(Ready::Packets),
                Some(rx) => match rx.wait(timeout)? {
                    Ready::End => Ok(Ready::Packets),
                    ready => Ok(ready),
                },
            },
        }
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.inputs[0].progress {
            Progress::Reading(rx) => rx.pool(),
            Progress::Waiting(_) | Progress::Over => None,
        }
    }

    fn gathers(&self) -> bool {
        true
    }
}
