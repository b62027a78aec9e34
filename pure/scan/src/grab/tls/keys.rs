//! From the hellos to the keys of the server's handshake records (RFC 8446 §7.1, §7.3).

use hkdf::SimpleHkdf;
use sha2::digest::Output;
use sha2::digest::core_api::BlockSizeUser;
use sha2::{Digest, Sha256, Sha384};

/// A cipher suite of TLS 1.3 (RFC 8446 §B.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

/// All suites, in the order of the hello.
pub const SUITES: [(u16, Suite); 3] = [
    (0x1301, Suite::Aes128Gcm),
    (0x1302, Suite::Aes256Gcm),
    (0x1303, Suite::ChaCha20Poly1305),
];

impl Suite {
    /// The suite with a number.
    pub fn of(number: u16) -> Option<Suite> {
        let found = SUITES.iter().find(|(known, _)| *known == number);
        found.map(|(_, suite)| *suite)
    }
}

/// Type of the message that stands for the first hello after a HelloRetryRequest.
const MESSAGE_HASH: u8 = 254;

/// The hash of the messages so far.
#[derive(Clone)]
pub enum Transcript {
    Sha256(Sha256),
    Sha384(Sha384),
}

impl Transcript {
    /// Begins with the client's hello.
    pub fn new(suite: Suite, hello: &[u8]) -> Self {
        let mut new = match suite {
            Suite::Aes256Gcm => Self::Sha384(Sha384::new()),
            Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => Self::Sha256(Sha256::new()),
        };
        new.add(hello);
        new
    }

    /// Begins with a hello that was answered by a HelloRetryRequest (RFC 8446 §4.4.1).
    pub fn retried(suite: Suite, hello: &[u8]) -> Self {
        let stands_for = |hash: &[u8]| [&[MESSAGE_HASH, 0, 0, hash.len() as u8], hash].concat();
        let message = match suite {
            Suite::Aes256Gcm => stands_for(&Sha384::digest(hello)),
            Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => stands_for(&Sha256::digest(hello)),
        };
        Self::new(suite, &message)
    }

    /// Adds a message.
    pub fn add(&mut self, message: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(message),
            Self::Sha384(hash) => hash.update(message),
        }
    }

    /// The keys of the server after its hello.
    pub fn keys(self, suite: Suite, shared: &[u8]) -> Keys {
        let mut keys = Keys {
            suite,
            key: [0; 32],
            iv: [0; 12],
        };
        let key_len = match suite {
            Suite::Aes128Gcm => 16,
            Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => 32,
        };
        let Keys { key, iv, .. } = &mut keys;
        match self {
            Self::Sha256(hash) => derive(hash, shared, &mut key[..key_len], iv),
            Self::Sha384(hash) => derive(hash, shared, &mut key[..key_len], iv),
        }
        keys
    }
}

/// Key and initialization vector of one side.
#[derive(Clone, Debug)]
pub struct Keys {
    pub suite: Suite,
    /// Only the first half, for AES-128.
    pub key: [u8; 32],
    pub iv: [u8; 12],
}

/// HKDF-Expand-Label.
fn expand<D: Digest + BlockSizeUser + Clone>(
    secret: &SimpleHkdf<D>,
    label: &[u8],
    context: &[u8],
    out: &mut [u8],
) {
    const PREFIX: &[u8] = b"tls13 ";
    let head = [0, out.len() as u8, (PREFIX.len() + label.len()) as u8];
    let context_len = [context.len() as u8];
    // This fails only for outputs longer than 255 blocks; these have one.
    let _ = secret.expand_multi_info(&[&head, PREFIX, label, &context_len, context], out);
}

fn derive<D: Digest + BlockSizeUser + Clone>(
    transcript: D,
    shared: &[u8],
    key: &mut [u8],
    iv: &mut [u8; 12],
) {
    let (_, early) = SimpleHkdf::<D>::extract(None, &Output::<D>::default());
    let mut derived = Output::<D>::default();
    expand(&early, b"derived", &D::digest([]), &mut derived);
    let (_, handshake) = SimpleHkdf::<D>::extract(Some(&derived), shared);
    let mut traffic = Output::<D>::default();
    let hash = transcript.finalize();
    expand(&handshake, b"s hs traffic", &hash, &mut traffic);
    // This fails only for secrets shorter than a hash.
    if let Ok(traffic) = SimpleHkdf::<D>::from_prk(&traffic) {
        expand(&traffic, b"key", &[], key);
        expand(&traffic, b"iv", &[], iv);
    }
}
