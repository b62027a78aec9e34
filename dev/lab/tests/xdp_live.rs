//! Sending with live frames through veth: what arrives, what is counted, the error if it is
//! impossible.

use std::process::Command;
use std::time::{Duration, Instant};

use lab::packet::Raw;
use lab::process::own_test;
use lab::veth::Pair;
use lab::{Veth, skip};
use sys::ErrorKind;
use xdp::{LIVE_LEN_MAX, LIVE_LEN_MIN, LiveAccount, LiveTransmitter};

const LIMIT: Duration = Duration::from_secs(5);

/// Local experimental EtherType: no part of the stack changes or merges such packets.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

/// Packet `number`, on which every byte depends.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u32)
        .map(|at| (at.wrapping_mul(31) ^ number.wrapping_mul(167)) as u8)
        .collect();
    bytes[..6].fill(0xff);
    bytes[6..12].fill(2);
    bytes[12..14].copy_from_slice(&ETHER_TYPE);
    bytes
}

/// Runs `body` in the sender's namespace, with the receiver's packet socket.
fn with_pair(veth: Veth, body: impl FnOnce(&Pair, &Raw) + Send) {
    let pair = veth.create().unwrap();
    // A veth end accepts XDP frames once GRO is enabled at the other. Enabling it before the link
    // is up has no effect (`veth_set_features`, Linux 6.18).
    pair.right.set_gro(true).unwrap();
    let receiver = pair
        .right
        .ns
        .run(|| Raw::open(&pair.right.ifname))
        .unwrap()
        .unwrap();
    pair.left.ns.run(|| body(&pair, &receiver)).unwrap();
}

fn receive(receiver: &Raw) -> Vec<u8> {
    receiver
        .receive(LIMIT)
        .unwrap()
        .expect("a packet within 5 s")
}

/// The account once the device has counted that many: it does so when the other end receives them.
fn settled(tx: &LiveTransmitter, count: u64) -> LiveAccount {
    let until = Instant::now() + LIMIT;
    loop {
        let account = tx.account().unwrap();
        if account.device_sent + account.device_dropped >= count || Instant::now() > until {
            return account;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn assert_quiet(receiver: &Raw) {
    assert_eq!(receiver.receive(Duration::from_millis(50)).unwrap(), None);
}

#[test]
fn packets_of_every_length_arrive_unchanged_and_in_order() {
    lab::require!(skip::lab());
    with_pair(Veth::new().mtu(9000), |pair, receiver| {
        let mut tx = LiveTransmitter::new(pair.left.ifindex, 64).unwrap();
        assert!(tx.has_fast_calls(), "root may make a namespace");
        assert_eq!(tx.len_max(), LIVE_LEN_MAX);
        let lens: Vec<usize> = (LIVE_LEN_MIN as usize..200)
            .chain((200..LIVE_LEN_MAX as usize).step_by(61))
            .chain([LIVE_LEN_MAX as usize, 60, LIVE_LEN_MAX as usize, 14])
            .collect();
        // In runs of odd sizes, several times around the slots.
        let mut sent = 0;
        for chunk in lens.chunks(37) {
            for (index, &len) in chunk.iter().enumerate() {
                let slot = (tx.next_slot() + index) % tx.slot_count();
                tx.write(slot, &packet((sent + index) as u32, len)).unwrap();
            }
            assert_eq!(tx.run(chunk.len() as u32).unwrap(), chunk.len() as u64);
            for (index, &len) in chunk.iter().enumerate() {
                let number = (sent + index) as u32;
                assert!(
                    receive(receiver) == packet(number, len),
                    "packet {number} of {len}"
                );
            }
            sent += chunk.len();
        }
        assert_quiet(receiver);
        let account = settled(&tx, sent as u64);
        assert_eq!((account.submitted, account.refused), (sent as u64, 0));
        assert_eq!(
            (account.device_sent, account.device_dropped),
            (sent as u64, 0)
        );
    });
}

#[test]
fn a_small_batch_is_sent_repeatedly() {
    lab::require!(skip::lab());
    with_pair(Veth::new(), |pair, receiver| {
        let mut tx = LiveTransmitter::new(pair.left.ifindex, 1024).unwrap();
        for slot in 0..3 {
            tx.write(slot, &packet(slot as u32, 60 + slot * 100))
                .unwrap();
        }
        tx.cycle(3);
        assert_eq!(tx.run(1000).unwrap(), 1000);
        for number in 0..1000_u32 {
            let slot = number % 3;
            assert!(
                receive(receiver) == packet(slot, 60 + slot as usize * 100),
                "{number}"
            );
        }
        assert_eq!(tx.next_slot(), 1);
        // Four although three were written.
        tx.cycle(4);
        assert_eq!(tx.run(8).unwrap(), 6);
        assert_eq!(tx.account().unwrap().refused, 2);
        assert_eq!(tx.run(0).unwrap(), 0);
    });
}

#[test]
fn the_account_adds_up_at_full_rate() {
    lab::require!(skip::lab());
    with_pair(Veth::new(), |pair, _| {
        let mut tx = LiveTransmitter::new(pair.left.ifindex, 256).unwrap();
        for slot in 0..256 {
            tx.write(slot, &packet(slot as u32, 60)).unwrap();
        }
        let before = pair.right.counters().unwrap();
        let mut submitted = 0;
        for _ in 0..20 {
            submitted += tx.run(10_000).unwrap();
        }
        assert_eq!(submitted, 200_000);
        let account = settled(&tx, 200_000);
        assert_eq!(account.submitted, 200_000);
        assert_eq!(
            account.device_sent + account.device_dropped,
            200_000,
            "{account:?}"
        );
        let arrived = pair.right.counters().unwrap().since(&before);
        assert_eq!(
            arrived.rx_packets, account.device_sent,
            "{account:?} {arrived:?}"
        );
    });
}

#[test]
fn settings_that_would_lose_every_packet_are_refused() {
    lab::require!(skip::lab());
    with_pair(Veth::new(), |pair, receiver| {
        let ifindex = pair.left.ifindex;
        pair.right.set_gro(false).unwrap();
        let error = LiveTransmitter::new(ifindex, 16).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().unwrap().contains("gro on"), "{error}");

        pair.right.set_gro(true).unwrap();
        let mut tx = LiveTransmitter::new(ifindex, 16).unwrap();
        tx.write(0, &packet(7, 100)).unwrap();
        tx.cycle(1);
        tx.check().unwrap();
        assert_eq!(tx.run(1).unwrap(), 1);
        assert!(receive(receiver) == packet(7, 100));

        // No longer accepting: the kernel still takes and drops everything, and only a check
        // detects it.
        pair.right.set_gro(false).unwrap();
        assert_eq!(tx.run(10).unwrap(), 10);
        assert_quiet(receiver);
        let account = settled(&tx, 1);
        assert_eq!((account.submitted, account.device_sent), (11, 1));
        assert!(tx.check().is_err());

        pair.right.set_gro(true).unwrap();
        pair.left.set_down().unwrap();
        let error = tx.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert_eq!(
            LiveTransmitter::new(ifindex, 16).unwrap_err().kind(),
            ErrorKind::Gone
        );

        pair.left.delete().unwrap();
        assert_eq!(tx.run(10).unwrap(), 0, "there is no device any more");
        assert_eq!(tx.account().unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn invalid_packets_are_refused_when_written() {
    lab::require!(skip::lab());
    with_pair(Veth::new(), |pair, _| {
        let mut tx = LiveTransmitter::new(pair.left.ifindex, 4).unwrap();
        // MTU, Ethernet header, one VLAN tag.
        assert_eq!(tx.len_max(), 1518);
        tx.write(3, &packet(0, 1518)).unwrap();
        for (slot, len) in [(0, 13), (0, 1519), (4, 60)] {
            let bytes = vec![0; len];
            let error = tx.write(slot, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        assert!(LiveTransmitter::new(pair.left.ifindex, u32::MAX).is_err());
    });
}

/// CAP_NET_ADMIN and CAP_BPF suffice; only short runs are slow then.
#[test]
fn minimal_capabilities_suffice_to_send() {
    lab::require!(skip::lab(), skip::program("setpriv", "util-linux"));
    const INSIDE: &str = "BW_LEAST_RIGHTS";
    if let Some(ifindex) = std::env::var_os(INSIDE) {
        let ifindex = ifindex.to_str().unwrap().parse().unwrap();
        let mut tx = LiveTransmitter::new(ifindex, 16).unwrap();
        assert!(!tx.has_fast_calls());
        for slot in 0..16 {
            tx.write(slot, &packet(slot as u32, 60 + slot)).unwrap();
        }
        assert_eq!(tx.run(16).unwrap(), 16);
        return;
    }
    with_pair(Veth::new(), |pair, receiver| {
        let (program, args) = own_test(module_path!(), "minimal_capabilities_suffice_to_send");
        let out = Command::new("setpriv")
            .arg("--bounding-set=-all,+net_admin,+net_raw,+bpf")
            .arg(program)
            .args(args)
            .env(INSIDE, pair.left.ifindex.to_string())
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        for number in 0..16 {
            assert!(receive(receiver) == packet(number, 60 + number as usize));
        }
    });
}
