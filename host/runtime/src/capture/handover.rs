//! Packets on their way from the thread of a queue to the thread that writes: a ring of lines for
//! each queue, and the order in which the writer takes from several.
//!
//! A packet is copied into the ring, so that its frame goes back to the device at once, and out of
//! it. Within a queue the order is that of the queue. Between queues it is that of the time: the
//! writer waits for a queue that has nothing, because an older packet may still come from there,
//! but at most [`WINDOW_MS`], and not once a ring is half full.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use port::{Packet, Vlan};
use ring::{Consumer, Producer};
use wire::file::MAX_PACKET_LEN;

/// How long a packet waits for older ones of other queues. Longer than a queue's thread sleeps
/// while packets gather, and than the kernel holds a block that is not full.
pub(super) const WINDOW_MS: u32 = 100;

/// Bytes of the ring of a queue.
const RING_LEN: usize = 8 << 20;

/// Bytes of an entry: a cache line.
const LINE_LEN: usize = 64;

/// Bytes of what stands before the packet in its first line.
const HEAD_LEN: usize = 32;

#[derive(Clone, Copy)]
struct Line([u8; LINE_LEN]);

impl Default for Line {
    fn default() -> Self {
        Line([0; LINE_LEN])
    }
}

/// A packet that the writer has in hand.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// When it came, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes that the port delivered; longer than `bytes` if no file could hold them.
    pub cap_len: u32,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Number of its interface in the port.
    pub interface: u16,
    /// Whether the host sent it.
    pub outgoing: bool,
    /// A tag that was taken out.
    pub vlan: Option<Vlan>,
    /// Its bytes, in one piece.
    pub bytes: &'a [u8],
}

/// What stands before the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    time_ns: u64,
    /// When its batch was received, by the capture's own clock.
    stamp_ms: u32,
    /// Bytes in the ring.
    len: u32,
    cap_len: u32,
    wire_len: u32,
    interface: u16,
    /// Bit 0: outgoing; bit 1: there is a tag.
    flags: u16,
    tpid: u16,
    tci: u16,
}

impl Head {
    #[inline]
    fn encode(&self, line: &mut Line) {
        let out = &mut line.0;
        out[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        out[8..12].copy_from_slice(&self.stamp_ms.to_le_bytes());
        out[12..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.cap_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.wire_len.to_le_bytes());
        out[24..26].copy_from_slice(&self.interface.to_le_bytes());
        out[26..28].copy_from_slice(&self.flags.to_le_bytes());
        out[28..30].copy_from_slice(&self.tpid.to_le_bytes());
        out[30..32].copy_from_slice(&self.tci.to_le_bytes());
    }

    #[inline]
    fn decode(line: &Line) -> Head {
        fn at<const AT: usize, const LEN: usize>(line: &Line) -> [u8; LEN] {
            std::array::from_fn(|i| line.0[AT + i])
        }
        Head {
            time_ns: u64::from_le_bytes(at::<0, 8>(line)),
            stamp_ms: u32::from_le_bytes(at::<8, 4>(line)),
            len: u32::from_le_bytes(at::<12, 4>(line)),
            cap_len: u32::from_le_bytes(at::<16, 4>(line)),
            wire_len: u32::from_le_bytes(at::<20, 4>(line)),
            interface: u16::from_le_bytes(at::<24, 2>(line)),
            flags: u16::from_le_bytes(at::<26, 2>(line)),
            tpid: u16::from_le_bytes(at::<28, 2>(line)),
            tci: u16::from_le_bytes(at::<30, 2>(line)),
        }
    }

    /// Lines that the packet takes.
    fn lines(&self) -> u32 {
        (HEAD_LEN + self.len as usize).div_ceil(LINE_LEN) as u32
    }
}

/// The writer is at work, and looks at the rings before it sleeps.
const AWAKE: u8 = 0;
/// It sleeps for a short time while packets gather.
const NAPPING: u8 = 1;
/// It sleeps until there is a packet.
const ASLEEP: u8 = 2;

/// Wakes the writer.
#[derive(Default)]
pub(super) struct Bell {
    writer: OnceLock<Thread>,
    state: AtomicU8,
}

impl Bell {
    /// The calling thread is the writer.
    pub(super) fn belongs_here(&self) {
        // Called once.
        let _ = self.writer.set(thread::current());
    }

    /// Wakes the writer if it sleeps; from a nap only when it is `urgent`.
    fn ring(&self, urgent: bool) {
        // Pairs with the fence in `sleep`: either the writer sees what was submitted before this,
        // or we see that it sleeps.
        fence(Ordering::SeqCst);
        let state = self.state.load(Ordering::Relaxed);
        if (state == ASLEEP || urgent && state == NAPPING)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Sleeps until it rings, at most `timeout`; not at all if there is something to do.
    pub(super) fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.rest(ASLEEP, timeout, has_work);
    }

    /// Sleeps while packets gather, at most `timeout`, so that a busy queue pays for one wake-up in
    /// many batches; not at all if there is something to do.
    pub(super) fn nap(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.rest(NAPPING, timeout, has_work);
    }

    fn rest(&self, state: u8, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.state.store(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            thread::park_timeout(timeout);
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }
}

/// The end of a queue's thread. Dropped, it tells the writer that no more will come.
pub(super) struct Inlet {
    ring: Producer<Line>,
    bell: Arc<Bell>,
    is_closed: Arc<AtomicBool>,
    /// Lines written, but not submitted.
    pending: u32,
    /// Lines submitted since the writer was last told that many are waiting.
    gathered: u32,
    /// A line that is being filled. What an earlier packet left in it is not read.
    line: Line,
}

impl Inlet {
    /// Copies a packet into the ring; false if there is no room for it. The writer sees it after
    /// [`Inlet::submit`].
    pub(super) fn put(&mut self, packet: &Packet<'_>, time_ns: u64, stamp_ms: u32) -> bool {
        let cap_len = packet.cap_len();
        let vlan = packet.vlan();
        let head = Head {
            time_ns,
            stamp_ms,
            len: cap_len.min(MAX_PACKET_LEN),
            cap_len,
            wire_len: packet.wire_len(),
            interface: packet.interface_index(),
            flags: u16::from(packet.is_outgoing()) | u16::from(vlan.is_some()) << 1,
            tpid: vlan.map_or(0, |vlan| vlan.tpid),
            tci: vlan.map_or(0, |vlan| vlan.tci),
        };
        if !self.begin(&head) {
            return false;
        }
        if packet.is_whole() {
            self.write_whole(&packet.bytes()[..head.len as usize]);
        } else {
            self.write_segments(head.len as usize, packet.segments());
        }
        true
    }

    /// Writes a head into the first line of a packet, if there is room for all of its lines.
    #[inline]
    fn begin(&mut self, head: &Head) -> bool {
        let want = self.pending + head.lines();
        if self.ring.reserve(want) < want {
            return false;
        }
        head.encode(&mut self.line);
        true
    }

    /// Writes the first line, whose head is there, and those behind it.
    #[inline]
    fn write_whole(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(LINE_LEN - HEAD_LEN));
        self.line.0[HEAD_LEN..HEAD_LEN + first.len()].copy_from_slice(first);
        self.push();
        let (lines, rest) = rest.as_chunks::<LINE_LEN>();
        for line in lines {
            self.ring.write(self.pending, Line(*line));
            self.pending += 1;
        }
        if !rest.is_empty() {
            self.line.0[..rest.len()].copy_from_slice(rest);
            self.push();
        }
    }

    /// The same with bytes that do not lie in one piece, so many of them.
    fn write_segments<'p>(&mut self, len: usize, segments: impl Iterator<Item = &'p [u8]>) {
        let (mut at, mut left) = (HEAD_LEN, len);
        for mut segment in segments {
            segment = &segment[..segment.len().min(left)];
            left -= segment.len();
            while !segment.is_empty() {
                if at == LINE_LEN {
                    self.push();
                    at = 0;
                }
                let (part, rest) = segment.split_at(segment.len().min(LINE_LEN - at));
                self.line.0[at..at + part.len()].copy_from_slice(part);
                (at, segment) = (at + part.len(), rest);
            }
        }
        self.push();
    }

    /// Puts the line into the ring.
    #[inline]
    fn push(&mut self) {
        self.ring.write(self.pending, self.line);
        self.pending += 1;
    }

    /// Shows the writer what was put in; once a batch.
    pub(super) fn submit(&mut self) {
        if self.pending == 0 {
            return;
        }
        self.gathered += self.pending;
        self.ring.submit(std::mem::take(&mut self.pending));
        let urgent = self.gathered >= self.ring.entry_count() / 4;
        self.bell.ring(urgent);
        if urgent {
            self.gathered = 0;
        }
    }

    /// The same where the ring has no room left: the writer is not to sleep.
    pub(super) fn submit_full(&mut self) {
        self.submit();
        self.bell.ring(true);
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.submit();
        self.is_closed.store(true, Ordering::Release);
        self.bell.ring(true);
    }
}

/// The writer's end of a queue.
struct Outlet {
    ring: Consumer<Line>,
    is_closed: Arc<AtomicBool>,
    /// The first packet in the ring, once it was seen.
    head: Option<Head>,
    is_over: bool,
}

impl Outlet {
    /// Looks for a packet.
    #[inline]
    fn look(&mut self) {
        if self.head.is_some() || self.is_over {
            return;
        }
        // Read first: what was submitted before the end is seen then.
        let is_closed = self.is_closed.load(Ordering::Acquire);
        if self.ring.peek(1) == 1 {
            self.head = Some(Head::decode(&self.ring.read(0)));
        } else {
            self.is_over = is_closed;
        }
    }

    /// Whether its packet has waited long enough.
    fn is_ripe(&mut self, now_ms: u32) -> bool {
        let Some(head) = self.head else { return false };
        // The batch may have come after the clock was read.
        let age_ms = now_ms.wrapping_sub(head.stamp_ms) as i32;
        let half = self.ring.entry_count() / 2;
        age_ms >= WINDOW_MS as i32 || self.ring.peek(half) == half
    }
}

/// What the writer does next.
pub(super) enum Next<'a> {
    /// This packet.
    Packet(Held<'a>),
    /// There is none, or it waits for older ones.
    Wait,
    /// There will never be anything again.
    End,
}

/// The same, before the packet is taken.
enum Choice {
    Take(usize, Head),
    Wait,
    End,
}

/// The packets of all queues, in order.
pub(super) struct Merge {
    outlets: Vec<Outlet>,
    /// The lines of the packet at hand, its head included.
    lines: Vec<[u8; LINE_LEN]>,
    last_ns: u64,
    /// Packets that came later than the window, behind younger ones.
    pub(super) late: u64,
}

/// The ends of the rings of so many queues.
pub(super) fn rings(count: usize, bell: &Arc<Bell>) -> (Vec<Inlet>, Merge) {
    rings_of(count, bell, RING_LEN / LINE_LEN)
}

fn rings_of(count: usize, bell: &Arc<Bell>, line_count: usize) -> (Vec<Inlet>, Merge) {
    let ends = (0..count).map(|_| {
        let (producer, consumer) = ring::spsc(line_count as u32);
        let is_closed = Arc::new(AtomicBool::new(false));
        let inlet = Inlet {
            ring: producer,
            bell: bell.clone(),
            is_closed: is_closed.clone(),
            pending: 0,
            gathered: 0,
            line: Line::default(),
        };
        let outlet = Outlet {
            ring: consumer,
            is_closed,
            head: None,
            is_over: false,
        };
        (inlet, outlet)
    });
    let (inlets, outlets) = ends.unzip();
    let merge = Merge {
        outlets,
        lines: Vec::new(),
        last_ns: 0,
        late: 0,
    };
    (inlets, merge)
}

impl Merge {
    /// Whether a packet was seen that is not taken yet.
    pub(super) fn has_packet(&self) -> bool {
        self.outlets.iter().any(|outlet| outlet.head.is_some())
    }

    /// Whether [`Merge::next`] would give a packet, or the end.
    pub(super) fn is_ready(&mut self, now_ms: u32) -> bool {
        matches!(self.choose(now_ms), Choice::Take(..) | Choice::End)
    }

    /// The next packet by time, if it is certain, or has waited long enough.
    #[inline]
    pub(super) fn next(&mut self, now_ms: u32) -> Next<'_> {
        if let [only] = self.outlets.as_mut_slice() {
            only.look();
            return match only.head {
                Some(head) => Next::Packet(self.take(0, &head)),
                None if only.is_over => Next::End,
                None => Next::Wait,
            };
        }
        let (index, head) = match self.choose(now_ms) {
            Choice::Take(index, head) => (index, head),
            Choice::Wait => return Next::Wait,
            Choice::End => return Next::End,
        };
        self.late += u64::from(head.time_ns < self.last_ns);
        self.last_ns = self.last_ns.max(head.time_ns);
        Next::Packet(self.take(index, &head))
    }

    fn choose(&mut self, now_ms: u32) -> Choice {
        let mut first: Option<(usize, Head)> = None;
        let (mut is_missing, mut is_over) = (false, true);
        for (index, outlet) in self.outlets.iter_mut().enumerate() {
            outlet.look();
            is_over &= outlet.is_over;
            match outlet.head {
                Some(head) if first.is_none_or(|(_, first)| head.time_ns < first.time_ns) => {
                    first = Some((index, head));
                }
                Some(_) => {}
                None => is_missing |= !outlet.is_over,
            }
        }
        let Some((index, head)) = first else {
            return if is_over { Choice::End } else { Choice::Wait };
        };
        if is_missing && !self.outlets.iter_mut().any(|outlet| outlet.is_ripe(now_ms)) {
            return Choice::Wait;
        }
        Choice::Take(index, head)
    }

    /// Takes the first packet of a queue out of its ring.
    fn take(&mut self, index: usize, head: &Head) -> Held<'_> {
        let outlet = &mut self.outlets[index];
        // A packet is submitted whole.
        let count = outlet.ring.peek(head.lines());
        if self.lines.len() < count as usize {
            self.lines.resize(count as usize, [0; LINE_LEN]);
        }
        for (at, line) in (0..count).zip(&mut self.lines) {
            *line = outlet.ring.read(at).0;
        }
        outlet.ring.release(count);
        let bytes = &self.lines.as_flattened()[HEAD_LEN..HEAD_LEN + head.len as usize];
        outlet.head = None;
        Held {
            time_ns: head.time_ns,
            cap_len: head.cap_len,
            wire_len: head.wire_len,
            interface: head.interface,
            outgoing: head.flags & 1 != 0,
            vlan: (head.flags & 2 != 0).then_some(Vlan {
                tpid: head.tpid,
                tci: head.tci,
            }),
            bytes,
        }
    }
}

#[cfg(test)]
mod tests;
