//! Floods that run while detection is started, before anything is known of normal rates. Every
//! packet is made, and those that the tap samples are passed on.

use traffic::Rng;

use super::*;

const ONE_IN: u32 = 10;

struct Start {
    detection: Detection,
    choice: FlowChoice,
    rng: Rng,
    second: u64,
    number: u32,
    dropped: u64,
    /// One in this many sampled packets is lost; 0 for none.
    lost_in: u32,
    counts: (u64, u64),
}

/// A client's SYN: options, window and a timestamp, from many addresses and distances.
fn client_syn(number: u32) -> Vec<u8> {
    let mut packet = syn(number);
    packet[17] = 60;
    packet[20] = 0x40;
    packet[22] = 64 - (number % 20) as u8;
    packet[46] = 0xa0;
    packet[48..50].copy_from_slice(&64_240_u16.to_be_bytes());
    packet.extend([2, 4, 5, 180, 4, 2, 8, 10]);
    packet.extend(number.wrapping_mul(77_777).to_be_bytes());
    packet.extend([0, 0, 0, 0, 1, 3, 3, 7]);
    packet
}

/// A segment with ACK of the client with this number.
fn client_ack(number: u32, payload: usize) -> Vec<u8> {
    let mut packet = client_syn(number);
    let next = u32::from_be_bytes(*packet[38..].first_chunk().unwrap()).wrapping_add(1);
    packet[38..42].copy_from_slice(&next.to_be_bytes());
    packet[47] = 0x10;
    packet.extend(vec![7; payload]);
    packet
}

/// One of many flags that no TCP sends.
fn impossible(number: u32) -> Vec<u8> {
    let mut packet = syn(number);
    let flags = (0..64).filter(|flags| flags & 0x16 == 0 || flags & 0x02 != 0 && flags & 0x05 != 0);
    packet[47] = flags.clone().nth(number as usize % flags.count()).unwrap();
    packet
}

/// A SYN with FIN.
fn syn_fin(number: u32) -> Vec<u8> {
    let mut packet = syn(number);
    packet[47] = 0x03;
    packet
}

impl Start {
    fn new(settings: &str) -> Start {
        let mut setup = setup();
        setup.set(settings).unwrap();
        let choice = FlowChoice::new(ONE_IN, 99);
        Start {
            detection: Detection::new(setup, choice),
            choice,
            rng: Rng::new(5),
            second: 0,
            number: 0,
            dropped: 0,
            lost_in: 0,
            counts: (0, 0),
        }
    }

    /// What the tap does with a packet.
    fn packet(&mut self, bytes: &[u8]) {
        let mut is_one_in = |count: u32| self.rng.up_to(u128::from(count - 1)) == 0;
        let ip = ip_packet(ETHERNET, bytes).and_then(|(_, ip)| Segment::of(ip));
        let is_chosen = ip.is_some_and(|segment| self.choice.has_packet(&segment, bytes.len()));
        if !is_one_in(ONE_IN) && !is_chosen {
            return;
        }
        if self.lost_in != 0 && is_one_in(self.lost_in) {
            self.counts.1 += 1;
            return;
        }
        self.counts.0 += 1;
        self.detection.packet(bytes, false);
    }

    fn packets(&mut self, count: u32, make: fn(u32) -> Vec<u8>) {
        for _ in 0..count {
            self.number += 1;
            let packet = make(self.number);
            self.packet(&packet);
        }
    }

    /// Connections that complete: two ACKs and a request after the SYN.
    fn connections(&mut self, count: u32) {
        for _ in 0..count {
            self.number += 1;
            let number = self.number;
            self.packet(&client_syn(number));
            for payload in [0, 300, 0] {
                self.packet(&client_ack(number, payload));
            }
        }
    }

    fn tick(&mut self) -> Vec<Step> {
        self.second += 1;
        let (sampled, lost) = std::mem::take(&mut self.counts);
        self.detection.lost(sampled, lost);
        let counters = dropped(self.dropped);
        self.detection.tick(self.second * S, |_| Some(counters))
    }
}

fn matches(found: &Found, packet: &[u8]) -> bool {
    let program = compile(&found.spec.expression, 1).unwrap().unwrap();
    vm_cbpf::run(&program, packet, packet.len() as u32) != 0
}

#[test]
fn a_flood_that_is_there_at_the_start_gets_a_rule_and_is_not_learned() {
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=3s,end=3s");
    let mut steps = Vec::new();
    // One SYN in a hundred belongs to a client.
    for _ in 0..8 {
        start.packets(3_000, syn);
        start.connections(30);
        steps.extend(start.tick());
        if words(&steps).contains(&"rule") {
            break;
        }
    }
    assert_eq!(words(&steps), ["begins", "rule"], "{steps:?}");
    let [Step::Begins(rates), Step::Rule(found)] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!(rates.of, "half-open connections to 192.0.2.1");
    assert!((1_000.0..3_600.0).contains(&rates.rate_pps), "{rates:?}");
    assert!((1..2_000).all(|number| matches(found, &syn(number))));
    assert!(!(1..2_000).any(|number| matches(found, &client_syn(number))));
    assert!(!(1..2_000).any(|number| matches(found, &client_ack(number, 0))));
    let name = found.spec.name.clone();
    // The rule drops it, then it ends, and the rule is removed.
    for _ in 0..10 {
        start.dropped += 3_000;
        start.connections(30);
        assert_eq!(start.tick(), []);
    }
    let mut steps = Vec::new();
    while start.second < 62 {
        start.connections(30);
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps), ["over", "remove", "learned"], "{steps:?}");
    assert_eq!(steps[1], Step::Remove(name));
    let Step::Learned(learned) = &steps[2] else {
        panic!("{steps:?}");
    };
    // Four packets of each connection, and nothing of the flood.
    let highest = learned.highest.as_ref().unwrap();
    assert!((90.0..150.0).contains(&highest.normal_pps), "{learned:?}");
    assert_eq!(highest.flood_pps, 1_000.0);
    assert_eq!(learned.destinations, 1);
}

#[test]
fn a_busy_server_has_no_half_open_connections() {
    let mut start = Start::new("least=200/s,most=1M/s,warm-up=60s,begin=1s");
    for _ in 0..10 {
        start.connections(4_000);
        // Refused, scanned, gone.
        start.packets(200, client_syn);
        assert_eq!(start.tick(), []);
    }
}

/// A SYN to one of 65,536 addresses.
fn spread_syn(number: u32) -> Vec<u8> {
    let mut packet = syn(number);
    let [.., high, low] = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
    packet[30..34].copy_from_slice(&[198, 51, high, low]);
    packet
}

#[test]
fn a_flood_of_one_host_hides_no_other_one() {
    let mut start = Start::new("least=1000/s,most=1M/s,warm-up=60s,begin=1s");
    let mut begun = Vec::new();
    for second in 0..12 {
        start.packets(3_000, syn);
        if second >= 4 {
            start.packets(15_000, spread_syn);
        }
        let steps = start.tick();
        begun.extend(steps.into_iter().filter_map(|step| match step {
            Step::Begins(rates) => Some(rates.of),
            _ => None,
        }));
    }
    // More addresses than are tracked may be a flood of packets to others as well.
    let expected = ["192.0.2.1", "all addresses"];
    let expected = expected.map(|of| format!("half-open connections to {of}"));
    assert_eq!(begun[..2], expected);
}

/// A host answers, as the numbers of a closed connection say, what a SYN from its port has caused.
#[test]
fn acknowledgments_of_other_connections_complete_no_handshake() {
    let mut start = Start::new("least=200/s,most=1M/s,warm-up=60s,begin=1s");
    let mut steps = Vec::new();
    for _ in 0..4 {
        for _ in 0..4_000 {
            start.number += 1;
            let mut ack = client_ack(start.number, 0);
            ack[38] ^= 0x80;
            start.packet(&client_syn(start.number));
            start.packet(&ack);
        }
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps)[0], "begins", "{steps:?}");
}

#[test]
fn lost_acks_do_not_make_connections_half_open() {
    for lost_in in [2, 3] {
        let mut start = Start::new("least=200/s,most=1M/s,warm-up=60s,begin=1s");
        start.lost_in = lost_in;
        for _ in 0..10 {
            start.connections(4_000);
            assert_eq!(start.tick(), [], "one in {lost_in}");
        }
    }
    // A flood is still one.
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=1s");
    start.lost_in = 2;
    let mut steps = Vec::new();
    for _ in 0..5 {
        start.packets(20_000, syn);
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps), ["begins", "rule"], "{steps:?}");
}

#[test]
fn a_flood_of_syns_like_those_of_clients_is_challenged() {
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=1s");
    let mut steps = Vec::new();
    for _ in 0..8 {
        start.packets(3_000, client_syn);
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps), ["begins", "rule"], "{steps:?}");
    let Step::Rule(found) = &steps[1] else {
        panic!("{steps:?}");
    };
    assert_eq!(found.spec.verdict, Verdict::Challenge);
    assert_eq!(found.reason, Reason::LikeClients);
    assert!(matches(found, &client_syn(12_345)) && matches(found, &client_ack(12_345, 0)));
    // A host that cannot answer gets a limit for SYNs.
    let (otherwise, services) = found.otherwise.as_ref().unwrap();
    assert_eq!(services, &[("192.0.2.1".parse().unwrap(), 80)]);
    assert!(matches!(otherwise.verdict, Verdict::Limit(limit) if limit.rate_pps() == 1_000));
    let program = compile(&otherwise.expression, 1).unwrap().unwrap();
    let is_limited = |packet: Vec<u8>| vm_cbpf::run(&program, &packet, packet.len() as u32) != 0;
    assert!(is_limited(client_syn(12_345)) && !is_limited(client_ack(12_345, 0)));
}

#[test]
fn impossible_flags_are_a_flood_from_the_start() {
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=1s");
    let mut steps = Vec::new();
    for _ in 0..5 {
        start.packets(3_000, syn_fin);
        start.connections(300);
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps), ["begins", "rule"], "{steps:?}");
    let Step::Rule(found) = &steps[1] else {
        panic!("{steps:?}");
    };
    assert_eq!(found.of, "impossible TCP flags to 192.0.2.1");
    assert!(matches(found, &syn_fin(12_345)));
    assert!(!matches(found, &client_syn(12_345)));
}

#[test]
fn a_rule_against_impossible_flags_matches_no_others() {
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=1s");
    let mut steps = Vec::new();
    for _ in 0..5 {
        start.packets(3_000, impossible);
        steps.extend(start.tick());
    }
    assert_eq!(words(&steps), ["begins", "rule"], "{steps:?}");
    let Step::Rule(found) = &steps[1] else {
        panic!("{steps:?}");
    };
    assert!((1..200).all(|number| matches(found, &impossible(number))));
    for flags in [0x02, 0x12, 0x10, 0x18, 0x11, 0x19, 0x04, 0x14] {
        let mut packet = impossible(7);
        packet[47] = flags;
        assert!(!matches(found, &packet), "{flags:#x}: {found:?}");
    }
}

/// SYNs whose source port stays the same for many seconds, and then is another one.
fn walking(number: u32) -> Vec<u8> {
    let mut packet = syn(number);
    let port = 5_000 + (number / 20_000) as u16;
    packet[34..36].copy_from_slice(&port.to_be_bytes());
    packet
}

#[test]
fn a_rule_that_no_longer_matches_is_replaced() {
    let mut start = Start::new("least=1000/s,warm-up=60s,begin=1s");
    let mut steps = Vec::new();
    let mut rules: Vec<Found> = Vec::new();
    let mut in_force = None;
    for _ in 0..40 {
        // What the rule in force drops does not come to the tap.
        for _ in 0..3_000 {
            start.number += 1;
            let packet = walking(start.number);
            let is_dropped = in_force
                .as_ref()
                .is_some_and(|program| vm_cbpf::run(program, &packet, packet.len() as u32) != 0);
            match is_dropped {
                true => start.dropped += 1,
                false => start.packet(&packet),
            }
        }
        let new = start.tick();
        for step in &new {
            if let Step::Rule(found) = step {
                rules.push(Found::clone(found));
                in_force = compile(&found.spec.expression, 1).unwrap();
                start.dropped = 0;
            }
        }
        steps.extend(new);
    }
    assert_eq!(
        words(&steps),
        ["begins", "rule", "passes", "rule", "remove"],
        "{steps:?}"
    );
    assert_eq!(steps[4], Step::Remove(rules[0].spec.name.clone()));
    // The second rule does not test the port.
    assert!((1..200).all(|number| matches(&rules[1], &walking(number * 9_999))));
}
