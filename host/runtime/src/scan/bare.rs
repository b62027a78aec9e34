//! Packets on devices without Ethernet headers: the scan writes and reads them with one.

/// Length of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Maximum length of a packet of a scan.
const PACKET_MAX: usize = 2048;

/// A packet on a device without Ethernet headers: it is written with one, which is not sent.
pub struct Bare([u8; PACKET_MAX]);

impl Bare {
    pub const NEW: Self = Self([0; PACKET_MAX]);

    /// Writes a packet to a buffer, without its Ethernet header if there is a `bare`; returns the
    /// length of what is sent.
    #[inline]
    pub fn put(
        bare: Option<&mut Self>,
        out: &mut [u8],
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let Some(Self(room)) = bare else {
            return write(out);
        };
        let len = write(room)?;
        let packet = room.get(ETHERNET_LEN..len)?;
        out.get_mut(..packet.len())?.copy_from_slice(packet);
        Some(packet.len())
    }
}

/// Puts an Ethernet header before an IP packet: without addresses, and with the type of its
/// version.
pub fn with_header<'a>(packet: &[u8], room: &'a mut Vec<u8>) -> &'a [u8] {
    let ethertype: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    };
    room.clear();
    room.extend([0; 12]);
    room.extend(ethertype);
    room.extend(packet);
    room
}

/// Length of a packet as it is sent.
pub fn sent_len(len: usize, is_bare: bool) -> usize {
    match is_bare {
        true => len.saturating_sub(ETHERNET_LEN),
        false => len,
    }
}
