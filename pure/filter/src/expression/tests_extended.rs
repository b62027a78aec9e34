//! The extended primitives compared with a naive implementation of their rules, on random packets
//! truncated at every length. `None` means that the packet is rejected because a byte needed for
//! the decision is missing.

use std::net::IpAddr;

use super::*;

/// A condition, evaluated naively or printed as an expression.
enum Rule {
    Load(usize, usize, u32),
    Contains(&'static [u8], usize),
    Ttl(u8, u8),
    Source(&'static [(&'static str, u8)]),
    Option(u8),
    Not(Box<Rule>),
    And(Box<Rule>, Box<Rule>),
    Or(Box<Rule>, Box<Rule>),
}

struct Packet<'a>(&'a [u8]);

impl Packet<'_> {
    fn number(&self, at: usize, len: usize) -> Option<usize> {
        let bytes = self.0.get(at..at + len)?;
        Some(bytes.iter().fold(0, |n, &byte| n << 8 | usize::from(byte)))
    }

    /// The IP version and the transport protocol number; 0 for later fragments.
    fn transport(&self) -> Option<(usize, usize)> {
        Some(match self.number(12, 2)? {
            0x800 if self.number(20, 2)? & 0x1fff == 0 => (4, self.number(23, 1)?),
            0x86dd => (6, self.number(20, 1)?),
            _ => (0, 0),
        })
    }

    fn ip_len(&self, version: usize) -> Option<usize> {
        match version {
            4 => Some((self.number(14, 1)? & 15) * 4),
            _ => Some(40),
        }
    }

    /// The offset and length of the payload.
    fn payload(&self) -> Option<Option<(usize, usize)>> {
        let (version, protocol) = self.transport()?;
        if protocol != 6 && protocol != 17 {
            return Some(None);
        }
        let ip_len = self.ip_len(version)?;
        let headers = ip_len
            + match protocol {
                6 => (self.number(14 + ip_len + 12, 1)? >> 4) * 4,
                _ => 8,
            };
        let total = match version {
            4 => self.number(16, 2)?,
            _ => self.number(18, 2)? + 40,
        };
        Some(total.checked_sub(headers).map(|len| (14 + headers, len)))
    }

    fn has_option(&self, kind: usize) -> Option<bool> {
        let (version, protocol) = self.transport()?;
        if protocol != 6 {
            return Some(false);
        }
        let tcp = 14 + self.ip_len(version)?;
        let end = tcp + (self.number(tcp + 12, 1)? >> 4) * 4;
        let mut at = tcp + 20;
        while at < end {
            let this = self.number(at, 1)?;
            if this == kind {
                return Some(true);
            }
            at += match this {
                0 => break,
                1 => 1,
                _ if at + 1 == end => break,
                _ => match self.number(at + 1, 1)? {
                    0 | 1 => break,
                    len => len,
                },
            };
        }
        Some(false)
    }

    /// Reads only as many words of the address as the decision needs.
    fn source_is_in(&self, list: &[(&str, u8)]) -> Option<bool> {
        let (start, words) = match self.number(12, 2)? {
            0x800 => (26, 1),
            0x86dd => (22, 4),
            _ => return Some(false),
        };
        let prefixes = list.iter().filter_map(|&(prefix, len)| {
            let bits = match prefix.parse().unwrap() {
                IpAddr::V4(v4) if words == 1 => u128::from(v4.to_bits()) << 96,
                IpAddr::V6(v6) if words == 4 => v6.to_bits(),
                _ => return None,
            };
            Some((bits, len))
        });
        let mut left: Vec<(u128, u8)> = prefixes.collect();
        let mut address = 0u128;
        for word in 0..=words {
            if left.iter().any(|&(_, len)| usize::from(len) <= 32 * word) {
                return Some(true);
            }
            if left.is_empty() || word == words {
                break;
            }
            address |= (self.number(start + 4 * word, 4)? as u128) << (96 - 32 * word);
            left.retain(|&(bits, len)| {
                let known = u32::from(len).min(32 * (word as u32 + 1));
                (bits ^ address) >> (128 - known) == 0
            });
        }
        Some(false)
    }

    fn matches(&self, rule: &Rule) -> Option<bool> {
        Some(match rule {
            Rule::Load(at, len, value) => match self.payload()? {
                Some((start, most)) if at + len <= most => {
                    self.number(start + at, *len)? == *value as usize
                }
                _ => false,
            },
            Rule::Contains(text, within) => match self.payload()? {
                Some((start, len)) => {
                    let len = len.min(*within);
                    self.number(start + len - 1, 1)?;
                    self.0[start..start + len]
                        .windows(text.len())
                        .any(|part| part == *text)
                }
                None => false,
            },
            Rule::Ttl(low, high) => {
                let ttl = match self.number(12, 2)? {
                    0x800 => self.number(22, 1)?,
                    0x86dd => self.number(21, 1)?,
                    _ => return Some(false),
                };
                usize::from(*low) <= ttl && ttl <= usize::from(*high)
            }
            Rule::Source(list) => self.source_is_in(list)?,
            Rule::Option(kind) => self.has_option((*kind).into())?,
            Rule::Not(rule) => !self.matches(rule)?,
            Rule::And(a, b) => self.matches(a)? && self.matches(b)?,
            Rule::Or(a, b) => self.matches(a)? || self.matches(b)?,
        })
    }
}

const SMALL: &[(&str, u8)] = &[("192.0.2.0", 25), ("192.0.2.64", 26), ("2001:db8::", 33)];
const LARGE: &[(&str, u8)] = &[
    ("192.0.2.1", 32),
    ("192.0.2.3", 32),
    ("192.0.2.128", 25),
    ("0.0.0.0", 6),
    ("255.255.255.255", 32),
    ("2001:db8::1", 128),
    ("2001:db8::3", 128),
    ("2001:db8:0:0:8000::", 65),
    ("2001:db8:1::", 48),
    ("ffff::", 16),
    ("2001:db8:0:3:ffff:ffff:0:1", 128),
];
const ALL: &[(&str, u8)] = &[("0.0.0.0", 0), ("::", 0)];

/// The prefix files of the tests.
struct Files;

impl Names for Files {
    fn prefixes(&self, file: &str) -> std::result::Result<Vec<(IpAddr, u8)>, String> {
        let list = match file {
            "small" => SMALL,
            "/lists/large.txt" => LARGE,
            "all" => ALL,
            _ => return Err("no such file".to_owned()),
        };
        let parse = |&(prefix, len): &(&str, u8)| (prefix.parse().unwrap(), len);
        Ok(list.iter().map(parse).collect())
    }
}

fn rules() -> Vec<(String, Rule)> {
    use Rule::*;
    let single = || {
        vec![
            ("payload[0] = 0x47", Load(0, 1, 0x47)),
            ("payload[1:2] = 0x4554", Load(1, 2, 0x4554)),
            ("payload[3:4] = 0x47455447", Load(3, 4, 0x4745_5447)),
            (r#"payload contains "G" within 1"#, Contains(b"G", 1)),
            (r#"payload contains "GE" within 8"#, Contains(b"GE", 8)),
            (
                r#"payload contains "\x47ETG" within 9"#,
                Contains(b"GETG", 9),
            ),
            (
                r#"payload contains "ETGETGE" within 40"#,
                Contains(b"ETGETGE", 40),
            ),
            ("ttl 64", Ttl(64, 64)),
            ("ttl 60-64", Ttl(60, 64)),
            ("src net file small", Source(SMALL)),
            ("src net file /lists/large.txt", Source(LARGE)),
            (r#"src net file "all""#, Source(ALL)),
            ("tcp option sackok", Option(4)),
            ("tcp option 8", Option(8)),
            ("tcp option nop", Option(1)),
            ("tcp option eol", Option(0)),
        ]
    };
    let mut rules: Vec<(String, Rule)> = Vec::new();
    for (text, rule) in single() {
        rules.push((text.to_owned(), rule));
    }
    for (text, rule) in single() {
        rules.push((format!("not {text}"), Not(rule.into())));
    }
    for ((a, first), (b, second)) in single().into_iter().zip(single().into_iter().rev()) {
        let or = Or(first.into(), Not(second.into()).into());
        rules.push((format!("({a}) or not {b}"), or));
    }
    for ((a, first), (b, second)) in single().into_iter().zip(single().into_iter().skip(3)) {
        rules.push((format!("{a} and {b}"), And(first.into(), second.into())));
    }
    rules
}

/// Random numbers (xorshift*).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub(super) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn options(&mut self) -> Vec<u8> {
        let mut options = Vec::new();
        for _ in 0..self.below(7) {
            match self.pick(&[0, 1, 1, 2, 3, 4, 8, 9]) {
                kind @ (0 | 1) => options.push(kind),
                4 => options.extend([4, 2]),
                8 => options.extend([8, 10, 4, 8, 1, 0, 0, 0, 4, 8]),
                2 => options.extend([2, 4, 5, 0xb4]),
                3 => options.extend([3, 3, 7]),
                kind => options.extend([kind, self.below(5) as u8]),
            }
        }
        if self.below(8) == 0 {
            options = vec![1; 40];
            options[39] = self.pick(&[1, 4, 8]);
        }
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), self.pick(&[0, 1, 8]));
        options
    }

    fn packet(&mut self) -> Vec<u8> {
        let protocol = self.pick(&[6, 6, 17, 1]);
        let mut rest = match protocol {
            6 => {
                let options = self.options();
                let mut tcp = vec![0; 12];
                tcp.extend([(5 + options.len() as u8 / 4) << 4, 2, 0, 0, 0, 0, 0, 0]);
                if self.below(16) == 0 {
                    tcp[12] = self.below(256) as u8;
                }
                tcp.extend(options);
                tcp
            }
            _ => vec![0; 8],
        };
        let is_random = self.below(3) == 0;
        for at in 0..self.pick(&[0, 1, 4, 12, 60]) {
            let byte = b"GET"[at % 3];
            rest.push(if is_random { self.pick(b"GET") } else { byte });
        }
        let len = match self.below(6) {
            0 => self.below(2 * rest.len()),
            _ => rest.len(),
        } as u16;
        let ttl = self.pick(&[59, 60, 62, 64, 65]);
        let mut packet = vec![2; 12];
        if self.below(2) == 0 {
            let options = self.pick(&[0, 0, 4, 8u8]);
            packet.extend([8, 0, 0x45 + options / 4, 0]);
            packet.extend((len + 20 + u16::from(options)).to_be_bytes());
            packet.extend([
                0,
                1,
                self.pick(&[0, 0, 0x40, 0x20]),
                self.pick(&[0, 0, 0, 9]),
            ]);
            packet.extend([ttl, protocol, 0, 0]);
            packet.extend(self.pick(&[[192, 0, 2, 0], [3, 0, 0, 0], [4, 0, 0, 0], [255; 4]]));
            let last = packet.len() - 1;
            packet[last] |= self.pick(&[0, 1, 2, 3, 63, 64, 127, 128, 255]);
            packet.extend([10, 0, 0, 1]);
            packet.extend(vec![1; options.into()]);
        } else {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([if protocol == 1 { 58 } else { protocol }, ttl]);
            let mut address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            address[0] = self.pick(&[0x20, 0x20, 0x20, 0xff]);
            address[5] = self.pick(&[0, 0, 1]);
            address[7] = self.pick(&[0, 0, 3]);
            address[8] = self.pick(&[0, 0, 0x80, 0xff]);
            (address[9], address[10], address[11]) = self.pick(&[(0, 0, 0), (255, 255, 255)]);
            address[15] = self.pick(&[0, 1, 2, 3]);
            packet.extend(address);
            packet.extend([0xfe; 16]);
        }
        packet.extend(rest);
        packet.extend(vec![b'G'; self.pick(&[0, 0, 6])]);
        packet
    }
}

fn extended(optimize: bool) -> Options<'static> {
    Options {
        extended: true,
        optimize,
        names: &Files,
        ..Options::default()
    }
}

#[test]
fn verdicts_are_those_of_the_naive_rules() {
    let mut random = Random(0x5eed_0e47);
    let packets: Vec<Vec<u8>> = (0..300).map(|_| random.packet()).collect();
    for (text, rule) in rules() {
        let compile = |optimize| {
            compile(&text, &extended(optimize)).unwrap_or_else(|e| panic!("{e}\n{}", e.mark(&text)))
        };
        let programs = [true, false].map(compile);
        let mut counts = [0; 3];
        for (index, packet) in packets.iter().enumerate() {
            for len in 0..=packet.len() {
                let cut = &packet[..len];
                let expected = Packet(cut).matches(&rule);
                counts[expected.map_or(2, usize::from)] += 1;
                for program in &programs {
                    let wire_len = packet.len() as u32;
                    let verdict = bpf::vm_cbpf::run(program, cut, wire_len) != 0;
                    assert_eq!(verdict, expected == Some(true), "{text}: {cut:02x?}");
                }
            }
            if index % 60 == 0 {
                bpf::laws::program_input(&programs[0], packet);
                bpf::laws::program_input(&programs[0], &packet[..packet.len() / 2]);
            }
        }
        let is_joined = matches!(rule, Rule::And(..) | Rule::Or(..));
        let is_all = text.contains("all") || is_joined;
        assert!(
            is_all || counts.iter().all(|&count| count > 30),
            "{text}: {counts:?}"
        );
    }
}

/// The forms about which `filter_extended.rs` of the lab asks libpcap itself.
const FORMS: &str = include_str!("../../../../testdata/filter/extended.txt");

#[test]
fn none_of_them_is_compiled_unless_requested() {
    for (text, rule) in rules() {
        assert!(compile(&text, &Options::default()).is_err(), "{text}");
        let is_joined = matches!(rule, Rule::Not(_) | Rule::And(..) | Rule::Or(..));
        let is_listed = FORMS.lines().any(|form| form == text);
        assert!(is_joined || is_listed, "libpcap is not asked about {text}");
    }
}

#[test]
fn errors_point_at_the_word() {
    for (text, at) in [
        ("ttl 64-60", 4..9),
        ("ttl 300", 4..7),
        ("payload[0:3] = 1", 10..11),
        ("payload[70000] = 1", 8..13),
        ("payload contains GET", 17..20),
        ("payload contains \"GET", 17..21),
        ("payload contains \"\\q\" within 4", 18..19),
        ("payload contains \"GET\" within 2", 30..31),
        ("tcp option sackon", 11..17),
        ("src net file none", 8..17),
        ("tcp src net file small", 12..22),
    ] {
        let error = compile(text, &extended(true)).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(!error.expected.is_empty(), "{text}: {error}");
    }
}

#[test]
fn too_many_tests_are_refused_before_they_are_compiled() {
    for (primitive, count) in [
        ("payload contains \"a\" within 1500", 6),
        ("payload contains \"abcdefgh\" within 1000", 6),
        ("tcp option mss", 52),
        ("ip protochain 51", 57),
        ("net file large", 2_000),
    ] {
        let text = vec![primitive; 65_536 / (primitive.len() + 4)].join(" or ");
        let options = Options {
            names: &Large,
            ..extended(true)
        };
        let error = compile(&text, &options).unwrap_err();
        let what = "the program would have more than 4096 instructions";
        assert_eq!(error.what, what, "{primitive}");
        let before = error.at.end / (primitive.len() + 4);
        assert!(before < count, "{primitive}: {before}");
    }
}

struct Large;

impl Names for Large {
    fn prefixes(&self, _: &str) -> std::result::Result<Vec<(IpAddr, u8)>, String> {
        let address = |n: u32| IpAddr::from((n << 16).to_be_bytes());
        Ok((0..4_000).map(|n| (address(2 * n), 24)).collect())
    }
}

#[test]
fn long_lists_are_a_tree() {
    struct Many(u32);
    impl Names for Many {
        fn prefixes(&self, _: &str) -> std::result::Result<Vec<(IpAddr, u8)>, String> {
            let address = |n: u32| IpAddr::from((0x0a00_0000 + 2 * n).to_be_bytes());
            Ok((0..self.0).map(|n| (address(n), 32)).collect())
        }
    }
    let compile = |names: &Many| {
        let options = Options {
            names,
            ..extended(true)
        };
        compile("src net file x", &options)
    };
    let program = compile(&Many(600)).unwrap();
    let mut packet = [0u8; 34];
    packet[12] = 8;
    for n in 0..1300u32 {
        packet[26..30].copy_from_slice(&(0x0a00_0000 + n).to_be_bytes());
        let verdict = bpf::vm_cbpf::run(&program, &packet, 34) != 0;
        assert_eq!(verdict, n % 2 == 0 && n < 1200, "{n}");
    }
    let error = compile(&Many(10_000)).unwrap_err();
    assert!(error.to_string().contains("10000 ranges"), "{error}");
}

#[test]
fn a_network_called_file_is_still_one() {
    struct Office;
    impl Names for Office {
        fn network(&self, name: &str) -> Option<(u32, u32)> {
            (name == "file").then_some((0x0a00_0000, 0xff00_0000))
        }
    }
    for text in [
        "net file",
        "net file or tcp",
        "src net file && udp",
        "(net file)",
    ] {
        let [ours, theirs] = [true, false].map(|extended| {
            let options = Options {
                extended,
                names: &Office,
                ..Options::default()
            };
            compile(text, &options).unwrap_or_else(|e| panic!("{text}: {e}"))
        });
        assert_eq!(ours, theirs, "{text}");
    }
}
