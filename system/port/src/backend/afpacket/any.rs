//! `any`: the packets of all interfaces, including those created later. Link headers differ, so
//! each packet has a Linux cooked header instead (LINKTYPE_LINUX_SLL2 on tcpdump.org), built from
//! the address that the kernel writes before the packet; on request also on one interface.

use std::ptr::NonNull;

use ring::slot::Slot;
use sys::Result;
use sys::link::Link;

use super::tap::PACKET_ADDRESS_LEN;

/// Name of the port.
const NAME: &str = "any";
/// LINKTYPE_LINUX_SLL2.
pub(super) const LINK_TYPE: u16 = 276;
/// The cooked header is as long as the address, with its fields at the same offsets.
const COOKED_LEN: usize = PACKET_ADDRESS_LEN;

/// Finds an interface by name; interface number 0 stands for all of them.
///
/// # Errors
/// As [`Link::by_name`].
pub(super) fn find(name: &str) -> Result<Link> {
    match Link::by_name(name) {
        Err(_) if name == NAME => Ok(Link {
            name: NAME.to_owned(),
            ..Link::default()
        }),
        found => found,
    }
}

/// What the kernel wrote before a packet.
#[derive(Clone, Copy)]
pub(super) struct Headers {
    /// Length of the packet's header; the address follows.
    pub(super) header_len: usize,
    /// Offset of the link header from the packet's header.
    pub(super) mac_offset: u16,
    /// Offset of the network header.
    pub(super) net_offset: u16,
    pub(super) cap_len: u32,
    pub(super) wire_len: u32,
}

/// Result of building a cooked packet.
pub(super) enum Cooked {
    Packet(Slot),
    /// Sent on the loopback interface, where it is received as well.
    Twice,
    /// Its offsets are invalid.
    Invalid,
}

/// Builds cooked packets.
pub(super) struct Cook {
    /// Index of the loopback interface; 0 if there is none.
    loopback: u32,
    /// Maximum length of a cooked packet.
    snaplen: u32,
    /// The interface; 0 for all.
    interface: u32,
}

impl Cook {
    pub(super) fn new(snaplen: u32, interface: u32) -> Self {
        Self {
            interface,
            loopback: Link::by_name("lo").map_or(0, |link| link.index),
            snaplen: match snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
        }
    }

    /// Whether the packets are those of all interfaces.
    pub(super) fn is_any(&self) -> bool {
        self.interface == 0
    }

    /// Writes the cooked header before a packet's network header; the packet begins there.
    ///
    /// # Safety
    /// `place` is the packet's header in a block or frame owned by this process, which extends at
    /// least to the end of the packet of `slot`, which begins at the header's `mac_offset`, and to
    /// the end of the address.
    pub(super) unsafe fn cook(&self, place: NonNull<u8>, header: Headers, slot: &Slot) -> Cooked {
        let (mac, network) = (header.mac_offset, header.net_offset);
        let Some(link_len) = network.checked_sub(mac).map(u32::from) else {
            return Cooked::Invalid;
        };
        let start = usize::from(network).checked_sub(COOKED_LEN);
        // The kernel leaves 16 bytes or more between the address and the network header.
        let Some(start) = start.filter(|start| *start >= header.header_len) else {
            return Cooked::Invalid;
        };
        if link_len > header.cap_len || link_len > header.wire_len {
            return Cooked::Invalid;
        }
        // SAFETY: the address lies behind the header, within the block.
        let mut address: [u8; PACKET_ADDRESS_LEN] =
            unsafe { place.add(header.header_len).cast().read_unaligned() };
        let interface = u32::from_ne_bytes([address[4], address[5], address[6], address[7]]);
        if interface == self.loopback && slot.has(Slot::OUTGOING) {
            return Cooked::Twice;
        }
        // Protocol (big-endian already) and two reserved bytes replace family and protocol.
        (address[0], address[1]) = (address[2], address[3]);
        (address[2], address[3]) = (0, 0);
        address[4..8].copy_from_slice(&interface.to_be_bytes());
        let hardware = u16::from_ne_bytes([address[8], address[9]]);
        address[8..10].copy_from_slice(&hardware.to_be_bytes());
        // SAFETY: from `start`, which lies behind the packet's header, to the network header is all
        // within the block; the address was read, and the link header is not needed any more.
        let data = unsafe {
            let data = place.add(start);
            data.cast::<[u8; COOKED_LEN]>().write_unaligned(address);
            data
        };
        let len = |of: u32| of - link_len + COOKED_LEN as u32;
        let cap_len = len(header.cap_len).min(self.snaplen);
        // SAFETY: the packet ends where it did, or before.
        let mut cooked = unsafe { Slot::over(data, cap_len, len(header.wire_len), 0) };
        cooked.time_ns = slot.time_ns;
        // The cooked header has no field for a VLAN tag: it is no part of the packet, and stays
        // without its flag ([`Packet::tag_beside`](crate::Packet::tag_beside)).
        cooked.flags = slot.flags & !Slot::VLAN;
        cooked.vlan = slot.vlan;
        Cooked::Packet(cooked)
    }
}
