//! Laws: properties that hold for all lists of targets and ports, and for all received packets.
//! Tests and fuzz targets call them; they panic if a law is violated. Not part of the public
//! interface.

mod reply;

#[doc(inline)]
pub use crate::grab::tls::law::{tls_input, tls_input_of};

use std::net::IpAddr;
use std::sync::LazyLock;

use wire::Mac;

use crate::{
    AddrRange, AnswerClassifier, Cookies, FrameOptions, Frames, Options, Order, PairPort, Payloads,
    Plan, PortList, Ports, Probe, ProbeTarget, Shard, Source, Targets, parse_line, parse_pair,
    parse_range, words_of,
};

/// Maximum length of a text: longer ones cover nothing new.
const TEXT_LEN_MAX: usize = 4096;
/// Numbers of a set that are looked up.
const SAMPLE_COUNT: u64 = 16;

/// Checks any text as lists: the text up to a zero byte is lines of targets, of which every second
/// one is excluded; the rest is a list of ports, preceded by a byte that selects the probes.
/// Returns whether both are valid.
pub fn lists_input(input: &[u8]) -> bool {
    let input = &input[..input.len().min(TEXT_LEN_MAX)];
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let targets = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let rest = parts.next().unwrap_or_default();
    let (probes, ports) = rest.split_first().unwrap_or((&0, &[]));
    let targets = targets_law(&targets, input);
    let ports = ports_law(&String::from_utf8_lossy(ports), *probes);
    targets && ports
}

/// A hash (FNV-1a) of the input, from which keys and samples are drawn: a fuzzer cannot choose
/// them.
fn hash(input: &[u8], salt: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = input.iter().fold(start, step);
    (hash ^ hash >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A word that is a pair is the same when it is written anew.
fn pair_law(word: &str) {
    if let Some(Ok(pair)) = parse_pair(word) {
        let PairPort { port, protocol } = pair.port;
        let protocol = protocol.map_or_else(String::new, |of| format!("/{}", of.word()));
        let text = match pair.addr {
            IpAddr::V4(addr) => format!("{addr}:{port}{protocol}"),
            IpAddr::V6(addr) => format!("[{addr}]:{port}{protocol}"),
        };
        assert_eq!(parse_pair(&text), Some(Ok(pair)), "{text}");
        assert!(parse_range(word).is_err(), "{word}");
    }
}

fn targets_law(text: &str, input: &[u8]) -> bool {
    text.lines().flat_map(words_of).for_each(pair_law);
    let mut lists = [Vec::new(), Vec::new()];
    for (line, list) in text.lines().zip([0, 1].into_iter().cycle()) {
        let before = lists[list].len();
        if let Err(why) = parse_line(line, &mut lists[list]) {
            assert!(!why.is_empty());
            return false;
        }
        lists[list][before..].iter().for_each(range_law);
    }
    let [include, exclude] = lists;
    let Some(set) = Targets::new(include.clone(), exclude.clone()) else {
        return false;
    };
    let ranges: Vec<AddrRange> = set.ranges().collect();
    for pair in ranges.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        assert!((before.is_ipv6, before.last) < (after.is_ipv6, after.first));
    }
    let covered = |list: &[AddrRange], addr| {
        let single = AddrRange::single(addr);
        list.iter().any(|range| range.covers(&single))
    };
    let lens = ranges.iter().map(|range| range.last - range.first + 1);
    assert_eq!(lens.sum::<u128>(), set.count());
    let samples = (0..SAMPLE_COUNT).map(|n| u128::from(hash(input, n)) << 48);
    let ends = [0, set.count().saturating_sub(1)];
    for number in samples.chain(ends).filter(|_| set.count() != 0) {
        let addr = set.addr(number % set.count());
        assert!(set.contains(addr) && covered(&include, addr) && !covered(&exclude, addr));
    }
    for range in include.iter().chain(&exclude) {
        let addr = range.first_addr();
        let is_in = covered(&include, addr) && !covered(&exclude, addr);
        assert_eq!(set.contains(addr), is_in, "{addr}");
    }
    true
}

/// A parsed range is in order, and is the same when it is written as first and last address.
fn range_law(range: &AddrRange) {
    assert!(range.first <= range.last);
    let last = AddrRange {
        first: range.last,
        ..*range
    };
    let text = format!("{}-{}", range.first_addr(), last.first_addr());
    assert_eq!(parse_range(&text), Ok(*range), "{text}");
}

fn ports_law(text: &str, selected: u8) -> bool {
    let list = match PortList::parse(text) {
        Ok(list) => list,
        Err(why) => {
            assert!(!why.is_empty());
            return false;
        }
    };
    let is_selected = |(at, _): &(usize, Probe)| selected >> (at % 8) & 1 != 0;
    let probes = Probe::ALL.into_iter().enumerate().filter(is_selected);
    let probes: Vec<Probe> = probes.map(|(_, probe)| probe).collect();
    let ports = match Ports::new(&list, &probes, Payloads::built_in()) {
        Ok(ports) => ports,
        Err(why) => {
            assert!(!why.is_empty());
            return false;
        }
    };
    assert!(ports.as_slice().is_sorted_by(|a, b| a < b));
    let payload_count = ports.payloads().as_slice().len();
    for entry in ports.as_slice().iter().step_by(97) {
        assert!(ports.of(entry.probe, entry.port).contains(entry));
        assert!(ports.probes().contains(&entry.probe));
        assert!(usize::from(entry.payload) < payload_count);
    }
    true
}

/// A scan with every probe, whose answers are forged.
struct Scene {
    plan: Plan,
    cookies: Cookies,
    frames: Frames,
    targets: Vec<(ProbeTarget, u16)>,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: "2001:db8:1::7".parse().ok(),
        // As many as there are, so that a guessed port is right as rarely as possible.
        ports: (1, u16::MAX),
    };
    let mut ranges = Vec::new();
    let parsed = parse_line("192.0.2.8/30, 2001:db8:2::8/126", &mut ranges);
    let list = PortList::parse("T:80,443,U:53,69,123,161,9999,S:9,P:47");
    let (Ok(()), Ok(list)) = (parsed, list) else {
        unreachable!("the lists are constants");
    };
    // ARP has no cookie.
    let keyed = Probe::ALL.into_iter().filter(|probe| *probe != Probe::Arp);
    let keyed: Vec<Probe> = keyed.collect();
    let ports = Ports::new(&list, &keyed, Payloads::built_in());
    let order = Order {
        seed: 1,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 1,
    };
    let plan = Targets::new(ranges, Vec::new())
        .zip(ports.ok())
        .and_then(|(targets, ports)| Plan::new(targets, ports, source, order));
    let plan = plan.unwrap_or_else(|| unreachable!("the lists are constants"));
    let look = FrameOptions {
        src_mac: Mac([2; 6]),
        ttl: 64,
        options: Options::Linux,
    };
    let mut targets: Vec<_> = plan.probes(0).collect();
    // There are no such probes.
    targets.retain(|(target, _)| !(target.addr.is_ipv6() && target.probe.is_ipv4_only()));
    targets.sort_by_key(|(target, payload)| (target.probe, target.port, target.addr, *payload));
    Scene {
        cookies: Cookies::new([1; 16], source),
        frames: Frames::new(source, look, plan.ports().payloads()),
        plan,
        targets,
    }
});

/// The number of probes for [`answer_input`].
pub fn probe_count() -> u16 {
    SCENE.targets.len() as u16
}

/// The probe with a number.
pub fn probe(number: u16) -> ProbeTarget {
    SCENE.targets[usize::from(number) % SCENE.targets.len()].0
}

/// Checks any packet as an answer. The input is a mode and a packet; in the second mode, two bytes
/// select a probe, one the kind of its genuine answer, and every three of the rest change a byte of
/// it. A packet that is reported answers a probe of the scan, and is not an answer under other
/// keys: it has a valid cookie. Returns whether it was reported.
pub fn answer_input(input: &[u8]) -> bool {
    let scene = &*SCENE;
    let packet = match input {
        [] => return false,
        [mode, packet @ ..] if mode % 2 == 0 => packet.to_vec(),
        [_, n0, n1, kind, changes @ ..] => forged(u16::from_be_bytes([*n0, *n1]), *kind, changes),
        _ => return false,
    };
    let answer = AnswerClassifier::new(&scene.plan, &scene.cookies).classify(&packet);
    if let Some(answer) = &answer {
        let target = &answer.target;
        assert!(scene.targets.iter().any(|(known, _)| known == target));
        assert!(!scene.plan.source().is_own(answer.target.addr));
        let (at, len) = answer.payload;
        assert!(usize::from(at) + usize::from(len) <= packet.len());
    }
    let is_under = |salt: u64| {
        let words = [hash(input, salt), hash(input, !salt)];
        let mut key = [0; 16];
        key[..8].copy_from_slice(&words[0].to_ne_bytes());
        key[8..].copy_from_slice(&words[1].to_ne_bytes());
        let cookies = Cookies::new(key, *scene.plan.source());
        let found = AnswerClassifier::new(&scene.plan, &cookies).classify(&packet);
        found.is_some()
    };
    // By chance a 16-bit source port is right under one key, but not under two.
    let count = (0..4).filter(|salt| is_under(*salt)).count();
    assert!(count < 2, "an answer under any key: {answer:?}");
    answer.is_some()
}

/// The answer of a kind to a probe, with changes.
fn forged(number: u16, kind: u8, changes: &[u8]) -> Vec<u8> {
    let scene = &*SCENE;
    let (target, payload) = scene.targets[usize::from(number) % scene.targets.len()];
    let mut probe = vec![0; 2048];
    let numbers = (&scene.cookies.of(&target), 1_000);
    let len = scene
        .frames
        .write((&target, payload), numbers, Mac([4; 6]), &mut probe);
    probe.truncate(len.unwrap_or(0));
    let mut packet = match kind % 4 {
        0 => reply::error(&probe, (kind >> 2, kind >> 5), target.addr),
        _ => reply::answer(&probe, kind),
    };
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
        let len = packet.len();
        if let Some(byte) = packet.get_mut(at % len.max(1)) {
            *byte ^= change[2];
        }
    }
    packet
}

/// An input for [`answer_input`]: an answer of this kind, changed.
pub fn answer_input_of(number: u16, kind: u8, changes: &[u8]) -> Vec<u8> {
    let [n0, n1] = number.to_be_bytes();
    [&[1, n0, n1, kind], changes].concat()
}

/// An input for [`lists_input`].
pub fn lists_input_of(targets: &str, probes: u8, ports: &str) -> Vec<u8> {
    [targets.as_bytes(), &[0, probes], ports.as_bytes()].concat()
}
