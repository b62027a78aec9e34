//! Probes are valid packets for all values of the fields that differ.

use wire::checksum::Sum;
use wire::{Dissection, LayerKind, LinkType, Reason, dissect};

use super::*;

fn source() -> Source {
    Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: Some("2001:db8::7".parse().unwrap()),
        ports: (61_000, 4_000),
    }
}

fn look(options: Options) -> FrameOptions {
    FrameOptions {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        ttl: 64,
        options,
    }
}

/// Sum over the transport part; 0 if its checksum is right.
fn transport_sum(d: &Dissection, probe: Probe, packet: &[u8]) -> u16 {
    let transport = &packet[usize::from(d.transport_offset)..];
    let sum = match (d.src_addr(), d.dst_addr()) {
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => {
            let ip = &packet[14..34];
            assert_eq!(Sum::new().add_bytes(ip).finish(), 0);
            match probe {
                Probe::SctpInit | Probe::Protocol => return 0,
                Probe::Echo | Probe::Timestamp => Sum::new(),
                _ => Sum::new().add_pseudo_ipv4(src, dst, d.ip_protocol, transport.len() as u16),
            }
        }
        _ if probe == Probe::SctpInit => return 0,
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => {
            Sum::new().add_pseudo_ipv6(src, dst, d.ip_protocol, transport.len() as u32)
        }
        other => panic!("{other:?}"),
    };
    sum.add_bytes(transport).finish()
}

#[test]
fn probes_are_valid_packets_with_right_checksums() {
    let payloads = Payloads::built_in();
    for options in [
        Options::Minimal,
        Options::Linux,
        Options::Windows,
        Options::Bsd,
    ] {
        let frames = Frames::new(source(), look(options), &payloads);
        for (n, addr) in (0u32..).zip(["192.0.2.1", "255.255.255.255", "2001:db8:9::1"]) {
            // ARP requests are no IP packets; those of `neighbour` are the same.
            for probe in Probe::ALL.into_iter().filter(|probe| *probe != Probe::Arp) {
                for payload in 0..payloads.as_slice().len() as u16 {
                    let addr: IpAddr = addr.parse().unwrap();
                    if addr.is_ipv6() && probe.is_ipv4_only() {
                        continue;
                    }
                    let cookie = Cookie {
                        seq: 0xfedc_ba98 + n,
                        source_port: u32::MAX / 3 * n,
                        ip_id: 0xffff,
                        timestamp: 0x8000_0001,
                    };
                    let port = 443;
                    let target = ProbeTarget { addr, probe, port };
                    let mut out = [0xaa; 2048];
                    let mac = Mac([2, 0, 0, 0, 0, 2]);
                    let written = frames.write((&target, payload), (&cookie, 7), mac, &mut out);
                    let len = written.unwrap();
                    assert_eq!(len, frames.len(&target, payload));
                    let mut d = Dissection::EMPTY;
                    dissect(LinkType::ETHERNET, &out[..len], len as u32, &mut d);
                    assert_eq!(d.dst_addr(), Some(addr));
                    assert_eq!(transport_sum(&d, probe, &out[..len]), 0, "{probe:?} {addr}");
                    let has_ports = d.dst_port == 443 && (61_000..65_000).contains(&d.src_port);
                    let is_numbered = [Probe::Echo, Probe::Timestamp, Probe::Protocol];
                    assert_eq!(has_ports, !is_numbered.contains(&probe));
                    if probe == Probe::Protocol {
                        assert_eq!(out[14 + 9], 443u16 as u8);
                    }
                    if probe == Probe::Syn {
                        assert_eq!(d.reason, Reason::Complete);
                        assert_eq!((d.tcp_seq, d.tcp_flags), (cookie.seq, 2));
                    }
                    assert_eq!(d.has(LayerKind::Udp), probe == Probe::Udp);
                    let mut short = vec![0; len - 1];
                    let written = frames.write((&target, payload), (&cookie, 7), mac, &mut short);
                    assert_eq!(written, None);
                }
            }
        }
    }
}

#[test]
fn every_source_port_is_used_and_no_other() {
    let source = |first, count| Source {
        ipv4: None,
        ipv6: None,
        ports: (first, count),
    };
    let port = |source: Source, bits| {
        source.port(&Cookie {
            source_port: bits,
            ..Cookie::default()
        })
    };
    let ten = source(40_000, 10);
    let mut seen: Vec<u16> = (0..10_000).map(|n| port(ten, n * 429_496)).collect();
    seen.dedup();
    assert_eq!(seen, (40_000..40_010).collect::<Vec<u16>>());
    assert_eq!(port(source(65_535, 1), u32::MAX), 65_535);
}
