//! A batch that stays with its queue is read one packet at a time, and returned by the next call.

use barewire_port::{Port, PortOptions, RxQueue};
use ring::{Pool, PoolConfig};

/// More than each end keeps for itself.
const FRAME_COUNT: u32 = 1024;

/// Lengths of the packets of the batch that the queue keeps.
fn held(queue: &RxQueue) -> Vec<usize> {
    let mut at = 0;
    std::iter::from_fn(|| {
        let (packet, next) = queue.held(at)?;
        at = next;
        Some(packet.segments().map(<[u8]>::len).sum())
    })
    .collect()
}

#[test]
fn held_packets_stay_until_the_next_batch() {
    let config = PoolConfig {
        frame_count: FRAME_COUNT,
        frame_len: 2048,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config).unwrap();
    let options = PortOptions {
        pool: Some(pool.clone()),
        ring_len: 32,
        ..PortOptions::default()
    };
    let Port { mut rx, mut tx, .. } = barewire_port::open("memory:", &options).unwrap();
    for round in 0..FRAME_COUNT {
        // The second packet spans several frames.
        let mut batch = tx[0].reserve(8).unwrap();
        for len in [60, 5000, 61] {
            assert!(batch.write(&vec![0; len]), "round {round}");
        }
        batch.submit().unwrap();
        tx[0].flush().unwrap();
        let batch = rx[0].receive().unwrap();
        assert_eq!(batch.len(), 3);
        batch.hold();
        assert_eq!(held(&rx[0]), [60, 5000, 61]);
        // Frames are returned, or the pool would be empty soon.
        assert!(rx[0].receive().unwrap().is_empty());
        assert_eq!(held(&rx[0]), []);
    }
}
