//! Checks the laws on the fuzz targets' corpora, which are generated here, and on random lists and
//! changed answers from fixed seeds.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-scan --test laws` rewrites the corpora.

use std::fs;
use std::path::Path;

use barewire_scan::Probe;
use barewire_scan::laws::{
    answer_input, answer_input_of, lists_input, lists_input_of, probe, probe_count,
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

fn corpora() -> [Corpus; 2] {
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
