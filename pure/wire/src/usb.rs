//! Events of Linux' usbmon (LINKTYPE_USB_LINUX, and LINKTYPE_USB_LINUX_MMAPPED with 16 bytes more).
//!
//! ```text
//! id u64, event u8 ('S' submit, 'C' complete, 'E' error), transfer u8, endpoint u8, device u8,
//! bus u16, flags of setup and data u8 each, time i64 and i32, status i32, lengths u32 and u32,
//! setup 8 bytes
//! ```
//!
//! Numbers have the byte order of the capturing host, which is taken to be little-endian.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Bytes of the short header.
pub const HEADER_LEN: usize = 48;
/// Bytes of the long one.
pub const MMAPPED_LEN: usize = 64;

/// A usbmon event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usb<'a> {
    head: &'a [u8; HEADER_LEN],
}

impl<'a> Usb<'a> {
    /// Parses a header of this length.
    pub fn parse(bytes: &'a [u8], header_len: usize) -> Result<Self, Reason> {
        let head = bytes.get(..header_len).and_then(<[u8]>::first_chunk);
        Ok(Usb {
            head: head.ok_or(Reason::Truncated)?,
        })
    }

    /// Event: `S`, `C` or `E`.
    pub fn event(&self) -> u8 {
        self.head[8]
    }

    /// Transfer: 0 isochronous, 1 interrupt, 2 control, 3 bulk.
    pub fn transfer(&self) -> u8 {
        self.head[9]
    }

    /// Bus, device and endpoint.
    pub fn place(&self) -> (u16, u8, u8) {
        let head = self.head;
        let bus = u16::from_le_bytes([head[12], head[13]]);
        (bus, head[11], head[10] & 0x7f)
    }
}

impl fmt::Display for Usb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TRANSFERS: [&str; 4] = ["ISOCHRONOUS", "INTERRUPT", "CONTROL", "BULK"];
        const INTERRUPT: u8 = 1;
        let transfer = TRANSFERS.get(usize::from(self.transfer()));
        let event = match self.event() {
            b'S' => Some("SUBMIT"),
            b'C' => Some("COMPLETE"),
            b'E' => Some("ERROR"),
            _ => None,
        };
        write!(
            f,
            "USB {} {}",
            transfer.unwrap_or(&" ?"),
            event.unwrap_or("?")
        )?;
        if let (Some(_), Some(event)) = (transfer, event) {
            // tcpdump takes an interrupt for a transfer to the host.
            let is_to = (event == "SUBMIT") != (self.transfer() == INTERRUPT);
            f.write_str(if is_to { " to" } else { " from" })?;
        }
        let (bus, device, endpoint) = self.place();
        write!(f, " {bus}:{device}:{endpoint}")
    }
}

fn step<const LEN: usize>(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<LEN>()?;
    walk.advance(LEN)?;
    Ok(LayerKind::None)
}

/// A control transfer to device 5 on bus 1.
const fn sample<const N: usize>() -> [u8; N] {
    let mut sample = [0; N];
    (sample[0], sample[8], sample[9]) = (1, b'S', 2);
    (sample[10], sample[11], sample[12]) = (0x80, 5, 1);
    sample
}

pub(crate) const LINUX: Protocol = Protocol {
    name: "usb_linux_48_byte",
    spec: "LINKTYPE_USB_LINUX",
    links: &[LinkType::USB_LINUX],
    sample: &sample::<50>(),
    step: step::<HEADER_LEN>,
    show: |bytes, f| table::show(Usb::parse(bytes, HEADER_LEN), f),
    ..Protocol::BASE
};

pub(crate) const MMAPPED: Protocol = Protocol {
    name: "usb_linux_64_byte",
    spec: "LINKTYPE_USB_LINUX_MMAPPED",
    links: &[LinkType::USB_LINUX_MMAPPED],
    sample: &sample::<66>(),
    step: step::<MMAPPED_LEN>,
    show: |bytes, f| table::show(Usb::parse(bytes, MMAPPED_LEN), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn samples() {
        let view = Usb::parse(LINUX.sample, HEADER_LEN).unwrap();
        assert_eq!(format!("{view}"), "USB CONTROL SUBMIT to 1:5:0");
        assert_eq!(Usb::parse(LINUX.sample, 64), Err(Reason::Truncated));
    }
}
