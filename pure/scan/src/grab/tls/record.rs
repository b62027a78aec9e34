//! A protected record (RFC 8446 §5.2) that arrives in pieces: decrypted and summed as it arrives.
//!
//! AES-GCM and ChaCha20-Poly1305 are a stream cipher and a sum of the encrypted text, so no record
//! of up to 16 KiB needs to be kept until its tag arrives. What the tag would reject was used
//! before; this is no worse than the same from a server that anyone can be: nothing is trusted for
//! having been encrypted.

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use ctr::Ctr32BE;
use ghash::GHash;
use ghash::universal_hash::{KeyInit, UniversalHash};
use poly1305::Poly1305;

use super::keys::{Keys, Suite};

/// Length of a tag.
pub const TAG_LEN: usize = 16;
const BLOCK_LEN: usize = 16;
/// The counter of a record's first block (NIST SP 800-38D §7.1).
const FIRST_COUNTER: [u8; 4] = [0, 0, 0, 1];

#[expect(
    clippy::large_enum_variant,
    reason = "a record is boxed with its connection"
)]
enum Stream {
    Aes128(Ctr32BE<aes::Aes128>),
    Aes256(Ctr32BE<aes::Aes256>),
    ChaCha20(ChaCha20),
}

impl Stream {
    fn apply(&mut self, bytes: &mut [u8]) {
        match self {
            Self::Aes128(stream) => stream.apply_keystream(bytes),
            Self::Aes256(stream) => stream.apply_keystream(bytes),
            Self::ChaCha20(stream) => stream.apply_keystream(bytes),
        }
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "a record is boxed with its connection"
)]
enum Sum {
    Gcm(GHash),
    Poly1305(Poly1305),
}

impl Sum {
    /// Adds bytes, padded with zeros to whole blocks.
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Gcm(sum) => sum.update_padded(bytes),
            Self::Poly1305(sum) => sum.update_padded(bytes),
        }
    }
}

/// A record that is being read.
pub struct Record {
    stream: Stream,
    sum: Sum,
    /// Added to the sum at the end.
    mask: [u8; BLOCK_LEN],
    /// The last, incomplete block of encrypted text.
    block: [u8; BLOCK_LEN],
    /// Length of the encrypted text so far, and of what precedes it.
    len: u64,
    head_len: u64,
}

impl Record {
    /// Begins the record with this number, and this head as additional data.
    pub fn new(keys: &Keys, number: u64, head: &[u8]) -> Self {
        let mut nonce = keys.iv;
        for (byte, of_number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        let mut first = [0; BLOCK_LEN];
        first[..12].copy_from_slice(&nonce);
        first[12..].copy_from_slice(&FIRST_COUNTER);
        let (mut stream, hash_key) = match keys.suite {
            Suite::Aes128Gcm => {
                let [key, _] = halves(&keys.key);
                let mut hash_key = [0; BLOCK_LEN];
                Ctr32BE::<aes::Aes128>::new(&key.into(), &[0; BLOCK_LEN].into())
                    .apply_keystream(&mut hash_key);
                let stream = Ctr32BE::new(&key.into(), &first.into());
                (Stream::Aes128(stream), hash_key)
            }
            Suite::Aes256Gcm => {
                let mut hash_key = [0; BLOCK_LEN];
                Ctr32BE::<aes::Aes256>::new(&keys.key.into(), &[0; BLOCK_LEN].into())
                    .apply_keystream(&mut hash_key);
                let stream = Ctr32BE::new(&keys.key.into(), &first.into());
                (Stream::Aes256(stream), hash_key)
            }
            Suite::ChaCha20Poly1305 => {
                let stream = ChaCha20::new(&keys.key.into(), &nonce.into());
                (Stream::ChaCha20(stream), [0; BLOCK_LEN])
            }
        };
        let mut mask = [0; BLOCK_LEN];
        let mut sum = match keys.suite {
            Suite::ChaCha20Poly1305 => {
                // The key of the sum is the beginning of the first block (RFC 8439 §2.6).
                let mut block = [0; 64];
                stream.apply(&mut block);
                let [key, _] = halves(&block);
                Sum::Poly1305(Poly1305::new(&key.into()))
            }
            Suite::Aes128Gcm | Suite::Aes256Gcm => {
                stream.apply(&mut mask);
                Sum::Gcm(GHash::new(&hash_key.into()))
            }
        };
        sum.add(head);
        Self {
            stream,
            sum,
            mask,
            block: [0; BLOCK_LEN],
            len: 0,
            head_len: head.len() as u64,
        }
    }

    /// Decrypts the next bytes.
    pub fn open(&mut self, bytes: &mut [u8]) {
        self.sum_up(bytes);
        self.stream.apply(bytes);
    }

    /// Encrypts the next bytes: the inverse, for tests.
    #[cfg(any(test, feature = "laws"))]
    pub fn seal(&mut self, bytes: &mut [u8]) {
        self.stream.apply(bytes);
        self.sum_up(bytes);
    }

    fn sum_up(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.len as usize % BLOCK_LEN;
            let len = match at {
                0 if bytes.len() >= BLOCK_LEN => bytes.len() / BLOCK_LEN * BLOCK_LEN,
                _ => bytes.len().min(BLOCK_LEN - at),
            };
            let (part, rest) = bytes.split_at(len);
            bytes = rest;
            self.len += len as u64;
            if len >= BLOCK_LEN {
                self.sum.add(part);
                continue;
            }
            self.block[at..at + len].copy_from_slice(part);
            if at + len == BLOCK_LEN {
                self.sum.add(&self.block);
            }
        }
    }

    /// The tag that belongs to it.
    pub fn tag(mut self) -> [u8; TAG_LEN] {
        let rest = self.len as usize % BLOCK_LEN;
        self.sum.add(&self.block[..rest]);
        let mut lens = [0; BLOCK_LEN];
        match self.sum {
            Sum::Gcm(mut sum) => {
                lens[..8].copy_from_slice(&(self.head_len * 8).to_be_bytes());
                lens[8..].copy_from_slice(&(self.len * 8).to_be_bytes());
                sum.update(&[lens.into()]);
                let mut tag: [u8; TAG_LEN] = sum.finalize().into();
                tag.iter_mut().zip(self.mask).for_each(|(a, b)| *a ^= b);
                tag
            }
            Sum::Poly1305(mut sum) => {
                lens[..8].copy_from_slice(&self.head_len.to_le_bytes());
                lens[8..].copy_from_slice(&self.len.to_le_bytes());
                sum.update(&[lens.into()]);
                sum.finalize().into()
            }
        }
    }
}

/// The halves of a key or a block.
fn halves<const N: usize, const H: usize>(bytes: &[u8; N]) -> [[u8; H]; 2] {
    let mut halves = [[0; H]; 2];
    halves[0].copy_from_slice(&bytes[..H]);
    halves[1].copy_from_slice(&bytes[N - H..]);
    halves
}
