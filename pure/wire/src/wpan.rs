//! IEEE 802.15.4 (LINKTYPE_IEEE802_15_4_WITHFCS, _NOFCS, and _TAP behind a header of its own).
//! Numbers are little-endian.
//!
//! ```text
//! frame control u16, sequence number u8, destination PAN u16 and address, source PAN u16 and
//! address, security header, information elements, payload, check sequence
//! multipurpose: frame control u8 or u16, sequence number u8, destination PAN and address, source
//! TAP: version u8 (0), reserved u8, length u16, fields
//! ```
//!
//! Whether a frame ends in its check sequence shows when the check sequence is right.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Maximum number of command bytes that are printed.
const COMMAND_MAX: usize = 127;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wpan<'a> {
    control: u16,
    /// The frame without its check sequence.
    bytes: &'a [u8],
}

/// The end of a frame in text: there is not enough of it, or it is not valid.
enum End {
    Cut,
    Invalid(&'static str),
    Failed,
}

impl From<fmt::Error> for End {
    fn from(_: fmt::Error) -> End {
        End::Failed
    }
}

type Printed<T = ()> = Result<T, End>;

/// Removes a check sequence of four or two bytes if it is right.
fn without_check(bytes: &[u8]) -> &[u8] {
    if let Some((frame, check)) = bytes.split_last_chunk::<4>() {
        if crc(frame, 0xedb8_8320) == u32::from_le_bytes(*check) {
            return frame;
        }
        if let Some((frame, check)) = bytes.split_last_chunk::<2>()
            && crc(frame, 0x8408) == u32::from(u16::from_le_bytes(*check))
        {
            return frame;
        }
    }
    bytes
}

/// A reflected CRC that starts with 0.
fn crc(bytes: &[u8], polynomial: u32) -> u32 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 != 0 { polynomial } else { 0 }
        })
    })
}

/// A cursor over the rest of a frame.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Printed<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(End::Cut)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Length of an address by its mode.
fn address_len(mode: u16) -> Option<usize> {
    match mode & 3 {
        0 => Some(0),
        2 => Some(2),
        3 => Some(8),
        _ => None,
    }
}

/// Prints an address: the most significant byte first.
fn show_address(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match *bytes {
        [] => f.write_str("none"),
        [low, high] => write!(f, "{:04x}", u16::from_le_bytes([low, high])),
        _ => {
            let mut colon = "";
            bytes.iter().rev().try_for_each(|byte| {
                write!(f, "{colon}{byte:02x}")?;
                colon = ":";
                Ok(())
            })
        }
    }
}

/// Prints the PAN, if the frame has it, and an address.
fn show_end(f: &mut fmt::Formatter<'_>, rest: &mut Rest<'_>, has_pan: bool, len: usize) -> Printed {
    match has_pan {
        true => {
            show_address(f, rest.take(2)?)?;
            f.write_str(":")?;
        }
        false => f.write_str("-:")?,
    }
    Ok(show_address(f, rest.take(len)?)?)
}

impl<'a> Wpan<'a> {
    /// Parses the frame control.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = *bytes.first_chunk::<2>().ok_or(Reason::Truncated)?;
        Ok(Wpan {
            control: u16::from_le_bytes(head),
            bytes: without_check(bytes),
        })
    }

    fn has(&self, bit: u8) -> bool {
        self.control >> bit & 1 != 0
    }

    /// Whether the frame has the PAN of the destination and that of the source.
    fn pans(&self, to: usize, from: usize) -> [bool; 2] {
        let is_compressed = self.has(6);
        let is_new = self.control >> 12 & 3 >= 2;
        match (is_new, is_compressed) {
            (true, true) if to == 0 && from == 0 => [true, false],
            (true, true) if to == 0 || from == 0 || (to == 8 && from == 8) => [false, false],
            (true, false) if to == 8 && from == 8 => [true, false],
            (_, true) => [to != 0, false],
            (_, false) => [to != 0, from != 0],
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> Printed {
        const TYPES: [&str; 8] = [
            "Beacon",
            "Data",
            "ACK",
            "Command",
            "Reserved",
            "Multipurpose",
            "Fragment",
            "Extended",
        ];
        let kind = usize::from(self.control & 7);
        write!(f, "IEEE 802.15.4 {} packet", TYPES[kind])?;
        let mut rest = Rest(self.bytes);
        match kind {
            0..=3 => self.show_standard(f, &mut rest, kind == 3),
            5 => self.show_multipurpose(f, &mut rest),
            _ => Ok(()),
        }
    }

    fn show_standard(
        &self,
        f: &mut fmt::Formatter<'_>,
        rest: &mut Rest<'_>,
        is_command: bool,
    ) -> Printed {
        write!(f, " v{} ", self.control >> 12 & 3)?;
        rest.take(if self.has(8) { 2 } else { 3 })?;
        let len = |mode| address_len(mode).ok_or(End::Invalid("address mode"));
        let (from, to) = (len(self.control >> 14)?, len(self.control >> 10)?);
        let [pan_to, pan_from] = self.pans(to, from);
        show_end(f, rest, pan_to, to)?;
        f.write_str(" < ")?;
        show_end(f, rest, pan_from, from)?;
        // Encrypted bytes and information elements are not printed.
        match is_command && !self.has(3) && !self.has(9) {
            true => show_command(f, rest),
            false => Ok(()),
        }
    }

    fn show_multipurpose(&self, f: &mut fmt::Formatter<'_>, rest: &mut Rest<'_>) -> Printed {
        let is_long = self.has(3);
        if is_long {
            write!(f, " v{}", self.control >> 12 & 3)?;
        }
        let (control_len, has_sequence) = if is_long {
            (2, !self.has(10))
        } else {
            (1, true)
        };
        rest.take(control_len + usize::from(has_sequence))?;
        let len = |mode| address_len(mode).ok_or(End::Invalid("address mode"));
        let (from, to) = (len(self.control >> 6)?, len(self.control >> 4)?);
        f.write_str(" ")?;
        show_end(f, rest, is_long && self.has(8), to)?;
        f.write_str(" <  ")?;
        show_end(f, rest, false, from)
    }
}

/// Commands by number; those without a name are reserved.
const COMMANDS: [&str; 0x25] = [
    "",
    "Association Request",
    "Association Response",
    "Disassociation Notification",
    "Data Request",
    "PAN ID Conflict Notification",
    "Orphan Notification",
    "Beacon Request",
    "Coordinator realignment",
    "GTS request",
    "TRLE Management Request",
    "TRLE Management Response",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "DSME Association Request",
    "DSME Association Response",
    "DSME GTS Request",
    "DSME GTS Response",
    "DSME GTS Notify",
    "DSME Information Request",
    "DSME Information Response",
    "DSME Beacon Allocation Notification",
    "DSME Beacon Collision Notification",
    "DSME Link Report",
    "",
    "",
    "",
    "RIT Data Request",
    "DBS Request",
    "DBS Response",
    "RIT Data Response",
    "Vendor Specific",
];

fn show_command(f: &mut fmt::Formatter<'_>, rest: &mut Rest<'_>) -> Printed {
    let id = rest.take(1)?[0];
    match COMMANDS.get(usize::from(id)) {
        Some(name) if !name.is_empty() => write!(f, " Command ID = {name} command")?,
        _ => write!(f, " Command ID = Reserved 0x{id:02x}")?,
    }
    match (id, rest.0) {
        (4..=7, _) | (_, []) => {}
        (1, &[capabilities]) => {
            f.write_str(" ")?;
            f.write_str(if capabilities & 2 != 0 {
                "FFD,"
            } else {
                "RFD,"
            })?;
            for (bit, name) in [
                (0x04, " AC powered,"),
                (0x08, " Receiver on when idle,"),
                (0x10, " Fast association,"),
                (0x40, " Security supported,"),
                (0x80, " Allocate address,"),
            ] {
                f.write_str(if capabilities & bit != 0 { name } else { "" })?;
            }
        }
        (2, &[low, high, status]) => {
            f.write_str(" Short address = ")?;
            show_address(f, &[low, high])?;
            match status {
                0 => f.write_str(", Association successful")?,
                1 => f.write_str(", PAN at capacity")?,
                2 => f.write_str(", PAN access denied")?,
                _ => write!(f, ", Status = 0x{status:02x}")?,
            }
        }
        (9, &[gts]) => {
            let way = if gts & 0x10 != 0 {
                "Receive"
            } else {
                "Transmit"
            };
            let what = if gts & 0x20 != 0 {
                "allocation"
            } else {
                "deallocations"
            };
            write!(f, " GTS Length = {}, {way}-only GTS, GTS {what}", gts & 15)?;
        }
        (1..=9, _) => {}
        (_, data) => {
            f.write_str(" Command Data =")?;
            let mut data = data.iter().take(COMMAND_MAX);
            data.try_for_each(|byte| write!(f, " {byte:02x}"))?;
        }
    }
    Ok(())
}

impl fmt::Display for Wpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.show(f) {
            Ok(()) => Ok(()),
            Err(End::Cut) => f.write_str(" [|802.15.4]"),
            Err(End::Invalid(what)) => write!(f, " [invalid {what}]"),
            Err(End::Failed) => Err(fmt::Error),
        }
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<2>()?;
    Ok(LayerKind::None)
}

/// Bytes of TAP's header before its fields.
const TAP_LEN: usize = 4;

fn step_tap(walk: &mut Walk<'_, '_>) -> Next {
    let &[version, _, low, high] = walk.peek::<TAP_LEN>()?;
    let len = usize::from(u16::from_le_bytes([low, high]));
    if version != 0 {
        return Err(Reason::BadVersion);
    }
    if len < TAP_LEN {
        return Err(Reason::BadHeaderLength);
    }
    walk.advance(len)?;
    Ok(LayerKind::Wpan)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "802.15.4",
    spec: "IEEE 802.15.4",
    links: &[LinkType::IEEE802_15_4, LinkType::IEEE802_15_4_NOFCS],
    sample: &[0x41, 0x88, 0x4e, 0x22, 0x18, 0, 0, 0xff, 0xff, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Wpan::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const TAP: Protocol = Protocol {
    name: "802.15.4_tap",
    spec: "LINKTYPE_IEEE802_15_4_TAP",
    links: &[LinkType::IEEE802_15_4_TAP],
    sample: &[0, 0, 6, 0, 1, 2, 0x02, 0x00, 0xa5, 1, 2],
    step: step_tap,
    show: |_, f| f.write_str("IEEE 802.15.4 TAP"),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    fn shown(bytes: &[u8]) -> std::string::String {
        format!("{}", Wpan::parse(bytes).unwrap())
    }

    #[test]
    fn frames_are_printed_up_to_their_addresses() {
        let text = "IEEE 802.15.4 Data packet v0 1822:0000 < -:ffff";
        assert_eq!(shown(PROTOCOL.sample), text);
        let text = "IEEE 802.15.4 ACK packet v0 -:none < -:none";
        assert_eq!(shown(&[2, 0, 5]), text);
        let text = "IEEE 802.15.4 Data packet v0 1822: [|802.15.4]";
        assert_eq!(shown(&PROTOCOL.sample[..6]), text);
        let text = "IEEE 802.15.4 Data packet v0  [invalid address mode]";
        assert_eq!(shown(&[1, 0x44, 0, 0, 0]), text);
    }

    /// The check value of this CRC (that of X.25 without its inversions), and a frame with it.
    #[test]
    fn a_right_check_sequence_is_removed() {
        assert_eq!(crc(b"123456789", 0x8408), 0x2189);
        let frame = [0x63, 0x88, 1, 0x22, 0x18, 0, 0, 0, 0, 1, 4];
        let check = crc(&frame, 0x8408) as u16;
        let whole = [&frame[..], &check.to_le_bytes()].concat();
        assert_eq!(without_check(&whole), frame);
        assert_eq!(without_check(&frame), frame);
        let text = "Command ID = Association Request command RFD, AC powered,";
        assert!(shown(&whole).ends_with(text), "{}", shown(&whole));
    }
}
