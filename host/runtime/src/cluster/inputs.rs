//! The inputs of a cluster while it runs: one whose device is gone is left out while there are
//! others, and is opened again when the device is back.
//!
//! The thread that moves packets finds that an input is gone, and closes its queues. The calling
//! thread then tries to open it again, and passes the new queues to the first one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use port::{Intake, PortControl, PortOptions, RxQueue};
use sys::{Error, ErrorKind, Result};

use super::mover::{Mover, Out};
use super::setup::Setup;
use super::{Event, Shared, lock};
use crate::worker::{self, Ended, Pacing};

/// Interval of attempts to open an input that is gone.
const RETRY: Duration = Duration::from_millis(250);
/// Up to this it doubles while the device is there and cannot be opened.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// States of a [`SharedInput`]: in use; gone, with queues that are still there; gone, to be opened
/// again.
const OPEN: u32 = 0;
const GONE: u32 = 1;
const CLOSED: u32 = 2;

/// An input, in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputPort {
    /// Its name.
    pub port: String,
    /// Whether its device is gone.
    pub is_gone: bool,
    /// How often its device was gone so far.
    pub losses: u64,
}

impl InputPort {
    /// The word for its state in output.
    pub fn state(&self) -> &'static str {
        match self.is_gone {
            true => "gone",
            false => "open",
        }
    }
}

/// The state of an input that the threads share.
#[derive(Debug, Default)]
pub(super) struct SharedInput {
    state: AtomicU32,
    losses: AtomicU64,
}

impl SharedInput {
    pub fn read(&self, port: &str) -> InputPort {
        InputPort {
            port: port.to_owned(),
            is_gone: self.state.load(Ordering::Relaxed) != OPEN,
            losses: self.losses.load(Ordering::Relaxed),
        }
    }
}

/// What an input is opened with.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: String,
    pub options: PortOptions,
    /// Whether packets are sent by it as well: the cluster ends without it.
    pub is_needed: bool,
}

impl Setup {
    /// What the inputs were opened with; empty if they are capture files, merged into one port.
    pub(super) fn sources(&self, intake: Intake, options: &PortOptions) -> Vec<Source> {
        if intake == Intake::File {
            return Vec::new();
        }
        let source = |name: &String| {
            let options = self.input(name, options);
            Source {
                name: name.clone(),
                is_needed: options.direction.has_tx(),
                options,
            }
        };
        self.inputs.iter().map(source).collect()
    }
}

/// The inputs as the thread that moves packets knows them.
#[derive(Default)]
pub(super) struct Inputs {
    /// Whether each is gone; those that are one port of several capture files count as one.
    gone: Vec<bool>,
    names: Vec<String>,
    is_needed: Vec<bool>,
    /// Queues of inputs that were opened again.
    arrived: Vec<RxQueue>,
    /// Whether queues are to be closed or added.
    pub has_changed: bool,
    /// The last error of an input that is gone.
    error: Option<Error>,
}

impl Inputs {
    pub fn new(sources: &[Source]) -> Self {
        Self {
            gone: vec![false; sources.len().max(1)],
            names: sources.iter().map(|it| it.name.clone()).collect(),
            is_needed: sources.iter().map(|it| it.is_needed).collect(),
            ..Self::default()
        }
    }
}

impl Out {
    /// A queue has failed: the error, unless its device is gone and there are other inputs.
    pub(super) fn lose(&mut self, queue: &RxQueue, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Gone {
            return Err(error);
        }
        // One that is back may be the only one left.
        self.take_arrived();
        let number = usize::from(queue.interface_index());
        let inputs = &mut self.inputs;
        let Some(is_gone) = inputs.gone.get_mut(number) else {
            return Err(error);
        };
        let is_new = !std::mem::replace(is_gone, true);
        if let Some(shared) = self.shared.inputs.get(number)
            && is_new
        {
            shared.losses.fetch_add(1, Ordering::Relaxed);
            shared.state.store(GONE, Ordering::Relaxed);
        }
        let is_needed = inputs.is_needed.get(number) == Some(&true);
        if is_needed || inputs.gone.iter().all(|it| *it) {
            return Err(error);
        }
        if is_new {
            lock(&self.shared.events).push(Event::Input {
                port: inputs.names.get(number).cloned().unwrap_or_default(),
                text: "its device is gone; the other inputs continue".into(),
                is_warning: true,
            });
        }
        inputs.has_changed = true;
        inputs.error = Some(error);
        Ok(())
    }

    /// Takes the queues of inputs that were opened again.
    #[cold]
    pub(super) fn take_arrived(&mut self) {
        // Before the lock: one that is added meanwhile sets it again.
        self.shared.has_arrived.store(false, Ordering::Relaxed);
        let arrived = std::mem::take(&mut *lock(&self.shared.arrived));
        for (number, queues) in arrived {
            let number = usize::from(number);
            self.inputs.has_changed = true;
            if let Some(is_gone) = self.inputs.gone.get_mut(number) {
                *is_gone = false;
            }
            lock(&self.shared.events).push(Event::Input {
                port: self.inputs.names.get(number).cloned().unwrap_or_default(),
                text: "is back".into(),
                is_warning: false,
            });
            self.inputs.arrived.extend(queues);
        }
    }
}

impl Mover {
    /// Moves packets until the stop flag, the end of all inputs, or the last packet requested.
    ///
    /// # Errors
    /// `Gone` once the devices of all inputs are.
    pub fn run(&mut self, pacing: Pacing) -> Result<Ended> {
        let stop = self.out.stop.clone();
        let ended = loop {
            let result = match self.out.has_way_back {
                // What readers send wakes nobody.
                true => worker::run_napping(&mut self.rx, &mut self.out, &stop, pacing),
                false => worker::run_all(&mut self.rx, &mut self.out, &stop, pacing),
            };
            let ended = match (result, self.rx.as_slice()) {
                (Ok(ended), _) => ended,
                // The loop over a single queue leaves the decision to its caller.
                (Err(error), [rx]) => self.out.lose(rx, error).map(|()| Ended::Input)?,
                (Err(error), _) => return Err(error),
            };
            if !std::mem::take(&mut self.out.inputs.has_changed) {
                break ended;
            }
            self.renew();
        };
        if ended == Ended::Input
            && let Some(error) = self.out.missing()
        {
            return Err(error);
        }
        if ended != Ended::Stopped {
            self.out.release(true);
            // Readers see the last ones only then.
            self.out.flush();
            self.out.wait_for_readers();
        }
        Ok(ended)
    }

    /// Closes the queues of inputs that are gone, and adds those of inputs that are back.
    fn renew(&mut self) {
        let inputs = &mut self.out.inputs;
        let is_gone = |rx: &RxQueue| inputs.gone.get(usize::from(rx.interface_index()));
        self.rx.retain(|rx| is_gone(rx) != Some(&true));
        for (is_gone, shared) in inputs.gone.iter().zip(&self.out.shared.inputs) {
            if *is_gone {
                // One that was opened again, and whose queues were not taken yet, stays open.
                let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
                let _ = shared
                    .state
                    .compare_exchange(GONE, CLOSED, release, relaxed);
            }
        }
        self.rx.append(&mut inputs.arrived);
        self.out.find_takers(&self.rx);
    }
}

impl Out {
    /// The error of an input that is gone, if there is one.
    fn missing(&mut self) -> Option<Error> {
        let is_missing = self.inputs.gone.iter().any(|it| *it);
        self.inputs.error.take().filter(|_| is_missing)
    }
}

/// Opens inputs again.
pub(super) struct Reopener {
    sources: Vec<Source>,
    /// The attempts for each.
    attempts: Vec<Attempts>,
}

/// Attempts to open an input.
#[derive(Clone, Default)]
struct Attempts {
    /// When the next one is due; at once if `None`.
    due: Option<Instant>,
    /// How long to wait after one that fails although the device is there.
    delay: Duration,
    /// What was reported.
    reported: String,
}

impl Attempts {
    /// Sets when to try next; `is_refused` if the device is there and cannot be opened.
    fn plan(&mut self, now: Instant, is_refused: bool) {
        self.delay = match is_refused {
            true => (self.delay * 2).clamp(RETRY, RETRY_MAX),
            false => Duration::ZERO,
        };
        self.due = Some(now + self.delay.max(RETRY));
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }
}

impl Reopener {
    pub fn new(sources: Vec<Source>) -> Self {
        Self {
            attempts: vec![Attempts::default(); sources.len()],
            sources,
        }
    }

    /// Tries to open the inputs that are gone, each not more often than every [`RETRY`].
    pub fn run(&mut self, control: &mut dyn PortControl, shared: &Arc<Shared>) {
        let is_closed = |shared: &SharedInput| shared.state.load(Ordering::Acquire) == CLOSED;
        if !shared.inputs.iter().any(is_closed) {
            return;
        }
        let now = Instant::now();
        let sources = (0_u16..).zip(&self.sources);
        for (((number, source), input), attempts) in
            sources.zip(&shared.inputs).zip(&mut self.attempts)
        {
            if !is_closed(input) || !attempts.is_due(now) {
                continue;
            }
            let port = port::open(&source.name, &source.options);
            let result = port.and_then(|port| control.rejoin(number, port));
            // Otherwise it is not back.
            let is_there = |error: &Error| error.kind() != ErrorKind::NotFound;
            attempts.plan(now, result.as_ref().is_err_and(is_there));
            match result {
                Ok(queues) => {
                    attempts.reported.clear();
                    let mut arrived = lock(&shared.arrived);
                    // Under the lock: whoever takes the queues sees that the input is open.
                    input.state.store(OPEN, Ordering::Relaxed);
                    arrived.push((number, queues));
                    shared.has_arrived.store(true, Ordering::Release);
                }
                Err(error) if is_there(&error) => {
                    let text = format!("cannot be opened again: {}", error.why());
                    if attempts.reported != text {
                        attempts.reported.clone_from(&text);
                        lock(&shared.events).push(Event::Input {
                            port: source.name.clone(),
                            text,
                            is_warning: true,
                        });
                    }
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_inputs_are_tried_less_and_less_often() {
        let now = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.is_due(now));
        let mut waits = |is_refused| {
            attempts.plan(now, is_refused);
            let due = attempts.due.unwrap();
            assert!(attempts.is_due(due) && !attempts.is_due(now));
            (due - now).as_millis()
        };
        let refused = [true; 8].map(&mut waits);
        let expected = [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000];
        assert_eq!(refused, expected);
        assert_eq!([false, false, true].map(&mut waits), [250; 3]);
    }
}
