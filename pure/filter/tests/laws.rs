//! Checks the laws of expressions on the fuzz target's corpus, which is generated here, and on
//! random words from a fixed seed.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-filter --test laws` rewrites the corpus.

use std::fs;
use std::path::Path;

use barewire_filter::laws::{
    expression_input, input_of, names_input, signature_input, text_input_of,
};

/// One expression per line.
const EXPRESSIONS: &str = include_str!("../../../testdata/filter/expressions.txt");
/// Expressions on other link types.
const LINKS: &str = include_str!("../../../testdata/filter/links.txt");
/// Expressions that only a live socket supports.
const LIVE: [&str; 4] = [
    "inbound and vlan 5",
    "(tcp port 80 and vlan) or ip",
    "vlan and vlan 7 and tcp",
    "ifindex 3 or not vlan",
];

/// Expressions on frames of 802.11, with a radiotap header.
const FRAMES: [&str; 4] = [
    "type data subtype qos-data and dir tods and tcp port 80",
    "wlan host 2:0:0:0:0:1 or wlan ra 2:0:0:0:0:2",
    "not type mgt and radio[2] = 8 and link[0] & 8 != 0",
    "ip or geneve 7 and vlan 5",
];

/// Expressions of the extended language, which a flag selects.
const EXTENDED: [&str; 7] = [
    "ttl 60-64 and not tcp option sackok",
    "payload[0:2] = 0x4745 or vlan and payload[1] & 1 = 0",
    "payload contains \"G\\x45T\" within 12",
    "tcp option 34 or port 80",
    "inner (tcp or vlan 5) and not inner host 192.0.2.1",
    "vxlan 7 and inner ip6 or tcp port 80",
    "gtpu and udp or inner inner arp",
];
const IS_EXTENDED: u8 = 0x80;

/// Builds a TCP packet over IPv4 over Ethernet.
fn packet() -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    packet.extend([0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0]);
    packet.extend([192, 0, 2, 1, 192, 0, 2, 2, 0x9c, 0x40, 0, 80]);
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    packet
}

/// A QoS data frame with LLC, SNAP and the packet's IP header, behind radiotap.
fn frame() -> Vec<u8> {
    let mut frame = vec![0, 0, 8, 0, 0, 0, 0, 0, 0x88, 1, 0, 0];
    frame.extend([
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x10, 0, 0, 0,
    ]);
    frame.extend([0xaa, 0xaa, 3, 0, 0, 0]);
    frame.extend(&packet()[12..]);
    frame
}

/// The packet in VXLAN.
fn tunnel() -> Vec<u8> {
    let mut outer = packet();
    outer.truncate(14 + 20);
    outer[14 + 9] = 17;
    outer.extend([0, 9, 0x12, 0xb5, 0, 70, 0, 0, 8, 0, 0, 0, 0, 0, 7, 0]);
    outer.extend(packet());
    outer
}

/// Every eighth expression of the list, and those for live sockets.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let some = EXPRESSIONS.lines().step_by(8);
    let links = [1, 1, 1, 101, 113, 276, 0, 9];
    let files = some.zip(links.into_iter().cycle()).enumerate();
    let files = files.map(|(at, (text, link))| {
        let input = input_of(text, link, 0, &packet());
        (format!("file-{at}"), input)
    });
    let live = LIVE.iter().enumerate().map(|(at, text)| {
        let input = input_of(text, 1, 1, &packet());
        (format!("live-{at}"), input)
    });
    let extended = EXTENDED.iter().enumerate().map(|(at, text)| {
        let packet = if at < 4 { packet() } else { tunnel() };
        let input = input_of(text, 1, IS_EXTENDED, &packet);
        (format!("extended-{at}"), input)
    });
    let frames = FRAMES.iter().enumerate().map(|(at, text)| {
        let input = input_of(text, 127, 0, &frame());
        (format!("frame-{at}"), input)
    });
    files.chain(live).chain(extended).chain(frames).collect()
}

/// Signatures, each with a SYN.
const SIGNATURES: [&str; 10] = [
    "4:64:0:0:*,0::ack+:0",
    "*:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0",
    "*:64+0:0:1440:mss*45,10:mss,sok,ts,nop,ws:flow:0",
    "4:128:4:536:mtu*2,0:mss,nop,ws::+",
    "*:64-:0:1460:1024,0:mss:ecn:0",
    "4:64:0:*:%3,*:mss,mss,ws,ws,nop,nop:df:*",
    "4:64:0:*:*,*:mss,nop,nop,sack::0",
    "4:64:0:*:*,*:mss,nop,nop,ts:df,id+,linux:0",
    "*:192:0:1331:1337,0:mss,nop,eol+18:opt+:0",
    "6:64:0:*:*,*:mss,?76::0",
];

const NAMES: [&str; 5] = [
    "example.com",
    "*.example.com, a.test",
    "x.test\nwww.example.org # a comment",
    "a..b",
    "*",
];

/// A query for www.example.com over IPv4.
fn query() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 61, 0, 7, 0x40, 0, 64, 17, 0, 0];
    packet.extend([192, 0, 2, 1, 192, 0, 2, 2, 0xc0, 0, 0, 53, 0, 41, 0, 0]);
    packet.extend([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    packet.extend(b"\x03www\x07example\x03com\0\0\x01\0\x01");
    packet
}

/// A fuzz target, its law, its inputs by name.
type Corpus = (&'static str, fn(&[u8]) -> bool, Vec<(String, Vec<u8>)>);

fn corpora() -> [Corpus; 3] {
    let texts = |texts: &[&str], packet: &[u8]| {
        let inputs = texts.iter().enumerate().map(|(at, text)| {
            let input = text_input_of(at as u8 % 2, text, packet);
            (format!("text-{at}"), input)
        });
        inputs.collect::<Vec<_>>()
    };
    let signatures = texts(&SIGNATURES, &packet()[14..]);
    let names = texts(&NAMES, &query());
    [
        ("expression", expression_input, seeds()),
        ("p0f", signature_input, signatures),
        ("names", names_input, names),
    ]
}

#[test]
fn the_laws_hold_for_the_corpora() {
    for (target, law, seeds) in corpora() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let folder = folder.join(target);
        if std::env::var_os("BAREWIRE_BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            for (name, input) in &seeds {
                fs::write(folder.join(name), input).unwrap();
            }
        }
        for entry in fs::read_dir(&folder).unwrap() {
            law(&fs::read(entry.unwrap().path()).unwrap());
        }
        for (name, input) in seeds {
            let there = fs::read(folder.join(&name)).unwrap_or_default();
            assert!(
                there == input,
                "{target}/{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
            );
        }
    }
    for text in LIVE {
        assert!(expression_input(&input_of(text, 1, 1, &packet())), "{text}");
    }
    for text in EXTENDED {
        let input = input_of(text, 1, IS_EXTENDED, &packet());
        assert!(expression_input(&input), "{text}");
    }
}

/// Signatures and lists of names with fields of others, and packets with bytes changed.
#[test]
fn random_signatures_and_names_hold() {
    let mut random = Random(0x5eed_0b0f);
    let mut compiled = [0; 2];
    for round in 0..20_000 {
        let is_name = round % 4 == 0;
        let (texts, separator, mut packet): (&[&str], char, _) = match is_name {
            true => (&NAMES, '.', query()),
            false => (&SIGNATURES, ':', packet()[14..].to_vec()),
        };
        let pick = |random: &mut Random| texts[random.below(texts.len())];
        let mut parts: Vec<&str> = pick(&mut random).split(separator).collect();
        for _ in 0..random.below(4) {
            let at = random.below(parts.len());
            let other: Vec<&str> = pick(&mut random).split(separator).collect();
            parts[at] = other[at % other.len()];
        }
        let mut text = parts.join(&separator.to_string());
        if random.below(8) == 0 {
            let at = random.below(text.len() + 1);
            text.insert_str(at, ["9", "é", ",", "+", "*"][random.below(5)]);
        }
        for _ in 0..random.below(4) {
            let at = random.below(packet.len());
            packet[at] = random.below(256) as u8;
        }
        let input = text_input_of(random.below(2) as u8, &text, &packet);
        let law = if is_name {
            names_input
        } else {
            signature_input
        };
        compiled[usize::from(is_name)] += usize::from(law(&input));
    }
    assert!(compiled.iter().all(|&count| count > 500), "{compiled:?}");
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn pick_flags(&mut self) -> u8 {
        self.below(32) as u8 | [0, IS_EXTENDED][self.below(2)]
    }
}

#[test]
fn random_words_hold() {
    let live = LIVE.into_iter().chain(EXTENDED).chain(FRAMES);
    let lines: Vec<&str> = EXPRESSIONS
        .lines()
        .chain(LINKS.lines())
        .chain(live)
        .collect();
    let words: Vec<&str> = lines.iter().flat_map(|l| l.split_whitespace()).collect();
    let mut random = Random(0x5eed_0f17);
    let mut compiled = 0;
    for _ in 0..20_000 {
        let count = 1 + random.below(7);
        let some: Vec<&str> = (0..count)
            .map(|_| match random.below(4) {
                0 => lines[random.below(lines.len())],
                1 => ["and", "or", "not", "and not", "(", ")"][random.below(6)],
                _ => words[random.below(words.len())],
            })
            .collect();
        let mut packet = [packet, frame, tunnel][random.below(3)]();
        for _ in 0..random.below(4) {
            let at = random.below(packet.len());
            packet[at] = random.below(256) as u8;
        }
        let mut input = input_of(&some.join(" "), 1, random.pick_flags(), &packet);
        input[0] = random.below(18) as u8;
        compiled += usize::from(expression_input(&input));
    }
    assert!(compiled > 500, "only {compiled} of 20000 were expressions");
}
