//! Checks the laws on the fuzz targets' corpora, which are generated here, and on random lists and
//! changed answers from fixed seeds.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-scan --test laws` rewrites the corpora.

use std::fs;
use std::path::Path;

use barewire_scan::Probe;
use barewire_scan::laws::{
    answer_input, answer_input_of, lists_input, lists_input_of, probe, probe_count, tls_input,
    tls_input_of,
};

/// Lines of targets, a selection of probes, and ports.
const LISTS: [(&str, u8, &str); 11] = [
    ("192.0.2.0/24\n192.0.2.7", 0, "80,443,8000-8100,U:53"),
    ("10.0.0.0/8, 2001:db8::/32 # all\n\n0.0.0.0/0", 0x82, "-"),
    (
        "192.0.2.1-192.0.2.9\n192.0.2.3-5\n192.0.2.200",
        1,
        "T:22,U:161,S:9,P:47",
    ),
    ("::/0\n::1-::ffff", 0, "65530-"),
    ("0.0.0.0/0\n255.255.255.255", 8, "0-65535"),
    (
        "ffff::/16\nffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        3,
        "-9",
    ),
    ("192.0.2.9-1", 0, "90-80"),
    ("192.0.2.0/33", 0, "X:80"),
    ("\t 1.2.3.4\r\n,,\n::1-1.2.3.4", 0xff, "P:256"),
    ("", 4, ""),
    ("192.0.2.7:443, [2001:db8::1]:53/udp", 0, "80"),
];

fn answers() -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    // Some probes of each type with the answers of the target, and an error.
    for number in (0..probe_count()).step_by(7) {
        let word = probe(number).probe.word();
        for kind in [12, 1, 5] {
            let input = answer_input_of(number, kind, &[]);
            out.push((format!("{word}-{number}-{kind}"), input));
        }
    }
    let raw = [
        &[0, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0, 0x45][..],
        &[0; 40],
    ]
    .concat();
    out.push(("raw".into(), raw));
    out
}

/// A fuzz target, its law, its inputs by name.
type Corpus = (&'static str, fn(&[u8]) -> bool, Vec<(String, Vec<u8>)>);

/// Messages of a TLS server after its hello: a protocol, and two short certificates.
fn messages() -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat();
    let message = |kind: u8, body: &[u8]| [&[kind][..], &sized(body)].concat();
    let der = |tag: u8, contents: &[u8]| [&[tag, contents.len() as u8][..], contents].concat();
    let attribute = [der(6, &[0x55, 4, 3]), der(0x0c, b"X")].concat();
    let name = der(0x30, &der(0x31, &der(0x30, &attribute)));
    let validity = der(0x30, &der(0x17, b"700101000000Z").repeat(2));
    let signed = [der(2, &[1]), der(0x30, &[]), name.clone(), validity, name].concat();
    let certificate = der(0x30, &der(0x30, &signed));
    let entry = |der: &[u8]| [&sized(der)[..], &[0, 1, 9]].concat();
    let list = [entry(&certificate), entry(&[7; 20])].concat();
    [
        message(8, b"\0\x0f\0\x10\0\x0b\0\x09\x08http/1.1"),
        message(13, &[0; 9]),
        message(11, &[&[0][..], &sized(&list)].concat()),
        message(15, &[8; 30]),
        message(20, &[9; 32]),
    ]
    .concat()
}

/// Servers with each suite and group, with records that are short, long, padded and damaged.
fn servers() -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    let messages = messages();
    for (mode, len, padding) in [
        (0, 0, 0),
        (1, 0, 3),
        (2, 0, 0),
        (4, 50, 0),
        (9, 20, 200),
        (14, 1, 1),
        (0x41, 100, 0),
        (0x20, 100, 0),
    ] {
        let name = format!("messages-{mode}-{len}-{padding}");
        out.push((name, tls_input_of(mode, len, padding, &messages)));
    }
    // An alert and, without encryption, a change of cipher and one byte of a hello.
    out.push(("alert".into(), tls_input_of(0x41, 0, 0, &[2, 40])));
    let raw = [0x80, 20, 3, 3, 0, 1, 1, 22, 3, 3, 0, 1, 2];
    out.push(("raw".into(), raw.to_vec()));
    out
}

fn corpora() -> [Corpus; 3] {
    let lists = LISTS
        .iter()
        .enumerate()
        .map(|(at, (targets, probes, ports))| {
            (
                format!("text-{at}"),
                lists_input_of(targets, *probes, ports),
            )
        });
    [
        ("scan_lists", lists_input, lists.collect()),
        ("scan_answer", answer_input, answers()),
        ("scan_tls", tls_input, servers()),
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
}

/// Without changes, every kind of answer to every probe is reported, so the law is about answers.
#[test]
fn genuine_answers_are_reported() {
    for number in 0..probe_count() {
        let target = probe(number);
        let is_reported = |kind| answer_input(&answer_input_of(number, kind, &[]));
        assert!(is_reported(0), "an error about {target:?}");
        // A keyed request is no answer to itself, and protocols are not evaluated.
        let answers = matches!(
            target.probe,
            Probe::Syn
                | Probe::Echo
                | Probe::Ack
                | Probe::Fin
                | Probe::Xmas
                | Probe::Null
                | Probe::SctpInit
                | Probe::Timestamp
        );
        if answers || (target.probe, target.port) == (Probe::Udp, 9999) {
            assert!(is_reported(1) && is_reported(5), "an answer to {target:?}");
        }
    }
}

/// Undamaged messages are found, so the law is about certificates.
#[test]
fn messages_of_tls_servers_are_found() {
    for (name, input) in servers() {
        let is_found = name.starts_with("messages");
        assert_eq!(tls_input(&input), is_found, "{name}");
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

#[test]
fn changed_answers_hold() {
    let mut random = Random(0x5eed_0a25);
    let mut reported = 0;
    for _ in 0..20_000 {
        let number = random.below(usize::from(probe_count())) as u16;
        let mut changes = Vec::new();
        for _ in 0..random.below(4) {
            changes.extend([0, random.below(120) as u8, 1 << random.below(8)]);
        }
        let input = answer_input_of(number, random.below(256) as u8, &changes);
        reported += usize::from(answer_input(&input));
    }
    assert!((2_000..18_000).contains(&reported), "{reported}");
}

#[test]
fn random_packets_hold() {
    let mut random = Random(0x5eed_0b17);
    for _ in 0..20_000 {
        let mut packet = vec![0; 1 + random.below(100)];
        packet
            .iter_mut()
            .for_each(|byte| *byte = random.below(256) as u8);
        packet[0] = 0;
        // Half of them IP.
        if let Some(kind) = packet.get_mut(13..16)
            && random.below(2) == 0
        {
            kind.copy_from_slice(&[8, 0, 0x45]);
        }
        answer_input(&packet);
    }
}

#[test]
fn random_lists_hold() {
    const WORDS: [&str; 14] = [
        "192.0.2.",
        "10.",
        "::",
        "2001:db8:",
        "/",
        "-",
        ",",
        "\n",
        "#",
        "255",
        "U:",
        "P:",
        "T:",
        " ",
    ];
    let mut random = Random(0x5eed_0115);
    let mut valid = 0;
    for _ in 0..20_000 {
        let (targets, probes, ports) = LISTS[random.below(LISTS.len())];
        let mut texts = [targets.to_owned(), ports.to_owned()];
        for text in &mut texts {
            for _ in 0..random.below(3) {
                let number = random.below(300).to_string();
                let word = match random.below(2) {
                    0 => &number,
                    _ => WORDS[random.below(WORDS.len())],
                };
                let at = random.below(text.len() + 1);
                text.insert_str(at, word);
            }
        }
        let probes = probes ^ 1 << random.below(8);
        // All ports of many probes take long.
        let ports = if random.below(8) == 0 {
            &texts[1]
        } else {
            "80"
        };
        valid += usize::from(lists_input(&lists_input_of(&texts[0], probes, ports)));
    }
    assert!((500..19_500).contains(&valid), "{valid}");
}

#[test]
fn changed_messages_of_tls_servers_hold() {
    let mut random = Random(0x5eed_0715);
    let servers = servers();
    let mut found = 0;
    for _ in 0..5_000 {
        let mut input = servers[random.below(servers.len())].1.clone();
        for _ in 0..random.below(4) {
            let at = random.below(input.len());
            input[at] = random.below(256) as u8;
        }
        found += usize::from(tls_input(&input));
    }
    assert!((1_000..4_900).contains(&found), "{found}");
}
