//! Wraps payloads in the headers that most tests need.

use super::{ipv4, ipv6, udp};

pub fn in_ethernet(value: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    packet.extend(value.to_be_bytes());
    packet.extend(payload);
    packet
}

pub fn in_ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; ipv4::HEADER_LEN];
    ipv4::Header {
        src: [192, 0, 2, 1].into(),
        dst: [198, 51, 100, 2].into(),
        protocol,
        ttl: 64,
        traffic_class: 0,
        id: 1,
        payload_len: payload.len(),
    }
    .emit(&mut head);
    [&head[..], payload].concat()
}

pub fn in_ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; ipv6::HEADER_LEN];
    ipv6::Header {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        next_header,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 1,
        payload_len: payload.len(),
    }
    .emit(&mut head);
    [&head[..], payload].concat()
}

/// Wraps a payload in UDP with this source port.
pub fn in_udp_from(source: u16, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; udp::HEADER_LEN];
    udp::emit(&mut head, source, port, payload.len());
    [&head[..], payload].concat()
}
