//! Sending through the ring.

use lab::packet::number_of;
use lab::process::Process;
use lab::{Netns, Veth, skip};
use port::Direction;
use sys::ErrorKind;

use super::common::*;

fn open_tx(end: &End, query: &str) -> Port {
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    try_open(end, query, &options).unwrap()
}

/// Sends all packets, waiting for room, and waits until all are sent.
fn send(port: &mut Port, packets: &[Vec<u8>]) {
    let mut sent = 0;
    while sent < packets.len() {
        let mut batch = port.tx[0].reserve(64).unwrap();
        while sent < packets.len() && batch.write(&packets[sent]) {
            sent += 1;
        }
        batch.submit().unwrap();
        assert!(port.tx[0].wait(false, LIMIT).unwrap());
    }
    assert!(port.tx[0].wait(true, LIMIT).unwrap());
}

/// Another program receives what was sent, in order and unchanged, and both counts agree.
#[test]
fn a_plain_socket_receives_sent_packets() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let receiver = pair
        .right
        .ns
        .run(|| Raw::open(&pair.right.ifname))
        .unwrap()
        .unwrap();
    for query in ["", "qdisc_bypass=no", "ring=64"] {
        let mut port = open_tx(&pair.left, query);
        let plan = plan(&pair);
        let packets: Vec<_> = (0..3000)
            .map(|number| plan.build(number, 60 + number as usize % 1455))
            .collect();
        let before = pair.left.counters().unwrap();
        for part in packets.chunks(500) {
            send(&mut port, part);
            for packet in part {
                assert_eq!(receiver.receive(LIMIT).unwrap().as_ref(), Some(packet));
            }
        }
        let account = port.control.account().unwrap().tx_total();
        let bytes: usize = packets.iter().map(Vec::len).sum();
        assert_eq!((account.sent, account.failed), (3000, 0), "{query:?}");
        assert_eq!(account.sent_bytes, bytes as u64);
        assert_eq!(
            pair.left.counters().unwrap().since(&before).tx_packets,
            3000
        );
    }
}

/// One system call per batch, not per packet.
#[test]
fn a_batch_is_sent_with_one_system_call() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open_tx(&pair.left, "");
    let packets: Vec<_> = (0..6400)
        .map(|number| plan(&pair).build(number, 64))
        .collect();
    for part in packets.chunks(64) {
        let mut batch = port.tx[0].reserve(64).unwrap();
        part.iter().for_each(|packet| assert!(batch.write(packet)));
        batch.submit().unwrap();
        port.tx[0].flush().unwrap();
        assert!(port.tx[0].wait(true, LIMIT).unwrap());
    }
    let kicks = port.tx[0].counters().kicks.get();
    assert!(kicks <= 110, "{kicks} calls for 100 batches");
}

/// A packet that the interface cannot send is refused and counted; the others in the batch are
/// sent.
#[test]
fn only_packets_that_do_not_fit_are_refused() {
    lab::require!(skip::lab());
    let pair = Veth::new().mtu(1300).create().unwrap();
    let mut receiver = open(&pair.right, "outgoing=no");
    let mut port = open_tx(&pair.left, "");
    let mut tagged = plan(&pair);
    tagged.vlan = Some(5);
    let plan = plan(&pair);
    let packets = [
        plan.build(0, 1314),
        plan.build(1, 1315),
        vec![1; 13],
        plan.build(2, 60),
        // A tag may exceed the MTU, nothing else may.
        tagged.build(3, 1318),
        tagged.build(4, 1319),
        plan.build(5, 2000),
        plan.build(6, 1314),
    ];
    send(&mut port, &packets);
    let numbers: Vec<_> = collect(&mut receiver)
        .iter()
        .map(|p| number_of(p).unwrap())
        .collect();
    assert_eq!(numbers, [0, 2, 3, 6]);
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (4, 4));
    // The MTU grows under the port, up to what its frames hold.
    for end in [&pair.left, &pair.right] {
        end.set_mtu(1900).unwrap();
    }
    send(&mut port, &[plan.build(7, 1914), plan.build(8, 1915)]);
    let numbers: Vec<_> = collect(&mut receiver)
        .iter()
        .map(|p| number_of(p).unwrap())
        .collect();
    assert_eq!(numbers, [7]);
    // It shrinks, which the port learns from the kernel's refusals.
    for end in [&pair.left, &pair.right] {
        end.set_mtu(1400).unwrap();
    }
    send(
        &mut port,
        &[9, 10, 11, 12].map(|n| plan.build(n, if n % 2 == 0 { 1800 } else { 100 })),
    );
    let numbers: Vec<_> = collect(&mut receiver)
        .iter()
        .map(|p| number_of(p).unwrap())
        .collect();
    assert_eq!(numbers, [9, 11]);
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (7, 7));
}

/// Far more than the interface can send at once: nothing is lost, the sender waits.
#[test]
fn a_slow_interface_makes_the_sender_wait() {
    lab::require!(skip::lab(), skip::program("tc", "iproute2"));
    let pair = Veth::new().create().unwrap();
    // The queueing discipline passes 20 Mbit/s and holds 20 packets.
    let tbf = "qdisc add dev left0 root tbf rate 20mbit burst 3000 limit 2000";
    let shaped = pair.left.ns.exec("tc", tbf.split(' '));
    if shaped.is_err() {
        lab::skip!(skip::Missing::Machine("the queueing discipline tbf".into()));
    }
    let mut receiver = open(&pair.right, "outgoing=no");
    let mut port = open_tx(&pair.left, "qdisc_bypass=no");
    let packets: Vec<_> = (0..500)
        .map(|number| plan(&pair).build(number, 100))
        .collect();
    send(&mut port, &packets);
    // On a busy machine the shaper may pause for longer than a reader waits for more.
    let mut received = Vec::new();
    for _ in 0..20 {
        received.extend(collect(&mut receiver));
        if received.len() >= packets.len() {
            break;
        }
    }
    assert_eq!(received, packets);
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (500, 0));
}

/// Reads packets with a marker from a new tun device, and prints EtherType and number of each.
const TUN: &str = r#"
import fcntl, os, struct, sys

fd = os.open("/dev/net/tun", os.O_RDWR)
# TUNSETIFF: IFF_TUN; the EtherType precedes each packet.
fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"t0", 1))
print("ready", file=sys.stderr, flush=True)
left = int(sys.argv[1])
while left:
    packet = os.read(fd, 65536)
    if packet[5:8] == b"\xb7\xb7\xb7":
        print("%04x %d" % struct.unpack("!H58xI", packet[2:66]))
        left -= 1
"#;

/// Packets of both IP versions through a full queueing discipline, on a device without a link
/// header: each is sent in its turn, with its EtherType.
#[test]
fn both_ip_versions_wait_for_an_interface_without_a_link_header() {
    lab::require!(
        skip::lab(),
        skip::program("tc", "iproute2"),
        skip::program("python3", "python3")
    );
    const COUNT: u32 = 600;
    let ns = Netns::new().unwrap();
    let mut command = ns.command("python3");
    let mut tun = Process::spawn(command.args(["-c", TUN, &COUNT.to_string()])).unwrap();
    tun.wait_stderr("ready", LIMIT).unwrap();
    ns.ip(["link", "set", "t0", "up"]).unwrap();
    let tbf = "qdisc add dev t0 root tbf rate 10mbit burst 3000 limit 2000";
    if ns.exec("tc", tbf.split(' ')).is_err() {
        lab::skip!(skip::Missing::Machine("the queueing discipline tbf".into()));
    }
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    let name = format!("afpacket:t0?tap={}&qdisc_bypass=no", super::TAP);
    let mut port = ns.run(|| port::open(&name, &options)).unwrap().unwrap();
    // In turn first, then in runs of 7.
    let is_ipv6 = |number: u32| match number {
        0..300 => number % 2 == 1,
        _ => number / 7 % 2 == 1,
    };
    let packets: Vec<Vec<u8>> = (0..COUNT)
        .map(|number| {
            let mut packet = vec![0xb7; 58];
            packet[0] = if is_ipv6(number) { 0x60 } else { 0x45 };
            packet.extend(number.to_be_bytes());
            packet
        })
        .collect();
    send(&mut port, &packets);
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (COUNT.into(), 0));
    let stdout = tun.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let ethertype = |number| if is_ipv6(number) { "86dd" } else { "0800" };
    let expected = (0..COUNT).map(|number| format!("{} {number}", ethertype(number)));
    assert!(stdout.lines().eq(expected), "{stdout}");
}

#[test]
fn a_link_that_is_down_refuses_packets_and_deletion_ends_sending() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut receiver = open(&pair.right, "outgoing=no");
    let mut port = open_tx(&pair.left, "");
    let plan = plan(&pair);
    pair.left.set_down().unwrap();
    let mut batch = port.tx[0].reserve(10).unwrap();
    for number in 0..10 {
        assert!(batch.write(&plan.build(number, 64)));
    }
    batch.submit().unwrap();
    port.tx[0].flush().unwrap();
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (0, 10));
    pair.left.set_up().unwrap();
    send(&mut port, &[plan.build(10, 64)]);
    assert_eq!(collect(&mut receiver), [plan.build(10, 64)]);
    pair.left.delete().unwrap();
    let mut batch = port.tx[0].reserve(1).unwrap();
    assert!(batch.write(&plan.build(11, 64)));
    batch.submit().unwrap();
    let error = port.tx[0].flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (1, 11));
}

/// Frames received on one port are sent by another that shares the pool.
#[test]
fn received_frames_are_sent_on() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let pool = ring::Pool::new(ring::PoolConfig::default()).unwrap();
    let options = |direction| PortOptions {
        direction,
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let mut rx = try_open(&pair.right, "outgoing=no", &options(Direction::Rx)).unwrap();
    let mut tx = try_open(&pair.right, "", &options(Direction::Tx)).unwrap();
    let mut back = open(&pair.left, "outgoing=no");
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for number in 0..100 {
        sender.send(&plan.build(number, 300)).unwrap();
    }
    let mut forwarded = 0;
    let end = Instant::now() + LIMIT;
    while forwarded < 100 && Instant::now() < end {
        rx.rx[0].wait(Duration::from_millis(50)).unwrap();
        let mut batch = rx.rx[0].receive().unwrap();
        for index in 0..batch.len() {
            let frame = batch.detach(index).unwrap().frame;
            assert_eq!(tx.tx[0].send(frame).unwrap(), None);
            forwarded += 1;
        }
        drop(batch);
        tx.tx[0].flush().unwrap();
    }
    let sent: Vec<_> = (0..100).map(|number| plan.build(number, 300)).collect();
    assert_eq!(collect(&mut back), sent);
    assert_eq!(tx.control.account().unwrap().tx_total().copied, 100);
    drop((rx, tx));
    assert_eq!(pool.counts().free, pool.frame_count());
}
