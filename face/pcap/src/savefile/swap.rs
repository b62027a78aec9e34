//! Byte order of headers inside packets.
//!
//! Some link types have a header that the capturing kernel wrote in its own byte order. In a file
//! from a machine of the other order these fields are swapped as they are read, so that filters and
//! programs see those of this machine. Layouts: `linux/usb/mon` (usbmon.txt), `linux/can.h`, and
//! the LINKTYPE_ pages of tcpdump.org for PFLOG and NFLOG.

use super::Header;

/// `DLT_` numbers.
const LINUX_SLL: i32 = 113;
const PFLOG: i32 = 117;
const USB_LINUX: i32 = 189;
const USB_LINUX_MMAPPED: i32 = 220;
const NFLOG: i32 = 239;
const LINUX_SLL2: i32 = 276;

/// Protocols of a cooked header that stand for CAN and CAN FD frames.
const CAN: [u16; 2] = [0x000c, 0x000d];

/// Headers of usbmon: the older one, and the one for a mapped ring.
const USB_LEN: usize = 48;
const USB_MMAPPED_LEN: usize = 64;
/// Values of its fields.
const ISOCHRONOUS: u8 = 0;
const COMPLETION: u8 = b'C';
/// Length of an isochronous descriptor.
const USB_DESCRIPTOR_LEN: usize = 16;

/// Swaps the fields of a packet's header, as far as they were captured.
pub fn swap(dlt: i32, packet: &mut [u8]) {
    match dlt {
        USB_LINUX => usb(packet, USB_LEN),
        USB_LINUX_MMAPPED => usb(packet, USB_MMAPPED_LEN),
        NFLOG => nflog(packet),
        PFLOG => pflog(packet),
        LINUX_SLL => cooked(packet, 14, 16),
        LINUX_SLL2 => cooked(packet, 0, 20),
        _ => {}
    }
}

/// Corrects the length on the wire of isochronous USB transfers: some kernels state the length of
/// the buffer, of which the device filled the parts that the descriptors name.
pub fn correct(dlt: i32, header: &mut Header, packet: &[u8]) {
    if dlt != USB_LINUX_MMAPPED || packet.len() < USB_MMAPPED_LEN {
        return;
    }
    let number = |at: usize| {
        let bytes = packet.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    // Incoming, completed, with data, and with as much on the wire as the buffer is long.
    let (kind, transfer, endpoint, has_no_data) = (packet[8], packet[9], packet[10], packet[15]);
    let (urb_len, descriptor_count) = (number(32), number(60));
    let head_len = USB_MMAPPED_LEN as u64 + u64::from(descriptor_count) * USB_DESCRIPTOR_LEN as u64;
    let is_affected = kind == COMPLETION
        && transfer == ISOCHRONOUS
        && endpoint & 0x80 != 0
        && has_no_data == 0
        && head_len + u64::from(urb_len) == u64::from(header.wire_len);
    if !is_affected {
        return;
    }
    let (mut at, mut data_len) = (USB_MMAPPED_LEN, 0u32);
    for _ in 0..descriptor_count {
        if at + USB_DESCRIPTOR_LEN > packet.len() {
            break;
        }
        let (offset, len) = (number(at + 4), number(at + 8));
        if len != 0 {
            data_len = data_len.max(offset.wrapping_add(len));
        }
        at += USB_DESCRIPTOR_LEN;
    }
    let len = head_len + u64::from(data_len);
    // Descriptors that say less than was captured are wrong.
    if len >= u64::from(header.cap_len) {
        header.wire_len = len as u32;
    }
    header.wire_len = header.wire_len.max(header.cap_len);
}

/// Reverses the bytes of a field; false if it was not captured.
fn field(packet: &mut [u8], at: usize, len: usize) -> bool {
    let field = packet.get_mut(at..).and_then(|rest| rest.get_mut(..len));
    field.map(<[u8]>::reverse).is_some()
}

/// Reverses fields, given by offset and length, up to the first that was not captured.
fn fields(packet: &mut [u8], fields: &[(usize, usize)]) -> bool {
    fields.iter().all(|&(at, len)| field(packet, at, len))
}

fn usb(packet: &mut [u8], head_len: usize) {
    // URB, bus, seconds, microseconds, status, lengths.
    let first = [(0, 8), (12, 2), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4)];
    if !fields(packet, &first) {
        return;
    }
    let transfer = packet[9];
    if transfer == ISOCHRONOUS && !fields(packet, &[(40, 4), (44, 4)]) {
        // Error count, number of descriptors.
        return;
    }
    if head_len == USB_LEN {
        return;
    }
    // Interval, start frame, flags, number of descriptors.
    if !fields(packet, &[(48, 4), (52, 4), (56, 4), (60, 4)]) || transfer != ISOCHRONOUS {
        return;
    }
    let count = packet.get(60..64).and_then(|bytes| bytes.first_chunk());
    let count = count.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    for at in (USB_MMAPPED_LEN..)
        .step_by(USB_DESCRIPTOR_LEN)
        .take(count as usize)
    {
        // Status, offset, length.
        if !fields(packet, &[(at, 4), (at + 4, 4), (at + 8, 4)]) {
            return;
        }
    }
}

/// Type and length of each element are in the kernel's order; the rest is in network order.
fn nflog(packet: &mut [u8]) {
    // Family, version, resource; version 0 has elements.
    if packet.len() < 4 || packet[1] != 0 {
        return;
    }
    let mut at = 4;
    while at + 4 <= packet.len() && fields(packet, &[(at, 2), (at + 2, 2)]) {
        let len = u16::from_ne_bytes([packet[at], packet[at + 1]]);
        // Elements are aligned to four bytes.
        let len = usize::from(len).next_multiple_of(4);
        if len < 4 {
            return;
        }
        at += len;
    }
}

/// Identities of processes and users are in the kernel's order.
fn pflog(packet: &mut [u8]) {
    // The header's own length comes first.
    let head_len = packet.first().map_or(0, |&len| usize::from(len));
    for at in [44, 48, 52, 56] {
        if at + 4 <= head_len {
            field(packet, at, 4);
        }
    }
}

/// The identifier of a CAN frame behind a cooked header is in network order already in files; what
/// older kernels wrote is swapped.
fn cooked(packet: &mut [u8], protocol_at: usize, head_len: usize) {
    let Some(protocol) = packet.get(protocol_at..protocol_at + 2) else {
        return;
    };
    if CAN.contains(&u16::from_be_bytes([protocol[0], protocol[1]])) {
        field(packet, head_len, 4);
    }
}
