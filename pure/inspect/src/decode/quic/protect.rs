//! Protection of Initial packets: keys derived from a connection id, header protection, AES-128-GCM
//! (RFC 9001 §5).

use aes_gcm::aead::generic_array::GenericArray;
use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::BlockEncrypt;
use aes_gcm::{AeadInPlace, Aes128Gcm, KeyInit};
use hkdf::Hkdf;
use sha2::Sha256;

/// Maximum length of a packet to decrypt: any that fits into a jumbo frame.
const PACKET_MAX: usize = 9216;

/// Length of an authentication tag.
const TAG_LEN: usize = 16;

/// Key labels of a version (RFC 9001 §5.1, RFC 9369 §3.3.2).
pub(super) struct Labels {
    key: &'static [u8],
    iv: &'static [u8],
    header: &'static [u8],
}

pub(super) const LABELS_V1: Labels = Labels {
    key: b"tls13 quic key",
    iv: b"tls13 quic iv",
    header: b"tls13 quic hp",
};

pub(super) const LABELS_V2: Labels = Labels {
    key: b"tls13 quicv2 key",
    iv: b"tls13 quicv2 iv",
    header: b"tls13 quicv2 hp",
};

/// The keys of one side.
#[derive(Clone)]
pub(super) struct Keys {
    key: [u8; 16],
    iv: [u8; 12],
    header: [u8; 16],
}

/// HKDF-Expand-Label without context (RFC 8446 §7.1); `label` begins with `tls13 `.
fn expand(secret: &Hkdf<Sha256>, label: &[u8], out: &mut [u8]) {
    let head = [0, out.len() as u8, label.len() as u8];
    // This fails only for outputs longer than 255 blocks; these have one.
    let _ = secret.expand_multi_info(&[&head[..], label, &[0]], out);
}

impl Keys {
    /// Derives the keys of the server or the client from the client's first destination connection
    /// id.
    pub(super) fn of(salt: &[u8; 20], labels: &Labels, id: &[u8], is_server: bool) -> Keys {
        let initial = Hkdf::<Sha256>::new(Some(&salt[..]), id);
        let label: &[u8] = match is_server {
            true => b"tls13 server in",
            false => b"tls13 client in",
        };
        let mut secret = [0; 32];
        expand(&initial, label, &mut secret);
        let mut keys = Keys {
            key: [0; 16],
            iv: [0; 12],
            header: [0; 16],
        };
        // This fails only for secrets shorter than a hash.
        if let Ok(secret) = Hkdf::<Sha256>::from_prk(&secret) {
            expand(&secret, labels.key, &mut keys.key);
            expand(&secret, labels.iv, &mut keys.iv);
            expand(&secret, labels.header, &mut keys.header);
        }
        keys
    }
}

/// Buffer for decrypted packets, one per thread.
pub(crate) struct Scratch {
    bytes: [u8; PACKET_MAX],
}

impl Scratch {
    pub(crate) const fn new() -> Scratch {
        Scratch {
            bytes: [0; PACKET_MAX],
        }
    }

    /// Decrypts a packet whose protected number is at `number_at`. Returns its frames if the tag is
    /// valid.
    pub(super) fn open(&mut self, keys: &Keys, packet: &[u8], number_at: usize) -> Option<&[u8]> {
        let bytes = self.bytes.get_mut(..packet.len())?;
        bytes.copy_from_slice(packet);
        // RFC 9001 §5.4.2: the sample begins as if the number had four bytes.
        let sample = bytes.get(number_at + 4..number_at + 20)?;
        let mut mask = *GenericArray::from_slice(sample);
        Aes128::new(GenericArray::from_slice(&keys.header)).encrypt_block(&mut mask);
        bytes[0] ^= mask[0] & 0x0f;
        let number_len = usize::from(bytes[0] & 3) + 1;
        let mut nonce = keys.iv;
        for at in 0..number_len {
            let byte = bytes.get_mut(number_at + at)?;
            *byte ^= mask[1 + at];
            // The packet numbers of Initial packets are small: only their last bytes are needed.
            nonce[12 - number_len + at] ^= *byte;
        }
        let (head, sealed) = bytes.split_at_mut_checked(number_at + number_len)?;
        let (frames, tag) = sealed.split_at_mut_checked(sealed.len().checked_sub(TAG_LEN)?)?;
        let cipher = Aes128Gcm::new(GenericArray::from_slice(&keys.key));
        let tag = GenericArray::from_slice(tag);
        cipher
            .decrypt_in_place_detached(GenericArray::from_slice(&nonce), head, frames, tag)
            .ok()?;
        Some(frames)
    }
}

/// Protects a packet with a four-byte packet number: the inverse, for tests.
#[cfg(feature = "laws")]
pub(super) fn seal(
    keys: &Keys,
    head: alloc::vec::Vec<u8>,
    number: u32,
    frames: &[u8],
) -> alloc::vec::Vec<u8> {
    let mut packet = head;
    let number_at = packet.len();
    packet.extend(number.to_be_bytes());
    let mut nonce = keys.iv;
    for (byte, other) in nonce[8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= other;
    }
    let mut sealed = frames.to_vec();
    let cipher = Aes128Gcm::new(GenericArray::from_slice(&keys.key));
    let nonce = GenericArray::from_slice(&nonce);
    // This fails only for more than 64 GiB.
    if let Ok(tag) = cipher.encrypt_in_place_detached(nonce, &packet, &mut sealed) {
        packet.extend(sealed);
        packet.extend(tag);
    }
    let mut mask = *GenericArray::from_slice(&packet[number_at + 4..number_at + 20]);
    Aes128::new(GenericArray::from_slice(&keys.header)).encrypt_block(&mut mask);
    packet[0] ^= mask[0] & 0x0f;
    for at in 0..4 {
        packet[number_at + at] ^= mask[1 + at];
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> std::vec::Vec<u8> {
        let digits = hex.as_bytes().chunks(2);
        let digits = digits.map(|two| std::str::from_utf8(two).unwrap());
        digits
            .map(|two| u8::from_str_radix(two, 16).unwrap())
            .collect()
    }

    #[test]
    fn keys_of_the_rfc() {
        // RFC 9001 §A.1.
        let id = bytes("8394c8f03e515708");
        let of = |is_server| Keys::of(&super::super::SALT_V1, &LABELS_V1, &id, is_server);
        let [client, server] = [false, true].map(of);
        assert_eq!(client.key[..], bytes("1f369613dd76d5467730efcbe3b1a22d"));
        assert_eq!(client.iv[..], bytes("fa044b2f42a3fd3b46fb255c"));
        assert_eq!(client.header[..], bytes("9f50449e04a0e810283a1e9933adedd2"));
        assert_eq!(server.key[..], bytes("cf3a5331653c364c88f0f379b6067e37"));
        assert_eq!(server.iv[..], bytes("0ac1493ca1905853b0bba03e"));
        assert_eq!(server.header[..], bytes("c206b8d9b9f0f37644430b490eeaa314"));
        // RFC 9369 §A.1.
        let client = Keys::of(&super::super::SALT_V2, &LABELS_V2, &id, false);
        assert_eq!(client.key[..], bytes("8b1a0bc121284290a29e0971b5cd045d"));
        assert_eq!(client.iv[..], bytes("91f73e2351d8fa91660e909f"));
        assert_eq!(client.header[..], bytes("45b95e15235d6f45a6b19cbcb0294ba9"));
    }

    #[test]
    fn the_server_initial_of_the_rfc_opens() {
        // RFC 9001 §A.3.
        let packet = bytes(concat!(
            "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a",
            "5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3",
            "dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84",
            "022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4",
            "2158407dd074ee",
        ));
        let id = bytes("8394c8f03e515708");
        let server = Keys::of(&super::super::SALT_V1, &LABELS_V1, &id, true);
        let mut scratch = Scratch::new();
        let plain = scratch.open(&server, &packet, 18).expect("authentic");
        // An ACK, then a CRYPTO frame with a server hello.
        assert_eq!(plain[..9], bytes("02000000000600405a"));
        assert_eq!(plain[9], 2);
        for at in 0..packet.len() {
            let mut other = packet.clone();
            other[at] ^= 0x01;
            assert!(scratch.open(&server, &other, 18).is_none(), "byte {at}");
        }
        for len in 0..packet.len() {
            assert!(scratch.open(&server, &packet[..len], 18).is_none());
        }
    }
}
