//! Cookies: keyed numbers in a probe, which identify an answer without any state about the probe.
//!
//! The pseudo-random function is AES-128 with a random key for each run, computed by the
//! processor's AES instructions if it has them. The key is independent of the seed of the
//! [permutation](crate::Permutation), which is public.

use std::net::IpAddr;

use aes::Aes128;
pub(crate) use aes::Block;
use aes::cipher::{BlockEncrypt as _, KeyInit as _};

use crate::plan::PlannedProbe;
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
    #[inline(always)]
    pub(crate) fn of_block(block: &Block) -> Self {
        let word = |at: usize| [block[at], block[at + 1], block[at + 2], block[at + 3]];
        Self {
            seq: u32::from_be_bytes(word(0)),
            source_port: u32::from_le_bytes(word(4)),
            ip_id: u16::from_be_bytes([block[8], block[9]]),
            timestamp: u32::from_le_bytes(word(12)),
        }
    }
}

/// Computes cookies from a key.
#[derive(Clone)]
pub struct Cookies {
    cipher: Aes128,
    src_v4: u32,
    /// The encrypted IPv6 source address.
    src_v6: u128,
}

/// Cookies computed at once, so that the cipher's blocks overlap in the processor.
pub(crate) const BATCH: usize = 64;

impl Cookies {
    /// Cookies with this key, for probes from these addresses.
    pub fn new(key: [u8; 16], source: crate::Source) -> Self {
        let cipher = Aes128::new(&key.into());
        let src_v6 = source.ipv6.map_or([0; 16], |addr| addr.octets());
        let mut chain = Block::from(src_v6);
        cipher.encrypt_block(&mut chain);
        Self {
            cipher,
            src_v4: source
                .ipv4
                .map_or(0, |addr| u32::from_le_bytes(addr.octets())),
            src_v6: u128::from_le_bytes(chain.into()),
        }
    }

    /// The cookie of one probe.
    pub fn of(&self, target: &ProbeTarget) -> Cookie {
        let mut block = Block::default();
        self.encrypt([target].into_iter(), core::slice::from_mut(&mut block));
        Cookie::of_block(&block)
    }

    /// Computes the cookies of up to `BATCH` probes, as blocks.
    ///
    /// # Panics
    /// If `out` has fewer: a bug of the caller.
    #[inline]
    pub(crate) fn of_all(&self, probes: &[PlannedProbe], out: &mut [Block; BATCH]) {
        let targets = probes.iter().map(|(target, _)| target);
        self.encrypt(targets, &mut out[..probes.len()]);
    }

    /// Computes the cookies of up to `BATCH` probes to IPv4 addresses, given by their
    /// [words](word), as blocks.
    #[inline(always)]
    pub(crate) fn of_words_v4(&self, words: &[u64], out: &mut [Block; BATCH]) {
        let out = &mut out[..words.len()];
        for (block, word) in out.iter_mut().zip(words) {
            *block = block_of(*word, self.src_v4);
        }
        self.cipher.encrypt_blocks(out);
    }

    /// As [`of_words_v4`](Self::of_words_v4), to IPv6 addresses, which are given as they lie in
    /// memory.
    #[inline(always)]
    pub(crate) fn of_words_v6(&self, words: &[u64], addrs: &[u128], out: &mut [Block; BATCH]) {
        let out = &mut out[..words.len()];
        for (block, addr) in out.iter_mut().zip(addrs) {
            *block = (addr ^ self.src_v6).to_le_bytes().into();
        }
        self.cipher.encrypt_blocks(out);
        for (block, word) in out.iter_mut().zip(words) {
            *block = chained(*block, block_of(*word, 0));
        }
        self.cipher.encrypt_blocks(out);
    }

    /// Encrypts the message that identifies each probe, all at once. The message of IPv4 has one
    /// block; that of IPv6 has three, chained as in CBC-MAC, of which the first is the source
    /// address, encrypted at the start.
    #[inline(always)]
    fn encrypt<'t>(
        &self,
        targets: impl ExactSizeIterator<Item = &'t ProbeTarget> + Clone,
        blocks: &mut [Block],
    ) {
        let mut has_v6 = false;
        for (block, target) in blocks.iter_mut().zip(targets.clone()) {
            *block = match target.addr {
                IpAddr::V4(addr) => {
                    let addr = u32::from_le_bytes(addr.octets());
                    block_of(word(false, target.probe, target.port, addr), self.src_v4)
                }
                IpAddr::V6(addr) => {
                    has_v6 = true;
                    let addr = u128::from_le_bytes(addr.octets());
                    (addr ^ self.src_v6).to_le_bytes().into()
                }
            };
        }
        if has_v6 {
            self.chain(targets, blocks);
        }
        self.cipher.encrypt_blocks(blocks);
    }

    /// Encrypts the second blocks of IPv6, and chains the last ones.
    fn chain<'t>(&self, targets: impl Iterator<Item = &'t ProbeTarget>, blocks: &mut [Block]) {
        let before: [Block; BATCH] =
            core::array::from_fn(|at| blocks.get(at).copied().unwrap_or_default());
        self.cipher.encrypt_blocks(blocks);
        for ((block, before), target) in blocks.iter_mut().zip(before).zip(targets) {
            *block = match target.addr {
                IpAddr::V4(_) => before,
                IpAddr::V6(_) => chained(
                    *block,
                    block_of(word(true, target.probe, target.port, 0), 0),
                ),
            };
        }
    }
}

/// The last block of the message that identifies a probe.
#[inline(always)]
fn block_of(word: u64, src_v4: u32) -> Block {
    (u128::from(word) | u128::from(src_v4) << 64)
        .to_le_bytes()
        .into()
}

/// The first half of that block, to be stored in little-endian order: family, probe, port, and the
/// address of IPv4. `addr` has its bytes in little-endian order, too.
#[inline(always)]
pub(crate) fn word(is_ipv6: bool, probe: Probe, port: u16, addr: u32) -> u64 {
    let family = if is_ipv6 { 6 } else { 4 };
    let port = u64::from(port.swap_bytes());
    family | u64::from(probe as u8) << 8 | port << 16 | u64::from(addr) << 32
}

/// The exclusive or of an encrypted block and the next one.
#[inline(always)]
fn chained(block: Block, next: Block) -> Block {
    let bits = u128::from_le_bytes(block.into()) ^ u128::from_le_bytes(next.into());
    bits.to_le_bytes().into()
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
            let planned = targets[..count].iter().map(|target| (*target, 0));
            let mut blocks = [Block::default(); BATCH];
            cookies.of_all(&planned.collect::<Vec<_>>(), &mut blocks);
            let out: Vec<_> = blocks[..count].iter().map(Cookie::of_block).collect();
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
