//! What the card computes from a packet: the hash that distributes packets to queues (§7.1.2.10),
//! and the checksum results.

use crate::igb::registers as reg;

/// The hash input of a packet and the number of its type (§7.1.2.10.1, §7.1.5.2); an 802.1Q tag is
/// skipped.
pub(super) fn hash_input(packet: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut at = 12;
    if packet.get(at..at + 2)? == [0x81, 0] {
        at += 4;
    }
    let kind = packet.get(at..at + 2)?;
    let ip = packet.get(at + 2..)?;
    let (mut input, protocol, ports, [tcp, udp, plain]) = match *kind {
        [0x08, 0x00] => {
            let is_fragment = ip.get(6)? & 0x3f != 0 || *ip.get(7)? != 0;
            let ports = match is_fragment {
                true => None,
                false => Some(usize::from(ip[0] & 0xf) * 4),
            };
            (ip.get(12..20)?.to_vec(), *ip.get(9)?, ports, [1, 7, 2])
        }
        [0x86, 0xdd] => (ip.get(8..40)?.to_vec(), *ip.get(6)?, Some(40), [3, 8, 5]),
        _ => return None,
    };
    let transport = match (protocol, ports) {
        (6, Some(at)) => Some((at, tcp)),
        (17, Some(at)) => Some((at, udp)),
        _ => None,
    };
    let Some((at, kind)) = transport else {
        return Some((input, plain));
    };
    input.extend(ip.get(at..at + 4)?);
    Some((input, kind))
}

/// The hash of §7.1.2.10.2: for each set input bit, the 32 key bits from there on.
pub(super) fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 != 0;
    let mut hash = 0;
    for at in (0..input.len() * 8).filter(|&at| bit(input, at)) {
        let window = (0..32).fold(0, |word, n| word << 1 | u32::from(bit(key, at + n)));
        hash ^= window;
    }
    hash
}

/// The flags of §7.1.5.2 for untagged UDP over IPv4, which is what the tests use.
pub(super) fn checksums(packet: &[u8]) -> u64 {
    let is_udp = packet.get(12..14) == Some(&[0x08, 0x00])
        && packet.get(14) == Some(&0x45)
        && packet.get(23) == Some(&17);
    let Some(ip) = packet.get(14..34).filter(|_| is_udp) else {
        return 0;
    };
    let mut flags = reg::RX_IP_CHECKED;
    if wire::checksum::checksum(ip) != 0 {
        flags |= reg::RX_IP_ERROR;
    }
    let len = usize::from(u16::from_be_bytes([ip[2], ip[3]])).saturating_sub(20);
    let Some(udp) = packet.get(34..34 + len).filter(|udp| udp.len() >= 8) else {
        return flags;
    };
    if udp[6..8] == [0, 0] {
        return flags;
    }
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend([0, 17, (len >> 8) as u8, len as u8]);
    pseudo.extend(udp);
    flags |= reg::RX_TRANSPORT_CHECKED;
    if wire::checksum::checksum(&pseudo) != 0 {
        flags |= reg::RX_TRANSPORT_ERROR;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // From the RSS specification's verification suite: 66.9.149.187:2794 to
        // 161.142.100.80:1766, IPv4 alone and with TCP ports.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &input), 0x323e_8fc2);
        input.extend([0x0a, 0xea, 0x06, 0xe6]);
        assert_eq!(toeplitz(&key, &input), 0x51cc_c178);
    }

    /// Why no flow table uses it as an index: it is suitable only for selecting a queue.
    #[test]
    fn a_symmetric_hash_has_sixteen_bits_and_collides_without_its_key() {
        let mut seed = 0x1234_5678_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u16
        };
        for _ in 0..200 {
            // Any key that repeats every 16 bits, even a secret one.
            let word = random().to_be_bytes();
            let key = [word; 20].concat();
            let mut words: [u16; 6] = std::array::from_fn(|_| random());
            let hash = |words: &[u16; 6]| toeplitz(&key, &words.map(u16::to_be_bytes).concat());
            let plain = hash(&words);
            assert_eq!(plain >> 16, plain & 0xffff);
            let [a, b, c, d, from, to] = words;
            assert_eq!(plain, hash(&[c, d, a, b, to, from]), "symmetric");
            // Another source with another port, chosen without the key.
            let other = random();
            words[1] ^= other;
            words[4] ^= other;
            assert_eq!(plain, hash(&words));
        }
    }
}
