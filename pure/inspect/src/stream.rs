//! The byte streams of a TCP connection (RFC 9293 §3.4): segments put in order, overlaps and gaps.
//!
//! A [`Stream`] holds the state of one connection: a few numbers for each direction. It is given
//! segments as they arrive and calls a [`Reader`] with bytes in order, each byte once. Segments
//! that arrive early are kept by a [`SegmentStore`], up to [`HELD_MAX`] per direction; when there
//! is no room, the missing bytes before them are skipped, and the reader gets a gap. Of bytes that
//! arrive twice the first copy counts; the second is passed to [`Reader::again`].
//!
//! [`Blocks`] keeps segments by copying them. An engine that owns its frames implements
//! [`SegmentStore`] over them instead and copies nothing. A program with a TCP of its own needs
//! none of this: it gives the bytes it has read to [`crate::Conversation`].

use crate::decode::Direction;
use crate::slab::Slab;

/// Segments of a direction that are kept at once.
pub const HELD_MAX: usize = 4;
/// Longest segment that [`Blocks`] keeps.
pub const BLOCK_LEN: usize = 1536;
/// A sequence number this far off belongs to another connection.
const FAR: u32 = 1 << 20;

/// Where segments stay that arrived before their turn.
pub trait SegmentStore {
    /// Keeps a segment and returns its handle, which stands for it until it is released; none if
    /// there is no room. An implementation that keeps frames keeps the frame being read instead of
    /// copying the bytes.
    fn keep(&mut self, sequence: u32, bytes: &[u8]) -> Option<u32>;

    /// The sequence number and the bytes of a segment.
    fn kept(&self, handle: u32) -> Option<(u32, &[u8])>;

    /// Drops a segment.
    fn release(&mut self, handle: u32);

    /// A segment could not be kept: by [`SegmentStore::keep`], or because its direction has
    /// [`HELD_MAX`] already. For counters.
    fn refused(&mut self) {}
}

/// What is done with a stream. Each call may end the reading by returning a value.
pub trait Reader {
    /// What reading ends with.
    type End;

    /// The next bytes of a direction.
    fn data(&mut self, from: Direction, bytes: &[u8]) -> Option<Self::End>;

    /// This many bytes of a direction are missing.
    fn gap(&mut self, from: Direction, len: u32) -> Option<Self::End>;

    /// A segment far from where the direction is: most likely of another connection.
    fn far(&mut self, from: Direction) -> Option<Self::End>;

    /// Bytes that were already delivered or skipped have arrived again, perhaps with other content:
    /// a whole segment, or the first bytes of one.
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
    /// Number of the first byte of this direction, if known from elsewhere, such as a SYN
    /// that was not given.
    pub begins: Option<u32>,
    /// Payload, as much as was captured.
    pub bytes: &'a [u8],
    /// Bytes of payload on the wire.
    pub len: u32,
}

/// Both directions of a connection.
#[derive(Clone)]
pub struct Stream {
    orders: [Order; 2],
}

impl Stream {
    /// Nothing seen yet.
    pub const NEW: Stream = Stream {
        orders: [Order::NEW, Order::NEW],
    };

    /// The first byte of a direction has this number, unless it is known already.
    pub fn begin(&mut self, from: Direction, sequence: u32) {
        self.orders[from as usize].begin(sequence, sequence);
    }

    /// Skips a segment whose bytes do not matter. False if it is not the next one, or if
    /// segments are kept: then it must be read like any other.
    #[inline]
    pub fn skip(&mut self, from: Direction, sequence: u32, len: u32) -> bool {
        let order = &mut self.orders[from as usize];
        let is_next = order.is_started && order.next == sequence && order.held_count == 0;
        if is_next {
            order.next = sequence.wrapping_add(len);
        }
        is_next
    }

    /// Takes a segment, and reads what is in order now.
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
        // At most once round for each segment held, and once more.
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

    /// Reads what still waits for something before it, which will not arrive any more.
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

    /// Releases all that is kept. Nothing more is read.
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

/// Where a direction stands.
#[derive(Clone)]
struct Order {
    next: u32,
    is_started: bool,
    held_count: u8,
    /// Handles of what is kept, by sequence number.
    held: [u32; HELD_MAX],
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// Nothing: all of it is known.
    Old,
    /// Deliver it from this byte on.
    Next(usize),
    /// It was kept.
    Held,
    /// This many bytes are skipped; offer the segment again.
    Gap(u32),
    /// It belongs to something else.
    Far,
}

/// Whether a sequence number is before another one.
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

    /// A SYN: the first byte has the next number.
    fn syn(&mut self, sequence: u32) {
        if !self.is_started {
            self.is_started = true;
            self.next = sequence.wrapping_add(1);
        }
    }

    /// The first byte has this number, unless a segment with this one can hardly belong to it. That
    /// of a keep-alive is one less (RFC 9293 §3.8.4).
    fn begin(&mut self, begins: u32, sequence: u32) {
        if !self.is_started && sequence.wrapping_add(1).wrapping_sub(begins) <= FAR {
            self.is_started = true;
            self.next = begins;
        }
    }

    fn held(&self) -> &[u32] {
        &self.held[..usize::from(self.held_count).min(HELD_MAX)]
    }

    /// A segment that is not empty.
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
        // The first of those held comes before it, perhaps.
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
            // Of equal ones the first stays before.
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

    /// This many bytes were delivered, or skipped.
    fn advance(&mut self, len: usize) {
        self.next = self.next.wrapping_add(len as u32);
    }

    /// Delivers the kept segments whose turn it is.
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

    /// Skips the bytes missing before the first segment kept, and returns their number. `None` if
    /// none is.
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

/// Copies of segments of up to [`BLOCK_LEN`] bytes, in memory reserved at the start and shared by
/// many streams.
pub struct Blocks {
    slab: Slab<Block>,
    refused: u64,
}

impl Blocks {
    /// Room for this many segments.
    pub fn new(count_max: u32) -> Blocks {
        Blocks {
            slab: Slab::new(count_max),
            refused: 0,
        }
    }

    /// Bytes that room for this many takes.
    pub const fn memory_len(count_max: u32) -> usize {
        Slab::<Block>::memory_len(count_max)
    }

    /// Segments that are kept.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Segments that could not be kept, since the start.
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
