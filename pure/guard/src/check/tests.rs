//! Findings about rules, and that they are true of packets.

use std::sync::Arc;

use filter::dns::Name;
use filter::expression::{Options, compile};
use filter::p0f::{self, Handshake, Signature, Start};

use super::*;
use crate::rule::Limit;

fn rule(text: &str, verdict: Verdict) -> Rule {
    let options = Options {
        extended: true,
        ..Options::default()
    };
    let program = match text.strip_prefix("p0f:") {
        Some(text) => {
            let signature = Signature::parse(text).unwrap();
            p0f::compile(&signature, Handshake::Syn, Start::Ethernet).unwrap()
        }
        None => compile(text, &options).unwrap_or_else(|error| panic!("{text}: {error}")),
    };
    Rule {
        matcher: Some(program),
        ..Rule::new(text, verdict)
    }
}

fn drop(text: &str) -> Rule {
    rule(text, Verdict::Drop)
}

fn list(prefixes: &[&str]) -> Option<List> {
    let parse = |text: &&str| Prefix::parse(text).unwrap();
    Some(prefixes.iter().map(parse).collect())
}

fn of_sources(prefixes: &[&str]) -> Rule {
    Rule {
        sources: list(prefixes),
        ..Rule::new("list", Verdict::Drop)
    }
}

fn found(rules: &[Rule]) -> Vec<(usize, FindingKind)> {
    let findings = check(rules, |_, _| true);
    findings.into_iter().map(|f| (f.rule, f.kind)).collect()
}

/// The rules that shadow the last one.
fn shadow_of(rules: &[Rule]) -> Option<Vec<usize>> {
    let last = rules.len() - 1;
    found(rules)
        .into_iter()
        .find_map(|(rule, kind)| match kind {
            FindingKind::Shadowed(by) if rule == last => Some(by),
            _ => None,
        })
}

#[test]
fn a_rule_within_an_earlier_one_is_in_its_shadow() {
    for (earlier, later) in [
        ("udp", "udp"),
        ("udp or tcp", "tcp or udp"),
        ("ip", "udp dst port 53 and ip"),
        ("udp", "udp port 53"),
        ("udp port 53", "udp dst port 53"),
        ("tcp portrange 1-1023", "tcp src portrange 80-443"),
        ("tcp portrange 1-1023", "tcp port 443"),
        ("src net 10.0.0.0/8", "src host 10.1.2.3"),
        ("net 10.0.0.0/8", "ip dst net 10.1.0.0/16"),
        ("src net 2001:db8::/32", "ip6 src host 2001:db8::5"),
        ("greater 100", "greater 200 and udp"),
        ("not tcp", "udp"),
        ("not udp port 53", "tcp"),
        ("ip[8] < 64", "ip[8] < 32 and icmp"),
        ("ip[6] & 0x40 != 0", "ip and ip[6:2] & 0xe000 = 0x4000"),
        ("tcp[tcpflags] & tcp-syn != 0", "tcp[tcpflags] & 0x17 = 2"),
        ("ether proto 0x88cc or arp", "arp"),
        ("vlan", "vlan 5"),
        ("tcp", "p0f:*:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0"),
        ("ip and tcp", "p0f:4:64:0:0:*,0::ack+:0"),
        ("ip6", "p0f:6:64:0:*:*,*:mss,sok,ts,nop,ws:flow:0"),
        (
            "p0f:4:64:0:*:*,*:mss,sok,ts,nop,ws:df,id+:0",
            "p0f:4:64:0:1460:*,6:mss,sok,ts,nop,ws:df,id+:0",
        ),
        ("vxlan", "vxlan 7"),
        ("ttl 0-64", "ttl 10-20 and tcp"),
        ("payload[0:2] = 0x4745", "payload[0:2] = 0x4745"),
    ] {
        let rules = [drop(earlier), drop(later)];
        assert_eq!(shadow_of(&rules), Some(vec![0]), "{earlier}; {later}");
        // A rule that only counts decides nothing, nor one that is gone before.
        let counts = [rule(earlier, Verdict::Count), drop(later)];
        assert_eq!(found(&counts), [], "{earlier}; {later}");
        assert_eq!(check(&rules, |_, _| false), []);
    }
}

#[test]
fn what_an_earlier_rule_leaves_is_no_shadow() {
    for (earlier, later) in [
        ("udp port 53", "udp"),
        ("udp dst port 53", "udp port 53"),
        ("ip and udp", "udp"),
        ("ip proto 17", "udp port 53"),
        ("src net 10.0.0.0/8", "src net 0.0.0.0/0 and ip"),
        ("ip src net 10.0.0.0/8", "src net 10.1.0.0/16"),
        ("src host 10.1.2.3", "dst host 10.1.2.3"),
        ("tcp portrange 80-443", "tcp portrange 79-443"),
        ("greater 200", "greater 100"),
        ("tcp", "vlan and tcp"),
        ("vlan 5", "vlan"),
        ("tcp[13] & 2 != 0", "tcp[13] & 0x12 != 0"),
        // Packets that are too short for the first one do not match it.
        ("udp[100] >= 0", "udp"),
        ("ip[60] = 5 or ip[60] != 5", "ip"),
        ("not tcp[13] & 2 != 0", "ip"),
        ("ip and ip[0] & 0xf = 5 and udp", "ip and udp"),
        ("p0f:4:64:0:0:*,0::ack+:0", "tcp[tcpflags] = tcp-syn"),
        ("ip6", "p0f:*:64:0:*:*,0:mss::0"),
    ] {
        let rules = [drop(earlier), drop(later)];
        assert_eq!(found(&rules), [], "{earlier}; {later}");
    }
}

#[test]
fn several_rules_together_can_cover_one() {
    let rules = [drop("ip"), drop("arp"), drop("ip6"), drop("tcp port 80")];
    assert_eq!(shadow_of(&rules), Some(vec![0, 2]));
    let rules = [
        drop("udp portrange 0-99"),
        drop("udp portrange 100-65535"),
        drop("udp dst port 9"),
    ];
    assert_eq!(shadow_of(&rules), Some(vec![0]));
    let rules = [
        drop("ip src net 10.0.0.0/9"),
        drop("ip src net 10.128.0.0/9"),
        drop("ip src net 10.0.0.0/8"),
    ];
    assert_eq!(shadow_of(&rules), Some(vec![0, 1]));
    let rules = [
        drop("ip src net 10.0.0.0/9"),
        drop("ip src net 10.192.0.0/10"),
        drop("ip src net 10.0.0.0/8"),
    ];
    assert_eq!(shadow_of(&rules), None);
}

#[test]
fn lists_cover_lists_and_expressions() {
    let both = |text: &str, prefixes: &[&str]| Rule {
        sources: list(prefixes),
        ..drop(text)
    };
    let wide = ["10.0.0.0/8", "2001:db8::/32"];
    for (earlier, later) in [
        (
            of_sources(&wide),
            of_sources(&["10.1.0.0/16", "10.2.0.0/16"]),
        ),
        (of_sources(&wide), both("udp", &["2001:db8:1::/48"])),
        (of_sources(&wide), drop("ip src net 10.1.0.0/16")),
        (of_sources(&wide), drop("ip6 src host 2001:db8::1 and udp")),
        (drop("udp"), both("udp port 53", &["192.0.2.1"])),
        (both("udp", &wide), both("udp port 53", &["10.9.0.0/16"])),
    ] {
        let rules = [earlier, later];
        assert_eq!(shadow_of(&rules), Some(vec![0]), "{}", rules[1].name);
    }
    let destinations = Rule {
        destinations: list(&wide),
        ..Rule::new("", Verdict::Drop)
    };
    for (earlier, later) in [
        (of_sources(&wide), of_sources(&["10.0.0.0/7"])),
        (
            of_sources(&wide),
            of_sources(&["10.1.0.0/16", "11.0.0.0/16"]),
        ),
        // It also matches ARP.
        (of_sources(&wide), drop("src net 10.1.0.0/16")),
        (of_sources(&wide), drop("ip dst net 10.1.0.0/16")),
        (destinations.clone(), drop("ip src net 10.1.0.0/16")),
        (of_sources(&wide), destinations),
        // Lists are looked up behind tags, too.
        (drop("ip src net 10.0.0.0/8"), of_sources(&["10.1.0.0/16"])),
        (both("udp", &wide), both("tcp", &["10.9.0.0/16"])),
    ] {
        assert_eq!(found(&[earlier.clone(), later]), [], "{}", earlier.name);
    }
}

#[test]
fn names_cover_names() {
    let named = |text: &str, types: &[u16]| Rule {
        names: Some(NameTest {
            list: Name::parse_list(text).unwrap().into(),
            types: types
                .iter()
                .map(|&kind| filter::dns::QueryType(kind))
                .collect(),
        }),
        ..Rule::new(text, Verdict::Drop)
    };
    let shadow = |a: Rule, b: Rule| shadow_of(&[a, b]).is_some();
    assert!(shadow(named("a.test b.test", &[]), named("b.test", &[1])));
    assert!(shadow(named("a.test", &[1, 16]), named("a.test", &[16])));
    assert!(!shadow(named("a.test", &[1]), named("a.test", &[])));
    assert!(!shadow(named("a.test", &[]), named("*.a.test", &[])));
    assert!(!shadow(named("a.test", &[]), drop("udp dst port 53")));
    // Behind VLAN tags, too.
    assert!(!shadow(drop("udp dst port 53"), named("a.test", &[])));
}

#[test]
fn rules_that_match_nothing_are_found() {
    for text in [
        "ip proto 300",
        "ip proto 300 and host 192.0.2.1",
        "ip[8] > 255",
        "ip[0] & 0xf = 16",
        "tcp[13] & 0x02 = 1",
        "ip[2:2] > 70000",
        "udp and ip[9] * 2 = 35",
        "ether proto 70000",
    ] {
        assert_eq!(
            found(&[drop(text)]),
            [(0, FindingKind::Impossible)],
            "{text}"
        );
    }
    for text in [
        "ip proto 255",
        "ip[8] > 254",
        "ip[0] & 0xf = 15",
        "ip6 proto 300 or udp",
    ] {
        assert_eq!(found(&[drop(text)]), [], "{text}");
    }
    let empty: List = Arc::from([]);
    let none = Rule {
        sources: Some(empty),
        ..Rule::new("", Verdict::Drop)
    };
    assert_eq!(found(&[none]), [(0, FindingKind::Impossible)]);
}

#[test]
fn challenges_of_packets_without_tcp_are_found() {
    for (text, is_never) in [
        ("udp", true),
        ("udp dst port 53 or icmp", true),
        ("arp", true),
        ("ip6 and udp", true),
        ("ip proto 47", true),
        ("vlan 5 and arp", true),
        ("ether proto 0x8863", true),
        ("not tcp and ip", true),
        ("tcp dst port 443", false),
        ("port 443", false),
        ("ip", false),
        ("host 192.0.2.1", false),
        ("vlan 5", false),
        ("not udp", false),
        ("greater 60", false),
        ("ether proto 0x88a8", false),
        ("p0f:*:64:0:*:*,*:mss::0", false),
    ] {
        let expected: Vec<_> = is_never
            .then_some((0, FindingKind::NeverTcp))
            .into_iter()
            .collect();
        assert_eq!(found(&[rule(text, Verdict::Challenge)]), expected, "{text}");
        assert_eq!(found(&[drop(text)]), [], "{text}");
    }
}

/// A file with as many rules as there may be takes bounded time, and a shadow in it is found.
#[test]
fn many_rules_are_checked_in_bounded_steps() {
    let mut rules: Vec<Rule> = (0..799)
        .map(|port| drop(&format!("udp dst port {port}")))
        .collect();
    rules.push(drop("ip and udp dst port 3 and ip[8] = 1"));
    assert_eq!(found(&rules), [(799, FindingKind::Shadowed(vec![3]))]);
    let hosts: Vec<String> = (0..400)
        .map(|n| format!("src host 10.0.{}.{}", n / 200, n % 200))
        .collect();
    let long = [drop(&hosts.join(" or ")), drop(&hosts[7..30].join(" or "))];
    assert_eq!(shadow_of(&long), Some(vec![0]));
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn expression(&mut self, depth: usize) -> String {
        let parts = [
            "ip",
            "ip6",
            "tcp",
            "udp",
            "arp",
            "vlan 5",
            "tcp port 80",
            "udp dst port 53",
            "port 443",
            "portrange 50-90",
            "host 10.1.2.3",
            "src net 10.0.0.0/8",
            "ip dst net 10.1.0.0/16",
            "tcp[13] & 2 != 0",
            "ip[8] > 63",
            "ip[0] & 0xf = 5",
            "greater 70",
            "icmp",
            "ttl 60-64",
            "ip proto 17",
            "udp[4:2] > 20",
            "src net 2000::/8",
        ];
        match self.below(if depth == 0 { 1 } else { 4 }) {
            0 => self.pick(&parts).to_owned(),
            1 => format!("not ({})", self.expression(depth - 1)),
            2 => format!(
                "({}) or ({})",
                self.expression(depth - 1),
                self.expression(depth - 1)
            ),
            _ => format!(
                "({}) and ({})",
                self.expression(depth - 1),
                self.expression(depth - 1)
            ),
        }
    }

    fn packet(&mut self) -> Vec<u8> {
        let protocol = self.pick(&[6, 17, 1]);
        let mut rest = vec![
            0, 0, 0, 0, 0, 30, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
        ];
        for at in [0, 2] {
            let port: u16 = self.pick(&[53, 80, 443, 9000]);
            rest[at..at + 2].copy_from_slice(&port.to_be_bytes());
        }
        rest[5] = self.pick(&[8, 30]);
        rest[13] = self.pick(&[2, 16]);
        rest.extend(vec![0; self.pick(&[0, 0, 40])]);
        let mut packet = vec![2; 12];
        if self.below(8) == 0 {
            packet.extend([0x81, 0, 0, self.pick(&[5, 6])]);
        }
        match self.below(5) {
            0 => {
                packet.extend([
                    0x86,
                    0xdd,
                    0x60,
                    0,
                    0,
                    0,
                    0,
                    20,
                    protocol,
                    self.pick(&[62, 64]),
                ]);
                packet.extend([0x20; 32]);
            }
            1 => packet.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 1, 2, 3]),
            _ => {
                let options = self.pick(&[0, 0, 4u8]);
                packet.extend([8, 0, 0x45 + options / 4, 0, 0, 60, 0, 1]);
                packet.extend([self.pick(&[0, 0x40]), self.pick(&[0, 0, 0, 5])]);
                packet.extend([self.pick(&[1, 62, 64]), protocol, 0, 0]);
                packet.extend(self.pick(&[[10, 1, 2, 3], [10, 9, 9, 9], [192, 0, 2, 1]]));
                packet.extend(self.pick(&[[10, 1, 2, 3], [10, 9, 9, 9], [192, 0, 2, 1]]));
                packet.extend(vec![1; options.into()]);
            }
        }
        // The IP header is whole.
        let least = packet.len();
        packet.extend(rest);
        if self.below(3) == 0 {
            packet.truncate(least + self.below(packet.len() - least + 1));
        }
        packet
    }
}

fn matches(rule: &Rule, packet: &[u8]) -> bool {
    let program = rule.matcher.as_ref().unwrap();
    bpf::vm_cbpf::run(program, packet, packet.len() as u32) != 0
}

/// What is found of random rules is true of random packets, and much of what is true is found.
#[test]
fn findings_are_true_of_packets() {
    let mut random = Random(0x5eed_c4ec);
    let packets: Vec<Vec<u8>> = (0..600).map(|_| random.packet()).collect();
    let options = Options {
        extended: true,
        ..Options::default()
    };
    let (mut shadows, mut impossible, mut missed) = (0, 0, 0);
    let mut rules: Vec<Rule> = Vec::new();
    while rules.len() < 900 {
        let text = random.expression(2);
        if let Ok(program) = compile(&text, &options) {
            let verdict = match random.below(8) {
                0 => Verdict::Challenge,
                1 => Verdict::Limit(Limit::new(5, 1).unwrap()),
                _ => Verdict::Drop,
            };
            rules.push(Rule {
                matcher: Some(program),
                ..Rule::new(&text, verdict)
            });
        }
    }
    for some in rules.chunks(3) {
        let findings = found(some);
        for (at, rule) in some.iter().enumerate() {
            let own: Vec<_> = findings
                .iter()
                .filter(|f| f.0 == at)
                .map(|f| &f.1)
                .collect();
            let mut reached = 0;
            for packet in packets.iter().filter(|packet| matches(rule, packet)) {
                reached += usize::from(!some[..at].iter().any(|one| matches(one, packet)));
                for kind in &own {
                    let by_earlier = match kind {
                        FindingKind::Impossible => false,
                        FindingKind::NeverTcp => {
                            let at = if packet[12] == 0x81 { 16 } else { 12 };
                            let tcp = match packet[at] {
                                8 => packet[at + 1] == 0 && packet[at + 2 + 9] == 6,
                                _ => packet[at + 2 + 6] == 6,
                            };
                            !tcp
                        }
                        FindingKind::Shadowed(by) => {
                            by.iter().any(|&by| matches(&some[by], packet))
                        }
                    };
                    assert!(by_earlier, "{kind:?}: {some:#?}, {packet:02x?}");
                }
            }
            let is_shadowed = own
                .iter()
                .any(|kind| matches!(kind, FindingKind::Shadowed(_)));
            shadows += usize::from(is_shadowed);
            impossible += usize::from(own.contains(&&FindingKind::Impossible));
            missed += usize::from(reached == 0 && own.is_empty());
        }
    }
    assert!(
        shadows > 40,
        "{shadows} shadows, {impossible} impossible, {missed} perhaps missed"
    );
    assert!(
        missed < shadows,
        "{shadows} shadows, {impossible} impossible, {missed} perhaps missed"
    );
}
