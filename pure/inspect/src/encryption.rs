//! Where a connection becomes encrypted, as far as single segments and datagrams show it: for
//! programs that keep a few bits for each connection instead of a decoder.
//!
//! What is split over two segments is not found: the connection then counts as not encrypted.

use crate::decode;

/// Type of the message after which a side of an SSH connection is encrypted (RFC 4253 §7.3).
const NEWKEYS: u8 = 21;

/// Whether a datagram begins with an Initial packet of a version of QUIC that can be decrypted
/// (RFC 9000 §17.2.2): each side of a connection begins with one.
pub fn begins_quic(datagram: &[u8]) -> bool {
    decode::quic_is_initial(datagram)
}

/// Whether a datagram begins with a short header of QUIC, which has the fixed bit (RFC 9000
/// §17.3.1). It is encrypted with keys that only the endpoints have. Where a connection clears the
/// bit (RFC 9287), only some of its datagrams are found.
pub fn is_quic_short(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first >> 6 == 1)
}

/// Whether a segment is the beginning of one side of an SSH connection, version 2 (RFC 4253 §4.2).
pub fn begins_ssh(payload: &[u8]) -> bool {
    payload.starts_with(b"SSH-2.0-") || payload.starts_with(b"SSH-1.99-")
}

/// Whether a segment of an SSH connection contains a `SSH_MSG_NEWKEYS`: a packet of one byte, which
/// is padded to a multiple of eight (RFC 4253 §6). The names and keys that are exchanged before
/// contain no such bytes, except by chance: once in about 2^43 positions.
pub fn has_ssh_newkeys(payload: &[u8]) -> bool {
    payload.windows(6).any(|bytes| {
        let &[0, 0, 0, len, padding, NEWKEYS] = bytes else {
            return false;
        };
        // Its own length, the padding (at least four bytes), the type.
        padding >= 4 && len.checked_sub(2) == Some(padding) && (u16::from(len) + 4) % 8 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newkeys_is_found_behind_other_packets() {
        // As OpenSSH sends it: 12 bytes, 10 of padding.
        let newkeys = [0, 0, 0, 12, 10, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(has_ssh_newkeys(&newkeys));
        let behind = [&[0, 0, 0, 44, 6, 31][..], &[7; 42], &newkeys].concat();
        assert!(has_ssh_newkeys(&behind));
        assert!(!has_ssh_newkeys(&newkeys[..5]) && !has_ssh_newkeys(&[]));
        for at in 0..6 {
            let mut other = newkeys;
            other[at] ^= 1;
            assert!(!has_ssh_newkeys(&other), "{at}");
        }
        // Other lengths with all their padding, and one that is no multiple of eight.
        assert!(has_ssh_newkeys(&[0, 0, 0, 20, 18, 21]));
        assert!(!has_ssh_newkeys(&[0, 0, 0, 21, 19, 21]));
        // A string of four bytes.
        assert!(!has_ssh_newkeys(&[0, 0, 0, 4, 2, 21]));
    }

    #[test]
    fn only_version_two_of_ssh_begins_encryption_by_newkeys() {
        assert!(begins_ssh(b"SSH-2.0-OpenSSH_9.2\r\n") && begins_ssh(b"SSH-1.99-x\r\n"));
        assert!(!begins_ssh(b"SSH-1.5-x\r\n") && !begins_ssh(b"SSH-2") && !begins_ssh(b""));
    }
}
