//! Sending to a queue of another process.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use ring::shared::{PeerEnd, Ready, Request, Sender, connect, find};
use sys::memfd::Access;

use super::buffer::Buffer;
use super::lock;
use crate::ring::Outcome;
use crate::status::{self, GENERIC, NOT_SUPPORTED, UNKNOWN_ADAPTER};

/// Packets after which it is tested whether the owner lives.
const LOOK_EVERY: u32 = 256;

/// A queue of another process to send to.
pub struct Sending(Mutex<Ends>);

struct Ends {
    /// Its socket shows whether the owner lives.
    peer: PeerEnd,
    sender: Sender,
    since: u32,
    sent: Sent,
}

/// The packets that the owner may not have taken.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Number of parts of each.
    parts: VecDeque<u32>,
    /// Their sum.
    sum: u64,
}

impl Sent {
    pub fn push(&mut self, part_count: u32) {
        self.parts.push_back(part_count);
        self.sum += u64::from(part_count);
    }

    /// Forgets packets that were taken: `pending` parts were not. Returns how many packets are
    /// left.
    pub fn trim(&mut self, pending: u32) -> u64 {
        while let Some(&first) = self.parts.front()
            && self.sum - u64::from(first) >= u64::from(pending)
        {
            self.parts.pop_front();
            self.sum -= u64::from(first);
        }
        self.parts.len() as u64
    }
}

impl Ends {
    /// Forgets packets that the owner has taken; returns the number of the others.
    fn trim(&mut self) -> u64 {
        self.sent.trim(self.sender.pending())
    }
}

/// Errors if there is no such cluster.
pub fn exists(cluster: u32) -> Outcome<()> {
    let found = find(&cluster.to_string());
    found.map(|_| ()).map_err(|error| status::of(&error))
}

impl Sending {
    /// Attaches to a queue of a program that uses PF_RING ZC.
    pub(super) fn attach(cluster: u32, queue: u32) -> Outcome<Self> {
        let path = find(&cluster.to_string()).map_err(|error| status::of(&error))?;
        let connected = connect(&path, Access::Read, &Request::Send(queue));
        let (mut peer, _) = connected.map_err(|error| status::of(&error))?;
        let sender = peer.take_sender().ok_or(NOT_SUPPORTED)?;
        Ok(Self(Mutex::new(Ends {
            peer,
            sender,
            since: 0,
            sent: Sent::default(),
        })))
    }

    /// Copies a packet into the memory that the owner takes it from.
    pub(super) fn send(&self, place: &Buffer) -> Outcome<()> {
        let mut ends = lock(&self.0);
        let bytes = place.packet();
        let part_len = ends.sender.buffer_len() as usize;
        let count = bytes.len().div_ceil(part_len) as u32;
        let has_room = ends.sender.room(count) == count;
        ends.since += 1;
        if !has_room || ends.since >= LOOK_EVERY {
            ends.since = 0;
            ends.trim();
            let state = ends.peer.wait(Duration::ZERO);
            if matches!(state, Ok(Ready::Gone | Ready::End | Ready::Lost) | Err(_)) {
                return Err(UNKNOWN_ADAPTER);
            }
        }
        if !has_room {
            return Err(GENERIC);
        }
        let metadata = place.metadata();
        for (at, part) in bytes.chunks(part_len).enumerate() {
            let is_last = at as u32 + 1 == count;
            let metadata = match is_last {
                true => metadata,
                false => metadata.continued(),
            };
            ends.sender.copy_bytes(part, metadata);
        }
        ends.sender.submit();
        ends.sent.push(count);
        Ok(())
    }

    /// Packets that an owner has left behind that has exited.
    pub(super) fn lost(&self) -> u64 {
        let mut ends = lock(&self.0);
        let state = ends.peer.wait(Duration::ZERO);
        match state {
            Ok(Ready::Gone | Ready::End | Ready::Lost) | Err(_) => ends.trim(),
            _ => 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).sender.pending() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        lock(&self.0).sender.room(1) == 0
    }
}
