//! The receiving end, with the owner in the same process.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use ring::shared::OwnerEnd;
use ring::slot::Slot;
use ring::{Frame, FrameCache, PoolConfig};

use super::*;
use crate::account::DropReason;
use crate::control::PortControl;
use crate::rx::Ready;
use crate::{Checksum, Vlan};

const LONG: Duration = Duration::from_secs(60);

struct Rig {
    pool: Pool,
    cache: FrameCache,
    owner: OwnerEnd,
    rx: RxQueue,
    control: Control,
}

fn rig(ring_len: u32, options: &PortOptions) -> Rig {
    let pool = Pool::new(PoolConfig {
        frame_count: 256,
        frame_len: 2048,
        ..PoolConfig::default()
    })
    .unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let owner = OwnerEnd::new(&pool, ring_len, ours).unwrap();
    let attached = Pool::attach(pool.share(Access::Read).unwrap(), Access::Read).unwrap();
    let peer = PeerEnd::attach(attached, owner.queue().unwrap(), theirs).unwrap();
    let (counters, taken) = (Arc::new(RxCounters::default()), Arc::new(Taken::default()));
    let part = control::Part {
        queue: 3,
        rx: counters.clone(),
        taken: taken.clone(),
        owner: peer.counts(),
    };
    let keep = Keep::new(Arc::new(OnceLock::new()), counters.clone());
    let backend = Rx::new(
        peer,
        "test",
        options,
        keep,
        taken,
        WayBack::keep("test", None),
    );
    let filter = options.filter.clone();
    Rig {
        cache: FrameCache::new(pool.clone()),
        pool,
        owner,
        rx: RxQueue::new(Box::new(backend), 3, options.batch_max, filter, counters),
        control: Control {
            target: "test".into(),
            link_type: 1,
            interfaces: Vec::new(),
            parts: vec![part],
            tx: Vec::new(),
            memory_len: 0,
        },
    }
}

impl Rig {
    fn frame(&mut self, number: u8) -> Frame {
        let mut frame = self.cache.take().unwrap();
        self.pool.set_range(&mut frame, 100, 60);
        self.pool.bytes_mut(&mut frame).fill(number);
        let bytes = [number; 60];
        // SAFETY: the bytes are not accessed: only the metadata is used.
        let mut slot = unsafe { Slot::over(std::ptr::NonNull::from(&bytes).cast(), 60, 1500, 0) };
        slot.set_time(1_000_000_007 * u64::from(number));
        slot.set_rss_hash(0x1234_5678);
        slot.set_vlan(Vlan {
            tpid: 0x8100,
            tci: 7,
        });
        slot.set_checksum(Checksum::Bad);
        slot.set_outgoing();
        slot.set_interface(2);
        self.pool.keep_metadata(&mut frame, &slot);
        frame
    }

    /// Hands over packets with these numbers; returns how many the ring accepted.
    fn hand(&mut self, numbers: std::ops::Range<u8>) -> usize {
        let mut accepted = 0;
        for number in numbers {
            let frame = self.frame(number);
            let ends = std::slice::from_mut(&mut self.owner);
            match OwnerEnd::hand_frame(ends, 1, frame) {
                Ok(_) => accepted += 1,
                Err(frame) => self.cache.give(frame).unwrap(),
            }
        }
        self.owner.flush();
        accepted
    }

    fn receive(&mut self) -> Vec<u8> {
        let batch = self.rx.receive().unwrap();
        batch.iter().map(|packet| packet.bytes()[0]).collect()
    }
}

#[test]
fn packets_arrive_with_their_metadata_and_are_accounted_for() {
    let mut rig = rig(16, &PortOptions::default());
    assert_eq!(rig.hand(0..20), 16);
    assert_eq!(rig.rx.wait(LONG).unwrap(), Ready::Packets);
    let waiting = rig.control.account().unwrap().rx[0];
    let full = waiting.dropped[DropReason::RingFull as usize];
    assert_eq!((waiting.seen, full, waiting.in_flight), (20, 4, 16));
    let batch = rig.rx.receive().unwrap();
    for (number, packet) in batch.iter().enumerate() {
        assert_eq!(packet.bytes(), [number as u8; 60]);
        let meta = packet.meta();
        assert_eq!(meta.time_ns, Some(1_000_000_007 * number as u64));
        assert_eq!((meta.wire_len, meta.rss_hash), (1500, Some(0x1234_5678)));
        assert_eq!(
            meta.vlan,
            Some(Vlan {
                tpid: 0x8100,
                tci: 7
            })
        );
        assert_eq!((meta.checksum, meta.is_outgoing), (Checksum::Bad, true));
        assert_eq!(meta.interface_index, 2);
    }
    assert_eq!(batch.len(), 16);
    drop(batch);
    rig.owner.collect(&mut rig.cache);
    assert_eq!(rig.pool.counts().peer, 0, "returned with the batch");
    assert_eq!(rig.owner.counts().returned, 16);
    let queue = rig.control.account().unwrap().rx[0];
    assert_eq!((queue.queue_index, queue.delivered), (3, 16));
    assert_eq!((queue.in_flight, queue.imbalance()), (0, 0));
}

#[test]
fn the_filter_runs_in_user_space() {
    let reject = bpf::cbpf::Program::new(vec![bpf::cbpf::Insn {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0,
    }]);
    let options = PortOptions {
        filter: Some(reject.unwrap()),
        ..PortOptions::default()
    };
    let mut rig = rig(16, &options);
    rig.hand(0..5);
    assert_eq!(rig.receive(), []);
    rig.owner.collect(&mut rig.cache);
    assert_eq!(rig.pool.counts().peer, 0);
    let queue = rig.control.account().unwrap().rx[0];
    assert_eq!(queue.dropped[DropReason::Filter as usize], 5);
    assert_eq!((queue.delivered, queue.imbalance()), (0, 0));
}

/// The frames are mapped read-only: a packet that is changed or kept is a copy.
#[test]
fn changed_and_kept_packets_are_copies() {
    let options = PortOptions {
        snaplen: 40,
        ..PortOptions::default()
    };
    let mut rig = rig(16, &options);
    rig.hand(1..4);
    let mut batch = rig.rx.receive().unwrap();
    for mut packet in batch.iter_mut() {
        packet.bytes_mut()[0] += 100;
    }
    let changed: Vec<_> = batch.iter().map(|packet| packet.bytes().to_vec()).collect();
    let kept = batch.detach(1).unwrap();
    drop(batch);
    for (number, bytes) in (1..).zip(changed) {
        assert_eq!(
            (bytes[0], bytes[39], bytes.len()),
            (number + 100, number, 40)
        );
    }
    let pool = rig.rx.pool().unwrap().clone();
    assert_eq!(pool.bytes(&kept.frame)[0], 102);
    assert_eq!(kept.meta.wire_len, 1500);
    let mut cache = FrameCache::new(pool);
    cache.give(kept.frame).unwrap();
    rig.owner.collect(&mut rig.cache);
    assert_eq!(rig.pool.counts().peer, 0);
}

#[test]
fn packets_in_the_ring_are_received_after_the_intake_was_stopped() {
    let mut rig = rig(
        16,
        &PortOptions {
            batch_max: 4,
            ..PortOptions::default()
        },
    );
    rig.hand(0..6);
    rig.control.stop().unwrap();
    assert_eq!(rig.receive(), [0, 1, 2, 3]);
    rig.hand(6..9);
    assert_eq!(rig.receive(), [4, 5]);
    assert_eq!(rig.receive(), []);
    let queue = rig.control.account().unwrap().rx[0];
    assert_eq!((queue.seen, queue.delivered, queue.in_flight), (9, 6, 3));
}

#[test]
fn the_end_and_the_death_of_the_owner_differ() {
    // In order: the packets, then the end.
    let mut ended = rig(16, &PortOptions::default());
    ended.hand(0..2);
    ended.owner.close();
    assert_eq!(ended.rx.wait(LONG).unwrap(), Ready::Packets);
    assert_eq!(ended.receive(), [0, 1]);
    assert_eq!(ended.rx.wait(LONG).unwrap(), Ready::End);
    // Killed: the packets, then an error, for a reader that waits and for one that does not.
    for waits in [true, false] {
        let mut rig = rig(16, &PortOptions::default());
        rig.hand(0..2);
        rig.owner.disconnect();
        assert_eq!(rig.receive(), [0, 1]);
        let error = match waits {
            true => rig.rx.wait(LONG).unwrap_err(),
            false => loop {
                if let Err(error) = rig.rx.receive() {
                    break error;
                }
            },
        };
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(
            error
                .hint()
                .unwrap()
                .contains("barewire cluster run --name test")
        );
    }
}

#[test]
fn names_state_what_to_attach_to() {
    let parse = |text: &str| PortName::parse(text).unwrap();
    let asks = |text: &str| request(&parse(text)).map(|(name, asked)| (name.to_owned(), asked));
    assert_eq!(asks("ring:x").unwrap(), ("x".into(), Request::Any));
    assert_eq!(asks("ring:x/12").unwrap(), ("x".into(), Request::Queue(12)));
    let ids = Request::Application("ids".into());
    assert_eq!(asks("ring:x/ids?queues=2").unwrap(), ("x".into(), ids));
    assert!(asks("ring:x/../y").is_err());
    let refused =
        |text: &str, options: &PortOptions| crate::open(text, options).err().unwrap().kind();
    let plain = PortOptions::default();
    assert_eq!(
        refused("ring:barewire-missing", &plain),
        ErrorKind::NotFound
    );
    for invalid in [
        "ring:",
        "ring:../x",
        "ring:-7",
        "ring:x/1?queues=2",
        "ring:x?queues=65",
    ] {
        assert_eq!(
            refused(invalid, &plain),
            ErrorKind::InvalidInput,
            "{invalid}"
        );
    }
    let sending = PortOptions {
        direction: crate::Direction::Tx,
        ..PortOptions::default()
    };
    assert_eq!(refused("ring:x", &sending), ErrorKind::Unsupported);
}
