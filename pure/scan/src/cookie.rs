//! Cookies: keyed numbers in a probe, which identify an answer without any state about the probe.
//!
//! The pseudo-random function is AES-128 with a random key for each run, computed by the
//! processor's AES instructions if it has them. The key is independent of the seed of the
//! [permutation](crate::Permutation), which is public.

use std::net::IpAddr;

use aes::cipher::{BlockEncrypt as _, KeyInit as _};
use aes::{Aes128, Block};

use crate::port::Protocol;
use crate::probe::Probe;

/// Destination of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeTarget {
    /// The target's address.
    pub addr: IpAddr,
    /// The kind of probe.
    pub probe: Probe,
    /// The port; for IP protocol [`Probe`]s the protocol number; 0 for probes without a port.
    pub port: u16,
}

impl ProbeTarget {
    /// The protocol that the port belongs to.
    pub fn protocol(&self) -> Protocol {
        self.probe.protocol()
    }
}

/// The keyed numbers of one probe, equal for every attempt, so that an answer to any attempt
/// matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie {
    /// TCP sequence number.
    pub seq: u32,
    /// Selects the source port: 32 bits to be scaled to the range.
    pub source_port: u32,
    /// IPv4 identification, and the lower 16 bits of the IPv6 flow label.
    pub ip_id: u16,
    /// Value of the TCP timestamp option.
    pub timestamp: u32,
}

impl Cookie {
    fn of_block(block: &Block) -> Self {
        let word = |at: usize| {
            let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
            u32::from_le_bytes(bytes)
        };
        Self {
            seq: word(0),
            source_port: word(4),
            ip_id: word(8) as u16,
            timestamp: word(12),
        }
    }
}

/// Computes cookies from a key.
#[derive(Clone)]
pub struct Cookies {
    cipher: Aes128,
    src_v4: [u8; 4],
    src_v6: [u8; 16],
}

/// Cookies computed at once, so that the cipher's blocks overlap in the processor.
pub const BATCH: usize = 16;

impl Cookies {
    /// Cookies with this key, for probes from these addresses.
    pub fn new(key: [u8; 16], source: crate::Source) -> Self {
        Self {
            cipher: Aes128::new(&key.into()),
            src_v4: source.ipv4.map_or([0; 4], |addr| addr.octets()),
            src_v6: source.ipv6.map_or([0; 16], |addr| addr.octets()),
        }
    }

    /// The cookie of one probe.
    pub fn of(&self, target: &ProbeTarget) -> Cookie {
        let mut block = self.block(target);
        self.cipher.encrypt_block(&mut block);
        Cookie::of_block(&block)
    }

    /// Computes the cookies of up to `BATCH` probes.
    ///
    /// # Panics
    /// If there are more, or `out` has a different length: a bug of the caller.
    #[inline]
    pub fn of_all(&self, targets: &[ProbeTarget], out: &mut [Cookie]) {
        let mut blocks = [Block::default(); BATCH];
        let blocks = &mut blocks[..targets.len()];
        for (block, target) in blocks.iter_mut().zip(targets) {
            *block = self.block(target);
        }
        self.cipher.encrypt_blocks(blocks);
        assert_eq!(targets.len(), out.len(), "a cookie for each probe");
        for (cookie, block) in out.iter_mut().zip(blocks.iter()) {
            *cookie = Cookie::of_block(block);
        }
    }

    /// The last block of the message that identifies a probe. IPv4 has one block; IPv6 has three,
    /// chained as in CBC-MAC. The first byte of the last block contains the family, and the first
    /// block of an IPv6 message is never a last block, so no message is a prefix of another.
    #[inline]
    fn block(&self, target: &ProbeTarget) -> Block {
        let mut block = Block::default();
        let [high, low] = target.port.to_be_bytes();
        block[1] = target.probe as u8;
        (block[2], block[3]) = (high, low);
        match target.addr {
            IpAddr::V4(addr) => {
                block[0] = 4;
                block[4..8].copy_from_slice(&addr.octets());
                block[8..12].copy_from_slice(&self.src_v4);
            }
            IpAddr::V6(addr) => {
                block[0] = 6;
                let mut chain = Block::from(addr.octets());
                self.cipher.encrypt_block(&mut chain);
                xor(&mut chain, &self.src_v6);
                self.cipher.encrypt_block(&mut chain);
                xor(&mut block, &chain);
            }
        }
        block
    }
}

#[inline]
fn xor(block: &mut Block, with: &[u8]) {
    for (byte, other) in block.iter_mut().zip(with) {
        *byte ^= other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn targets() -> Vec<ProbeTarget> {
        let addrs = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];
        let target = |addr: &str, port| ProbeTarget {
            addr: addr.parse().unwrap(),
            probe: Probe::Syn,
            port,
        };
        addrs
            .iter()
            .flat_map(|addr| [target(addr, 80), target(addr, 443)])
            .collect()
    }

    fn source(last: u8) -> Source {
        Source {
            ipv4: Some([198, 51, 100, last].into()),
            ipv6: Some(format!("2001:db8:1::{last}").parse().unwrap()),
            ports: (40_000, 100),
        }
    }

    #[test]
    fn cookies_depend_on_every_field_of_a_probe_and_on_the_key() {
        let mut seen = Vec::new();
        for (key, last) in [([1; 16], 1), ([2; 16], 1), ([1; 16], 2)] {
            let cookies = Cookies::new(key, source(last));
            seen.extend(targets().iter().map(|target| cookies.of(target).seq));
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), count), (24, 24));
    }

    #[test]
    fn batches_give_the_same_cookies() {
        let cookies = Cookies::new([7; 16], source(1));
        let targets = targets();
        for count in 0..=targets.len() {
            let mut out = vec![Cookie::default(); count];
            cookies.of_all(&targets[..count], &mut out);
            let single: Vec<Cookie> = targets[..count]
                .iter()
                .map(|target| cookies.of(target))
                .collect();
            assert_eq!(out, single);
        }
    }

    #[test]
    fn the_cipher_is_aes_128() {
        // FIPS 197, appendix C.1.
        let key: [u8; 16] = core::array::from_fn(|n| n as u8);
        let mut block = Block::from(core::array::from_fn::<u8, 16, _>(|n| n as u8 * 0x11));
        Aes128::new(&key.into()).encrypt_block(&mut block);
        assert_eq!(block[..4], [0x69, 0xc4, 0xe0, 0xd8]);
    }
}
