//! Readers: processes are connected to queues, and queues of readers that have exited are
//! recovered. Called by the thread that moves packets, which owns the queues.

use std::sync::atomic::Ordering;

use ring::shared::{Caller, Interface, Refusal, Request, Terms};

use super::mover::Out;
use super::{Event, holders, lock};

impl Out {
    /// Recovers the queues of readers that have exited.
    pub(super) fn look(&mut self) {
        for queue in 0..self.ends.len() {
            if self.ends[queue].has_peer() && self.ends[queue].is_gone() {
                self.recover(queue);
            }
        }
    }

    fn recover(&mut self, queue: usize) {
        // What it has sent is sent; if there is no room yet, the next look tries again.
        if !self.bounce_last(queue) {
            return;
        }
        // If memory is short, the next look tries again.
        let Ok(recovered) = self.ends[queue].recover(&mut self.cache) else {
            return;
        };
        let process = std::mem::take(&mut self.readers[queue]);
        self.shared.queues[queue].reader.store(0, Ordering::Relaxed);
        lock(&self.shared.events).push(Event::Left {
            queue: queue as u32,
            process,
            lost: recovered.lost,
            kept: recovered.kept,
        });
    }

    /// Connects the processes that wait.
    #[cold]
    pub(super) fn admit_all(&mut self) {
        // Before the lock: one that is added meanwhile sets it again.
        self.shared.has_callers.store(false, Ordering::Relaxed);
        let callers = std::mem::take(&mut *lock(&self.shared.callers));
        for (caller, interfaces) in callers {
            self.admit(caller, interfaces);
        }
    }

    /// Connects a process to the first queue without a reader that it may have asked for.
    fn admit(&mut self, caller: Caller, interfaces: Vec<Interface>) {
        let range = match self.range(&caller.request) {
            Ok(range) => range,
            Err((refusal, why)) => return caller.refuse(refusal, &why),
        };
        let Some(queue) = range.clone().find(|&queue| self.is_free(queue)) else {
            let named = |queue: usize| self.application_of(queue).port.clone();
            if let Some(port) = range.clone().find_map(named) {
                return caller.refuse(Refusal::Busy, &format!("{port} is its reader"));
            }
            let readers: Vec<String> = range
                .map(|queue| (queue, holders::named(self.readers[queue])))
                .map(|(queue, reader)| format!("queue {queue} by {reader}"))
                .collect();
            let why = format!("it has a reader already: {}", readers.join(", "));
            return caller.refuse(Refusal::Busy, &why);
        };
        let process = caller.process.pid.cast_unsigned();
        let terms = Terms {
            queue: queue as u32,
            interfaces,
        };
        // If the process has exited meanwhile, the next look recovers the queue.
        let _ = self.offer.admit(caller, &mut self.ends[queue], &terms);
        self.readers[queue] = process;
        let shared = &self.shared.queues[queue];
        shared.reader.store(process.into(), Ordering::Relaxed);
        let memory = self.ends[queue].memory_inode();
        shared.memory.store(memory, Ordering::Relaxed);
        shared.readers.fetch_add(1, Ordering::Relaxed);
        let queue = queue as u32;
        lock(&self.shared.events).push(Event::Attached { queue, process });
    }

    fn application_of(&self, queue: usize) -> &super::Application {
        let is_its = |group: &&super::mover::Group| group.queues >> queue & 1 != 0;
        let number = self
            .groups
            .iter()
            .take_while(|group| !is_its(group))
            .count();
        &self.applications[number]
    }

    fn is_free(&mut self, queue: usize) -> bool {
        if self.application_of(queue).port.is_some() {
            return false;
        }
        if self.ends[queue].has_peer() && self.ends[queue].is_gone() {
            self.recover(queue);
        }
        !self.ends[queue].has_peer()
    }

    /// The queues that a request selects.
    fn range(&self, request: &Request) -> Result<std::ops::Range<usize>, (Refusal, String)> {
        let mut first = 0;
        let mut ranges = Vec::new();
        for application in &self.applications {
            let count = application.queue_count as usize;
            ranges.push((application.name.as_str(), first..first + count));
            first += count;
        }
        let names: Vec<&str> = ranges.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        match request {
            Request::Queue(queue) if (*queue as usize) < first => {
                Ok(*queue as usize..*queue as usize + 1)
            }
            Request::Queue(queue) => {
                let why = format!("there is no queue {queue}: it has {first}, from 0");
                Err((Refusal::NotFound, why))
            }
            Request::Application(name) => {
                let found = ranges.into_iter().find(|(other, _)| other == name);
                let missing = || {
                    let why = format!("there is no application {name}: it has {names}");
                    (Refusal::NotFound, why)
                };
                found.map(|(_, range)| range).ok_or_else(missing)
            }
            Request::Any if ranges.len() == 1 => Ok(0..first),
            Request::Any => {
                let why = format!("name one of its applications, ring:NAME/APPLICATION: {names}");
                Err((Refusal::Invalid, why))
            }
            Request::Send(_) => {
                let why = "its readers send: a process that reads no queue cannot";
                Err((Refusal::Invalid, why.into()))
            }
            Request::Status | Request::Drain(_) => {
                Err((Refusal::Invalid, "it has no queue".into()))
            }
        }
    }
}
