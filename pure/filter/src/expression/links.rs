//! Offsets in the headers of link types, by their LINKTYPE number.
//!
//! Most are those of libpcap 1.10. A header's network part begins after an LLC and a SNAP header
//! where the link type has them.

use super::lower::Kind;
use super::wlan::Radio;

/// Offsets in bytes: of the header, of its type field and its payload from the first byte, and of
/// the network header from the payload, with and without SNAP.
pub(super) struct Layout {
    pub(super) kind: Kind,
    /// Whether Juniper's header is in front.
    pub(super) is_juniper: bool,
    pub(super) header: u32,
    pub(super) link_type: u32,
    pub(super) payload: u32,
    pub(super) network: u32,
    pub(super) network_no_snap: u32,
}

/// The largest LINKTYPE number known.
const LINK_TYPE_MAX: u16 = 289;

/// Juniper's link types: what follows Juniper's header, whose length varies, and the offsets of
/// the type field and of the payload from its end, after the cookie.
#[rustfmt::skip]
const JUNIPER: &[(u16, Kind, u32, u32)] = &[
    (130, Kind::PppSerial, 2, 4), (131, Kind::FrameRelay, 2, 4), (133, Kind::Raw, 0, 8),
    (134, Kind::FrameRelay, 4, 6), (135, Kind::Atm, 8, 8), (136, Kind::Raw, 0, 8),
    (137, Kind::Atm, 4, 4), (164, Kind::Raw, 0, 8), (167, Kind::Ethernet, 12, 14),
    (168, Kind::EtherType, 0, 2), (178, Kind::Ethernet, 12, 14), (179, Kind::PppSerial, 0, 2),
    (180, Kind::FrameRelay, 2, 4), (181, Kind::Hdlc, 2, 4),
];

fn juniper(link_type: u16) -> Option<Layout> {
    let &(_, kind, link_type, payload) = JUNIPER.iter().find(|row| row.0 == link_type)?;
    let has_llc = kind == Kind::Atm;
    Some(Layout {
        kind,
        is_juniper: true,
        header: 0,
        link_type,
        payload,
        network: if has_llc { 8 } else { 0 },
        network_no_snap: if has_llc || kind == Kind::Ethernet {
            3
        } else {
            0
        },
    })
}

/// The offsets of a link type; `None` for a number that is not assigned.
pub(super) fn layout(link_type: u16) -> Option<Layout> {
    if let Some(layout) = juniper(link_type) {
        return Some(layout);
    }
    let (kind, link_type, payload, network_no_snap) = match link_type {
        1 => (Kind::Ethernet, 12, 14, 3),
        101 => (Kind::Raw, 0, 0, 0),
        228 => (Kind::Raw4, 0, 0, 0),
        229 => (Kind::Raw6, 0, 0, 0),
        113 => (Kind::Sll, 14, 16, 0),
        276 => (Kind::Sll2, 0, 20, 0),
        9 => (Kind::Ppp, 2, 4, 0),
        // The second with a direction in place of the address.
        50 | 166 => (Kind::PppSerial, 2, 4, 0),
        51 => (Kind::PppSerial, 6, 8, 0),
        103 => (Kind::PppBsdos, 5, 24, 0),
        104 => (Kind::Hdlc, 2, 4, 0),
        0 => (Kind::Null, 0, 4, 0),
        108 => (Kind::Loop, 0, 4, 0),
        109 => (Kind::Null, 0, 12, 0),
        105 => (Kind::Wlan(Radio::None), 24, 0, 3),
        119 => (Kind::Wlan(Radio::Prism), 24, 0, 3),
        127 => (Kind::Wlan(Radio::Radiotap), 24, 0, 3),
        163 => (Kind::Wlan(Radio::Avs), 24, 0, 3),
        192 => (Kind::Wlan(Radio::Ppi), 24, 0, 3),
        6 => (Kind::TokenRing, 14, 14, 3),
        10 => (Kind::Fddi, 13, 13, 3),
        100 | 106 => (Kind::Atm, 0, 0, 3),
        123 => (Kind::SunAtm, 4, 4, 3),
        122 => (Kind::FibreChannel, 16, 16, 3),
        7 => (Kind::Arcnet, 2, 6, 0),
        129 => (Kind::Arcnet, 4, 8, 0),
        8 => (Kind::Slip, 0, 16, 0),
        102 => (Kind::Slip, 0, 24, 0),
        // Two bytes of address, a control byte and the network layer protocol.
        107 => (Kind::FrameRelay, 2, 4, 0),
        99 => (Kind::EtherType, 6, 44, 0),
        138 => (Kind::EtherType, 16, 18, 0),
        117 => (Kind::PfLog, 0, 0, 0),
        226 => (Kind::IpNet, 1, 24, 0),
        // Ethernet behind the header of Hilscher netANALYZER, and behind the preamble, too.
        240 => (Kind::Ethernet, 16, 18, 3),
        241 => (Kind::Ethernet, 24, 26, 3),
        140 => (Kind::Mtp2, 2, 0, 0),
        139 => (Kind::Mtp2, 6, 0, 0),
        197 => (Kind::Mtp2, 22, 0, 0),
        _ if (104..=LINK_TYPE_MAX).contains(&link_type) => (Kind::Other, 0, 0, 0),
        _ => return None,
    };
    let has_llc = matches!(
        kind,
        Kind::Wlan(_)
            | Kind::TokenRing
            | Kind::Fddi
            | Kind::Atm
            | Kind::SunAtm
            | Kind::FibreChannel
    );
    Some(Layout {
        kind,
        is_juniper: false,
        header: match kind {
            Kind::Ethernet => link_type - 12,
            _ => 0,
        },
        link_type,
        payload,
        // An LLC header and SNAP.
        network: if has_llc { 8 } else { 0 },
        network_no_snap,
    })
}
