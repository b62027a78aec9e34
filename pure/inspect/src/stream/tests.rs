//! Streams compared with a model that has all segments, and a `SegmentStore` that copies nothing.

use super::*;
use std::vec::Vec;

/// The bytes read, with `None` for each missing byte.
#[derive(Default)]
struct Tape {
    read: [Vec<Option<u8>>; 2],
    again: usize,
}

impl Reader for Tape {
    type End = ();

    fn data(&mut self, from: Direction, bytes: &[u8]) -> Option<()> {
        assert!(!bytes.is_empty());
        self.read[from as usize].extend(bytes.iter().map(|byte| Some(*byte)));
        None
    }

    fn gap(&mut self, from: Direction, len: u32) -> Option<()> {
        assert_ne!(len, 0);
        let read = &mut self.read[from as usize];
        read.extend(std::iter::repeat_n(None, len as usize));
        None
    }

    fn far(&mut self, _from: Direction) -> Option<()> {
        panic!("nothing here is far");
    }

    fn again(&mut self, _from: Direction, bytes: &[u8], _is_whole: bool) {
        self.again += bytes.len();
    }
}

/// A store of frames: the handle is the number of the frame being read.
struct Frames<'a> {
    frames: &'a [(u32, Vec<u8>)],
    current: u32,
    live: usize,
}

impl SegmentStore for Frames<'_> {
    fn keep(&mut self, sequence: u32, bytes: &[u8]) -> Option<u32> {
        let (own, frame) = &self.frames[self.current as usize];
        assert_eq!((*own, &frame[..]), (sequence, bytes));
        self.live += 1;
        Some(self.current)
    }

    fn kept(&self, handle: u32) -> Option<(u32, &[u8])> {
        let (sequence, bytes) = &self.frames[handle as usize];
        Some((*sequence, bytes))
    }

    fn release(&mut self, _handle: u32) {
        self.live -= 1;
    }
}

fn part(sequence: u32, bytes: &[u8]) -> Part<'_> {
    Part {
        sequence,
        is_syn: false,
        begins: None,
        bytes,
        len: bytes.len() as u32,
    }
}

/// Segments of 1 to 40 bytes, some lost, some duplicated, some swapped; the byte at offset `n` is a
/// function of `n`.
fn segments(random: &mut impl FnMut(usize) -> usize, total: usize) -> Vec<(u32, Vec<u8>)> {
    let start = u32::MAX - 100;
    let byte = |at: usize| ((at * 31) >> 3) as u8;
    let mut segments = Vec::new();
    let mut at = 0;
    while at < total {
        let len = (1 + random(40)).min(total - at);
        let back = random(8).min(at);
        let bytes: Vec<u8> = (at - back..at + len).map(byte).collect();
        let sequence = start.wrapping_add((at - back) as u32);
        if at == 0 || random(12) != 0 {
            segments.push((sequence, bytes));
        }
        at += len;
    }
    for _ in 0..segments.len() / 3 {
        let one = 1 + random(segments.len() - 2);
        let other = (one + 1 + random(3)).min(segments.len() - 1);
        segments.swap(one, other);
    }
    segments
}

#[test]
fn each_byte_is_read_once_and_in_order() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % bound
    };
    let (mut gaps, mut again) = (0, 0);
    for _ in 0..500 {
        let frames = segments(&mut random, 600);
        let mut blocks = Blocks::new(HELD_MAX as u32);
        let mut zero_copy = Frames {
            frames: &frames,
            current: 0,
            live: 0,
        };
        let (mut one, mut other) = (Stream::NEW, Stream::NEW);
        let (mut tape, mut same) = (Tape::default(), Tape::default());
        let from = Direction::Reverse;
        for (at, (sequence, bytes)) in frames.iter().enumerate() {
            zero_copy.current = at as u32;
            let part = part(*sequence, bytes);
            one.segment(from, &part, &mut blocks, &mut tape);
            other.segment(from, &part, &mut zero_copy, &mut same);
        }
        one.flush(from, &mut blocks, &mut tape);
        other.flush(from, &mut zero_copy, &mut same);
        assert!(blocks.is_empty() && zero_copy.live == 0);
        // Regardless of what was kept, the bytes are those that were sent, in order.
        let read = &tape.read[1];
        for (at, byte) in read.iter().enumerate() {
            assert!(
                byte.is_none_or(|byte| byte == ((at * 31) >> 3) as u8),
                "at {at}"
            );
        }
        assert_eq!(read, &same.read[1]);
        assert_eq!(
            one.next(from),
            Some((u32::MAX - 100).wrapping_add(read.len() as u32))
        );
        assert!(tape.read[0].is_empty() && one.next(Direction::Forward).is_none());
        gaps += read.iter().filter(|byte| byte.is_none()).count();
        again += tape.again;
    }
    assert!(gaps > 1000 && again > 1000, "{gaps} {again}");
}

#[test]
fn dropped_segments_are_gaps_and_counted() {
    let mut blocks = Blocks::new(1);
    let (mut stream, mut tape) = (Stream::NEW, Tape::default());
    let from = Direction::Forward;
    for (sequence, bytes) in [(10, &b"ab"[..]), (20, b"k"), (30, b"z")] {
        stream.segment(from, &part(sequence, bytes), &mut blocks, &mut tape);
    }
    // The third found the room that the second had left.
    assert_eq!((blocks.refused_count(), blocks.len()), (1, 1));
    stream.flush(from, &mut blocks, &mut tape);
    assert_eq!(stream.next(from), Some(31));
    let text: Vec<u8> = tape.read[0]
        .iter()
        .map(|byte| byte.unwrap_or(b'.'))
        .collect();
    assert_eq!(text, b"ab........k.........z");
    // Of a segment that was cut in the capture, the rest is missing.
    let cut = Part {
        len: 5,
        ..part(31, b"y")
    };
    stream.segment(from, &cut, &mut blocks, &mut tape);
    assert_eq!(stream.next(from), Some(36));
    stream.release(&mut blocks);
    assert!(blocks.is_empty());
}
