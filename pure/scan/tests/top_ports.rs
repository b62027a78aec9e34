//! The ranking of ports, compared with the frequencies of `nmap-services`, which were measured by
//! others. Ours is an estimate, so the order differs; what it reaches must not be much less.

use std::collections::BTreeMap;

use barewire_scan::{Protocol, top_ports};

/// In Debian's package nmap-common.
const SERVICES: &str = "/usr/share/nmap/nmap-services";

/// Ports of a protocol with how often they were open, the most frequent first.
fn frequencies(text: &str, protocol: &str) -> Vec<(u16, f64)> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split('\t').collect();
        let Some((port, "tcp" | "udp")) = words.get(1).and_then(|word| word.split_once('/')) else {
            continue;
        };
        if words[1].ends_with(protocol) {
            rows.push((port.parse().unwrap(), words[2].trim().parse().unwrap()));
        }
    }
    rows.sort_by(|one: &(u16, f64), other| other.1.total_cmp(&one.1));
    rows
}

#[test]
fn the_first_ports_are_those_that_are_often_open() {
    let Ok(text) = std::fs::read(SERVICES) else {
        skip::skip!("needs {SERVICES} (apt-get install nmap-common)");
    };
    let text = String::from_utf8_lossy(&text);
    for (protocol, name, least, counts) in [
        (Protocol::Tcp, "tcp", 0.8, 10..=300_u16),
        (Protocol::Udp, "udp", 0.6, 20..=90),
    ] {
        let theirs = frequencies(&text, name);
        assert!(theirs.len() > 1000, "{name}: {}", theirs.len());
        let known: BTreeMap<u16, f64> = theirs.iter().copied().collect();
        for count in counts {
            let ours = top_ports(protocol, count);
            let reached = ours.iter().filter_map(|port| known.get(port)).sum::<f64>();
            let first = theirs.iter().take(count.into());
            let most: f64 = first.map(|(_, open)| open).sum();
            assert!(
                reached >= least * most,
                "{name}: of the first {count}, {reached:.3} instead of {most:.3}"
            );
        }
    }
    // The most frequent ones are among our first.
    for (protocol, name) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
        let ours = top_ports(protocol, 100);
        let theirs = frequencies(&text, name);
        let missing = theirs[..15].iter().filter(|(port, _)| !ours.contains(port));
        assert_eq!(
            missing.collect::<Vec<_>>(),
            Vec::<&(u16, f64)>::new(),
            "{name}"
        );
    }
}
