//! Keeps segments that arrived early in the frames that the port received them in, instead of
//! copies ([`inspect::stream::SegmentStore`]).
//!
//! A frame that is kept is missing to the port, so there is a bound; beyond it, and for packets
//! whose port gives no frames away, segments are copied as by [`Blocks`].
//!
//! ```text
//! for each packet of a batch:
//!     store.begin(packet, moves)             the bytes of the segments that follow are its own
//!     stream.segment(…, &mut store, …)
//!     store.settle(&mut batch, index)        takes its frame, if a segment is to be kept
//! ```

use std::ops::Range;

use inspect::stream::{Blocks, SegmentStore};
use port::{Packet, RxBatch};
use ring::{Frame, FrameCache, Pool};

/// One segment.
enum Segment {
    /// Of the current packet: [`FrameStore::settle`] takes its frame.
    Current { sequence: u32, range: Range<usize> },
    /// In a frame, whose packet has the segment in this range.
    Framed {
        sequence: u32,
        range: Range<usize>,
        frame: Frame,
        pool: Pool,
    },
    /// A copy.
    Copied(u32),
    /// Its frame could not be taken, nor could it be copied: without bytes.
    Lost { sequence: u32 },
}

/// Counts of a store, in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Kept in their frames.
    pub framed: u64,
    /// Copied.
    pub copied: u64,
    /// Bytes of the copies.
    pub copied_bytes: u64,
    /// Not kept: no room.
    pub refused: u64,
}

/// Segments in frames, owned by the thread of a queue.
pub struct FrameStore {
    segments: Vec<Option<Segment>>,
    /// Places in `segments` that are free.
    free: Vec<u32>,
    frames_max: u32,
    frame_count: u32,
    copies: Blocks,
    /// Addresses of the current packet's bytes, if its frame can be taken.
    current: Range<usize>,
    pending: Option<u32>,
    cache: Option<FrameCache>,
    counts: HeldCounts,
}

fn addresses(bytes: &[u8]) -> Range<usize> {
    let range = bytes.as_ptr_range();
    range.start.addr()..range.end.addr()
}

impl FrameStore {
    /// A store that keeps at most `frames_max` frames at a time, and `copies_max` copies. An
    /// eighth of the port's pool is a good bound for the frames.
    pub fn new(frames_max: u32, copies_max: u32) -> Self {
        let count = frames_max.saturating_add(copies_max);
        Self {
            segments: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            frames_max,
            frame_count: 0,
            copies: Blocks::new(copies_max),
            current: 0..0,
            pending: None,
            cache: None,
            counts: HeldCounts::default(),
        }
    }

    /// Begins a packet. `moves` tells whether its port gives frames away
    /// ([`Capabilities::detach_moves`](port::Capabilities)); otherwise its segments are copied.
    pub fn begin(&mut self, packet: Packet<'_>, moves: bool) {
        self.current = match moves && packet.is_whole() {
            true => addresses(packet.bytes()),
            false => 0..0,
        };
        self.pending = None;
    }

    /// Ends the packet, which is number `index` of the batch: takes its frame if a segment of it is
    /// kept. The packet is empty then.
    pub fn settle(&mut self, batch: &mut RxBatch<'_>, index: usize) {
        self.current = 0..0;
        let Some(place) = self.pending.take() else {
            return;
        };
        let Some(slot) = self.segments.get_mut(place as usize) else {
            return;
        };
        let Some(Segment::Current { sequence, range }) = slot.take() else {
            return;
        };
        let detached = batch.detach(index).ok().map(|detached| detached.frame);
        let framed = detached.and_then(|frame| {
            let pool = Pool::find(frame.pool_tag())?;
            Some((frame, pool))
        });
        *slot = Some(match framed {
            Some((frame, pool)) => {
                self.counts.framed += 1;
                Segment::Framed {
                    sequence,
                    range,
                    frame,
                    pool,
                }
            }
            None => {
                self.frame_count -= 1;
                self.counts.refused += 1;
                Segment::Lost { sequence }
            }
        });
    }

    /// The counts so far.
    pub fn counts(&self) -> HeldCounts {
        self.counts
    }

    /// Number of frames that are kept now.
    pub fn frame_count(&self) -> u32 {
        self.frame_count
    }

    /// Returns a frame to its pool.
    fn give(&mut self, frame: Frame, pool: Pool) {
        let is_its = |cache: &&mut FrameCache| cache.pool().tag() == pool.tag();
        let cache = match self.cache.as_mut().filter(is_its) {
            Some(cache) => cache,
            None => self.cache.insert(FrameCache::new(pool)),
        };
        // A frame of this pool is accepted.
        let _ = cache.give(frame);
        // Its port waits for them.
        cache.keep_an_eighth();
    }
}

impl SegmentStore for FrameStore {
    fn keep(&mut self, sequence: u32, bytes: &[u8]) -> Option<u32> {
        let at = addresses(bytes);
        let is_current = at.start >= self.current.start && at.end <= self.current.end;
        let has_room = self.frame_count < self.frames_max && self.pending.is_none();
        let segment = if is_current && has_room {
            self.frame_count += 1;
            let start = self.current.start;
            Segment::Current {
                sequence,
                range: at.start - start..at.end - start,
            }
        } else {
            self.counts.copied_bytes += bytes.len() as u64;
            self.counts.copied += 1;
            match self.copies.keep(sequence, bytes) {
                Some(copy) => Segment::Copied(copy),
                None => {
                    self.counts.copied_bytes -= bytes.len() as u64;
                    self.counts.copied -= 1;
                    return None;
                }
            }
        };
        let is_current = matches!(segment, Segment::Current { .. });
        // There are as many places as frames and copies.
        let place = self.free.pop()?;
        *self.segments.get_mut(place as usize)? = Some(segment);
        if is_current {
            self.pending = Some(place);
        }
        Some(place)
    }

    fn kept(&self, handle: u32) -> Option<(u32, &[u8])> {
        match self.segments.get(handle as usize)?.as_ref()? {
            Segment::Framed {
                sequence,
                range,
                frame,
                pool,
            } => Some((*sequence, pool.bytes(frame).get(range.clone())?)),
            Segment::Copied(copy) => self.copies.kept(*copy),
            Segment::Current { sequence, .. } | Segment::Lost { sequence } => {
                Some((*sequence, &[]))
            }
        }
    }

    fn release(&mut self, handle: u32) {
        let place = self.segments.get_mut(handle as usize);
        let Some(segment) = place.and_then(Option::take) else {
            return;
        };
        self.free.push(handle);
        match segment {
            Segment::Framed { frame, pool, .. } => {
                self.frame_count -= 1;
                self.give(frame, pool);
            }
            Segment::Copied(copy) => self.copies.release(copy),
            Segment::Current { .. } => {
                self.frame_count -= 1;
                self.pending = None;
            }
            Segment::Lost { .. } => {}
        }
    }

    fn refused(&mut self) {
        self.counts.refused += 1;
    }
}

/// Returns the frames that are still kept.
impl Drop for FrameStore {
    fn drop(&mut self) {
        for handle in 0..self.segments.len() as u32 {
            self.release(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use inspect::decode::Direction;
    use inspect::stream::{Part, Reader, Stream};
    use port::{Port, PortOptions};
    use ring::PoolConfig;

    use super::*;

    /// Bytes as read, with gaps as zeros.
    #[derive(Default)]
    struct Read(Vec<u8>);

    impl Reader for Read {
        type End = Infallible;

        fn data(&mut self, _: Direction, bytes: &[u8]) -> Option<Infallible> {
            self.0.extend_from_slice(bytes);
            None
        }

        fn gap(&mut self, _: Direction, len: u32) -> Option<Infallible> {
            self.0.extend(std::iter::repeat_n(0, len as usize));
            None
        }

        fn far(&mut self, _: Direction) -> Option<Infallible> {
            panic!("a segment far away");
        }
    }

    fn port(pool: &Pool) -> Port {
        let options = PortOptions {
            pool: Some(pool.clone()),
            ..PortOptions::default()
        };
        port::open("memory:", &options).unwrap()
    }

    fn pool() -> Pool {
        let pool = Pool::new(PoolConfig {
            frame_count: 2048,
            ..PoolConfig::default()
        });
        pool.unwrap()
    }

    const LEN: u32 = 100;

    /// Segment `number`: its sequence number, a byte that is not part of the payload, the payload.
    fn packet(number: u32) -> Vec<u8> {
        let mut bytes = (number * LEN).to_be_bytes().to_vec();
        bytes.push(0xee);
        bytes.extend((0..LEN).map(|at| (number * 7 + at) as u8 | 1));
        bytes
    }

    /// Passes segments in this order through a port and a stream.
    fn read(port: &mut Port, order: &[u32], store: &mut FrameStore) -> Vec<u8> {
        let (mut stream, mut reader) = (Stream::NEW, Read::default());
        stream.begin(Direction::Forward, 0);
        let moves = port.capabilities.detach_moves;
        for numbers in order.chunks(32) {
            let mut batch = port.tx[0].reserve(numbers.len()).unwrap();
            numbers
                .iter()
                .for_each(|it| assert!(batch.write(&packet(*it))));
            batch.submit().unwrap();
            let mut batch = port.rx[0].receive().unwrap();
            for index in 0..batch.len() {
                let packet = batch.iter().nth(index).unwrap();
                let bytes = packet.bytes();
                store.begin(packet, moves);
                let part = Part {
                    sequence: u32::from_be_bytes(*bytes.first_chunk().unwrap()),
                    is_syn: false,
                    begins: None,
                    bytes: &bytes[5..],
                    len: LEN,
                };
                stream.segment(Direction::Forward, &part, store, &mut reader);
                store.settle(&mut batch, index);
            }
        }
        stream.release(store);
        reader.0
    }

    /// Three of four segments arrive early: they stay in their frames, and no byte is copied.
    #[test]
    fn early_segments_stay_in_their_frames() {
        let pool = pool();
        let mut port = port(&pool);
        let order: Vec<u32> = (0..400).map(|it| it / 4 * 4 + 3 - it % 4).collect();
        let expected: Vec<u8> = (0..400).flat_map(|it| packet(it)[5..].to_vec()).collect();
        let mut store = FrameStore::new(8, 8);
        assert!(read(&mut port, &order, &mut store) == expected);
        let counts = store.counts();
        assert_eq!(
            (counts.framed, counts.copied, counts.copied_bytes),
            (300, 0, 0)
        );
        assert_eq!((counts.refused, store.frame_count()), (0, 0));
        // With one frame, the others are copied; with neither, their bytes are missing.
        let mut short = FrameStore::new(1, 8);
        assert!(read(&mut port, &order, &mut short) == expected);
        let counts = short.counts();
        assert_eq!((counts.framed, counts.copied), (100, 200));
        assert_eq!(counts.copied_bytes, 200 * u64::from(LEN));
        let mut none = FrameStore::new(0, 0);
        assert!(read(&mut port, &order, &mut none) != expected);
        assert_eq!(none.counts().framed + none.counts().copied, 0);
        assert!(none.counts().refused != 0);
        drop((port, store, short, none));
        assert_eq!(pool.counts().free, pool.frame_count());
    }

    /// Frames that are kept return when the store is dropped.
    #[test]
    fn a_dropped_store_returns_its_frames() {
        let pool = pool();
        let mut port = port(&pool);
        let mut store = FrameStore::new(8, 0);
        let mut batch = port.tx[0].reserve(3).unwrap();
        (1..4).for_each(|number| assert!(batch.write(&packet(number))));
        batch.submit().unwrap();
        let mut batch = port.rx[0].receive().unwrap();
        for index in 0..3 {
            let packet = batch.iter().nth(index).unwrap();
            store.begin(packet, true);
            let handle = store.keep(index as u32, &packet.bytes()[5..]).unwrap();
            store.settle(&mut batch, index);
            let (sequence, bytes) = store.kept(handle).unwrap();
            assert_eq!((sequence, bytes.len()), (index as u32, LEN as usize));
        }
        drop(batch);
        assert_eq!(store.frame_count(), 3);
        drop(port);
        assert_eq!(pool.counts().user, 3);
        drop(store);
        assert_eq!(pool.counts().free, pool.frame_count());
    }
}
