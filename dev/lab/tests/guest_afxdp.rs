//! In the guest: AF_XDP on real drivers. Zero-copy is verified by the kernel's `XDP_OPTIONS` and by
//! the addresses at which packets arrive.

use std::time::Duration;

use crate::afxdp::{self, fact, open, sender};
use lab::packet::{Udp, number_of};
use lab::{Pair, guest};
use port::PortOptions;
use ring::{Pool, PoolConfig};

/// Headroom that the kernel keeps before each packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// Every length of an untagged packet in turn: a card's buffers may be shorter than the pool's
/// frames.
fn len_of(number: u64) -> usize {
    60 + (number as usize * 7) % 1455
}

/// Receives on all queues of a card and checks mode and addresses; `mode` is the kernel's word.
fn receives_into_our_frames(cards: [&str; 2], name: &str, attach: &str, mode: &str) {
    let pair = Pair::of_cards(cards[0], cards[1], 1500, 2).unwrap();
    let pool = Pool::new(PoolConfig {
        frame_count: 8192,
        ..PoolConfig::default()
    })
    .unwrap();
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let mut port = open(&pair.right, name, &options);
    assert_eq!(fact(&port, "bind mode"), mode, "{name}");
    assert_eq!(fact(&port, "attach mode"), attach, "{name}");
    pair.right.wait_up(Duration::from_secs(20)).unwrap();
    pair.left.wait_up(Duration::from_secs(20)).unwrap();

    const COUNT: u64 = 2000;
    let raw = sender(&pair.left);
    let plan = Udp {
        flow_count: 64,
        ..Udp::between(&pair.left, &pair.right)
    };
    let base = pool.base().as_ptr() as usize;
    let (mut got, mut per_queue) = (0, vec![0_u64; port.rx.len()]);
    let mut seen = vec![false; COUNT as usize];
    let mut frames = std::collections::BTreeSet::new();
    let mut quiet = 0;
    let mut sent = 0;
    while got < COUNT && quiet < 500 {
        if sent < COUNT && sent < got + 200 {
            for _ in 0..50 {
                raw.send(&plan.build(sent, len_of(sent))).unwrap();
                sent += 1;
            }
        }
        let before = got;
        for (rx, of_queue) in port.rx.iter_mut().zip(&mut per_queue) {
            rx.wait(Duration::from_millis(5)).unwrap();
            let batch = rx.receive().unwrap();
            for packet in batch.iter() {
                let bytes = packet.bytes();
                let number = number_of(bytes).unwrap();
                assert_eq!(bytes, plan.build(number, len_of(number)), "packet {number}");
                assert!(!std::mem::replace(&mut seen[number as usize], true));
                // In the registered memory, in one of its frames, after the kernel's headroom.
                let at = (bytes.as_ptr() as usize).checked_sub(base).unwrap();
                assert!(at < pool.frames_len(), "packet {number} is not in the pool");
                let frame_len = pool.frame_len() as usize;
                assert_eq!(at % frame_len, HEADROOM, "packet {number}");
                frames.insert(at / frame_len);
                got += 1;
                *of_queue += 1;
            }
        }
        quiet = if got == before { quiet + 1 } else { 0 };
    }
    let account = port.control.account().unwrap();
    println!(
        "{name}: {mode}, by queue {per_queue:?}, {} frames",
        frames.len()
    );
    assert_eq!(got, COUNT, "{account:?}");
    assert_eq!(account.rx_total().imbalance(), 0, "{account:?}");
    assert_eq!(account.rx_total().delivered, COUNT, "{account:?}");
    let spread = per_queue.iter().all(|count| *count > COUNT / 10);
    assert!(spread, "64 flows on the queues: {per_queue:?}");
    assert!(frames.len() > 64, "the same {} frames again", frames.len());
}

#[test]
fn igb_is_zero_copy_on_all_queues() {
    lab::require!(guest::inside());
    let name = "afxdp:{}?attach=native&bind=zero-copy";
    receives_into_our_frames(["igb0", "igb1"], name, "native", "zero-copy");
}

#[test]
fn auto_selects_zero_copy_on_igb() {
    lab::require!(guest::inside());
    receives_into_our_frames(["igb0", "igb1"], "afxdp:{}", "native", "zero-copy");
}

#[test]
fn igb_refuses_short_frames_for_zero_copy() {
    lab::require!(guest::inside());
    // With 2048 bytes its buffers would be 1024, and a longer packet would arrive as two.
    let pair = Pair::of_cards("igb0", "igb1", 1500, 2).unwrap();
    let pool = Pool::new(PoolConfig {
        frame_count: 8192,
        frame_len: 2048,
        ..PoolConfig::default()
    });
    let options = PortOptions {
        pool: Some(pool.unwrap()),
        ..PortOptions::default()
    };
    let error = afxdp::try_open(&pair.right, "afxdp:{}?bind=zero-copy", &options).err();
    let error = error.expect("zero-copy over short frames must be refused");
    assert_eq!(error.kind(), sys::ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("2048"), "{error}");
    let port = open(&pair.right, "afxdp:{}", &options);
    assert_eq!(fact(&port, "bind mode"), "copy");
}

#[test]
fn igb_copies_on_request() {
    lab::require!(guest::inside());
    receives_into_our_frames(["igb0", "igb1"], "afxdp:{}?bind=copy", "native", "copy");
}

#[test]
fn virtio_is_zero_copy_behind_an_iommu() {
    lab::require!(guest::inside(), guest::two_queues());
    let name = "afxdp:{}?attach=native&bind=zero-copy";
    receives_into_our_frames(["virtio0", "virtio1"], name, "native", "zero-copy");
}

#[test]
fn e1000_works_in_generic_mode() {
    lab::require!(guest::inside());
    receives_into_our_frames(["e1000-0", "e1000-1"], "afxdp:{}", "generic", "copy");
    receives_into_our_frames(["e1000e-0", "e1000e-1"], "afxdp:{}", "generic", "copy");
}
