//! Filters in the kernel: before the copy, before the first packet, and counted.

use bpf::cbpf::{Insn, Program};
use lab::packet::number_of;
use lab::{Veth, skip};
use port::DropReason;
use runtime::filter::{Compiler, Expression};
use sys::privileges::{Capability, drop_privileges};

use super::common::*;

/// Selects by the last byte of a packet's number. (`ldb [53]; jset #mask, reject, keep`)
fn without(mask: u32) -> PortOptions {
    let insns = vec![
        Insn::new(0x30, 0, 0, 53),
        Insn::new(0x45, 0, 1, mask),
        Insn::new(0x06, 0, 0, 0),
        Insn::new(0x06, 0, 0, 262_144),
    ];
    PortOptions {
        filter: Some(Program::new(insns).unwrap()),
        ..PortOptions::default()
    }
}

fn filter_fact(port: &Port) -> String {
    let facts = port.control.describe().facts;
    let fact = facts.iter().find(|fact| fact.0 == "filter");
    fact.expect("a fact about the filter").1.clone()
}

/// The kernel rejects packets, and the account counts them, with everything that other options add
/// to the filter.
#[test]
fn rejected_packets_take_no_ring_space_and_are_counted() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair).flows(16), sender(&pair.left));
    for query in [
        "",
        "outgoing=no",
        "outgoing=no&snaplen=70",
        "queues=3",
        "queues=2&outgoing=no",
    ] {
        let mut port = try_open(&pair.right, query, &without(7)).unwrap();
        assert!(
            filter_fact(&port).contains("are counted"),
            "{}",
            filter_fact(&port)
        );
        for number in 0..800 {
            sender.send(&plan.build(number, 100)).unwrap();
        }
        let got = receive(&mut port, usize::MAX, |_, packet| {
            // The filter sees no more than the kernel keeps, including the number's last byte.
            assert_eq!(packet.bytes()[53] % 8, 0);
            let kept = if query.contains("snaplen") { 70 } else { 100 };
            assert_eq!((packet.cap_len(), packet.wire_len()), (kept, 100));
        });
        assert_eq!(got, 100, "{query:?}");
        let account = port.control.account().unwrap().rx_total();
        assert_eq!(account.imbalance(), 0, "{account:?}");
        assert_eq!((account.seen, account.delivered), (800, 100), "{account:?}");
        assert_eq!(
            account.dropped[DropReason::Filter as usize],
            700,
            "{account:?}"
        );
        assert_eq!(account.lost(), 0);
    }
}

/// A load beyond the end of a short packet rejects it, which is counted too.
#[test]
fn packets_too_short_for_the_filter_are_rejected() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let insns = vec![Insn::new(0x20, 0, 0, 96), Insn::new(0x06, 0, 0, u32::MAX)];
    let options = PortOptions {
        filter: Some(Program::new(insns).unwrap()),
        ..PortOptions::default()
    };
    let mut port = try_open(&pair.right, "outgoing=no", &options).unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for (number, len) in [(0, 99), (1, 100), (2, 60), (3, 1514)] {
        sender.send(&plan.build(number, len)).unwrap();
    }
    let numbers: Vec<_> = collect(&mut port)
        .iter()
        .map(|bytes| number_of(bytes))
        .collect();
    assert_eq!(numbers, [Ok(1), Ok(3)]);
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        (account.seen, account.dropped_total(), account.imbalance()),
        (4, 2, 0)
    );
}

/// No packet that the filter rejects is received, not even while the port is opened.
#[test]
fn no_unwanted_packet_is_received_while_opening() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    std::thread::scope(|scope| {
        let _flood = Flood::begin(scope, &sender, &plan);
        for queues in [1, 1, 1, 3, 3, 3] {
            // One of 256 passes.
            let query = format!("outgoing=no&queues={queues}&ring_bytes=1048576");
            let mut port = try_open(&pair.right, &query, &without(255)).unwrap();
            let got = receive(&mut port, 20, |_, packet| {
                assert_eq!(number_of(packet.bytes()).unwrap() % 256, 0);
            });
            assert!(got >= 20);
        }
    });
}

/// Without the privilege to load eBPF the same filter runs as cBPF; the account reports that it
/// cannot count.
#[test]
fn without_cap_bpf_the_filter_still_runs() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for query in [
        "outgoing=no",
        "outgoing=no&snaplen=64",
        "outgoing=no&queues=2",
        "",
    ] {
        let name = name(&pair.right, &format!("tap=auto&{query}"));
        let mut port = pair
            .right
            .ns
            .run(|| {
                // Privileges of this thread, not of the process.
                drop_privileges(None, &[Capability::NetRaw]).unwrap();
                port::open(&name, &without(3))
            })
            .unwrap()
            .unwrap();
        assert!(
            filter_fact(&port).contains("not counted"),
            "{}",
            filter_fact(&port)
        );
        for number in 0..400 {
            sender.send(&plan.build(number, 100)).unwrap();
        }
        let kept = if query.contains("snaplen") { 64 } else { 100 };
        let got = receive(&mut port, usize::MAX, |_, packet| {
            assert_eq!(packet.bytes()[53] % 4, 0);
            assert_eq!((packet.cap_len(), packet.wire_len()), (kept, 100));
        });
        assert_eq!(got, 100, "{query:?}");
        let account = port.control.account().unwrap();
        let total = account.rx_total();
        assert_eq!(
            (total.seen, total.delivered, total.imbalance()),
            (100, 100, 0)
        );
        // The interface's count is available for an estimate.
        assert_eq!(account.interface_seen, Some(400));
    }
}

/// IPv6 with `count` destination options headers before TCP.
fn chain(count: u8) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    packet.extend([0x60, 0, 0, 0, 0, 8 * count + 20, 60, 64]);
    packet.extend([0x20; 32]);
    for left in (0..count).rev() {
        packet.extend([if left == 0 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend([
        0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
    ]);
    packet
}

/// libpcap compiles `protochain` to a loop. The kernel refuses it, so the queues filter, and know
/// the direction. It can be replaced by another filter.
#[test]
fn filters_that_the_kernel_refuses_run_in_user_space() {
    // Which requires libpcap.
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut tagged = chain(3);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    for (expression, query, wanted) in [
        ("ip6 protochain 6", "", 3),
        ("ip6 protochain 6", "queues=2", 3),
        ("inbound and ip6 protochain 6", "", 3),
        ("outbound and ip6 protochain 6", "", 0),
        ("ip6 protochain 17", "", 0),
    ] {
        let options = PortOptions {
            filter_source: Some(Expression::new(expression).by(Compiler::Libpcap).source()),
            ..PortOptions::default()
        };
        let mut port = try_open(&pair.right, query, &options).unwrap();
        let fact = filter_fact(&port);
        assert!(fact.contains("in user space"), "{expression}: {fact}");
        let (switch, sent) = (port.filter_switch(), 13);
        for number in 0..10 {
            sender.send(&plan.build(number, 100)).unwrap();
        }
        for packet in [&chain(1), &chain(5), &tagged] {
            sender.send(packet).unwrap();
        }
        let got = receive(&mut port, usize::MAX, |_, packet| {
            assert_eq!(packet.bytes()[12..14], [0x86, 0xdd]);
        });
        assert_eq!(got, wanted, "{expression} {query:?}");
        let account = port.control.account().unwrap().rx_total();
        assert_eq!(account.imbalance(), 0, "{account:?}");
        let filtered = account.dropped[DropReason::Filter as usize];
        let expected = (sent, sent - wanted as u64);
        assert_eq!((account.seen, filtered), expected, "{account:?}");
        // Replaced by one that the kernel runs.
        let next = without(7).filter;
        switch.set(port.control.as_mut(), next.as_ref()).unwrap();
        for number in 0..16 {
            sender.send(&plan.build(number, 100)).unwrap();
        }
        assert_eq!(receive(&mut port, usize::MAX, |_, _| {}), 2, "{expression}");
        let account = port.control.account().unwrap().rx_total();
        assert_eq!(account.imbalance(), 0, "{account:?}");
    }
}
