//! IEEE 802.11 (IEEE 802.11-2020 clause 9.2).
//!
//! ```text
//!  0       2       4           10          16          22      24
//! +-------+-------+-----------+-----------+-----------+-------+- - - - - -+- - -+- - -+------
//! | frame | dura- | address 1 | address 2 | address 3 | se-   : address 4 : QoS : HT  | body
//! | contr.| tion  |           |           |           | quence:           :     : cont|
//! +-------+-------+-----------+-----------+-----------+-------+- - - - - -+- - -+- - -+------
//! ```
//!
//! Data frames have 24 bytes, a fourth address between access points, two bytes of QoS control in
//! subtypes from 8 on, and four bytes of HT control if the order bit is set. LLC follows, or a
//! sequence of aggregated MSDUs, each with an Ethernet header, of which the first is read.
//! Management and control frames are named, but not dissected; nor are protected frames, whose body
//! is encrypted, and later fragments, which have no LLC header.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Mac, Reason};
use core::fmt;

/// Minimum header length: frame control, duration and the receiver's address.
pub const MIN_HEADER_LEN: usize = 10;

/// Bytes of a data or management header without optional fields.
pub const HEADER_LEN: usize = 24;

/// Values of the type field.
pub mod frame_type {
    /// Beacons, probes, association, authentication, actions.
    pub const MANAGEMENT: u8 = 0;
    /// RTS, CTS, acknowledgments, polls.
    pub const CONTROL: u8 = 1;
    /// Data, and frames without data that signal power saving states.
    pub const DATA: u8 = 2;
}

/// Bits of the second byte of frame control.
pub mod flag {
    /// To the distribution system.
    pub const TO_DS: u8 = 0x01;
    /// From the distribution system.
    pub const FROM_DS: u8 = 0x02;
    /// More fragments of this MSDU follow.
    pub const MORE_FRAGMENTS: u8 = 0x04;
    /// The body is encrypted.
    pub const PROTECTED: u8 = 0x40;
    /// An HT control field is present, in QoS data and management frames.
    pub const ORDER: u8 = 0x80;
}

/// An 802.11 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieee80211<'a> {
    head: &'a [u8; MIN_HEADER_LEN],
    /// The whole header.
    header: &'a [u8],
    /// The data after the header: payload, or fields and elements of a management frame.
    pub payload: &'a [u8],
}

/// Length of a header with this frame control field.
const fn header_len(control: [u8; 2]) -> usize {
    let (kind, subtype, flags) = (control[0] >> 2 & 3, control[0] >> 4, control[1]);
    let has_ht_control = flags & flag::ORDER != 0;
    match kind {
        frame_type::MANAGEMENT => HEADER_LEN + if has_ht_control { 4 } else { 0 },
        frame_type::DATA => {
            let between = flags & 3 == flag::TO_DS | flag::FROM_DS;
            let is_qos = subtype & 8 != 0;
            let qos = match (is_qos, has_ht_control) {
                (false, _) => 0,
                (true, false) => 2,
                (true, true) => 6,
            };
            HEADER_LEN + if between { 6 } else { 0 } + qos
        }
        frame_type::CONTROL => match subtype {
            // Trigger, beamforming and NDP announcements, block acknowledgments, PS-Poll, RTS,
            // CF-End: the transmitter's address as well.
            2 | 4 | 5 | 8 | 9 | 10 | 11 | 14 | 15 => MIN_HEADER_LEN + 6,
            _ => MIN_HEADER_LEN,
        },
        _ => MIN_HEADER_LEN,
    }
}

impl<'a> Ieee80211<'a> {
    /// Splits a frame after its header. Padding inserted by some cards is not handled here.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes
            .first_chunk::<MIN_HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] & 3 != 0 {
            return Err(Reason::BadVersion);
        }
        let (header, payload) = bytes
            .split_at_checked(header_len([head[0], head[1]]))
            .ok_or(Reason::Truncated)?;
        Ok(Ieee80211 {
            head,
            header,
            payload,
        })
    }

    /// [`frame_type`]: management, control, data, or 3 for extensions.
    #[inline]
    pub fn frame_type(&self) -> u8 {
        self.head[0] >> 2 & 3
    }

    /// Subtype, by type.
    #[inline]
    pub fn subtype(&self) -> u8 {
        self.head[0] >> 4
    }

    /// [`flag`]s of frame control.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.head[1]
    }

    /// Whether the body is encrypted.
    #[inline]
    pub fn is_protected(&self) -> bool {
        self.flags() & flag::PROTECTED != 0
    }

    /// Address `index`, from 0 to 3, if the frame has it.
    fn address(&self, index: usize) -> Option<Mac> {
        // The fourth is after the sequence control.
        let at = [4, 10, 16, 24].get(index)?;
        if index == 3 && (self.frame_type() != frame_type::DATA || self.flags() & 3 != 3) {
            return None;
        }
        let bytes = self.header.get(*at..)?.first_chunk::<6>()?;
        Some(Mac(*bytes))
    }

    /// The receiver address.
    pub fn receiver(&self) -> Mac {
        let [_, _, _, _, a, b, c, d, e, f] = *self.head;
        Mac([a, b, c, d, e, f])
    }

    /// The transmitter address; acknowledgments have none.
    pub fn transmitter(&self) -> Option<Mac> {
        self.address(1)
    }

    /// Final destination of a data or management frame.
    pub fn dst(&self) -> Option<Mac> {
        match (self.frame_type(), self.flags() & flag::TO_DS != 0) {
            (frame_type::DATA, true) => self.address(2),
            (frame_type::DATA | frame_type::MANAGEMENT, _) => self.address(0),
            _ => None,
        }
    }

    /// Original source of a data or management frame.
    pub fn src(&self) -> Option<Mac> {
        match (self.frame_type(), self.flags() & 3) {
            (frame_type::DATA, flag::FROM_DS) => self.address(2),
            (frame_type::DATA, 3) => self.address(3),
            (frame_type::DATA | frame_type::MANAGEMENT, _) => self.address(1),
            _ => None,
        }
    }

    /// Fragment number and sequence number; control frames have none.
    pub fn sequence(&self) -> Option<(u8, u16)> {
        if self.frame_type() & 1 != 0 {
            return None;
        }
        let field = u16::from_le_bytes(*self.header.get(22..)?.first_chunk()?);
        Some((field as u8 & 15, field >> 4))
    }

    /// Quality of service control.
    pub fn qos(&self) -> Option<u16> {
        if self.frame_type() != frame_type::DATA || self.subtype() & 8 == 0 {
            return None;
        }
        let at = if self.flags() & 3 == 3 { 30 } else { 24 };
        self.header
            .get(at..)?
            .first_chunk()
            .map(|field| u16::from_le_bytes(*field))
    }

    /// Network name in a beacon, a probe or an association request.
    pub fn ssid(&self) -> Option<&'a [u8]> {
        // Fixed fields precede the elements, the first of which is the name.
        let fixed = match (self.frame_type(), self.subtype()) {
            (frame_type::MANAGEMENT, 0) => 4,
            (frame_type::MANAGEMENT, 2) => 10,
            (frame_type::MANAGEMENT, 4) => 0,
            (frame_type::MANAGEMENT, 5 | 8) => 12,
            _ => return None,
        };
        match self.payload.get(fixed..)? {
            [0, len @ ..=32, rest @ ..] => rest.get(..usize::from(*len)),
            _ => None,
        }
    }
}

/// The name of a management frame, as in tcpdump.
const fn management_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "Assoc Request",
        1 => "Assoc Response",
        2 => "ReAssoc Request",
        3 => "ReAssoc Response",
        4 => "Probe Request",
        5 => "Probe Response",
        8 => "Beacon",
        9 => "ATIM",
        10 => "Disassociation",
        11 => "Authentication",
        12 => "DeAuthentication",
        13 => "Action",
        14 => "NoAck",
        _ => "Unhandled Management",
    }
}

impl fmt::Display for Ieee80211<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame_type() {
            frame_type::MANAGEMENT => self.show_management(f),
            frame_type::CONTROL => self.show_control(f),
            frame_type::DATA if self.is_protected() => match self.payload {
                // WEP, TKIP and CCMP have the initialization vector at the same offset.
                [a, b, c, key, ..] => {
                    let iv = u32::from_le_bytes([*a, *b, *c, 0]);
                    write!(
                        f,
                        "Data IV:{iv:3x} Pad {:x} KeyID {:x}",
                        key & 0x3f,
                        key >> 6
                    )
                }
                _ => f.write_str("Data"),
            },
            frame_type::DATA if self.subtype() & 4 != 0 => f.write_str("Data without a body"),
            frame_type::DATA => f.write_str("Data"),
            _ => write!(f, "802.11 extension, subtype {}", self.subtype()),
        }
    }
}

impl Ieee80211<'_> {
    fn show_management(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(management_name(self.subtype()))?;
        // The elements of a protected frame are encrypted.
        match self.ssid() {
            Some(name) if !self.is_protected() => show_ssid(name, f),
            _ => Ok(()),
        }
    }

    fn show_control(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, from) = (self.receiver(), self.transmitter());
        let named = |f: &mut fmt::Formatter<'_>, name: &str| match from {
            Some(from) => write!(f, "{name} RA:{to} TA:{from}"),
            None => write!(f, "{name} RA:{to}"),
        };
        match (self.subtype(), from) {
            (7, _) => f.write_str("Control Wrapper"),
            (8, _) => named(f, "BAR"),
            (9, _) => write!(f, "BA RA:{to}"),
            (10, _) => f.write_str("Power Save-Poll"),
            (11, Some(from)) => write!(f, "Request-To-Send TA:{from}"),
            (12, _) => write!(f, "Clear-To-Send RA:{to}"),
            (13, _) => write!(f, "Acknowledgment RA:{to}"),
            (14, _) => write!(f, "CF-End RA:{to}"),
            (15, _) => write!(f, "CF-End+CF-Ack RA:{to}"),
            (subtype, _) => write!(f, "802.11 control, subtype {subtype}"),
        }
    }
}

/// Prints a network name in parentheses; nonprintable characters as in tcpdump, with a caret or
/// `M-`.
fn show_ssid(name: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use core::fmt::Write as _;
    f.write_str(" (")?;
    for &byte in name {
        if byte & 0x80 != 0 {
            f.write_str("M-")?;
        }
        match byte & 0x7f {
            low @ (0..0x20 | 0x7f) => {
                f.write_char('^')?;
                f.write_char(char::from(low ^ 0x40))?;
            }
            low => f.write_char(char::from(low))?,
        }
    }
    f.write_str(")")
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<MIN_HEADER_LEN>()?;
    if head[0] & 3 != 0 {
        return Err(Reason::BadVersion);
    }
    let (control, rest) = ([head[0], head[1]], walk.rest);
    let len = header_len(control);
    let (kind, subtype, flags) = (control[0] >> 2 & 3, control[0] >> 4, control[1]);
    let has_body = kind == frame_type::DATA && subtype & 4 == 0;
    let padding = match walk.is_padded && has_body {
        true => len.next_multiple_of(4) - len,
        false => 0,
    };
    walk.advance(len)?;
    if !has_body {
        return Ok(LayerKind::None);
    }
    if flags & flag::PROTECTED != 0 {
        return Err(Reason::Encrypted);
    }
    walk.advance(padding)?;
    let frame = Ieee80211::parse(rest)?;
    if walk.wire_rest == 0 || frame.sequence().is_some_and(|(fragment, _)| fragment != 0) {
        return Ok(LayerKind::None);
    }
    if frame.qos().is_some_and(|qos| qos & 0x80 != 0) {
        return Ok(LayerKind::Ethernet);
    }
    Ok(LayerKind::Llc)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "wlan",
    spec: "IEEE 802.11",
    links: &[LinkType::IEEE802_11],
    // QoS data from an access point, followed by LLC with SNAP.
    sample: &[
        0x88, 0x02, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x10, 0, 5, 0,
        0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xb5, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Ieee80211::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests;
