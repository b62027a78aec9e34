//! A queue of a cluster: its packets wait in this process, or, once another process has attached to
//! receive them, in memory that it shares with that process ([`ring::shared`]).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ring::shared::{Caller, Offer, Refusal, Request, Terms};
use ring::{Frame, Pool};
use sys::Result;

use super::buffer::{BUFFER_LEN_MAX, Buffer, Buffers};
use super::lock;
use super::queue::{LOOK_EVERY, Statistics};
use super::remote::{Reader, Sender};
use crate::header::Header;
use crate::ring::Outcome;
use crate::status::GENERIC;

/// Packets taken from a sender before other queues have their turn.
const ROUND: u32 = 256;
/// Maximum number of sending processes, of which all but one have exited: their packets wait for
/// room.
const SENDER_COUNT_MAX: usize = 8;

/// The queue.
pub struct Local {
    id: u32,
    len: usize,
    buffers: Arc<Buffers>,
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    /// Packets for this process.
    waiting: VecDeque<Box<Buffer>>,
    /// The process that receives, or the packets for the next one.
    reader: Option<Reader>,
    /// The processes that send, in the order in which they attached: all but the last have exited,
    /// and what they have sent is passed on first.
    senders: VecDeque<Sender>,
    /// Packets that earlier processes have received.
    received: u64,
    /// Packets that other processes have sent, and those of them for which there was no room.
    sent: u64,
    dropped: u64,
    /// Frames of the packet that is passed on.
    frames: Vec<Frame>,
}

/// The processes that are attached to a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    /// Whether there is a sending one.
    pub has_sender: bool,
    /// Packets passed on from it.
    pub passed: u32,
}

impl Local {
    pub(super) fn new(id: u32, len: u32, buffers: Arc<Buffers>) -> Self {
        Self {
            id,
            len: len as usize,
            buffers,
            state: Mutex::default(),
            filled: Condvar::new(),
        }
    }

    /// The buffers of its packets.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Number of packets for which it has room.
    pub(super) fn len(&self) -> u32 {
        self.len as u32
    }

    /// Receives a packet in exchange for the buffer; false if there is none.
    pub(super) fn receive(&self, place: &mut Box<Buffer>, may_wait: bool) -> bool {
        let mut state = lock(&self.state);
        if state.waiting.is_empty() && may_wait {
            let woken = self.filled.wait_timeout(state, LOOK_EVERY);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let found = state.waiting.pop_front();
        drop(state);
        let Some(buffer) = found else { return false };
        self.buffers.give(std::mem::replace(place, buffer));
        true
    }

    /// Sends a packet in exchange for a free buffer, or copies it into the memory of another
    /// process's queue.
    pub(super) fn send(&self, place: &mut Box<Buffer>) -> Outcome<()> {
        let mut state = lock(&self.state);
        if let Some(reader) = &mut state.reader {
            let is_sent = reader.send(place.packet(), place.metadata());
            return is_sent.then_some(()).ok_or(GENERIC);
        }
        if state.waiting.len() >= self.len {
            return Err(GENERIC);
        }
        let spare = self.buffers.take().ok_or(GENERIC)?;
        state.waiting.push_back(std::mem::replace(place, spare));
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Makes the end for another process, into whose memory packets are copied from now on.
    #[cfg(test)]
    pub(super) fn make_reader(&self, pool: &Pool) {
        let mut state = lock(&self.state);
        let made = state.free_reader(pool, self.len, &self.buffers);
        assert!(matches!(made, Ok(Ok(_))));
    }

    /// Number of packets that wait.
    pub(super) fn depth(&self) -> usize {
        let state = lock(&self.state);
        let reader = state.reader.as_ref();
        state.waiting.len() + reader.map_or(0, |reader| reader.depth() as usize)
    }

    pub(super) fn is_full(&self) -> bool {
        let mut state = lock(&self.state);
        !state.has_room(self.len, 1)
    }

    /// What other processes have received and sent.
    pub(super) fn of_others(&self) -> Statistics {
        let mut state = lock(&self.state);
        let reader = state.reader.as_mut();
        let received = reader.map_or(0, Reader::received);
        Statistics {
            received: state.received + received,
            sent: state.sent,
            dropped: state.dropped,
        }
    }

    /// Connects a process that asked to receive from the queue or to send to it, or refuses it.
    pub(super) fn admit(&self, caller: Caller, offer: &Offer, pool: &Pool, terms: &Terms) {
        let mut state = lock(&self.state);
        let made = match caller.request {
            Request::Send(_) => state.free_sender(pool, self.len),
            _ => state.free_reader(pool, self.len, &self.buffers),
        };
        let (end, process) = match made {
            Ok(Ok(parts)) => parts,
            Ok(Err(process)) => {
                let why = format!("process {process} is attached to queue {}", self.id);
                return caller.refuse(Refusal::Busy, &why);
            }
            Err(error) => return caller.refuse(Refusal::Busy, error.why()),
        };
        *process = caller.process.pid;
        // If the process has exited meanwhile, the next look finds it gone.
        let _ = offer.admit(caller, end, terms);
    }

    /// Passes on what another process has sent; with `check`, also recovers the packets of
    /// processes that have exited.
    pub(super) fn look(&self, check: bool) -> Looked {
        let mut state = lock(&self.state);
        let passed = state.pass_sent(self);
        if check {
            state.recover_reader();
            state.senders.retain_mut(|sender| !sender.is_done());
        }
        Looked {
            has_sender: !state.senders.is_empty(),
            passed,
        }
    }
}

/// An end for a new peer, and where to note its process; or the process that is attached.
type Place<'s> = std::result::Result<(&'s mut ring::shared::OwnerEnd, &'s mut i32), i32>;

impl State {
    /// Whether there is room for a packet of `count` frames.
    fn has_room(&mut self, len: usize, count: u32) -> bool {
        match &mut self.reader {
            Some(reader) => reader.has_room(count),
            None => self.waiting.len() < len,
        }
    }

    /// If the receiving process has exited, keeps its packets for the next one. Without any, its
    /// end is given up, of which a pool has a limited number.
    fn recover_reader(&mut self) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        reader.recover_if_gone();
        if !reader.has_peer() && reader.depth() == 0 {
            self.received += reader.received();
            self.reader = None;
        }
    }

    /// Makes the receiving end, with the packets that wait, unless there is one.
    fn free_reader(&mut self, pool: &Pool, len: usize, buffers: &Buffers) -> Result<Place<'_>> {
        if self.reader.is_none() {
            let mut reader = Reader::new(pool, len as u32)?;
            for buffer in self.waiting.drain(..) {
                let is_sent = reader.send(buffer.packet(), buffer.metadata());
                self.dropped += u64::from(!is_sent);
                buffers.give(buffer);
            }
            self.reader = Some(reader);
        }
        match &mut self.reader {
            Some(reader) => {
                reader.recover_if_gone();
                Ok(match reader.has_peer() {
                    true => Err(reader.process),
                    false => Ok((&mut reader.end, &mut reader.process)),
                })
            }
            None => Ok(Err(0)),
        }
    }

    fn free_sender(&mut self, pool: &Pool, len: usize) -> Result<Place<'_>> {
        if let Some(last) = self.senders.back()
            && (!last.end.is_gone() || self.senders.len() >= SENDER_COUNT_MAX)
        {
            return Ok(Err(last.process));
        }
        self.senders.push_back(Sender::new(pool, len as u32)?);
        Ok(match self.senders.back_mut() {
            Some(sender) => Ok((&mut sender.end, &mut sender.process)),
            None => Err(0),
        })
    }

    /// Passes on packets of the senders while there is room: without room, they stay with them.
    fn pass_sent(&mut self, queue: &Local) -> u32 {
        let mut senders = std::mem::take(&mut self.senders);
        let (mut count, mut at) = (0, 0);
        while let Some(sender) = senders.get_mut(at).filter(|_| count < ROUND) {
            // How long the next packet is, is known when it is taken. What a process sends is not
            // bounded by the buffers of the cluster.
            if !self.has_room(queue.len, sender.frames_of(BUFFER_LEN_MAX)) {
                break;
            }
            self.frames.clear();
            let Some(is_packet) = sender.take(&mut self.frames) else {
                at += 1;
                continue;
            };
            count += 1;
            let is_passed = is_packet && self.pass(queue, sender);
            self.sent += u64::from(is_passed);
            self.dropped += u64::from(!is_passed);
        }
        self.senders = senders;
        count
    }

    /// Passes on the frames of a packet.
    fn pass(&mut self, queue: &Local, sender: &mut Sender) -> bool {
        let Self {
            reader,
            frames,
            waiting,
            ..
        } = self;
        let is_passed = match reader {
            Some(reader) => reader.pass(frames),
            None => match queue.buffers.take() {
                Some(mut buffer) => {
                    let (header, bytes) = sender.packet(frames);
                    buffer.store(&header, bytes);
                    waiting.push_back(buffer);
                    queue.filled.notify_one();
                    true
                }
                None => false,
            },
        };
        sender.give(frames);
        is_passed
    }
}

impl Header {
    /// Of a packet that another process has sent.
    pub(super) fn of_sent(wire_len: u32, cap_len: u32, time_ns: u64, hash: u32) -> Self {
        Self {
            time_ns,
            cap_len,
            wire_len,
            hash,
            ..Self::default()
        }
    }
}
