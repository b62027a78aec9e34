//! Program sizes, error positions and limits; verdicts are compared with libpcap in the lab.

use super::*;

fn program(text: &str) -> Program {
    compile(text, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{}", e.mark(text)))
}

#[test]
fn programs_are_as_small_as_libpcaps() {
    for (text, most) in [
        ("", 1),
        ("ip", 4),
        ("tcp", 12),
        ("host 192.0.2.1", 14),
        ("port 80", 24),
    ] {
        let len = program(text).insns().len();
        assert!(len <= most, "{text}: {len} instructions");
    }
}

#[test]
fn errors_point_at_the_word() {
    for (text, at) in [
        ("tcp porz 80", 4..8),
        ("host", 4..4),
        ("(tcp", 4..4),
        ("port 70000", 5..10),
        ("ip[0:3] = 1", 5..6),
        ("net 10.0.0.1/8", 4..12),
        ("tcp §", 4..6),
        ("ether host 2:0:0:0:0", 11..13),
        ("udp or TCP", 7..10),
        ("proto tcp", 6..9),
        ("vpi 3", 0..3),
        ("byte 3 ~", 7..8),
        ("byte 3 ! 4", 7..8),
    ] {
        let error = compile(text, &Options::default()).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(!error.expected.is_empty(), "{text}: {error}");
    }
    let error = |text| compile(text, &Options::default()).unwrap_err();
    assert!(error("TCP").expected.contains("lower case"));
    assert!(error("host tcp").expected.contains("\\tcp"));
}

/// A name service with a single router.
struct Router;

impl Names for Router {
    fn hosts(&self, name: &str) -> Vec<std::net::IpAddr> {
        let address = (name == "router").then(|| [192, 0, 2, 1].into());
        address.into_iter().collect()
    }

    fn ether(&self, name: &str) -> Option<[u8; 6]> {
        (name == "router").then_some([2, 0, 0, 0, 0, 1])
    }
}

#[test]
fn a_gateway_has_the_mac_address_and_not_the_other() {
    let options = Options {
        names: &Router,
        ..Options::default()
    };
    let program = compile("gateway router", &options).unwrap();
    let mut packet = [0u8; 34];
    packet[12] = 8;
    packet[14] = 0x45;
    let run = |packet: &[u8]| bpf::vm_cbpf::run(&program, packet, 34) != 0;
    assert!(!run(&packet));
    packet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    assert!(run(&packet));
    packet[26..30].copy_from_slice(&[192, 0, 2, 1]);
    assert!(!run(&packet));
    for text in ["gateway other", "gateway 192.0.2.1", "src gateway router"] {
        assert!(compile(text, &options).is_err(), "{text}");
    }
    let link_type = 165;
    let unsupported = compile(
        "ip",
        &Options {
            link_type,
            ..options
        },
    )
    .unwrap_err();
    assert!(unsupported.is_unsupported);
    assert!(!compile("tcp porz 80", &options).unwrap_err().is_unsupported);
}

#[test]
fn programs_behind_geneve_run_in_the_kernel_and_are_bounded() {
    for text in [
        "geneve and tcp port 80",
        "geneve 7 or tcp",
        "not geneve and vlan 5 and udp[0] = 1",
    ] {
        assert_eq!(program(text).kernel_refusal(), None, "{text}");
    }
    let nested = |count| vec!["geneve"; count].join(" and ") + " and tcp";
    assert!(compile(&nested(4), &Options::default()).is_ok());
    assert!(
        compile(&nested(5), &Options::default())
            .unwrap_err()
            .is_unsupported
    );
    let options = Options {
        extended: true,
        ..Options::default()
    };
    for text in [
        "protochain 6",
        "payload[0] = 1",
        "payload contains \"a\" within 9",
        "tcp option mss",
    ] {
        assert!(compile(text, &options).is_ok());
        let error = compile(&format!("geneve and {text}"), &options).unwrap_err();
        assert!(error.what.contains("variable length"), "{text}: {error}");
    }
    assert!(compile("geneve and ttl 5-9", &options).is_ok());
}

#[test]
fn numbers_out_of_range_are_marked() {
    for (text, number) in [
        ("ip and vlan 5000", "5000"),
        ("mpls 1048576", "1048576"),
        ("pppoes 65536 and ip", "65536"),
        ("tcp port 65536", "65536"),
        ("geneve 16777216", "16777216"),
        ("net 192.0.2.0/33", "33"),
        ("net 2001:db8::/129", "129"),
    ] {
        let error = compile(text, &Options::default()).unwrap_err();
        assert_eq!(&text[error.at.clone()], number, "{text}: {error}");
    }
}

#[test]
fn size_and_nesting_are_bounded() {
    for text in [
        "(".repeat(60_000),
        "-".repeat(60_000),
        "1+".repeat(30_000),
        "tcp and udp or ".repeat(4_000) + "tcp",
        "ip[".repeat(20_000),
        "x".repeat(TEXT_LEN_MAX + 1),
        (0..6_000).map(|p| format!("{p} or ")).collect::<String>(),
    ] {
        assert!(compile(&text, &Options::default()).is_err());
    }
}

#[test]
fn far_targets_are_reached_over_trampolines() {
    let hosts: Vec<String> = (0..200).map(|i| format!("192.0.2.{i}")).collect();
    let program = program(&format!("src host {}", hosts.join(" or ")));
    assert!(program.insns().iter().any(|insn| insn.code == 0x05) || program.insns().len() < 255);
    let mut packet = [0u8; 34];
    packet[12] = 8;
    packet[14] = 0x45;
    for last in 0..=255 {
        packet[26..30].copy_from_slice(&[192, 0, 2, last]);
        let verdict = bpf::vm_cbpf::run(&program, &packet, 34);
        assert_eq!(verdict != 0, last < 200, "{last}");
    }
}

#[test]
fn contradictions_are_refused_with_the_clauses() {
    for (text, part) in [
        ("tcp and udp", "\"tcp\" and \"udp\" contradict"),
        (
            "ip and host 10.0.0.1 and ip6",
            "\"ip\" and \"ip6\" contradict",
        ),
        (
            "ip[9] = 6 and ttl 3 and ip[9] = 17",
            "\"ip[9] = 6\" and \"ip[9] = 17\" contradict",
        ),
        ("len > 100 and len < 50", "contradict"),
        (
            "ip[8] & 3 = 3 and tcp[0] > 5 and tcp[0] <= 5",
            "\"tcp[0] > 5\" and",
        ),
        ("src port 80 and src port 81", "contradict"),
        ("src portrange 10-20 and src portrange 30-40", "contradict"),
        ("tcp and not (ip or ip6)", "\"tcp\" and \"not (ip or ip6)\""),
        ("(tcp or arp) and (ip or ip6) and udp", "contradict"),
        (
            "(tcp or arp) and (udp or arp) and ip",
            "\"ip\" contradicts the clauses before it",
        ),
        (
            "tcp and 1 = 2",
            "no packet of this link type matches \"1 = 2\"",
        ),
        ("1 = 2", "no packet of this link type can match"),
        ("(tcp and udp)", "no packet of this link type can match"),
    ] {
        let options = Options {
            extended: true,
            ..Options::default()
        };
        let error = compile(text, &options).map(|program| program.insns().len());
        let error = error.expect_err(text);
        assert_eq!(error.what, REJECTS_ALL, "{text}");
        assert!(error.expected.contains(part), "{text}: {error}");
        // Not optimized, it is compiled, as by libpcap.
        let plain = Options {
            optimize: false,
            ..options
        };
        assert!(compile(text, &plain).is_ok(), "{text}");
    }
    for text in [
        "port 80 and port 81",
        "tcp or udp and ip",
        "host 10.0.0.1 and host 10.0.0.2",
        "len > 100 and len < 102",
        "ip[1] & 3 != 0 and ip[1] & 1 = 0",
        "src portrange 10-20 and src portrange 20-30",
        "vlan and tcp",
    ] {
        program(text);
    }
    // What is known without its value is loaded all the same: a truncated packet is rejected.
    let packet = [&[0; 12][..], &[8, 0, 0x45]].concat();
    let verdict = |packet: &[u8]| bpf::vm_cbpf::run(&program("ip and ip[8] >= 0"), packet, 64);
    assert_eq!(verdict(&packet), 0);
    assert_ne!(verdict(&[&packet[..], &[0; 20]].concat()), 0);
    // On a live socket, the tag may be outside the packet.
    let live = Options {
        tap: Some(1),
        ..Options::default()
    };
    assert!(compile("tcp and vlan", &live).is_ok());
}

#[test]
fn parentheses_may_be_nested_as_in_libpcap() {
    for count in [1, 1_000, 10_000] {
        let around = |text: &str| "(".repeat(count) + text + &")".repeat(count);
        for text in ["udp", "not udp", "ip[9] = 17"] {
            assert_eq!(
                program(&around(text)).insns(),
                program(text).insns(),
                "{count} {text}"
            );
        }
        let list = format!("port {}", around("53 or 80"));
        assert_eq!(program(&list).insns(), program("port (53 or 80)").insns());
        // Each with contents of its own.
        let nested = "udp or (tcp or (".repeat(count / 4) + "icmp" + &"))".repeat(count / 4);
        let flat = if count == 1 {
            "icmp"
        } else {
            "udp or tcp or icmp"
        };
        assert_eq!(program(&nested).insns(), program(flat).insns(), "{count}");
    }
    let negated = "not (not (".repeat(500) + "udp" + &"))".repeat(500);
    assert_eq!(program(&negated).insns(), program("udp").insns());
    let error = compile(
        &("(".repeat(5) + "udp" + &")".repeat(4)),
        &Options::default(),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("end of the expression"),
        "{error}"
    );
    let error = compile("udp)", &Options::default()).unwrap_err();
    assert!(error.to_string().contains("unexpected"), "{error}");
}
