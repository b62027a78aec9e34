//! Removes tunnel headers from an Ethernet packet: where the packet inside begins, and the Ethernet
//! header that it needs if it has none of its own.

use crate::dissection::{Dissection, Fragment};
use crate::ethernet::{self, ether_type};
use crate::walk::dissect_inner;
use crate::{LayerKind, Mac};

/// What remains of a packet after its tunnel headers were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decapsulated {
    /// Offset of the first byte that remains, from the start of the packet.
    pub offset: u32,
    /// Captured bytes from there on, without the trailers of the tunnels.
    pub cap_len: u32,
    /// The same on the wire.
    pub wire_len: u32,
    /// The Ethernet header to put in front of these bytes, which begin with an IP header; `None` if
    /// they begin with an Ethernet header. There is room for it before `offset`.
    pub header: Option<[u8; ethernet::HEADER_LEN]>,
}

/// Whether the headers of a level are those of a packet, and not of other bytes that were sent to
/// the port of a tunnel.
fn is_packet(level: &Dissection) -> bool {
    let is_ethernet = level.layer_kinds[0] == LayerKind::Ethernet;
    level.ip_version != 0 || (is_ethernet && level.layer_count >= 2)
}

/// Dissects the innermost packet of `outer` into `out`: IP, or Ethernet with a protocol that is
/// known. Without one it is `outer`. Fragments of a tunnel's packets are not entered, because only
/// the first one has the headers inside, nor are packets quoted by an ICMP error.
pub fn dissect_carried(packet: &[u8], outer: &Dissection, out: &mut Dissection) {
    *out = *outer;
    let mut level = *outer;
    let mut inner = Dissection::EMPTY;
    while !level.inner_is_quote
        && level.fragment == Fragment::Whole
        && dissect_inner(packet, &level, &mut inner)
    {
        level = inner;
        if is_packet(&level) {
            *out = level;
        }
    }
}

/// The packet at `level`, as [`dissect_carried`] found it in an Ethernet packet, without the
/// headers around it. Labels, PPPoE, 802.1ah and the like between its Ethernet and its IP header
/// are removed with all that is before the IP header; the MAC addresses stay. VLAN tags of its own
/// are kept unless `with_tags`.
///
/// `None` if there is nothing to remove.
pub fn decapsulate(packet: &[u8], level: &Dissection, with_tags: bool) -> Option<Decapsulated> {
    let start = usize::from(level.layer_offsets[0]);
    let is_ethernet = level.layer_kinds[0] == LayerKind::Ethernet;
    let (has_ip, ip) = (level.ip_version != 0, usize::from(level.ip_offset));
    let is_before_ip = |(_, offset): &(LayerKind, usize)| !has_ip || *offset < ip;
    let is_kept = |kind: LayerKind| match kind {
        LayerKind::Vlan => !with_tags,
        LayerKind::Llc => true,
        _ => !has_ip,
    };
    let mut between = level.layers().skip(1).take_while(is_before_ip);
    let offset = match is_ethernet && between.all(|(kind, _)| is_kept(kind)) {
        true if start == 0 => return None,
        true => start,
        false if has_ip && ip >= ethernet::HEADER_LEN => ip,
        false => return None,
    };
    let header = (offset != start || !is_ethernet).then(|| {
        let first = if is_ethernet { start } else { 0 };
        let mac = |at: usize| {
            let bytes = packet.get(first + at..).and_then(<[u8]>::first_chunk);
            Mac(bytes.copied().unwrap_or_default())
        };
        let kind = match level.ip_version {
            6 => ether_type::IPV6,
            _ => ether_type::IPV4,
        };
        let mut header = [0; ethernet::HEADER_LEN];
        ethernet::emit(&mut header, mac(0), mac(6), kind);
        header
    });
    let removed = (offset - start) as u32;
    Some(Decapsulated {
        offset: offset as u32,
        cap_len: level.cap_len.saturating_sub(removed),
        wire_len: level.wire_len.saturating_sub(removed),
        header,
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::LinkType;
    use std::vec::Vec;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&MACS[..], &kind.to_be_bytes(), payload].concat()
    }

    fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let len = (20 + payload.len() as u16).to_be_bytes();
        let [high, low] = fragment.to_be_bytes();
        let mut out = std::vec![0x45, 0, len[0], len[1], 0, 7, high, low, 64, protocol, 0, 0];
        out.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        out.extend(payload);
        out
    }

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let len = (8 + payload.len() as u16).to_be_bytes();
        [
            &[0x30, 0x39],
            &port.to_be_bytes()[..],
            &len,
            &[0, 0],
            payload,
        ]
        .concat()
    }

    /// The packet that is left, with a trailer behind the outer one that is not part of it.
    fn inside(packet: &[u8], with_tags: bool) -> Option<Vec<u8>> {
        let packet = [packet, &[0xee; 6]].concat();
        let (mut outer, mut level) = (Dissection::EMPTY, Dissection::EMPTY);
        crate::dissect(LinkType::ETHERNET, &packet, packet.len() as u32, &mut outer);
        dissect_carried(&packet, &outer, &mut level);
        let found = decapsulate(&packet, &level, with_tags)?;
        assert_eq!(found.cap_len, found.wire_len);
        let rest = &packet[found.offset as usize..][..found.cap_len as usize];
        Some(match found.header {
            Some(header) => {
                assert!(found.offset as usize >= header.len());
                [&header[..], rest].concat()
            }
            None => rest.to_vec(),
        })
    }

    fn plain() -> Vec<u8> {
        ipv4(17, 0, &udp(53, b"question"))
    }

    #[test]
    fn tunnels_with_ethernet_inside_leave_its_frame() {
        let mut frame = ethernet(0x0800, &plain());
        frame[0] = 6;
        let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat();
        let gre = [&[0, 0, 0x65, 0x58][..], &frame].concat();
        for outer in [ipv4(17, 0, &udp(4789, &vxlan)), ipv4(47, 0, &gre)] {
            for packet in [
                ethernet(0x0800, &outer),
                ethernet(0x8100, &[&[0, 5, 8, 0], &outer[..]].concat()),
            ] {
                assert_eq!(inside(&packet, false), Some(frame.clone()));
            }
        }
        // ARP is a packet, other bytes sent to the port are not.
        let request = [0, 1, 8, 0, 6, 4, 0, 1].into_iter().chain([0; 20]);
        let arp = ethernet(0x0806, &request.collect::<Vec<u8>>());
        for (payload, expected) in [(&arp, Some(arp.clone())), (&std::vec![0x88; 40], None)] {
            let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], payload].concat();
            let packet = ethernet(0x0800, &ipv4(17, 0, &udp(4789, &vxlan)));
            assert_eq!(inside(&packet, false), expected);
        }
    }

    #[test]
    fn ip_inside_gets_an_ethernet_header() {
        let expected = Some(ethernet(0x0800, &plain()));
        let gtp = [
            &[0x30, 0xff, 0, plain().len() as u8, 0, 0, 0, 9][..],
            &plain(),
        ]
        .concat();
        for outer in [
            ethernet(0x0800, &ipv4(4, 0, &plain())),
            ethernet(
                0x0800,
                &ipv4(47, 0, &[&[0, 0, 8, 0], &plain()[..]].concat()),
            ),
            ethernet(0x0800, &ipv4(17, 0, &udp(2152, &gtp))),
            // Labels, and a tag in front of one.
            ethernet(0x8847, &[&[0, 1, 1, 64], &plain()[..]].concat()),
            ethernet(
                0x8100,
                &[&[0, 5, 0x88, 0x47, 0, 1, 1, 64], &plain()[..]].concat(),
            ),
            // PPPoE.
            ethernet(
                0x8864,
                &[
                    &[0x11, 0, 0, 1, 0, 2 + plain().len() as u8, 0, 0x21],
                    &plain()[..],
                ]
                .concat(),
            ),
        ] {
            let found = inside(&outer, false).map(|mut it| {
                // Without a length in front of it, the trailer stays.
                it.truncate(expected.as_ref().unwrap().len());
                it
            });
            assert_eq!(found, expected, "{outer:?}");
        }
    }

    #[test]
    fn what_is_no_tunnel_stays_and_tags_go_if_wanted() {
        assert_eq!(inside(&ethernet(0x0800, &plain()), true), None);
        let tagged = ethernet(0x8100, &[&[0, 5, 8, 0], &plain()[..]].concat());
        assert_eq!(inside(&tagged, false), None);
        let bare = inside(&tagged, true).unwrap();
        assert!(bare.starts_with(&ethernet(0x0800, &plain())));
        // Only the first fragment of a tunnel's packet has the headers inside.
        let gre = [&[0, 0, 8, 0], &plain()[..]].concat();
        assert_eq!(
            inside(&ethernet(0x0800, &ipv4(47, 0x2000, &gre)), true),
            None
        );
        assert_eq!(inside(&[], true), None);
        assert_eq!(inside(&MACS, true), None);
    }
}
