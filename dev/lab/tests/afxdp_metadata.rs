//! Packet metadata of `afxdp:`, and the filter in the program.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::afxdp::{self, LIMIT, assert_balanced, fact, open, sender, settled};
use lab::packet::{self, Raw, Udp};
use lab::{Pair, Veth, require, skip};
use port::{Port, PortOptions, Vlan};
use sys::netlink::{Message, Socket};

/// Metadata of one packet.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    time_ns: Option<u64>,
    hash: Option<u32>,
    vlan: Option<Vlan>,
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u64
}

/// Sends packets one by one and receives each; returns also the times before and after it.
fn one_by_one(pair: &Pair, port: &mut Port, udp: &Udp, count: u64) -> Vec<(u64, Known, u64)> {
    let out = sender(&pair.left);
    let mut all = Vec::new();
    for number in 0..count {
        let before = now_ns();
        out.send(&udp.build(number, 100)).unwrap();
        port.rx[0].wait(LIMIT).unwrap();
        let batch = port.rx[0].receive().unwrap();
        let after = now_ns();
        let packet = batch.iter().next().expect("one packet");
        let known = Known {
            number: packet::number_of(packet.bytes()).unwrap(),
            time_ns: packet.time_ns(),
            hash: packet.rss_hash(),
            vlan: packet.vlan(),
        };
        assert_eq!(known.number, number);
        all.push((before, known, after));
    }
    all
}

#[test]
fn timestamps_are_arrival_times() {
    require!(skip::lab());
    // veth claims to have device timestamps and returns 0: the program's clock must be used
    // instead.
    for options in [
        "timestamp=auto",
        "timestamp=device",
        "timestamp=kernel",
        "timestamp=kernel&attach=generic",
        "timestamp=auto&attach=generic",
        "timestamp=batch",
    ] {
        let pair = Veth::new().create().unwrap();
        let mut port = open(
            &pair.right,
            &format!("afxdp:{{}}?{options}"),
            &PortOptions::default(),
        );
        let udp = Udp::between(&pair.left, &pair.right);
        for (before, known, after) in one_by_one(&pair, &mut port, &udp, 20) {
            let time_ns = known.time_ns.expect("a time");
            // A tenth of a second for clocks that are read one after the other.
            let near = before - 100_000_000..after + 100_000_000;
            assert!(
                near.contains(&time_ns),
                "{options}: {time_ns} not in {near:?}"
            );
            if !options.contains("batch") {
                assert!(time_ns < after, "{options}: {time_ns} after {after}");
            }
        }
        assert!(port.capabilities.timestamps);
        assert_ne!(fact(&port, "time"), "none");
    }
}

#[test]
fn a_missing_timestamp_is_none_not_1970() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(
        &pair.right,
        "afxdp:{}?timestamp=none",
        &PortOptions::default(),
    );
    let udp = Udp::between(&pair.left, &pair.right);
    for (_, known, _) in one_by_one(&pair, &mut port, &udp, 5) {
        assert_eq!(known.time_ns, None);
    }
}

#[test]
fn the_hash_depends_on_the_flow() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "afxdp:{}", &PortOptions::default());
    assert!(port.capabilities.rss_hash && fact(&port, "metadata").contains("hash"));
    const FLOWS: u16 = 8;
    let udp = Udp::between(&pair.left, &pair.right).flows(FLOWS);
    let mut hashes = HashMap::new();
    for (_, known, _) in one_by_one(&pair, &mut port, &udp, 64) {
        let flow = known.number % u64::from(FLOWS);
        let hash = known.hash.expect("a hash");
        assert_eq!(
            *hashes.entry(flow).or_insert(hash),
            hash,
            "one flow, one hash"
        );
    }
    let different: HashSet<_> = hashes.values().collect();
    assert!(different.len() >= 6, "{hashes:?}");

    // A generic program cannot query the driver.
    drop(port);
    let mut port = open(
        &pair.right,
        "afxdp:{}?attach=generic",
        &PortOptions::default(),
    );
    assert!(!port.capabilities.rss_hash);
    for (_, known, _) in one_by_one(&pair, &mut port, &udp, 4) {
        assert_eq!(known.hash, None);
    }
}

/// Has the sender's kernel put a tag into the metadata of each packet sent on an interface, as a
/// card that strips tags does: a classifier that calls `skb_vlan_push`.
fn push_tag(ifindex: u32, tci: u16) -> sys::Result<()> {
    const RTM_NEWQDISC: u16 = 36;
    const RTM_NEWTFILTER: u16 = 44;
    const CREATE: u16 = 0x600;
    const TCA_KIND: u16 = 1;
    const TCA_OPTIONS: u16 = 2;
    const CLSACT: u32 = 0xffff_fff1;
    const EGRESS: u32 = 0xffff_fff3;
    let tag_type = u32::from(0x8100u16.to_be()) as u64;
    // r2 = type; r3 = tag; skb_vlan_push(r1, r2, r3); return TC_ACT_OK.
    let insns = [
        0x02b7 | tag_type << 32,
        0x03b7 | u64::from(tci) << 32,
        0x85 | 18 << 32,
        0xb7,
        0x95,
    ];
    let program = sys::bpf::Program::load(&sys::bpf::ProgramSpec {
        kind: sys::bpf::ProgramType::SchedCls,
        name: "push_tag",
        insns: &insns,
        flags: 0,
        ifindex: 0,
    });
    let program = program.unwrap_or_else(|e| panic!("{e:?}"));
    // struct tcmsg: family, interface, handle, parent, info.
    let head = |handle: u32, parent: u32, info: u32| {
        let words = [0, ifindex, handle, parent, info];
        words.map(u32::to_ne_bytes).concat()
    };
    let mut socket = Socket::route()?;
    let qdisc = Message::new(RTM_NEWQDISC, CREATE).raw(&head(0xffff_0000, CLSACT, 0));
    socket.request("add clsact", qdisc.attr_text(TCA_KIND, "clsact"))?;
    let info = 1 << 16 | u32::from(3u16.to_be());
    let filter = Message::new(RTM_NEWTFILTER, CREATE).raw(&head(0, EGRESS, info));
    let filter = filter.attr_text(TCA_KIND, "bpf").nest(TCA_OPTIONS, |m| {
        m.attr_u32(6, program.as_fd().as_raw_fd() as u32)
            .attr_text(7, "push_tag")
            .attr_u32(8, 1)
    });
    socket.request("add the classifier", filter).map(drop)
}

#[test]
fn a_stripped_tag_is_reported() {
    require!(skip::lab());
    let pair = Veth::new().vlan_offload().create().unwrap();
    let (ifindex, tci) = (pair.left.ifindex, 3 << 13 | 77);
    if let Err(error) = pair.left.ns.run(|| push_tag(ifindex, tci)).unwrap() {
        let what = format!("classifiers in eBPF: {error}");
        lab::skip!(skip::Missing::Machine(what));
    }
    let mut port = open(&pair.right, "afxdp:{}", &PortOptions::default());
    assert!(port.capabilities.vlan && fact(&port, "metadata").contains("VLAN"));
    let udp = Udp::between(&pair.left, &pair.right);
    for (_, known, _) in one_by_one(&pair, &mut port, &udp, 10) {
        assert_eq!(known.vlan, Some(Vlan { tpid: 0x8100, tci }));
    }
}

#[test]
fn a_tag_in_the_packet_is_not_removed() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "afxdp:{}", &PortOptions::default());
    let mut udp = Udp::between(&pair.left, &pair.right);
    udp.vlan = Some(5);
    let out = sender(&pair.left);
    let sent = udp.build(1, 100);
    out.send(&sent).unwrap();
    port.rx[0].wait(LIMIT).unwrap();
    let batch = port.rx[0].receive().unwrap();
    let packet = batch.iter().next().unwrap();
    assert_eq!((packet.bytes(), packet.vlan()), (&sent[..], None));
}

#[test]
fn jumbo_packets_have_metadata_too() {
    require!(skip::lab());
    for attach in ["native", "generic"] {
        let pair = Veth::new().mtu(9000).create().unwrap();
        let name = format!("afxdp:{{}}?attach={attach}");
        let mut port = open(&pair.right, &name, &PortOptions::default());
        let out = sender(&pair.left);
        let sent = Udp::between(&pair.left, &pair.right).build(1, 9014);
        let before = now_ns();
        out.send(&sent).unwrap();
        port.rx[0].wait(LIMIT).unwrap();
        let batch = port.rx[0].receive().unwrap();
        let packet = batch.iter().next().unwrap();
        assert_eq!(afxdp::whole(&packet), sent);
        assert!(packet.time_ns().is_some_and(|t| t + 100_000_000 > before));
        assert_eq!(packet.rss_hash().is_some(), attach == "native");
    }
}

/// Takes packets whose UDP source port is odd: `ldh [34]; jset #1; ret all; ret 0`.
fn odd_ports() -> bpf::cbpf::Program {
    let insn = |code, jt, jf, k| bpf::cbpf::Insn { code, jt, jf, k };
    let insns = vec![
        insn(0x28, 0, 0, 34),
        insn(0x45, 0, 1, 1),
        insn(0x06, 0, 0, u32::MAX),
        insn(0x06, 0, 0, 0),
    ];
    bpf::cbpf::Program::new(insns).unwrap()
}

#[test]
fn packets_that_the_filter_rejects_go_to_the_host() {
    require!(skip::lab());
    for attach in ["native", "generic"] {
        let pair = Veth::new().create().unwrap();
        let host = pair.right.ns.run(|| Raw::open("right0")).unwrap().unwrap();
        let options = PortOptions {
            filter: Some(odd_ports()),
            ..PortOptions::default()
        };
        let mut port = open(
            &pair.right,
            &format!("afxdp:{{}}?attach={attach}"),
            &options,
        );
        assert_eq!(fact(&port, "filter"), "XDP program");
        assert!(port.capabilities.kernel_filter);
        let out = sender(&pair.left);
        let udp = Udp::between(&pair.left, &pair.right).flows(2);
        for number in 0..100 {
            out.send(&udp.build(number, 60)).unwrap();
        }
        let (left, account) = settled(&mut port);
        assert!(left[0].iter().copied().eq((1..100).step_by(2)), "{left:?}");
        for number in (0..100).step_by(2) {
            let packet = host.receive(Duration::from_secs(1)).unwrap().unwrap();
            assert_eq!(packet::number_of(&packet), Ok(number));
        }
        assert_balanced(&account);
        let queue = &account.rx[0];
        assert_eq!((queue.seen, queue.delivered, queue.passed), (100, 50, 50));
        assert_eq!(queue.lost(), 0);
    }
}
