//! The two versions of Linux cooked headers, which `any` offers. The port's packets have the
//! second.

use port::Vlan;

/// `DLT_LINUX_SLL`.
pub const DLT_V1: i32 = 113;
/// `DLT_LINUX_SLL2`.
pub const DLT_V2: i32 = 276;

/// Length of the second version's header.
const LEN_V2: usize = 20;
/// By how many bytes it is longer than the first version's.
pub const LONGER: u32 = 4;

/// Copies a packet with a header of the second version to `to`, with one of the first; one that is
/// too short becomes empty. A VLAN tag is put before the protocol.
pub fn to_v1(packet: &[u8], tag: Option<Vlan>, to: &mut Vec<u8>) {
    to.clear();
    let Some((header, payload)) = packet.split_first_chunk::<LEN_V2>() else {
        return;
    };
    let (protocol, hardware, address) = (&header[..2], &header[8..10], &header[12..20]);
    // Packet type and length of the address have one byte there, and two here.
    to.extend_from_slice(&[0, header[10]]);
    to.extend_from_slice(hardware);
    to.extend_from_slice(&[0, header[11]]);
    to.extend_from_slice(address);
    if let Some(tag) = tag {
        to.extend_from_slice(&tag.bytes());
    }
    to.extend_from_slice(protocol);
    to.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_header_becomes_a_first_one() {
        let packet = [
            8, 6, 0, 0, 0, 0, 0, 7, 3, 4, 1, 6, 11, 12, 13, 14, 15, 16, 0, 0, 0xaa, 0xbb,
        ];
        let mut to = vec![9];
        to_v1(&packet, None, &mut to);
        assert_eq!(
            to,
            [
                0, 1, 3, 4, 0, 6, 11, 12, 13, 14, 15, 16, 0, 0, 8, 6, 0xaa, 0xbb
            ]
        );
        assert_eq!(packet.len() - to.len(), LONGER as usize);
        let tag = Vlan {
            tpid: 0x8100,
            tci: 0x2005,
        };
        to_v1(&packet, Some(tag), &mut to);
        assert_eq!(to[12..], [0, 0, 0x81, 0, 0x20, 5, 8, 6, 0xaa, 0xbb]);
        to_v1(&packet[..19], None, &mut to);
        assert!(to.is_empty());
    }
}
