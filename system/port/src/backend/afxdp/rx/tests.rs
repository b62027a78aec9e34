//! Invalid descriptors, which a correct kernel would never write, in the rings of a real socket,
//! whose memory is mapped here.

use ring::PoolConfig;
use sys::xsk::PACKET_CONTINUES;

use super::*;
use crate::backend::afxdp::socket::{self, SocketSpec};

const FRAME_LEN: u32 = 2048;
const HEADROOM: u64 = 256;

/// A queue of the loopback interface in a private namespace.
struct Rig {
    pool: Pool,
    rx: Rx,
    shared: Arc<Shared>,
    counters: Arc<RxCounters>,
    /// Frames that the kernel has.
    borrowed: Vec<u32>,
}

impl Rig {
    fn new(metadata: bool) -> Self {
        let config = PoolConfig {
            frame_count: 256,
            frame_len: FRAME_LEN,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let spec = SocketSpec {
            ifindex: 1,
            queue_index: 0,
            has_rx: true,
            has_tx: false,
            ring_len: 64,
            tx_len: 64,
            fill_count: 32,
            zero_copy: false,
            multi_buffer: false,
            need_wakeup: true,
        };
        let queue = socket::open(&pool, &spec).unwrap();
        let (shared, parts, _) = queue.into_ends();
        let counters = Arc::new(RxCounters::default());
        let settings = RxSettings {
            snaplen: 0,
            times: Times::None,
            metadata,
            busy_poll: false,
            sockets: None,
        };
        let rx = Rx::new(
            parts.unwrap(),
            shared.clone(),
            None,
            pool.clone(),
            settings,
            counters.clone(),
        );
        let borrowed = rx.borrowed.iter().collect();
        Self {
            pool,
            rx,
            shared,
            counters,
            borrowed,
        }
    }

    /// Address of a packet in the `nth` frame that the kernel has.
    fn addr(&self, nth: usize) -> u64 {
        self.pool.addr_of(self.borrowed[nth]) + HEADROOM
    }

    /// Writes metadata before a packet.
    fn describe(&self, nth: usize, number: u16) {
        let found = RawMetadata {
            time_ns: 0,
            hash: u32::from(number) * 11,
            vlan_tci: number,
            vlan_proto: 0x8100,
            flags: FLAG_HASH | FLAG_VLAN,
            magic: MAGIC,
        };
        let at = self.addr(nth) as usize - METADATA_LEN;
        // SAFETY: within a frame of the pool, which no device has in truth.
        unsafe {
            let place = self.pool.base().add(at).cast::<RawMetadata>();
            place.write_unaligned(found);
        }
    }

    fn fill(&mut self) -> Vec<Slot> {
        let mut slots = Vec::new();
        self.rx.fill(&mut slots, 64).unwrap();
        slots
    }
}

/// Runs `body` with a private loopback; reports a skip if that is impossible.
fn alone(name: &str, body: impl FnOnce() + Send) {
    if let Err(error) = sys::netns::in_new(body) {
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        skip::record(name, error);
    }
}

fn piece(addr: u64, len: u32, options: u32) -> Descriptor {
    Descriptor { addr, len, options }
}

#[test]
fn only_invalid_descriptors_are_refused_and_counted() {
    alone("only_invalid_descriptors_are_refused_and_counted", || {
        let mut rig = Rig::new(false);
        let far = u64::from(rig.pool.frame_count() * FRAME_LEN);
        let whole = [
            piece(rig.addr(0), 60, 0),
            // Returned twice, outside the pool, never borrowed, longer than its frame.
            piece(rig.addr(0), 60, 0),
            piece(far, 60, 0),
            piece(u64::MAX, 60, 0),
            piece(rig.addr(1), FRAME_LEN, 0),
            piece(rig.addr(2), 61, 0),
        ];
        rig.shared.forge(&whole);
        let mut slots = rig.fill();
        let lens: Vec<u32> = slots.iter().map(|slot| slot.cap_len()).collect();
        assert_eq!(lens, [60, 61]);
        assert_eq!(rig.counters.invalid.get(), 4);
        rig.rx.release(&mut slots);
        // A packet in pieces is refused as one, whichever of them is wrong.
        let in_pieces = [
            piece(rig.addr(3), 100, PACKET_CONTINUES),
            piece(far, 100, 0),
            piece(far, 100, PACKET_CONTINUES),
            piece(rig.addr(4), 100, 0),
            piece(rig.addr(5), 100, PACKET_CONTINUES),
            piece(rig.addr(6), 50, 0),
            piece(far, 60, 0),
        ];
        rig.shared.forge(&in_pieces);
        let mut slots = rig.fill();
        let reported: Vec<_> = slots.iter().map(|s| (s.cap_len(), s.wire_len)).collect();
        assert_eq!(reported, [(100, 150), (50, 150)]);
        assert_eq!(rig.counters.invalid.get(), 4 + 3);
        rig.rx.release(&mut slots);
        // The frames of what was refused are borrowed again.
        assert_eq!(rig.rx.borrowed.count(), 32);
        assert_eq!(rig.pool.counts().device, 32);
    });
}

#[test]
fn metadata_is_of_a_packets_first_piece() {
    alone("metadata_is_of_a_packets_first_piece", || {
        let mut rig = Rig::new(true);
        for number in 0..5 {
            rig.describe(number, number as u16 + 1);
        }
        let descriptors = [
            piece(rig.addr(0), 60, 0),
            piece(rig.addr(1), 100, PACKET_CONTINUES),
            piece(rig.addr(2), 100, PACKET_CONTINUES),
            piece(rig.addr(3), 100, 0),
            piece(rig.addr(4), 60, 0),
        ];
        rig.shared.forge(&descriptors);
        let mut slots = rig.fill();
        let found: Vec<_> = slots
            .iter()
            .map(|slot| {
                (
                    slot.has(Slot::VLAN).then_some(slot.vlan.tci),
                    slot.rss_hash(),
                )
            })
            .collect();
        let of = |number: u16| (Some(number), Some(u32::from(number) * 11));
        let none = (None, None);
        assert_eq!(found, [of(1), of(2), none, none, of(5)]);
        rig.rx.release(&mut slots);
    });
}
