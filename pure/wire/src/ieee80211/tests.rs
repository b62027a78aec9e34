//! Frames of each kind, written by hand: the lab compares captures with tshark and tcpdump.

use super::*;
use crate::{Dissection, dissect};
use std::format;
use std::vec::Vec;

const MACS: [Mac; 4] = [
    Mac([2, 0, 0, 0, 0, 1]),
    Mac([2, 0, 0, 0, 0, 2]),
    Mac([2, 0, 0, 0, 0, 3]),
    Mac([2, 0, 0, 0, 0, 4]),
];

/// A data header with all fields required by its flags and subtype.
fn header(control: [u8; 2], qos: u8) -> Vec<u8> {
    let mut bytes = std::vec![control[0], control[1], 0, 0];
    for mac in &MACS[..3] {
        bytes.extend(mac.0);
    }
    bytes.extend([0x20, 1]);
    if control[1] & 3 == 3 {
        bytes.extend(MACS[3].0);
    }
    if control[0] & 0x80 != 0 {
        bytes.extend([qos, 0]);
        if control[1] & flag::ORDER != 0 {
            bytes.extend([0; 4]);
        }
    }
    bytes
}

#[test]
fn addresses_by_direction() {
    for (flags, dst, src) in [(0, 0, 1), (1, 2, 1), (2, 0, 2), (3, 2, 3)] {
        let bytes = header([0x88, flags], 0);
        let view = Ieee80211::parse(&bytes).unwrap();
        assert_eq!(view.dst(), Some(MACS[dst]), "{flags}");
        assert_eq!(view.src(), Some(MACS[src]), "{flags}");
        assert_eq!(view.receiver(), MACS[0]);
        assert_eq!(view.transmitter(), Some(MACS[1]));
        assert_eq!(view.sequence(), Some((0, 18)));
    }
}

#[test]
fn what_follows_a_data_header() {
    let llc = [0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xb5, 9];
    let follows = |control, qos, body: &[u8]| {
        let bytes = [&header(control, qos)[..], body].concat();
        let mut d = Dissection::EMPTY;
        dissect(LinkType::IEEE802_11, &bytes, bytes.len() as u32, &mut d);
        (d.layer_kinds[1], d.reason)
    };
    let (none, llc_kind) = (LayerKind::None, LayerKind::Llc);
    for control in [[0x08, 0], [0x08, 3], [0x88, 1], [0x88, 3], [0x88, 0x82]] {
        let expected = (llc_kind, Reason::UnsupportedType);
        assert_eq!(follows(control, 5, &llc), expected, "{control:x?}");
    }
    // An aggregate: its first MSDU has an Ethernet header with a length.
    let msdu = [&[2; 12][..], &[0, 9], &llc, &[0]].concat();
    let first = follows([0x88, 1], 0x80, &msdu);
    assert_eq!(first, (LayerKind::Ethernet, Reason::UnsupportedType));
    // Encrypted, without a body, empty.
    assert_eq!(follows([0x88, 0x41], 0, &llc), (none, Reason::Encrypted));
    assert_eq!(follows([0x48, 1], 0, &[]), (none, Reason::Complete));
    assert_eq!(follows([0x08, 1], 0, &[]), (none, Reason::Complete));
    assert_eq!(follows([0x09, 1], 0, &llc), (none, Reason::BadVersion));
}

#[test]
fn a_later_fragment_has_no_llc_header() {
    let mut bytes = [&header([0x08, 1], 0)[..], &[0xaa, 0xaa, 3, 0]].concat();
    bytes[22] |= 1;
    let mut d = Dissection::EMPTY;
    dissect(LinkType::IEEE802_11, &bytes, bytes.len() as u32, &mut d);
    assert_eq!((d.layer_count, d.reason), (1, Reason::Complete));
    assert_eq!(d.payload_len, 4);
}

#[test]
fn names() {
    let shown = |bytes: &[u8]| format!("{}", Ieee80211::parse(bytes).unwrap());
    let mut beacon = [&header([0x80, 0], 0)[..24], &[0; 12]].concat();
    beacon.extend([0, 4, b'a', 7, 0xe9, b'b']);
    assert_eq!(shown(&beacon), "Beacon (a^GM-ib)");
    let ack = [0xd4, 0, 0, 0, 2, 0, 0, 0, 0, 1];
    assert_eq!(shown(&ack), "Acknowledgment RA:02:00:00:00:00:01");
    let sealed = [&header([0x08, 0x41], 0)[..], &[2, 0x22, 0xcd, 0xa0]].concat();
    assert_eq!(shown(&sealed), "Data IV:cd2202 Pad 20 KeyID 2");
}
