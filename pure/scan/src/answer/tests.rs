//! Genuine, forged, unrelated, truncated and modified answers.

use wire::Mac;

use super::*;
use crate::frame::{FrameOptions, Frames, Options};
use crate::payload::Payloads;
use crate::plan::{Order, Shard};
use crate::port::{PortList, Ports};
use crate::source::Source;
use crate::target::{Targets, parse_range};

const OWN_V4: &str = "198.51.100.7";
const OWN_V6: &str = "2001:db8:1::7";

const LOOK: FrameOptions = FrameOptions {
    src_mac: Mac([2; 6]),
    ttl: 64,
    options: Options::Minimal,
};

struct Scene {
    plan: Plan,
    cookies: Cookies,
    frames: Frames,
}

fn scene(key: u8) -> Scene {
    let probes = [Probe::Syn, Probe::Udp, Probe::Echo];
    scene_of(key, "80,443,U:53,69,9999", &probes)
}

fn scene_of(key: u8, list: &str, probes: &[Probe]) -> Scene {
    let source = Source {
        ipv4: Some(OWN_V4.parse().unwrap()),
        ipv6: Some(OWN_V6.parse().unwrap()),
        ports: (40_000, 256),
    };
    let ranges = ["192.0.2.0/24", "2001:db8:2::/120"].map(|text| parse_range(text).unwrap());
    let order = Order {
        seed: 1,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 10,
    };
    let targets = Targets::new(ranges.to_vec(), Vec::new()).unwrap();
    let ports = Ports::new(
        &PortList::parse(list).unwrap(),
        probes,
        Payloads::built_in(),
    )
    .unwrap();
    let plan = Plan::new(targets, ports, source, order).unwrap();
    Scene {
        cookies: Cookies::new([key; 16], source),
        frames: Frames::new(source, LOOK, plan.ports().payloads()),
        plan,
    }
}

impl Scene {
    fn probe(&self, addr: &str, port: u16) -> Vec<u8> {
        self.sent(addr, Probe::Syn, port)
    }

    fn sent(&self, addr: &str, probe: Probe, port: u16) -> Vec<u8> {
        let target = ProbeTarget {
            addr: addr.parse().unwrap(),
            probe,
            port,
        };
        let payload = self.plan.ports().of(probe, port).first();
        let payload = payload.map_or(0, |entry| entry.payload);
        let mut out = vec![0; 2048];
        let cookie = self.cookies.of(&target);
        let numbers = (&cookie, 1_000);
        let len = self
            .frames
            .write((&target, payload), numbers, Mac([4; 6]), &mut out);
        out.truncate(len.unwrap());
        out
    }

    fn classify(&self, packet: &[u8]) -> Option<Answer> {
        AnswerClassifier::new(&self.plan, &self.cookies).classify(packet)
    }
}

/// Offset of the transport header, by the EtherType.
fn tcp_at(packet: &[u8]) -> usize {
    if packet[12] == 8 { 34 } else { 54 }
}

/// The target's answer with these flags: addresses and ports swapped.
fn answer(probe: &[u8], flags: u8) -> Vec<u8> {
    let mut out = probe.to_vec();
    let at = tcp_at(probe);
    let (src, dst) = if at == 34 {
        (26..30, 30..34)
    } else {
        (22..38, 38..54)
    };
    out[src.clone()].copy_from_slice(&probe[dst.clone()]);
    out[dst].copy_from_slice(&probe[src]);
    out[at..at + 2].copy_from_slice(&probe[at + 2..at + 4]);
    out[at + 2..at + 4].copy_from_slice(&probe[at..at + 2]);
    let seq = u32::from_be_bytes(probe[at + 4..at + 8].try_into().unwrap());
    out[at + 8..at + 12].copy_from_slice(&seq.wrapping_add(1).to_be_bytes());
    out[at + 4..at + 8].copy_from_slice(&[9, 9, 9, 9]);
    out[at + 13] = flags;
    out
}

/// A router's ICMP error about a probe, quoting this many bytes after the IP header.
fn error(probe: &[u8], kind: u8, code: u8, quoted: usize) -> Vec<u8> {
    let at = tcp_at(probe);
    let quote = &probe[14..at + quoted];
    let mut out = probe[..14].to_vec();
    let icmp_len = (8 + quote.len()) as u16;
    if at == 34 {
        out.extend([0x45, 0]);
        out.extend((20 + icmp_len).to_be_bytes());
        out.extend([0, 0, 0, 0, 250, 1, 0, 0, 203, 0, 113, 1]);
        out.extend(&probe[26..30]);
    } else {
        out.extend([0x60, 0, 0, 0]);
        out.extend(icmp_len.to_be_bytes());
        out.extend([58, 250]);
        out.extend([0x20, 1, 0xd, 0xb8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        out.extend(&probe[22..38]);
    }
    out.extend([kind, code, 0, 0, 0, 0, 0, 0]);
    out.extend(quote);
    out
}

const TARGETS: [&str; 2] = ["192.0.2.9", "2001:db8:2::9"];

#[test]
fn open_closed_and_filtered() {
    let scene = scene(1);
    for addr in TARGETS {
        let probe = scene.probe(addr, 443);
        for (flags, state, evidence) in [
            (0x12, State::Open, Evidence::SynAck),
            (0x14, State::Closed, Evidence::Reset),
        ] {
            let found = scene.classify(&answer(&probe, flags)).expect(addr);
            assert_eq!((found.state, found.evidence), (state, evidence));
            assert_eq!((found.target.port, found.ttl), (443, 64));
            assert_eq!(found.target.addr, addr.parse::<IpAddr>().unwrap());
            assert_eq!(found.from, found.target.addr);
        }
        let (kind, code) = if addr.contains(':') { (1, 1) } else { (3, 13) };
        for quoted in [8, 20, 24] {
            let found = scene
                .classify(&error(&probe, kind, code, quoted))
                .expect(addr);
            assert_eq!(found.state, State::Filtered);
            assert_eq!(found.evidence.word(), "admin-prohibited");
            assert_eq!(found.target.addr, addr.parse::<IpAddr>().unwrap());
            assert_ne!(found.from, found.target.addr);
        }
    }
}

#[test]
fn unrelated_and_forged_packets_are_not_answers() {
    let (scene, other) = (scene(1), scene(2));
    for addr in TARGETS {
        let probe = scene.probe(addr, 80);
        let at = tcp_at(&probe);
        assert_eq!(scene.classify(&probe), None, "the probe itself");
        for flags in [0x02, 0x10, 0x04, 0x11, 0x16, 0x18] {
            assert_eq!(scene.classify(&answer(&probe, flags)), None, "{flags:#x}");
        }
        // One bit of what has to be right: ports, acknowledgment, either address.
        let whole = answer(&probe, 0x12);
        let addresses = if at == 34 { 26..34 } else { 22..54 };
        for byte in (at..at + 4).chain(at + 8..at + 12).chain(addresses) {
            for bit in 0..8 {
                let mut forged = whole.clone();
                forged[byte] ^= 1 << bit;
                assert_eq!(scene.classify(&forged), None, "byte {byte} bit {bit}");
            }
        }
        for byte in at + 2..at + 8 {
            let (kind, code) = if at == 34 { (3, 1) } else { (1, 3) };
            let mut forged = probe.clone();
            forged[byte] ^= 1;
            assert_eq!(
                scene.classify(&error(&forged, kind, code, 8)),
                None,
                "quoted {byte}"
            );
        }
        // Of a run under another key, with the same seed.
        assert_eq!(scene.classify(&answer(&other.probe(addr, 80), 0x12)), None);
        // From an address and a port that were never asked.
        let beyond = if at == 34 {
            "192.0.3.9"
        } else {
            "2001:db8:3::9"
        };
        assert_eq!(
            scene.classify(&answer(&scene.probe(beyond, 80), 0x12)),
            None
        );
        assert_eq!(scene.classify(&answer(&scene.probe(addr, 81), 0x12)), None);
    }
}

#[test]
fn truncated_packets_are_answers_only_with_all_checked_fields() {
    let scene = scene(1);
    for addr in TARGETS {
        let probe = scene.probe(addr, 80);
        let at = tcp_at(&probe);
        for whole in [
            answer(&probe, 0x12),
            error(&probe, 3, 1, 8),
            error(&probe, 1, 1, 8),
        ] {
            for len in 0..whole.len() {
                if let Some(found) = scene.classify(&whole[..len]) {
                    assert!(len >= at + 14, "{len}: {found:?}");
                    assert_eq!(Some(found), scene.classify(&whole));
                }
            }
        }
    }
}

#[test]
fn random_forgeries_are_rejected() {
    let scene = scene(1);
    let mut state = 7u64;
    for addr in TARGETS {
        let mut forged = answer(&scene.probe(addr, 80), 0x12);
        let at = tcp_at(&forged);
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let bytes = (state >> 16).to_be_bytes();
            forged[at + 8..at + 12].copy_from_slice(&bytes[4..]);
            forged[at + 3] = bytes[3];
            assert_eq!(scene.classify(&forged), None);
        }
    }
}

/// The target's datagram: addresses and ports swapped.
fn datagram(probe: &[u8], data: &[u8]) -> Vec<u8> {
    let at = tcp_at(probe);
    let mut long = probe.to_vec();
    long.resize(probe.len().max(at + 20), 0);
    let mut out = answer(&long, 0);
    out.truncate(at + 4);
    out.extend(((8 + data.len()) as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(data);
    let len = (out.len() - at) as u16;
    let (place, len) = if at == 34 { (16, len + 20) } else { (18, len) };
    out[place..place + 2].copy_from_slice(&len.to_be_bytes());
    out
}

#[test]
fn datagrams_are_recognized_by_ports_and_echoed_identification() {
    let scene = scene(1);
    for addr in TARGETS {
        let probe = scene.sent(addr, Probe::Udp, 9999);
        let whole = datagram(&probe, b"hello");
        let found = scene.classify(&whole).expect(addr);
        assert_eq!((found.state, found.evidence), (State::Open, Evidence::Udp));
        assert_eq!(found.payload(&whole), b"hello");
        let at = tcp_at(&probe);
        for byte in at..at + 4 {
            let mut forged = whole.clone();
            forged[byte] ^= 1;
            assert_eq!(scene.classify(&forged), None, "byte {}", byte - at);
        }
        // DNS: the identification counts once the data are a response.
        let probe = scene.sent(addr, Probe::Udp, 53);
        let mut response = probe[at + 8..].to_vec();
        response[2] |= 0x80;
        let found = scene.classify(&datagram(&probe, &response)).expect(addr);
        assert_eq!((found.state, found.target.port), (State::Open, 53));
        response[1] ^= 1;
        assert_eq!(scene.classify(&datagram(&probe, &response)), None);
        assert!(scene.classify(&datagram(&probe, b"other")).is_some());
        // TFTP answers from another port, others do not.
        let probe = scene.sent(addr, Probe::Udp, 69);
        let mut error = datagram(&probe, b"\0\x05\0\x01No such file\0");
        error[at] ^= 0x80;
        assert_eq!(scene.classify(&error).expect(addr).target.port, 69);
        error[at + 9] = 9;
        assert_eq!(scene.classify(&error), None);
        let mut other_port = whole.clone();
        other_port[at] ^= 0x80;
        assert_eq!(scene.classify(&other_port), None);
    }
}

#[test]
fn a_udp_port_is_closed_only_if_the_host_itself_reports_it() {
    let scene = scene(1);
    for addr in TARGETS {
        let probe = scene.sent(addr, Probe::Udp, 9999);
        let at = tcp_at(&probe);
        let (kind, code) = if at == 34 { (3, 3) } else { (1, 4) };
        let from_router = error(&probe, kind, code, 8);
        let found = scene.classify(&from_router).expect(addr);
        assert_eq!(found.state, State::Filtered);
        let mut from_host = from_router.clone();
        let (source, target) = if at == 34 { (26, 30..34) } else { (22, 38..54) };
        from_host[source..source + target.len()].copy_from_slice(&probe[target]);
        let found = scene.classify(&from_host).expect(addr);
        assert_eq!(found.state, State::Closed);
        assert_eq!(found.evidence.word(), "port-unreach");
        // Ports and identification (flow label) are keyed.
        let identification = if at == 34 { 18..20 } else { 16..18 };
        for byte in identification.chain(at..at + 4) {
            let mut forged = probe.clone();
            forged[byte] ^= 1;
            let forged = error(&forged, kind, code, 8);
            assert_eq!(scene.classify(&forged), None, "byte {byte}");
        }
    }
}

#[test]
fn echo_replies_return_the_identifiers_and_the_send_time() {
    let scene = scene(1);
    for addr in TARGETS {
        let probe = scene.sent(addr, Probe::Echo, 0);
        let at = tcp_at(&probe);
        assert_eq!(scene.classify(&probe), None);
        let (src, dst) = if at == 34 {
            (26..30, 30..34)
        } else {
            (22..38, 38..54)
        };
        let mut reply = probe.clone();
        reply[src.clone()].copy_from_slice(&probe[dst.clone()]);
        reply[dst].copy_from_slice(&probe[src]);
        reply[at] = if at == 34 { 0 } else { 129 };
        let found = scene.classify(&reply).expect(addr);
        assert_eq!((found.state, found.evidence), (State::Up, Evidence::Echo));
        assert_eq!(found.sent_us, Some(1_000));
        for byte in at + 4..at + 8 {
            let mut forged = reply.clone();
            forged[byte] ^= 1;
            assert_eq!(scene.classify(&forged), None);
        }
        let (kind, code) = if at == 34 { (3, 1) } else { (1, 3) };
        let found = scene.classify(&error(&probe, kind, code, 8)).expect(addr);
        assert_eq!(
            (found.state, found.target.probe),
            (State::Filtered, Probe::Echo)
        );
    }
}

const OTHERS: [Probe; 8] = [
    Probe::Syn,
    Probe::Ack,
    Probe::Fin,
    Probe::Xmas,
    Probe::Null,
    Probe::SctpInit,
    Probe::Timestamp,
    Probe::Protocol,
];

fn others() -> Scene {
    scene_of(1, "T:80,443,S:36412,P:47,253", &OTHERS)
}

#[test]
fn resets_answer_the_segments_that_they_quote() {
    let scene = others();
    for addr in TARGETS {
        for probe in [Probe::Ack, Probe::Fin, Probe::Xmas, Probe::Null] {
            let sent = scene.sent(addr, probe, 443);
            let at = tcp_at(&sent);
            let mut reset = answer(&sent, if probe == Probe::Ack { 0x04 } else { 0x14 });
            match probe {
                // RFC 9293 section 3.10.7.1: <SEQ=SEG.ACK><CTL=RST>.
                Probe::Ack => reset[at + 4..at + 8].copy_from_slice(&sent[at + 8..at + 12]),
                // <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>; FIN has the length 1.
                Probe::Null => reset[at + 8..at + 12].copy_from_slice(&sent[at + 4..at + 8]),
                _ => {}
            }
            let found = scene.classify(&reset).expect("an answer");
            let state = match probe {
                Probe::Ack => State::Unfiltered,
                _ => State::Closed,
            };
            let target = found.target;
            assert_eq!(
                (target.probe, target.port, found.state),
                (probe, 443, state)
            );
            assert_eq!(found.evidence, Evidence::Reset);
            for byte in at..at + 14 {
                // Ports, the number that counts, and flags; the other number is the host's.
                let is_free = match probe {
                    Probe::Ack => (at + 8..at + 13).contains(&byte),
                    _ => (at + 4..at + 8).contains(&byte) || byte == at + 12,
                };
                let mut other = reset.clone();
                other[byte] ^= 0x14;
                let other = scene.classify(&other);
                assert!(is_free || other.is_none(), "{probe:?} {byte}");
            }
            let error = error(&sent, if at == 34 { 3 } else { 1 }, 1, 8);
            let found = scene.classify(&error).expect("an error");
            assert_eq!((found.target.probe, found.state), (probe, State::Filtered));
        }
    }
}

#[test]
fn associations_are_acknowledged_or_aborted_under_their_tag() {
    let scene = others();
    for addr in TARGETS {
        let sent = scene.sent(addr, Probe::SctpInit, 36_412);
        let at = tcp_at(&sent);
        for (kind, state) in [(2, Some(State::Open)), (6, Some(State::Closed)), (3, None)] {
            let mut reply = answer(&sent, 0);
            reply[at..].copy_from_slice(&sent[at..]);
            reply[at..at + 2].copy_from_slice(&sent[at + 2..at + 4]);
            reply[at + 2..at + 4].copy_from_slice(&sent[at..at + 2]);
            reply[at + 4..at + 8].copy_from_slice(&sent[at + 16..at + 20]);
            reply[at + 12] = kind;
            assert_eq!(scene.classify(&reply).map(|found| found.state), state);
            reply[at + 7] ^= 1;
            assert_eq!(scene.classify(&reply), None);
        }
        let error = error(&sent, if at == 34 { 3 } else { 1 }, 1, 8);
        assert_eq!(scene.classify(&error).unwrap().state, State::Filtered);
    }
}

#[test]
fn timestamp_replies_have_the_time_of_sending() {
    let scene = others();
    let sent = scene.sent(TARGETS[0], Probe::Timestamp, 0);
    let mut reply = sent.clone();
    reply[26..30].copy_from_slice(&sent[30..34]);
    reply[30..34].copy_from_slice(&sent[26..30]);
    reply[34] = 14;
    let found = scene.classify(&reply).unwrap();
    assert_eq!((found.state, found.sent_us), (State::Up, Some(1_000)));
    reply[38] ^= 1;
    assert_eq!(scene.classify(&reply), None);
    let unreachable = error(&sent, 3, 1, 8);
    assert_eq!(scene.classify(&unreachable).unwrap().state, State::Filtered);
}

#[test]
fn protocols_are_known_by_the_errors_of_the_target_itself() {
    let scene = others();
    for number in [47, 253] {
        let sent = scene.sent(TARGETS[0], Probe::Protocol, number);
        for (code, by_target, state) in [
            (2, true, State::Closed),
            (3, true, State::Open),
            (2, false, State::Filtered),
            (13, true, State::Filtered),
        ] {
            let mut error = error(&sent, 3, code, 8);
            if by_target {
                error[26..30].copy_from_slice(&sent[30..34]);
            }
            let found = scene.classify(&error).expect("an error");
            assert_eq!((found.target.port, found.state), (number, state), "{code}");
            let last = error.len() - 1;
            error[last] ^= 1;
            assert_eq!(scene.classify(&error), None);
        }
    }
}
