//! Frames that the kernel did not write, in a real ring, and the layout of rings.

use std::sync::Arc;

use sys::packet::{FrameRing, PacketSocket};
use sys::{ErrorKind, Result};

use super::super::tap::Tap;
use super::*;
use crate::account::DropReason;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::RxBackend;

/// Frames do not fill the blocks.
const SHAPE: FrameRing = FrameRing {
    frame_len: 1344,
    block_len: 4096,
    block_count: 4,
};
const FRAME_COUNT: usize = 12;

fn tap() -> Result<Tap<Frames>> {
    let socket = PacketSocket::new()?;
    let memory = socket.frame_ring(&SHAPE)?;
    Ok(Tap::new(socket, Frames::new(memory, &SHAPE)))
}

/// Writes a frame as the kernel would.
fn forge(frames: &Frames, index: usize, mac_offset: u16, cap_len: u32) {
    let place = frames.place(index);
    let word = |offset: usize, value: u32| {
        // SAFETY: within the frame's header, aligned.
        let word: &AtomicU32 = unsafe { frames.frame(place).add(offset).cast().as_ref() };
        word.store(value, Ordering::Relaxed);
    };
    word(4, cap_len);
    word(8, cap_len);
    word(12, u32::from(mac_offset) | 80 << 16);
    word(16, 1);
    word(20, 5);
    frames.status(place).store(OURS, Ordering::Release);
}

/// A reader of a tap, or `None` without the privilege for one.
fn reader() -> Option<(Arc<Tap<Frames>>, FrameRx)> {
    let tap = match tap() {
        Ok(tap) => Arc::new(tap),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
            return None;
        }
    };
    let options = PortOptions::default();
    let time = TimestampSource::Kernel;
    let rx = FrameRx::new(tap.clone(), time, Arc::default(), &options, None);
    Some((tap, rx))
}

#[test]
fn packets_outside_of_their_frames_are_refused_and_counted() {
    let Some((tap, mut rx)) = reader() else {
        skip::skip!("a packet socket needs CAP_NET_RAW");
    };
    let room = 1344 - 66;
    let mut index = 0;
    for (mac_offset, cap_len, is_valid) in [
        (66, 60, true),
        (66, room, true),
        (66, room + 1, false),
        (52, 1344 - 52, true),
        (51, 60, false),
        (0, 60, false),
        (1344, 0, true),
        (1345, 0, false),
        (u16::MAX, u32::MAX, false),
        (66, u32::MAX - 65, false),
    ] {
        let before = tap.counters.invalid.get();
        forge(&tap.ring, index, mac_offset, cap_len);
        index = (index + 1) % FRAME_COUNT;
        let mut slots = Vec::new();
        let filled = rx.fill(&mut slots, 64).unwrap();
        assert_eq!(filled.packets, usize::from(is_valid), "{mac_offset}");
        let refused = tap.counters.invalid.get() - before;
        assert_eq!(refused, u64::from(!is_valid), "{mac_offset}");
        if let [slot] = &slots[..] {
            assert_eq!((slot.cap_len(), slot.time_ns), (cap_len, 1_000_000_005));
        }
        rx.release(&mut slots);
        let account = tap.account(3).unwrap();
        assert_eq!((account.queue_index, account.in_flight), (3, 0));
        let invalid = tap.counters.invalid.get();
        assert_eq!(account.dropped[DropReason::Invalid as usize], invalid);
    }
    for index in 0..FRAME_COUNT {
        let status = tap.ring.status(tap.ring.place(index));
        assert_eq!(status.load(Ordering::Acquire), KERNELS, "frame {index}");
    }
}

/// The reader stops at a frame that the kernel is filling, and after a whole ring that is held.
#[test]
fn frames_are_read_in_order_and_once() {
    let Some((tap, mut rx)) = reader() else {
        skip::skip!("a packet socket needs CAP_NET_RAW");
    };
    let mut next = 0;
    for round in 0..20 {
        // All but the second of those that are there.
        let there: Vec<usize> = (0..FRAME_COUNT).filter(|&n| n != 1).collect();
        for &n in &there {
            forge(&tap.ring, (next + n) % FRAME_COUNT, 66, 100 + n as u32);
        }
        assert_eq!(tap.ring.waiting(), 1, "round {round}");
        let mut slots = Vec::new();
        assert_eq!(rx.fill(&mut slots, 64).unwrap().packets, 1);
        assert_eq!(tap.ring.waiting(), 0);
        forge(&tap.ring, (next + 1) % FRAME_COUNT, 66, 101);
        assert_eq!(tap.ring.waiting(), 11);
        assert_eq!(rx.fill(&mut slots, 5).unwrap().packets, 5);
        assert_eq!(tap.ring.waiting(), 6);
        assert_eq!(rx.fill(&mut slots, 64).unwrap().packets, 6);
        // The status of the first one is that of a packet still, but it was read.
        assert_eq!(rx.fill(&mut slots, 64).unwrap().packets, 0);
        assert_eq!(tap.ring.waiting(), 0);
        let lens: Vec<u32> = slots.iter().map(|slot| slot.cap_len()).collect();
        assert_eq!(lens, (100..112).collect::<Vec<u32>>(), "round {round}");
        // Frames are returned when no packet is held.
        let mut last = slots.split_off(11);
        rx.release(&mut slots);
        let first = tap.ring.status(tap.ring.place(next));
        assert_eq!(first.load(Ordering::Acquire), OURS);
        rx.release(&mut last);
        assert_eq!(first.load(Ordering::Acquire), KERNELS);
        // Each round begins at another frame.
        forge(&tap.ring, next, 66, 60);
        assert_eq!(rx.fill(&mut slots, 64).unwrap().packets, 1);
        rx.release(&mut slots);
        next = (next + 1) % FRAME_COUNT;
    }
}

#[test]
fn rings_have_whole_frames_within_the_requested_memory() {
    for (bytes, packet_len, frames, frame_len) in [
        // An MTU of 1500 bytes, merged packets, a short snaplen, all in the default ring.
        (32 << 20, 1564, 20_160, 1664),
        (32 << 20, 65_600, 480, 65_728),
        (32 << 20, 96, 131_072, 256),
        // Frames are shorter than packets in little memory.
        (16 << 10, 65_600, 4, 4096),
        (512 << 10, 262_144, 4, 131_072),
        (4 << 30, 0, 1 << 24, 256),
        (4 << 30, u32::MAX, 4096, 1 << 20),
    ] {
        let ring = ring_shape(bytes, packet_len);
        assert_eq!(
            (ring.frame_count(), ring.frame_len),
            (frames, frame_len),
            "{packet_len} in {bytes}: {ring:?}"
        );
    }
    let mut state = 1_u64;
    let mut draw = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (state >> 33) % below
    };
    for _ in 0..10_000 {
        let (bits, bits_len) = (draw(33), draw(31));
        let bytes = (16 << 10) + draw(1 << bits) as usize;
        let ring = ring_shape(bytes, draw(1 << bits_len) as u32);
        let len = u64::from(ring.block_len) * u64::from(ring.block_count);
        assert!(len <= bytes as u64 && ring.frame_count() >= 2, "{ring:?}");
        assert!(ring.block_len.is_power_of_two() && ring.block_len >= 4096);
        assert!(ring.frame_len.is_multiple_of(64) && ring.frame_len >= 256);
        // Less than half of the blocks is lost.
        let used = u64::from(ring.frame_count()) * u64::from(ring.frame_len);
        assert!(used * 2 >= len, "{ring:?}");
    }
}

/// The MTU where nothing merges packets; else what the kernel reports, at least 64 KiB.
#[test]
fn frames_have_room_for_the_longest_packet() {
    for (mtu, merged_max, expected) in [
        (1500, None, 1564),
        (1500, Some(0), 65_600),
        (1500, Some(65_536), 65_600),
        (9000, Some(262_144), 262_208),
        (u32::MAX, None, (1 << 20) + 64),
    ] {
        assert_eq!(shape::longest_of(mtu, merged_max), expected);
    }
}
