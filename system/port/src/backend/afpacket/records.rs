//! A tap with a record ring: the program writes packets into mapped memory, which is read here.
//!
//! Most of a packet's cost in the packet socket's own ring is not the copy but room, accounting,
//! locks, address and block. The program avoids this work, and the socket ignores rejected packets.

mod rx;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sys::bpf::{Map, MapMemory, MapSpec, MapType, Program, ProgramSpec, ProgramType};
use sys::packet::PacketSocket;
use sys::{Error, ErrorKind, Result};

use super::filter::{REJECT_ALL, SocketFilter};
use super::program::{self, Spec, control, record};
use crate::account::{DropReason, QueueAccount, RxCounters};

pub(super) use self::rx::RecordRx;

/// Maximum length of a packet received in full, unless the ring is shorter: merged packets of 64
/// KiB fit.
const CAP_MAX: u32 = 128 << 10;
/// The verifier tracks offsets into a map's value up to 2^29.
pub(super) const RING_LEN_MAX: usize = 256 << 20;
/// A socket with its program and ring, shared by the reader and the control side.
pub(super) struct RecordTap {
    memory: MapMemory,
    /// The ring, for later programs.
    map: Map,
    pub(super) socket: PacketSocket,
    program: Mutex<Program>,
    ring_len: u64,
    pub(super) cap_max: u32,
    secret: u64,
    takes_time: bool,
    gone: AtomicBool,
    closed: AtomicBool,
    /// Position after the last record that the reader has turned into a slot.
    read_to: AtomicU64,
    pub(super) counters: Arc<RxCounters>,
}

impl RecordTap {
    /// Loads the program and creates the ring; nothing is attached yet.
    ///
    /// # Errors
    /// `Permission` without CAP_BPF, `Unsupported` for a filter or kernel that does not support it.
    pub(super) fn load(
        socket: PacketSocket,
        filter: &SocketFilter,
        ring_bytes: usize,
        time: bool,
    ) -> std::result::Result<Self, (PacketSocket, Error)> {
        let ring_len = 1_u32 << ring_bytes.min(RING_LEN_MAX).ilog2();
        let cap_max = CAP_MAX.min(ring_len / 4).min(filter.snaplen());
        let secret = RandomState::new().hash_one(ring_len);
        let made = Self::make_ring(ring_len, cap_max).and_then(|(map, memory)| {
            let program = Self::load_program(&map, filter, ring_len, cap_max, secret, time)?;
            Ok((map, memory, program))
        });
        match made {
            Ok((map, memory, program)) => Ok(Self {
                memory,
                map,
                socket,
                program: Mutex::new(program),
                ring_len: ring_len.into(),
                cap_max,
                secret,
                takes_time: time,
                gone: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                read_to: AtomicU64::new(0),
                counters: Arc::default(),
            }),
            Err(error) => Err((socket, error)),
        }
    }

    fn make_ring(ring_len: u32, cap_max: u32) -> Result<(Map, MapMemory)> {
        let map = Map::create(&MapSpec {
            kind: MapType::Array,
            name: "bw_tap_ring",
            key_size: 4,
            value_size: program::value_len(ring_len, cap_max),
            max_entries: 1,
            mappable: true,
        })?;
        let memory = map.memory()?;
        memory
            .word(control::WAKE_AT)
            .store(u64::MAX, Ordering::Relaxed);
        Ok((map, memory))
    }

    fn load_program(
        map: &Map,
        filter: &SocketFilter,
        ring_len: u32,
        cap_max: u32,
        secret: u64,
        time: bool,
    ) -> Result<Program> {
        let what = "load a tap's program";
        let insns = program::assemble(&Spec {
            map_fd: map.as_fd().as_raw_fd(),
            ring_len,
            cap_max,
            secret,
            filter: filter.program(),
            reject_outgoing: filter.rejects_outgoing(),
            time,
        })
        .map_err(|e| Error::new(ErrorKind::Unsupported, what, e.to_string()))?;
        let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
        Program::load(&ProgramSpec {
            kind: ProgramType::SocketFilter,
            name: "bw_tap",
            insns: &words,
            flags: 0,
            ifindex: 0,
        })
        .map_err(|failure| {
            let last = failure
                .log
                .lines()
                .rev()
                .nth(1)
                .unwrap_or_default()
                .to_owned();
            let error = Error::from_io(what, failure.source);
            match error.kind() {
                ErrorKind::Permission => {
                    error.with_hint("run as root or with CAP_BPF, or use tap=tpacket")
                }
                _ => error
                    .with_kind(ErrorKind::Unsupported)
                    .with_why(format!("the kernel's verifier rejects it: {last}"))
                    .with_hint("this needs Linux 5.12; or use tap=tpacket"),
            }
        })
    }

    /// Attaches the program to the socket: packets arrive from now on.
    pub(super) fn start(&self) -> Result<()> {
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        self.socket.attach_program(program.as_fd())
    }

    /// Replaces the socket's program with one that has another filter, over the same ring.
    pub(super) fn replace(&self, filter: &SocketFilter) -> Result<()> {
        let new = Self::load_program(
            &self.map,
            filter,
            self.ring_len as u32,
            self.cap_max,
            self.secret,
            self.takes_time,
        )?;
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        self.socket.attach_program(new.as_fd())?;
        *program = new;
        Ok(())
    }

    /// Packet memory in bytes.
    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// The queue's account. Exact if no packets are moving.
    pub(super) fn account(&self, queue_index: u32) -> QueueAccount {
        let mut account = QueueAccount {
            queue_index,
            ..QueueAccount::default()
        };
        let mut waiting = 0;
        // A few attempts at a view during which the reader did not advance.
        for _ in 0..4 {
            let before = self.counters.delivered.get() + self.counters.filtered.get();
            waiting = self.count_waiting();
            account.dropped[DropReason::RingFull as usize] =
                self.word(control::LOST).load(Ordering::Acquire);
            let passed = self.word(control::PASSED).load(Ordering::Acquire);
            let filtered = self.word(control::SEEN_BY_FILTER).load(Ordering::Acquire);
            account.seen = filtered + self.word(control::SEEN).load(Ordering::Acquire);
            // The queue rejects packets that the program did not.
            let by_queue = self.counters.filtered.get();
            account.dropped[DropReason::Filter as usize] =
                filtered.saturating_sub(passed) + by_queue;
            account.delivered = self.counters.delivered.get();
            if account.delivered + by_queue == before {
                break;
            }
        }
        account.delivered_bytes = self.counters.delivered_bytes.get();
        account.dropped[DropReason::Invalid as usize] = self.counters.invalid.get();
        if self.closed.load(Ordering::Acquire) {
            account.dropped[DropReason::Closed as usize] = waiting;
        } else {
            account.in_flight = waiting;
        }
        account
    }

    /// Number of finished records that the reader has not read, counted one by one, so that the
    /// account is a check.
    fn count_waiting(&self) -> u64 {
        let mut position = self.read_to.load(Ordering::Acquire);
        let head = self.word(control::HEAD).load(Ordering::Acquire);
        let mut count = 0;
        while position < head {
            let offset = control::LEN + (position & (self.ring_len - 8)) as usize;
            let stamp = self.word(offset + record::STAMP).load(Ordering::Acquire);
            let lens = self.word(offset + record::CAP_LEN).load(Ordering::Relaxed);
            let [cap_len, _] = u64_halves(lens);
            if stamp != position ^ self.secret || cap_len > self.cap_max {
                break;
            }
            position += record::len(cap_len);
            count += 1;
        }
        count
    }

    /// Stops the intake; the ring keeps its contents.
    pub(super) fn stop(&self) -> Result<()> {
        self.socket.attach_filter(REJECT_ALL)
    }
}

/// The two 32-bit halves of a 64-bit word, in memory order.
fn u64_halves(word: u64) -> [u32; 2] {
    let bytes = word.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([0, 1, 2, 3].map(|n| bytes[at + n])))
}

#[cfg(test)]
mod tests;
