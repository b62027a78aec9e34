//! Programs compared with the rules, and the rules tested with similar names.

use super::*;
use crate::p0f::Start;

fn queries(names: &str, types: &[&str]) -> Queries {
    Queries {
        names: Name::parse_list(names).unwrap(),
        types: types.iter().map(|t| QueryType::parse(t).unwrap()).collect(),
    }
}

/// Builds a query over IPv4 with `words` words of options, or over IPv6 if `words` is `None`.
fn packet(name: &[&[u8]], kind: u16, words: Option<u8>) -> Vec<u8> {
    let mut dns = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name {
        dns.push(label.len() as u8);
        dns.extend(*label);
    }
    dns.push(0);
    dns.extend(kind.to_be_bytes());
    dns.extend([0, 1]);
    let mut bytes = match words {
        Some(words) => {
            let mut ip = vec![0x45 + words, 0, 0, 0, 0, 7, 0x40, 0, 64, 17];
            ip.resize(20 + usize::from(words) * 4, 1);
            ip
        }
        None => {
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            ip.resize(40, 2);
            ip
        }
    };
    bytes.extend([0xc0, 0, 0, 53, 0, 0, 0, 0]);
    bytes.extend(dns);
    bytes
}

fn labels(name: &str) -> Vec<&[u8]> {
    name.split('.').map(str::as_bytes).collect()
}

#[test]
fn names_are_distinguished() {
    let q = queries("*.example.com, a.test", &[]);
    for (name, expected) in [
        ("www.example.com", true),
        ("wWw.ExAmPlE.cOm", true),
        ("example.com", false),
        ("a.b.example.com", false),
        ("x.example.com.evil.org", false),
        ("A.TEST", true),
        ("b.test", false),
        ("a.tesT", true),
        ("a.tes\u{14}", false),
    ] {
        for words in [Some(0), Some(3), None] {
            let bytes = packet(&labels(name), 1, words);
            assert_eq!(matches(&q, &bytes), expected, "{name}");
        }
    }
    let mut bytes = packet(&labels("a.test"), 1, Some(0));
    bytes[30] |= 0x80;
    assert!(!matches(&q, &bytes), "an answer");
    let mut bytes = packet(&labels("a.test"), 1, Some(0));
    bytes[23] = 54;
    assert!(!matches(&q, &bytes), "another port");
    let mut bytes = packet(&labels("a.test"), 1, Some(0));
    bytes[6] = 0x20;
    assert!(!matches(&q, &bytes), "a fragment");
    let typed = queries("a.test", &["AAAA", "any"]);
    assert!(!matches(&typed, &packet(&labels("a.test"), 1, Some(0))));
    assert!(matches(&typed, &packet(&labels("a.test"), 255, None)));
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count as u64) as usize
    }
}

const WORDS: [&str; 10] = [
    "example",
    "com",
    "a-b",
    "c9",
    "net",
    "x",
    "0x20",
    "www",
    "verylonglabel",
    "of",
];

/// A query for one of the names or a similar one, often damaged.
fn random_packet(q: &Queries, random: &mut Random) -> Vec<u8> {
    let chosen = &q.names[random.below(q.names.len())].to_string();
    let mut name: Vec<&[u8]> = match chosen.as_str() {
        "." => Vec::new(),
        text => labels(text),
    };
    if name.first() == Some(&&b"*"[..]) {
        name[0] = WORDS[random.below(WORDS.len())].as_bytes();
    }
    if random.below(4) == 0 {
        let word = WORDS[random.below(WORDS.len())].as_bytes();
        name.insert(random.below(name.len() + 1), word);
    }
    let words = [Some(0), Some(0), Some(2), None, None][random.below(5)];
    let mut bytes = packet(&name, [1, 1, 99, 28][random.below(4)], words);
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 | 1 => bytes[at] ^= 0x20,
            2 | 3 => bytes[at] ^= 1 << random.below(8),
            4 => bytes.truncate(at.max(1)),
            _ => {}
        }
    }
    bytes
}

/// All programs of a list, with their family and start.
fn programs(q: &Queries) -> Vec<(Family, Start, bpf::cbpf::Program)> {
    let mut all = Vec::new();
    for family in [Family::V4, Family::V6, Family::Both] {
        for start in [Start::Ip, Start::Ethernet] {
            let made = compile(q, family, start).unwrap().program;
            assert_eq!(made.kernel_refusal(), None);
            all.push((family, start, made));
        }
    }
    all
}

#[test]
fn compiled_programs_agree_with_the_rules() {
    let mut random = Random(53);
    let list = "example.com *.example.com a-b.c9.net *.x *.0x20.example . verylonglabel.of.a.name";
    let (mut checked, mut matching) = (0, 0);
    for types in [&[][..], &["A"], &["A", "TYPE99"]] {
        let q = queries(list, types);
        let (programs, set) = (programs(&q), QuerySet::new(&q));
        for _ in 0..12_000 {
            let bytes = random_packet(&q, &mut random);
            let is_v6 = bytes[0] >> 4 == 6;
            let expected = matches(&q, &bytes);
            let ether_type = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
            let frame = [&[3; 12][..], &ether_type, &bytes].concat();
            for (family, start, program) in &programs {
                let other = if is_v6 { Family::V4 } else { Family::V6 };
                let bytes = if *start == Start::Ip { &bytes } else { &frame };
                let verdict = bpf::vm_cbpf::run(program, bytes, bytes.len() as u32) != 0;
                assert_eq!(set.matches(*start, bytes), expected, "{bytes:02x?}");
                let expected = expected && *family != other;
                assert_eq!(verdict, expected, "{family:?} {start:?} {bytes:02x?}");
            }
            checked += 1;
            matching += usize::from(expected);
        }
    }
    assert!(
        checked >= 36_000 && matching * 4 >= checked,
        "{matching} of {checked} match"
    );
}

#[test]
fn long_lists_need_long_jumps_and_too_long_ones_are_refused() {
    let list = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("host{i}.example.com")).collect();
        queries(&names.join("\n"), &[])
    };
    let q = list(200);
    let program = compile(&q, Family::Both, Start::Ip).unwrap().program;
    assert!(program.insns().len() > 1000);
    for index in [0, 99, 199, 200] {
        let name = format!("host{index}.example.com");
        let bytes = packet(&labels(&name), 1, None);
        let verdict = bpf::vm_cbpf::run(&program, &bytes, bytes.len() as u32) != 0;
        assert_eq!(verdict, index < 200, "{name}");
    }
    assert!(compile(&list(1000), Family::Both, Start::Ip).is_err());
}

#[test]
fn invalid_names_are_refused_with_their_position() {
    for (text, at) in [
        ("a..b", 2..2),
        ("ok.example, a_b.*.c", 16..17),
        ("# none\n", 7..7),
        ("x\nb\\c", 2..5),
        ("bücher.example", 0..7),
    ] {
        let error = Name::parse_list(text).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
    }
    let long = "a".repeat(64);
    assert!(Name::parse(&long).is_err());
    assert!(Name::parse(&long[..63]).is_ok());
    let name = ["a".repeat(63).as_str(); 4].join(".");
    assert!(Name::parse(&name).is_err(), "256 bytes on the wire");
    assert_eq!(
        Name::parse("*.Example.COM.").unwrap().to_string(),
        "*.example.com"
    );
}

/// The examples in docs/filter.md of how many names fit into a program.
#[test]
fn the_document_says_how_many_names_fit() {
    let text = include_str!("../../../../docs/filter.md");
    let mut figures = Vec::new();
    for (example, name) in [
        (
            "`host-000.example.com`",
            (|n| format!("host-{n:03}.example.com")) as fn(usize) -> String,
        ),
        ("`n000.test`", |n| format!("n{n:03}.test")),
    ] {
        let fits = |count: usize| {
            let names = (0..count).map(|n| Name::parse(&name(n)).unwrap()).collect();
            let types = Vec::new();
            compile(&Queries { names, types }, Family::Both, Start::Ethernet).is_ok()
        };
        // The largest number, between one that fits and one that does not.
        let (mut low, mut high) = (1, 4096);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            match fits(middle) {
                true => low = middle,
                false => high = middle,
            }
        }
        figures.push(format!("{low} names such as {example}"));
    }
    for figure in &figures {
        assert!(
            text.contains(figure),
            "docs/filter.md does not say {figures:?}"
        );
    }
}
