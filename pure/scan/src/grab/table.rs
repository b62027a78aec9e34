//! Connections by service and by their next timer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::connection::Connection;
use crate::cookie::ProbeTarget;

/// A fixed number of slots for connections.
pub struct Table {
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    by_aim: HashMap<ProbeTarget, u32>,
    /// When each slot's timer expires. A connection that postpones its timer leaves the old entry
    /// here, which is then skipped; there is at most one entry per slot and change, and each is
    /// removed when its time comes.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    count_max: usize,
}

impl Table {
    /// An empty table.
    pub fn new(count_max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_aim: HashMap::new(),
            due: BinaryHeap::new(),
            count_max: count_max as usize,
        }
    }

    pub fn len(&self) -> usize {
        self.by_aim.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.count_max
    }

    pub fn find(&self, target: &ProbeTarget) -> Option<u32> {
        self.by_aim.get(target).copied()
    }

    pub fn get(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Adds a connection; the caller ensures that there is room.
    pub fn insert(&mut self, mut connection: Connection) -> u32 {
        connection.noted_ns = connection.due_ns();
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        self.by_aim.insert(*connection.target(), slot);
        self.due.push(Reverse((connection.due_ns(), slot)));
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(connection),
            None => self.slots.push(Some(connection)),
        }
        slot
    }

    /// Replaces a connection by another one to the same service.
    pub fn replace(&mut self, slot: u32, mut connection: Connection) {
        connection.noted_ns = connection.due_ns();
        if let Some(place) = self.slots.get_mut(slot as usize) {
            self.due.push(Reverse((connection.due_ns(), slot)));
            *place = Some(connection);
        }
    }

    pub fn remove(&mut self, slot: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize)
            && let Some(connection) = place.take()
        {
            self.by_aim.remove(connection.target());
            self.free.push(slot);
        }
    }

    /// Updates a connection's timer. A later time needs no entry: the old one leads to it.
    pub fn reschedule(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
            && connection.due_ns() < connection.noted_ns
        {
            connection.noted_ns = connection.due_ns();
            self.due.push(Reverse((connection.due_ns(), slot)));
        }
    }

    /// When the next timer expires; it may have been postponed.
    pub fn due_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Returns a connection whose timer has expired.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        while let Some(Reverse((at_ns, slot))) = self.due.peek().copied() {
            if at_ns > now_ns {
                return None;
            }
            self.due.pop();
            let Some(connection) = self.get_mut(slot) else {
                continue;
            };
            // The timer may expire again at the same time: it gets a new entry.
            if connection.due_ns() <= now_ns {
                connection.noted_ns = u64::MAX;
                return Some(slot);
            }
            if connection.noted_ns <= at_ns {
                connection.noted_ns = connection.due_ns();
                let due_ns = connection.due_ns();
                self.due.push(Reverse((due_ns, slot)));
            }
        }
        None
    }

    /// All slots in use.
    pub fn slots(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.by_aim.values().copied().collect();
        slots.sort_unstable();
        slots
    }
}
