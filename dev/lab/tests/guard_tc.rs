//! `barewire guard --hook tc`: the verdicts and counts of XDP, and nothing left behind.

use std::net::UdpSocket;
use std::time::Duration;

use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::{self, Hook, Packet, STEPS_MAX};
use guard::Account;
use lab::packet::{Raw, Udp, pour};
use lab::random::Random;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;
use sys::bpf::{Link, ObjectKind, object_ids, open_by_id};
use xdp::GuardHook;

use crate::guard_flood::{guard, stop, ten_connections};
use crate::guard_interpreted::{Both, account, interpreted, packet, rule};

const FLOOD: &str = "udp dst port 9";
const LIMIT: Duration = Duration::from_secs(60);

/// Skips the test if the kernel cannot attach tc programs by links.
macro_rules! require_tcx {
    () => {
        require!(skip::lab());
        if sys::KernelVersion::running().is_some_and(|v| v < sys::KernelVersion::new(6, 6)) {
            let what = "attaching tc programs by links needs Linux 6.6".into();
            lab::skip!(skip::Missing::Machine(what));
        }
    };
}

/// Whether a link attaches a program to the ingress of this interface.
fn is_attached(pair: &Pair) -> bool {
    let links = object_ids(ObjectKind::Link).unwrap();
    links.into_iter().any(|id| {
        let info = open_by_id(ObjectKind::Link, id).and_then(|fd| Link::from_fd(fd).info());
        info.is_ok_and(|info| info.tc_ifindex == Some(pair.right.ifindex))
    })
}

#[test]
fn the_rules_have_the_verdicts_and_counts_of_xdp() {
    require_tcx!();
    let mut random = Random::seeded("guard, tc");
    for round in 0..30 {
        let count = 1 + random.below(12) as u32;
        let rules: Vec<_> = (0..count).map(|id| rule(&mut random, id)).collect();
        let is_done = (0..20).any(|_| {
            let mut xdp = Both::new(&rules, round % 8 == 0, GuardHook::Xdp);
            let mut tc = Both::new(&rules, round % 8 == 0, GuardHook::Tc);
            let began = std::time::Instant::now();
            for _ in 0..100 {
                let mut packet = packet(&mut random);
                // A test run of tc refuses packets shorter than their IP header.
                packet.resize(packet.len().max(14 + 40), 0);
                let (of_xdp, of_tc) = (xdp.run(&packet), tc.run(&packet));
                let expected = if of_xdp.1 == 1 { 2 } else { u32::MAX };
                assert_eq!(of_tc, (expected, expected), "{packet:02x?}");
            }
            // Within a second, limits pass no more than their bursts.
            if began.elapsed().as_millis() > 900 {
                return false;
            }
            let without_samples = |mut account: Account| {
                account.samples = Default::default();
                account
            };
            let counts = [xdp.accounts().1, tc.accounts().0, tc.accounts().1];
            let counts = counts.map(without_samples);
            assert_eq!(counts[0], counts[1]);
            assert_eq!(counts[0], counts[2]);
            true
        });
        assert!(is_done, "100 packets took a second, twenty times");
    }
}

/// A tag that was removed is in the packet for the rules, and removed again for the host.
#[test]
fn a_removed_tag_is_put_back_for_the_rules_only() {
    let rules = [guard::Rule {
        id: 0,
        name: "vlan".into(),
        matcher: runtime::filter::compile("vlan 9 and udp", 1).unwrap(),
        sources: None,
        destinations: None,
        names: None,
        verdict: guard::Verdict::Count,
        priority: 0,
    }];
    let (insns, mut maps) = interpreted(&rules);
    let mut bytes = vec![2; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend([10; 16]);
    for (vlan, count) in [(None, 0), (Some((0x8100, 9)), 1), (Some((0x88a8, 9)), 2)] {
        let info = PacketInfo {
            vlan,
            ..PacketInfo::UNKNOWN
        };
        // Whatever part of it is linear.
        for first_len in [14, bytes.len()] {
            let mut packet = Packet::new(&bytes);
            let hook = (Hook::Tc { first_len }, &mut packet);
            let verdict = vm_ebpf::run(&insns, hook, &info, &mut maps, STEPS_MAX);
            assert_eq!(verdict, Ok(u32::MAX));
            assert_eq!(packet.bytes(), bytes);
        }
        assert_eq!(account(&mut maps).rules[0].packets, 2 * count);
    }
}

#[test]
fn a_flood_is_dropped_to_the_last_packet_beside_an_xdp_program() {
    require_tcx!();
    let pair = Veth::new().create().unwrap();
    let first = guard(&pair, &["--count", FLOOD]);
    let process = guard(&pair, &["--hook", "tc", "--drop", FLOOD, "--count", "tcp"]);
    pour(&pair, 64, 5_000);
    ten_connections(&pair);
    let totals = stop(process);
    assert_eq!(totals["mode"], "tc", "{totals}");
    assert_eq!(totals["dropped"], 5_000, "{totals}");
    assert_eq!(totals["rules"][1]["dropped_bytes"], 300_000, "{totals}");
    assert!(
        totals["rules"][0]["packets"].as_u64() >= Some(50),
        "{totals}"
    );
    assert!(!is_attached(&pair));
    assert_eq!(stop(first)["rules"][0]["packets"], 5_000);
}

#[test]
fn kill_9_leaves_nothing_at_the_ingress() {
    require_tcx!();
    let pair = Veth::new().create().unwrap();
    let mut process = guard(&pair, &["--hook", "tc", "--drop", "udp or tcp"]);
    pour(&pair, 1, 10);
    assert!(is_attached(&pair));
    process.kill().unwrap();
    assert!(!is_attached(&pair));
    ten_connections(&pair);
    let show = ["qdisc", "show", "dev", &pair.right.ifname];
    let qdiscs = pair.right.ns.exec("tc", show).unwrap();
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
}

/// Rules see tags as in XDP; the next program, and the host, have the packet as before.
#[test]
fn tagged_packets_match_as_in_xdp_and_are_restored() {
    require_tcx!();
    const TAGGED: &str = "vlan and udp dst port 9";
    const DROPPED: &str = "vlan 5 and udp";
    for hook in ["xdp", "tc"] {
        let pair = Veth::new().create().unwrap();
        let args = [
            "--hook", hook, "--count", TAGGED, "--count", FLOOD, "--drop", DROPPED,
        ];
        let behind = guard(&pair, &["--hook", "tc", "--count", TAGGED]);
        let process = guard(&pair, &args);
        let address = (pair.right.ipv4, 9);
        let socket = pair.right.ns.run(|| UdpSocket::bind(address)).unwrap();
        let socket = socket.unwrap();
        let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
        let sender = sender.unwrap().unwrap();
        let mut udp = Udp::between(&pair.left, &pair.right);
        // The host takes packets with a priority tag, whose VLAN is 0.
        for vlan in [5, 0] {
            udp.vlan = Some(vlan);
            for _ in 0..50 {
                sender.send(&udp.build(0, 80)).unwrap();
            }
        }
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut bytes = [0; 100];
        for _ in 0..50 {
            let (len, from) = socket.recv_from(&mut bytes).unwrap();
            assert_eq!((len, from.port()), (80 - 14 - 4 - 28, 4000), "{hook}");
        }
        let totals = stop(process);
        let packets = |totals: &Value, name: &str| {
            let rules = totals["rules"].as_array().unwrap();
            let rule = rules.iter().find(|rule| rule["name"] == name).unwrap();
            rule["packets"].as_u64().unwrap()
        };
        assert_eq!(packets(&totals, TAGGED), 100, "{hook}: {totals}");
        // The tag is between the MAC addresses and IP.
        assert_eq!(packets(&totals, FLOOD), 0, "{hook}: {totals}");
        assert_eq!(totals["dropped"], 50, "{hook}: {totals}");
        assert_eq!(packets(&stop(behind), TAGGED), 50, "{hook}: {totals}");
    }
}

#[test]
fn rules_that_only_xdp_can_carry_out_are_refused() {
    require_tcx!();
    let pair = Veth::new().create().unwrap();
    for (args, why) in [
        (&["--challenge", "tcp"][..], "challenge needs XDP"),
        (&["--drop", "tcp", "--mode", "native"], "only XDP has modes"),
    ] {
        let args = [&["guard", &pair.right.ifname, "--hook", "tc"], args].concat();
        let binary = lab::process::barewire().unwrap();
        let mut process = pair.right.ns.spawn(binary, args).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert!(!finished.success());
        assert!(finished.stderr.contains(why), "{}", finished.stderr);
    }
}
