//! The byte streams of a TCP connection (RFC 9293 §3.4): reordering, overlaps and gaps.
//!
//! A [`Stream`] holds the state of one connection: a few numbers per direction. It receives
//! segments as they arrive and passes bytes to a [`Reader`] in order, each byte once. A
//! [`SegmentStore`] keeps early segments, up to [`HELD_MAX`] per direction; when there is no room,
//! the missing bytes before them are skipped, and the reader gets a gap. For bytes that arrive
//! twice the first copy counts; the second is passed to [`Reader::again`].
//!
//! [`Blocks`] stores segments by copying them. An engine that owns its frames can implement
//! [`SegmentStore`] over them instead and copy nothing. A program with its own TCP needs none of
//! this: it passes the bytes it has read to [`crate::Conversation`].

use crate::decode::Direction;
use crate::slab::Slab;

/// Maximum number of segments kept per direction.
pub const HELD_MAX: usize = 4;
/// Maximum length of a segment that [`Blocks`] keeps.
pub const BLOCK_LEN: usize = 1536;
/// A sequence number this far off belongs to another connection.
const FAR: u32 = 1 << 20;

/// Stores segments that arrived early.
pub trait SegmentStore {
    /// Keeps a segment and returns its handle, which is valid until it is released; `None` if there
    /// is no room. An implementation that keeps frames keeps the frame being read instead of
    /// copying the bytes.
    fn keep(&mut self, sequence: u32, bytes: &[u8]) -> Option<u32>;

    /// Returns the sequence number and the bytes of a segment.
    fn kept(&self, handle: u32) -> Option<(u32, &[u8])>;

    /// Releases a segment.
    fn release(&mut self, handle: u32);

    /// Called when a segment could not be kept: by [`SegmentStore::keep`], or because its direction
    /// already has [`HELD_MAX`]. For counters.
    fn refused(&mut self) {}
}

/// Receives the data of a stream. Each call may end the reading by returning a value.
pub trait Reader {
    /// Result of the reading.
    type End;

    /// Receives the next bytes of a direction.
    fn data(&mut self, from: Direction, bytes: &[u8]) -> Option<Self::End>;

    /// Reports that this many bytes of a direction are missing.
    fn gap(&mut self, from: Direction, len: u32) -> Option<Self::End>;

    /// Reports a segment far from the direction's position, most likely of another connection.
    fn far(&mut self, from: Direction) -> Option<Self::End>;

    /// Receives a repetition of bytes that were already delivered or skipped, perhaps with
    /// different content: a whole segment, or the first bytes of one.
    fn again(&mut self, from: Direction, bytes: &[u8], is_whole: bool) {
        let _ = (from, bytes, is_whole);
    }
}

/// A segment of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Sequence number of the segment.
    pub sequence: u32,
    /// Whether it has SYN, which takes a sequence number.
    pub is_syn: bool,
    /// Sequence number of this direction's first byte, if known from elsewhere, such as a SYN that
    /// was not passed.
    pub begins: Option<u32>,
    /// Captured payload.
    pub bytes: &'a [u8],
    /// Length of the payload on the wire.
    pub len: u32,
}

/// Both directions of a connection.
#[derive(Clone)]
pub struct Stream {
    orders: [Order; 2],
}

impl Stream {
    /// A stream without any data.
    pub const NEW: Stream = Stream {
        orders: [Order::NEW, Order::NEW],
    };

    /// Sets the sequence number of a direction's first byte, unless it is known already.
    pub fn begin(&mut self, from: Direction, sequence: u32) {
        self.orders[from as usize].begin(sequence, sequence);
    }

    /// Skips a segment whose bytes do not matter. Returns false if it is not the next one, or if
    /// segments are kept: it must then be read like any other.
    #[inline]
    pub fn skip(&mut self, from: Direction, sequence: u32, len: u32) -> bool {
        let order = &mut self.orders[from as usize];
        let is_next = order.is_started && order.next == sequence && order.held_count == 0;
        if is_next {
            order.next = sequence.wrapping_add(len);
        }
        is_next
    }

    /// Handles a segment, and delivers the data now in order.
    pub fn segment<R: Reader>(
        &mut self,
        from: Direction,
        part: &Part<'_>,
        keep: &mut impl SegmentStore,
        reader: &mut R,
    ) -> Option<R::End> {
        let order = &mut self.orders[from as usize];
        let mut sequence = part.sequence;
        if let Some(begins) = part.begins {
            order.begin(begins, sequence);
        }
        if part.is_syn {
            order.syn(sequence);
            sequence = sequence.wrapping_add(1);
        }
        let bytes = part.bytes;
        if bytes.is_empty() {
            return None;
        }
        // At most one iteration for each segment kept, and one more.
        for _ in 0..=HELD_MAX + 1 {
            match order.offer(sequence, bytes, keep) {
                Offer::Held => return None,
                Offer::Old => {
                    reader.again(from, bytes, true);
                    return None;
                }
                Offer::Far => return reader.far(from),
                Offer::Next(at) => {
                    let (old, new) = bytes.split_at_checked(at)?;
                    if !old.is_empty() {
                        reader.again(from, old, false);
                    }
                    order.advance(new.len());
                    if let Some(end) = reader.data(from, new) {
                        return Some(end);
                    }
                    let missing = part.len.saturating_sub(bytes.len() as u32);
                    if missing != 0 {
                        order.advance(missing as usize);
                        if let Some(end) = reader.gap(from, missing) {
                            return Some(end);
                        }
                    }
                    return order.ready(from, keep, reader);
                }
                Offer::Gap(len) => {
                    if let Some(end) = reader.gap(from, len) {
                        return Some(end);
                    }
                    if let Some(end) = order.ready(from, keep, reader) {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    /// Delivers data that still wait for missing segments, which will not arrive any more.
    pub fn flush<R: Reader>(
        &mut self,
        from: Direction,
        keep: &mut impl SegmentStore,
        reader: &mut R,
    ) -> Option<R::End> {
        let order = &mut self.orders[from as usize];
        for _ in 0..=HELD_MAX {
            let len = order.skip(keep)?;
            if let Some(end) = reader.gap(from, len) {
                return Some(end);
            }
            if let Some(end) = order.ready(from, keep, reader) {
                return Some(end);
            }
        }
        None
    }

    /// Releases all kept segments. Nothing more is delivered.
    pub fn release(&mut self, keep: &mut impl SegmentStore) {
        for order in &mut self.orders {
            order.release(keep);
        }
    }

    /// The sequence number of the next byte of a direction, once it is known.
    pub fn next(&self, from: Direction) -> Option<u32> {
        let order = &self.orders[from as usize];
        order.is_started.then_some(order.next)
    }
}

/// Position of a direction.
#[derive(Clone)]
struct Order {
    next: u32,
    is_started: bool,
    held_count: u8,
    /// Handles of kept segments, by sequence number.
    held: [u32; HELD_MAX],
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// Ignore it: all of it is known.
    Old,
    /// Deliver it from this byte on.
    Next(usize),
    /// It was kept.
    Held,
    /// Skip this many bytes, then offer the segment again.
    Gap(u32),
    /// It belongs to another connection.
    Far,
}

/// Whether a sequence number precedes another one.
fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) >= 1 << 31
}

impl Order {
    const NEW: Order = Order {
        next: 0,
        is_started: false,
        held_count: 0,
        held: [0; HELD_MAX],
    };

    /// Handles a SYN: the first byte has the next number.
    fn syn(&mut self, sequence: u32) {
        if !self.is_started {
            self.is_started = true;
            self.next = sequence.wrapping_add(1);
        }
    }

    /// Sets the number of the first byte, unless a segment with this sequence number can hardly
    /// belong to it. That of a keep-alive is one less (RFC 9293 §3.8.4).
    fn begin(&mut self, begins: u32, sequence: u32) {
        if !self.is_started && sequence.wrapping_add(1).wrapping_sub(begins) <= FAR {
            self.is_started = true;
            self.next = begins;
        }
    }

    fn held(&self) -> &[u32] {
        &self.held[..usize::from(self.held_count).min(HELD_MAX)]
    }

    /// Decides about a segment, which is not empty.
    fn offer(&mut self, sequence: u32, bytes: &[u8], keep: &mut impl SegmentStore) -> Offer {
        if !self.is_started {
            self.is_started = true;
            self.next = sequence;
        }
        let ahead = sequence.wrapping_sub(self.next);
        let behind = self.next.wrapping_sub(sequence);
        if behind < 1 << 31 {
            let is_new = (behind as usize) < bytes.len();
            return match is_new {
                true => Offer::Next(behind as usize),
                false => Offer::Old,
            };
        }
        if ahead > FAR {
            return Offer::Far;
        }
        if self.hold(sequence, bytes, keep) {
            return Offer::Held;
        }
        keep.refused();
        // The first kept segment may come before it.
        let first = self.held().first().and_then(|handle| keep.kept(*handle));
        let until = first.map_or(sequence, |(held, _)| {
            if is_before(held, sequence) {
                held
            } else {
                sequence
            }
        });
        let len = until.wrapping_sub(self.next);
        self.next = until;
        Offer::Gap(len)
    }

    fn hold(&mut self, sequence: u32, bytes: &[u8], keep: &mut impl SegmentStore) -> bool {
        let count = self.held().len();
        if count == HELD_MAX {
            return false;
        }
        let at = self.held().partition_point(|handle| {
            let held = keep.kept(*handle).map_or(0, |(held, _)| held);
            // Of equal ones the first stays first.
            held.wrapping_sub(self.next) <= sequence.wrapping_sub(self.next)
        });
        let Some(handle) = keep.keep(sequence, bytes) else {
            return false;
        };
        self.held.copy_within(at..count, at + 1);
        self.held[at] = handle;
        self.held_count += 1;
        true
    }

    /// Advances by bytes that were delivered or skipped.
    fn advance(&mut self, len: usize) {
        self.next = self.next.wrapping_add(len as u32);
    }

    /// Delivers the kept segments that are now in order.
    fn ready<R: Reader>(
        &mut self,
        from: Direction,
        keep: &mut impl SegmentStore,
        reader: &mut R,
    ) -> Option<R::End> {
        while let Some(handle) = self.held().first().copied() {
            let (sequence, bytes) = keep.kept(handle)?;
            if is_before(self.next, sequence) {
                return None;
            }
            self.held.copy_within(1.., 0);
            self.held_count = self.held_count.saturating_sub(1);
            let behind = (self.next.wrapping_sub(sequence) as usize).min(bytes.len());
            let (old, new) = bytes.split_at(behind);
            if !old.is_empty() {
                reader.again(from, old, new.is_empty());
            }
            self.next = self.next.wrapping_add(new.len() as u32);
            let end = match new {
                [] => None,
                new => reader.data(from, new),
            };
            keep.release(handle);
            if end.is_some() {
                return end;
            }
        }
        None
    }

    /// Skips the bytes missing before the first kept segment, and returns their number. `None`
    /// without kept segments.
    fn skip(&mut self, keep: &impl SegmentStore) -> Option<u32> {
        let (sequence, _) = keep.kept(*self.held().first()?)?;
        let len = sequence.wrapping_sub(self.next);
        self.next = sequence;
        Some(len)
    }

    fn release(&mut self, keep: &mut impl SegmentStore) {
        for handle in self.held() {
            keep.release(*handle);
        }
        self.held_count = 0;
    }
}

/// A segment that arrived early.
struct Block {
    sequence: u32,
    len: u16,
    bytes: [u8; BLOCK_LEN],
}

impl Block {
    const EMPTY: Block = Block {
        sequence: 0,
        len: 0,
        bytes: [0; BLOCK_LEN],
    };
}

/// Copies of segments of up to [`BLOCK_LEN`] bytes, in memory reserved at startup and shared by
/// many streams.
pub struct Blocks {
    slab: Slab<Block>,
    refused: u64,
}

impl Blocks {
    /// Reserves room for this many segments.
    pub fn new(count_max: u32) -> Blocks {
        Blocks {
            slab: Slab::new(count_max),
            refused: 0,
        }
    }

    /// Memory for this many segments in bytes.
    pub const fn memory_len(count_max: u32) -> usize {
        Slab::<Block>::memory_len(count_max)
    }

    /// Number of kept segments.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no segments are kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of segments that could not be kept, since the start.
    pub fn refused_count(&self) -> u64 {
        self.refused
    }
}

impl SegmentStore for Blocks {
    fn keep(&mut self, sequence: u32, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > BLOCK_LEN {
            return None;
        }
        let handle = self.slab.take(|| Block::EMPTY)?;
        let block = self.slab.get_mut(handle)?;
        block.sequence = sequence;
        block.len = bytes.len() as u16;
        block.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(handle)
    }

    fn kept(&self, handle: u32) -> Option<(u32, &[u8])> {
        let block = self.slab.get(handle)?;
        let len = usize::from(block.len).min(BLOCK_LEN);
        Some((block.sequence, &block.bytes[..len]))
    }

    fn release(&mut self, handle: u32) {
        self.slab.give(handle);
    }

    fn refused(&mut self) {
        self.refused += 1;
    }
}

#[cfg(test)]
mod tests;
