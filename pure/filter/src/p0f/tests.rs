//! The compiler compared with the reference implementation, on packets built from signatures and
//! modified.

mod cloudflare;
pub(crate) mod packet;

use bpf::cbpf::Program;
use bpf::vm_cbpf;
use packet::{Random, packet_of};

use super::*;

/// Signatures with every form of every field.
const SIGNATURES: [&str; 28] = [
    "4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0",
    "*:64:0:*:mss*4,*:mss,sok,ts,nop,ws:df,id+:0",
    "*:128:0:*:8192,8:mss,nop,ws,nop,nop,sok:df,id+:0",
    "4:64:0:0:*,0::ack+:0",
    "4:255:0:0:*,0::ack+,uptr+:0",
    "*:64:0:1460:mss*4,7:mss,sok,nop,nop,nop,nop,nop,nop,ws,nop:df:0",
    "4:64:0:1400:mss*3,0:mss:id-:*",
    "4:128:4:536:mtu*2,0:mss,nop,ws::+",
    "*:64:0:*:mtu*3,*:mss,nop,ws,ts,nop,nop:ts1-:0",
    "6:64:0:*:mtu*2,5:mss,nop,ws,nop,nop,sok:flow:+",
    "6:64+0:0:1440:mss*45,10:mss,sok,ts,nop,ws:flow:0",
    "*:64-:0:1460:1024,0:mss:ecn:0",
    "4:64-:40:*:%4096,*:mss,nop,ws:exws,df:*",
    "*:192:0:1331:1337,5:mss,ws,ts,nop,eol+5:opt+:0",
    "*:192:0:1331:1337,0:mss,nop,eol+18::0",
    "4:60+4:0:*:*,*:mss,nop,nop,ts,nop,ws,sok,nop,nop:df,id+,ts2+,seq-:0",
    "4:32:0:*:%3,2:ws,nop,mss,ts,sok:urgf+,pushf+,0+:0",
    "*:64:0:*:*,*:mss,nop,nop,sack:df:0",
    "*:64:0:*:*,0:mss,?76:df,id+:+",
    "4:64:0:*:*,*:mss,sok,ts,nop,ws:df,id+,linux:0",
    "*:64:0:*:mss*10,*:mss,mss,ws,ws,nop,nop:df,id+:0",
    "4:64:0:1460:mss*4,3:mss,ws,nop,ws,nop,mss::0",
    "*:64:0:*:mss*20,7:ts,ts,ws,nop,mss,mss,nop,nop,nop,nop:df:0",
    "4:64:0:1400:*,0:mss,mss,mss:df,id+:*",
    "*:64:0:200:mss*40,2:mss,nop,ws,ts,nop,nop:ecn,seq-:0",
    "*:64:0:*:mss*365,2:mss,nop,ws:df:0",
    "4:3:0:*:0,0::pushf+:*",
    "*:64:0:1460:65535,6:ts,nop,nop,ws,nop,mss,eol+3:df,id+:0",
];

fn compiled(text: &str, handshake: Handshake) -> (Signature, Program) {
    let signature = Signature::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let program = compile(&signature, handshake, Start::Ip);
    let program = program.unwrap_or_else(|error| panic!("{text}: {error}"));
    (signature, program)
}

/// Link types with the bytes in front of an IPv4 and of an IPv6 header.
const LINKS: &[(u16, &[u8], &[u8])] = &[
    // BSD loopback of a little-endian and of a big-endian machine, and in network order; ENC.
    (0, &[2, 0, 0, 0], &[30, 0, 0, 0]),
    (0, &[0, 0, 0, 2], &[0, 0, 0, 24]),
    (108, &[0, 0, 0, 2], &[0, 0, 0, 28]),
    (
        109,
        &[2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2],
        &[28, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2],
    ),
    // Linux cooked, and its second version.
    (
        113,
        &[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0],
        COOKED_V6,
    ),
    (276, COOKED2_V4, COOKED2_V6),
    // PPP, serial, of PPPoE and of pppd; Cisco HDLC.
    (9, &[0xff, 3, 0, 0x21], &[0xff, 3, 0, 0x57]),
    (50, &[0xff, 3, 0, 0x21], &[0xff, 3, 0, 0x57]),
    (
        51,
        &[0x11, 0, 0, 7, 0, 62, 0, 0x21],
        &[0x11, 0, 0, 7, 0, 82, 0, 0x57],
    ),
    (166, &[1, 3, 0, 0x21], &[0, 3, 0, 0x57]),
    (104, &[0x0f, 0, 8, 0], &[0x0f, 0, 0x86, 0xdd]),
    // 802.11 alone, with QoS behind radiotap, and behind AVS.
    (105, DATA_V4, DATA_V6),
    (127, RADIO_V4, RADIO_V6),
    // Raw IP of one version.
    (228, &[], &[]),
    // Frame relay, ATM, a log of pf(4), IP over IEEE 1394.
    (107, &[0x18, 0x41, 3, 0xcc], &[0x18, 0x41, 3, 0x8e]),
    (
        100,
        &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        &[0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd],
    ),
    (117, PFLOG_V4, PFLOG_V6),
    (
        138,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0],
        IEEE1394_V6,
    ),
];

const COOKED_V6: &[u8] = &[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x86, 0xdd];
const COOKED2_V4: &[u8] = &[8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
const COOKED2_V6: &[u8] = &[
    0x86, 0xdd, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0,
];
const DATA_V4: &[u8] = &[
    8, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x10, 0, 0xaa, 0xaa, 3, 0, 0,
    0, 8, 0,
];
const DATA_V6: &[u8] = &[
    8, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x10, 0, 0xaa, 0xaa, 3, 0, 0,
    0, 0x86, 0xdd,
];
const RADIO_V4: &[u8] = &[
    0, 0, 8, 0, 0, 0, 0, 0, 0x88, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3,
    0x10, 0, 0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0,
];
const RADIO_V6: &[u8] = &[
    0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0x88, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0,
    0, 3, 0x10, 0, 0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd,
];
const PFLOG_V4: &[u8] = &{
    let mut header = [0; 64];
    (header[0], header[1]) = (61, 2);
    header
};
const PFLOG_V6: &[u8] = &{
    let mut header = [0; 64];
    (header[0], header[1]) = (61, 24);
    header
};
const IEEE1394_V6: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xdd];

/// The verdicts on other link types are those on the IP packet alone.
#[test]
fn signatures_are_found_behind_every_header() {
    let mut random = Random(0x5eed_11f7);
    let mut counts = [0; 2];
    for text in SIGNATURES {
        let signature = Signature::parse(text).unwrap();
        for &(link_type, v4, v6) in LINKS {
            let start = Start::Link(link_type);
            let only_v6 = signature.versions() == [Version::V6];
            if link_type == 228 && only_v6 {
                let error = compile(&signature, Handshake::Syn, start).unwrap_err();
                assert!(error.is_unsupported, "{error}");
                continue;
            }
            let program = compile(&signature, Handshake::Syn, start).unwrap();
            let fuzzy = compile_fuzzy(&signature, Handshake::Syn, start).unwrap();
            assert_eq!(program.kernel_refusal(), None);
            for round in 0..12 {
                let mut ip = packet_of(&signature, Handshake::Syn, &mut random);
                if round % 2 == 1 {
                    random.change(&mut ip);
                }
                let is_v6 = ip.first().is_some_and(|byte| byte >> 4 == 6);
                let header = if is_v6 { v6 } else { v4 };
                let packet = [header, &ip].concat();
                let raw = raw_signature(&ip).filter(|raw| raw.handshake == Handshake::Syn);
                let raw = raw.filter(|_| link_type != 228 || !is_v6);
                let expected = raw.as_ref().is_some_and(|raw| matches(&signature, raw));
                let fuzzily = raw.is_some_and(|raw| matches_fuzzy(&signature, &raw));
                let run = |program: &Program, packet: &[u8]| {
                    vm_cbpf::run(program, packet, packet.len() as u32) != 0
                };
                let name = format!("{text}, link type {link_type}, {packet:02x?}");
                assert_eq!(run(&program, &packet), expected, "{name}");
                assert_eq!(run(&fuzzy, &packet), fuzzily, "fuzzy, {name}");
                counts[usize::from(expected)] += 1;
                // Another protocol in the type field, or behind it.
                let other = [if is_v6 { v4 } else { v6 }, &ip].concat();
                assert!(v4.is_empty() || !run(&program, &other), "{name}");
                bpf::laws::program_input(&program, &packet);
            }
        }
    }
    assert!(counts.iter().all(|&count| count > 1500), "{counts:?}");
    let signature = Signature::parse(SIGNATURES[0]).unwrap();
    for link_type in [189, 195, 7777] {
        let error = compile(&signature, Handshake::Syn, Start::Link(link_type)).unwrap_err();
        assert!(error.is_unsupported, "{error}");
    }
}

/// Compares a program with the reference on `count` packets; returns how many match.
fn law(text: &str, handshake: Handshake, count: u32, random: &mut Random) -> u32 {
    let (signature, program) = compiled(text, handshake);
    let fuzzy = compile_fuzzy(&signature, handshake, Start::Ip).unwrap();
    let ethernet = compile(&signature, handshake, Start::Ethernet).unwrap();
    let mut matching = 0;
    for round in 0..count {
        let mut packet = packet_of(&signature, handshake, random);
        let wire_len = packet.len() as u32;
        if round % 2 == 1 {
            random.change(&mut packet);
        }
        let raw = raw_signature(&packet).filter(|raw| raw.handshake == handshake);
        let expected = raw.is_some_and(|raw| matches(&signature, &raw));
        let listing = bpf::disasm::Classic(program.insns());
        let result = vm_cbpf::run(&program, &packet, wire_len) != 0;
        assert_eq!(result, expected, "{text}\n{packet:02x?}\n{listing}");
        law_fuzzy(&signature, handshake, &fuzzy, &packet, random);
        let version = if packet.first().is_some_and(|byte| byte >> 4 == 6) {
            [0x86, 0xdd]
        } else {
            [8, 0]
        };
        let frame = [&[0; 12], &version[..], &packet].concat();
        let framed = vm_cbpf::run(&ethernet, &frame, wire_len + 14) != 0;
        assert_eq!(framed, expected, "{text} on Ethernet\n{packet:02x?}");
        matching += u32::from(expected);
    }
    matching
}

/// The same for the fuzzy program, also on packets with modified flags, identification, ECN bits or
/// TTL.
fn law_fuzzy(
    signature: &Signature,
    handshake: Handshake,
    program: &Program,
    packet: &[u8],
    random: &mut Random,
) {
    let mut packet = packet.to_vec();
    let is_v4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    for round in 0..3 {
        let raw = raw_signature(&packet).filter(|raw| raw.handshake == handshake);
        let expected = raw.is_some_and(|raw| matches_fuzzy(signature, &raw));
        let result = vm_cbpf::run(program, &packet, packet.len() as u32) != 0;
        let listing = bpf::disasm::Classic(program.insns());
        assert_eq!(
            result, expected,
            "{signature}, fuzzy\n{packet:02x?}\n{listing}"
        );
        if packet.len() < 20 || round == 2 {
            return;
        }
        match random.below(5) {
            0 if is_v4 => packet[6] ^= 0x40,
            1 if is_v4 => packet[4..6].fill(0),
            2 if is_v4 => packet[1] ^= 1,
            2 => packet[1] ^= 0x10,
            3 => packet[if is_v4 { 8 } else { 7 }] = random.next() as u8,
            _ => {}
        }
    }
}

#[test]
fn quirks_of_repeated_options_are_refused() {
    for text in [
        "4:64:0:*:*,*:ts,ts:ts1-:0",
        "4:64:0:*:*,*:ts,ts:ts2+:0",
        "4:64:0:*:*,*:ws,ws,nop,nop:exws:0",
    ] {
        let signature = Signature::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let error = compile(&signature, Handshake::Syn, Start::Ip).unwrap_err();
        assert!(error.to_string().contains("twice"), "{text}: {error}");
    }
}

#[test]
fn fuzzy_programs_match_what_p0f_would_call_fuzzy() {
    let text = "4:64:0:0:*,0::df,id+:0";
    let signature = Signature::parse(text).unwrap();
    let exact = compile(&signature, Handshake::Syn, Start::Ip).unwrap();
    let fuzzy = compile_fuzzy(&signature, Handshake::Syn, Start::Ip).unwrap();
    let packet = packet_of(&signature, Handshake::Syn, &mut Random(3));
    let run = |program: &Program, change: &dyn Fn(&mut [u8])| {
        let mut packet = packet.clone();
        change(&mut packet);
        vm_cbpf::run(program, &packet, packet.len() as u32) != 0
    };
    type Change<'a> = (&'a dyn Fn(&mut [u8]), bool);
    let changes: [Change<'_>; 6] = [
        (&|p| p[6] = 0, true),
        (&|p| p[4..6].fill(0), true),
        (&|p| p[1] |= 3, true),
        (&|p| p[8] = 200, true),
        (&|p| p[6] |= 0x80, false),
        (&|p| p[33] |= 8, false),
    ];
    for (index, (change, expected)) in changes.into_iter().enumerate() {
        assert!(!run(&exact, change), "{index}");
        assert_eq!(run(&fuzzy, change), expected, "{index}");
    }
    assert!(run(&exact, &|_| {}) && run(&fuzzy, &|_| {}));
}

#[test]
fn programs_have_the_verdicts_of_the_rules() {
    let mut random = Random(0x5eed_0f0f_1234_5678);
    let mut matching = 0;
    for text in SIGNATURES {
        for (handshake, count) in [(Handshake::Syn, 5_000), (Handshake::SynAck, 1_000)] {
            if handshake == Handshake::SynAck && (text.contains("ack+") || text.contains("ts2+")) {
                continue;
            }
            let found = law(text, handshake, count, &mut random);
            assert!(
                found > count / 100,
                "{text}: {found} of {count} packets match"
            );
            matching += found;
        }
    }
    assert!(matching > 50_000, "{matching}");
}

#[test]
fn packets_truncated_anywhere() {
    let mut random = Random(7);
    for text in SIGNATURES {
        let (signature, program) = compiled(text, Handshake::Syn);
        let packet = packet_of(&signature, Handshake::Syn, &mut random);
        for end in 0..=packet.len() {
            let cut = &packet[..end];
            let expected = raw_signature(cut).is_some_and(|raw| matches(&signature, &raw));
            let result = vm_cbpf::run(&program, cut, packet.len() as u32) != 0;
            assert_eq!(result, expected, "{text}: {end} of {} bytes", packet.len());
        }
    }
}

/// All signatures of p0f's database, which has only request sections here, compile for iptables.
#[test]
fn all_of_the_database_fits_into_iptables() {
    let Ok(database) = std::fs::read_to_string("/etc/p0f/p0f.fp") else {
        skip::skip!("p0f is not installed: apt-get install p0f");
    };
    let mut random = Random(91);
    let mut section = "";
    let mut largest = [0; 2];
    let mut count = 0;
    for line in database.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let Some(("sig", text)) = line.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            continue;
        };
        let handshake = match section {
            "[tcp:request]" => Handshake::Syn,
            "[tcp:response]" => Handshake::SynAck,
            _ => continue,
        };
        let signature = Signature::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        if handshake == Handshake::SynAck {
            continue;
        }
        count += 1;
        law(text, handshake, 400, &mut random);
        for (largest, version) in largest.iter_mut().zip([Version::V4, Version::V6]) {
            if signature.versions().contains(&version) {
                let signature = Signature {
                    version,
                    quirks: signature.quirks_of(version),
                    ..signature.clone()
                };
                let program = compile(&signature, handshake, Start::Ip).unwrap();
                *largest = program.insns().len().max(*largest);
            }
        }
    }
    assert!(count >= 91, "{count} signatures of requests");
    assert!(largest[0] < 59 && largest[1] < 56, "{largest:?}");
}

#[test]
fn signatures_are_printed_as_written() {
    for text in SIGNATURES {
        let signature = Signature::parse(text).unwrap();
        let again = Signature::parse(&signature.to_string()).unwrap();
        assert_eq!(again, signature, "{text}");
    }
}

#[test]
fn an_invalid_signature_is_reported_with_its_position() {
    for (text, start, what) in [
        ("4:64:0:*:mss*10,6:mss,sok", 25, "missing field: quirks"),
        ("5:64:0:*:*,*:mss::0", 0, "not an IP version"),
        ("4:300:0:*:*,*:mss::0", 2, "not an initial TTL"),
        ("4:64:0:*:*,*:mss,msss::0", 17, "not a TCP option"),
        ("4:64:0:*:*,*:mss:df,dg:0", 20, "not a quirk"),
        ("4:64:0:*:*:mss::0", 9, "window and a scale"),
        ("4:64:0:*:*,*:mss::1", 18, "payload class"),
        ("4:64:0:*:*,*:mss::0:0", 20, "more than eight fields"),
        ("6:64:0:*:*,*:mss:df:0", 17, "IPv4"),
        (
            "4:64:0:1460:*,*:nop,nop,nop,nop::0",
            7,
            "requires the option mss",
        ),
        ("4:64:0:*:*,*:mss,ts::0", 13, "words of 4 bytes"),
        ("4:64:0:*:*,*:mss:id+:0", 17, "id+ requires df"),
        ("4:64:0:*:*,15:nop,ws::0", 11, "exws"),
        ("4:64:0:*:*,*:eol+3,nop::0", 19, "the last option"),
    ] {
        let error = Signature::parse(text).unwrap_err();
        assert!(error.to_string().contains(what), "{text}: {error}");
        assert_eq!(error.at.start, start, "{text}: {error}");
    }
}

#[test]
fn options_of_variable_length_do_not_take_exponential_time() {
    // 21 options of at least 2 bytes: there are 10^9 ways to choose the lengths of most of them,
    // and none for all.
    for count in 1..=OPTIONS_MAX {
        let layout = vec!["?9"; count].join(",");
        let parsed = Signature::parse(&format!("4:64:0:*:*,0:{layout}::0"));
        assert_eq!(parsed.is_ok(), count <= 20, "{count}: {parsed:?}");
    }
}
