//! Headers of other LANs: FDDI (LINKTYPE_FDDI), Token Ring (LINKTYPE_IEEE802_5), IP over Fibre
//! Channel (RFC 4338, LINKTYPE_IP_OVER_FC), Sun's ATM cards (LINKTYPE_SUNATM), IP over IEEE 1394 as
//! Apple captures it (LINKTYPE_APPLE_IP_OVER_IEEE1394), Symantec's firewall
//! (LINKTYPE_SYMANTEC_FIREWALL), and Ethernet behind the header of Hilscher's netANALYZER
//! (LINKTYPE_NETANALYZER, and _TRANSPARENT with the preamble).
//!
//! ```text
//! FDDI:            frame control u8, destination 6 bytes, source 6 bytes, LLC
//! Token Ring:      access control u8, frame control u8, destination 6 bytes, source 6 bytes,
//!                  route if the first bit of the source is set, LLC
//! Fibre Channel:   destination 8 bytes, source 8 bytes, LLC
//! SunATM:          direction and type u8, path u8, channel u16; LLC, or LANE id u16 and Ethernet
//! IEEE 1394:       destination 8 bytes, source 8 bytes, EtherType u16
//! Symantec:        6 bytes, EtherType u16, 36 bytes
//! netANALYZER:     4 bytes, preamble 8 bytes if transparent, Ethernet
//! ```

use crate::table::Protocol;
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};

/// Class bits of FDDI's frame control, but the one of synchronous frames.
const FDDI_CLASS: u8 = 0x70;
/// Frames with LLC.
const FDDI_LLC: u8 = 0x50;

fn step_fddi(walk: &mut Walk<'_, '_>) -> Next {
    let control = walk.peek::<13>()?[0];
    walk.advance(13)?;
    match control & FDDI_CLASS {
        FDDI_LLC => Ok(LayerKind::Llc),
        _ => Err(Reason::UnsupportedType),
    }
}

fn step_token_ring(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<14>()?;
    let (is_llc, has_route) = (head[1] >> 6 == 1, head[8] & 0x80 != 0);
    walk.advance(14)?;
    if has_route {
        // The lower five bits are the length of the route, with this field.
        let len = usize::from(walk.peek::<2>()?[0] & 0x1f);
        if len < 2 {
            return Err(Reason::BadHeaderLength);
        }
        walk.advance(len)?;
    }
    match is_llc {
        true => Ok(LayerKind::Llc),
        false => Err(Reason::UnsupportedType),
    }
}

fn step_fibre_channel(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<16>()?;
    walk.advance(16)?;
    Ok(LayerKind::Llc)
}

fn step_sunatm(walk: &mut Walk<'_, '_>) -> Next {
    let kind = walk.peek::<4>()?[0] & 0x0f;
    walk.advance(4)?;
    match kind {
        1 => {
            walk.peek::<2>()?;
            walk.advance(2)?;
            Ok(LayerKind::Ethernet)
        }
        2 => Ok(LayerKind::Llc),
        _ => Err(Reason::UnsupportedType),
    }
}

fn step_ieee1394(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<18>()?;
    walk.advance(18)?;
    ethernet::next_of_ether_type(be16(head[16], head[17]))
}

fn step_symantec(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<44>()?;
    walk.advance(44)?;
    ethernet::next_of_ether_type(be16(head[6], head[7]))
}

fn step_netanalyzer(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<4>()?;
    walk.advance(4)?;
    Ok(LayerKind::Ethernet)
}

fn step_netanalyzer_transparent(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<12>()?;
    walk.advance(12)?;
    Ok(LayerKind::Ethernet)
}

/// An LLC header of no protocol that is dissected.
const LLC: [u8; 8] = [0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xb5];

/// A sample: this many zero bytes, and the given ones at an offset.
const fn sample<const N: usize, const M: usize>(at: usize, bytes: [u8; M]) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < M {
        out[at + i] = bytes[i];
        i += 1;
    }
    out
}

pub(crate) const FDDI: Protocol = Protocol {
    name: "fddi",
    spec: "LINKTYPE_FDDI",
    links: &[LinkType::FDDI],
    sample: &{
        let mut sample: [u8; 23] = sample(13, LLC);
        sample[0] = FDDI_LLC;
        sample
    },
    step: step_fddi,
    show: |_, f| f.write_str("FDDI"),
    ..Protocol::BASE
};

pub(crate) const TOKEN_RING: Protocol = Protocol {
    name: "token-ring",
    spec: "IEEE 802.5",
    links: &[LinkType::IEEE802],
    sample: &{
        let mut sample: [u8; 28] = sample(18, LLC);
        (sample[0], sample[1]) = (0x10, 0x40);
        // A route of four bytes.
        (sample[8], sample[14], sample[16]) = (0x82, 4, 1);
        sample
    },
    step: step_token_ring,
    show: |_, f| f.write_str("Token Ring"),
    ..Protocol::BASE
};

pub(crate) const FIBRE_CHANNEL: Protocol = Protocol {
    name: "ipfc",
    spec: "RFC 4338",
    links: &[LinkType::IP_OVER_FC],
    sample: &sample::<26, 8>(16, LLC),
    step: step_fibre_channel,
    show: |_, f| f.write_str("IP over Fibre Channel"),
    ..Protocol::BASE
};

pub(crate) const SUNATM: Protocol = Protocol {
    name: "sunatm",
    spec: "LINKTYPE_SUNATM",
    links: &[LinkType::SUNATM],
    sample: &{
        let mut sample: [u8; 14] = sample(4, LLC);
        (sample[0], sample[3]) = (0x82, 32);
        sample
    },
    step: step_sunatm,
    show: |_, f| f.write_str("ATM"),
    ..Protocol::BASE
};

pub(crate) const IEEE1394: Protocol = Protocol {
    name: "ap1394",
    spec: "LINKTYPE_APPLE_IP_OVER_IEEE1394",
    links: &[LinkType::APPLE_IP_OVER_IEEE1394],
    sample: &sample::<20, 2>(16, [0x88, 0xb5]),
    step: step_ieee1394,
    show: |_, f| f.write_str("IP over IEEE 1394"),
    ..Protocol::BASE
};

pub(crate) const SYMANTEC: Protocol = Protocol {
    name: "symantec",
    spec: "LINKTYPE_SYMANTEC_FIREWALL",
    links: &[LinkType::SYMANTEC_FIREWALL],
    sample: &sample::<46, 2>(6, [0x88, 0xb5]),
    step: step_symantec,
    show: |_, f| f.write_str("Symantec firewall"),
    ..Protocol::BASE
};

pub(crate) const NETANALYZER: Protocol = Protocol {
    name: "netanalyzer",
    spec: "LINKTYPE_NETANALYZER",
    links: &[LinkType::NETANALYZER],
    sample: &sample::<20, 2>(16, [0x88, 0xb5]),
    step: step_netanalyzer,
    show: |_, f| f.write_str("netANALYZER"),
    ..Protocol::BASE
};

pub(crate) const NETANALYZER_TRANSPARENT: Protocol = Protocol {
    name: "netanalyzer-transparent",
    spec: "LINKTYPE_NETANALYZER_TRANSPARENT",
    links: &[LinkType::NETANALYZER_TRANSPARENT],
    sample: &sample::<28, 2>(24, [0x88, 0xb5]),
    step: step_netanalyzer_transparent,
    show: |_, f| f.write_str("netANALYZER with preamble"),
    ..Protocol::BASE
};
