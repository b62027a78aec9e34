//! Detection on simulated time: a tick a second, packets as the tap would sample them.

mod benign;
mod moving;
mod start;
mod world;

use ::guard::Verdict;
use bpf::cbpf::Program;
use bpf::vm_cbpf;

use super::*;
use crate::filter::compile;

const S: u64 = 1_000_000_000;

fn setup() -> DetectSetup {
    let mut setup = DetectSetup::new(Action::Install);
    setup.sample = 10;
    setup
        .set("least=500/s,warm-up=5s,begin=1s,end=3s,expires=1m")
        .unwrap();
    setup
}

/// An Ethernet packet to 192.0.2.1 from a source that depends on the number.
fn packet(number: u32, protocol: u8, ttl: u8, transport: &[u8]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend([0x08, 0, 0x45, 0, 0, 20 + transport.len() as u8]);
    packet.extend((number as u16).to_be_bytes());
    packet.extend([0, 0, ttl, protocol, 0, 0]);
    packet.extend((0x0a00_0000 + number.wrapping_mul(2_654_435_761) % 0xff_ffff).to_be_bytes());
    packet.extend([192, 0, 2, 1]);
    packet.extend(transport);
    packet
}

/// A SYN without options.
fn syn(number: u32) -> Vec<u8> {
    let mut tcp = (1024 + number as u16 % 50_000).to_be_bytes().to_vec();
    tcp.extend([0, 80]);
    tcp.extend(number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, 0x02, 2, 0, 0, 0, 0, 0]);
    packet(number, 6, 64, &tcp)
}

/// A query of DNS.
fn query(number: u32) -> Vec<u8> {
    let mut udp = (1024 + number as u16 % 50_000).to_be_bytes().to_vec();
    udp.extend([0, 53, 0, 20, 0, 0]);
    udp.extend((number as u16).to_be_bytes());
    udp.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    packet(number, 17, 60 + (number % 5) as u8, &udp)
}

/// The counters of a rule that has dropped so many packets.
fn dropped(count: u64) -> Counters {
    Counters {
        packets: count,
        dropped: count,
        ..Counters::default()
    }
}

/// What makes packets, and how many.
type Packets = (fn(u32) -> Vec<u8>, u32);

struct Run {
    detection: Detection,
    second: u64,
    number: u32,
    dropped: u64,
}

impl Run {
    /// With what is normal: 200 queries a second.
    fn learned() -> Run {
        let mut run = Run {
            detection: Detection::new(setup(), FlowChoice::new(10, 7)),
            second: 0,
            number: 0,
            dropped: 0,
        };
        for _ in 0..20 {
            let steps = run.second(&[(query, 20)]);
            let expected = if run.second == 6 { "learned" } else { "" };
            assert_eq!(words(&steps).concat(), expected, "{steps:?}");
        }
        run
    }

    fn second(&mut self, packets: &[Packets]) -> Vec<Step> {
        for (make, count) in packets {
            for _ in 0..*count {
                self.number += 1;
                self.detection.packet(&make(self.number), false);
            }
        }
        self.second += 1;
        let counters = dropped(self.dropped);
        self.detection.tick(self.second * S, |_| Some(counters))
    }
}

/// Which steps these are.
fn words(steps: &[Step]) -> Vec<&'static str> {
    let word = |step: &Step| match step {
        Step::Begins(_) => "begins",
        Step::Rule(_) => "rule",
        Step::Passes(_) => "passes",
        Step::NoRule { .. } => "no rule",
        Step::Over(_) => "over",
        Step::Remove(_) => "remove",
        Step::Learned(_) => "learned",
    };
    steps.iter().map(word).collect()
}

fn rule(steps: &[Step]) -> Found {
    match steps {
        [Step::Rule(found)] => Found::clone(found),
        _ => panic!("{steps:?}"),
    }
}

const FLOOD: &[Packets] = &[(query, 20), (syn, 500)];

#[test]
fn a_flood_gets_one_rule_that_is_removed_when_it_is_over() {
    let mut run = Run::learned();
    let steps = run.second(FLOOD);
    // Of the destination, and of the signature.
    assert_eq!(words(&steps), ["begins", "begins"], "{steps:?}");
    let found = rule(&run.second(FLOOD));
    assert!(found.of.contains("192.0.2.1"), "{found:?}");
    assert!(found.matched * 100 >= found.sampled * 90, "{found:?}");
    let program = compile(&found.spec.expression, 1).unwrap().unwrap();
    let matches = |packet: Vec<u8>| vm_cbpf::run(&program, &packet, packet.len() as u32) != 0;
    assert!(
        (1..2_000).all(|number| matches(syn(number * 77))),
        "{found:?}"
    );
    assert!(
        !(1..2_000).any(|number| matches(query(number * 77))),
        "{found:?}"
    );
    // What the rule drops does not come to the tap; the flood continues as long as it drops.
    for _ in 0..10 {
        run.dropped += 5_000;
        assert_eq!(run.second(&[(query, 20)]), []);
    }
    for _ in 0..2 {
        assert_eq!(run.second(&[(query, 20)]), []);
    }
    let steps = run.second(&[(query, 20)]);
    assert_eq!(words(&steps), ["over", "over", "remove"], "{steps:?}");
    assert_eq!(steps[2], Step::Remove(found.spec.name));
    // It did not become normal.
    let again = run.second(FLOOD);
    assert_eq!(words(&again), ["begins", "begins"], "{again:?}");
}

#[test]
fn a_rule_that_expires_in_a_flood_is_followed_by_another() {
    let mut run = Run::learned();
    run.second(FLOOD);
    let first = rule(&run.second(FLOOD));
    run.detection.expired(&first.spec.name);
    let second = rule(&run.second(FLOOD));
    assert_ne!(first.spec.name, second.spec.name);
    assert_eq!(
        first.spec.expires_after,
        Some(std::time::Duration::from_secs(60))
    );
    run.detection.refused(&second.spec.name);
    assert_eq!(run.second(FLOOD), []);
}

#[test]
fn a_flood_that_looks_like_normal_traffic_is_limited() {
    let mut run = Run::learned();
    let flood: &[Packets] = &[(query, 600)];
    assert_eq!(words(&run.second(flood)), ["begins"]);
    let found = rule(&run.second(flood));
    assert_eq!(found.reason, Reason::Alike, "{found:?}");
    // To four times the normal rate, at which it became a flood.
    let Verdict::Limit(limit) = found.spec.verdict else {
        panic!("{found:?}");
    };
    assert!((790..=810).contains(&limit.rate_pps()), "{found:?}");
    assert_eq!(run.second(flood), []);
}

#[test]
fn all_syns_of_a_place_are_those_of_its_family() {
    let v4 = syn(1);
    let mut v6: Vec<u8> = vec![2; 12];
    v6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
    for last in [7, 1] {
        v6.extend([
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last,
        ]);
    }
    // The header of TCP.
    v6.extend(&v4[34..]);
    let [host_v4, net_v4, all] = Place::all_of("192.0.2.1".parse().unwrap());
    let [host_v6, net_v6, _] = Place::all_of("2001:db8::1".parse().unwrap());
    let mut keys = vec![(Key::HalfOpen(all), true, true)];
    for (place, is_v4) in [
        (host_v4, true),
        (net_v4, true),
        (host_v6, false),
        (net_v6, false),
    ] {
        keys.push((Key::Destination(place), is_v4, !is_v4));
    }
    keys.push((Key::Signature("4:64:0:0:512,0:::0".into()), true, false));
    keys.push((Key::Signature("6:64:0:0:512,0:::0".into()), false, true));
    for (key, is_v4, is_v6) in keys {
        let expression = choose::whole(&key, true);
        let program = compile(&expression, 1).unwrap().unwrap();
        let mut ack = v4.clone();
        ack[47] = 0x10;
        for (bytes, is_in) in [(&v4, is_v4), (&v6, is_v6), (&ack, false)] {
            let is_hit = vm_cbpf::run(&program, bytes, bytes.len() as u32) != 0;
            assert_eq!(is_hit, is_in, "{expression}");
        }
    }
}

#[test]
fn settings_are_words_with_values() {
    let mut setup = setup();
    setup
        .set("most=20k/s,factor=2.5, learn=1h,deviations=3")
        .unwrap();
    assert_eq!(setup.settings.rate_most_pps, 20_000.0);
    assert_eq!(setup.settings.factor, 2.5);
    assert_eq!(setup.settings.learn_ns, 3_600 * S);
    for (text, why) in [
        ("least", "expected least=RATE"),
        ("lest=1/s", "expected least=RATE"),
        ("least=many", "not a rate"),
        ("begin=3", "not a time"),
        ("factor=0", "not a number from 1"),
    ] {
        let error = setup.set(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}
