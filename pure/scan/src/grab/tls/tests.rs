//! The handshake with rustls as the server.

use std::sync::Arc;

use rustls::crypto::ring::{cipher_suite, default_provider, kx_group, sign};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection, SupportedCipherSuite, version};

use super::law::{Found, read_parts, said};
use super::*;
use crate::grab::tests::chain::certificate;

/// A key of ECDSA (RFC 5915, RFC 5208): the secret is 1, so the public key is the generator.
fn key() -> PrivateKeyDer<'static> {
    const BEFORE: &[u8] = &[
        0x30, 0x81, 0x87, 2, 1, 0, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 4, 0x6d, 0x30, 0x6b, 2, 1, 1, 4, 0x20,
    ];
    let mut secret = [0; 32];
    secret[31] = 1;
    let der = [
        BEFORE,
        &secret,
        &[0xa1, 0x44, 3, 0x42, 0],
        &group::SECP256R1,
    ]
    .concat();
    PrivatePkcs8KeyDer::from(der).into()
}

/// A server that has one chain.
#[derive(Debug)]
struct Chain(Arc<CertifiedKey>);

impl ResolvesServerCert for Chain {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Settings of a server.
struct Server {
    suite: SupportedCipherSuite,
    group: &'static dyn SupportedKxGroup,
    record_len: usize,
    chain: Vec<Vec<u8>>,
}

impl Server {
    fn new() -> Self {
        Self {
            suite: cipher_suite::TLS13_AES_128_GCM_SHA256,
            group: kx_group::X25519,
            record_len: 16_384,
            chain: [1, 2, 3].map(certificate).to_vec(),
        }
    }

    fn connection(&self) -> ServerConnection {
        let provider = CryptoProvider {
            cipher_suites: vec![self.suite],
            kx_groups: vec![self.group],
            ..default_provider()
        };
        let chain = self.chain.iter().cloned().map(CertificateDer::from);
        let key = sign::any_ecdsa_type(&key()).unwrap();
        let chain = CertifiedKey::new(chain.collect(), key);
        let config = ServerConfig::builder_with_provider(Arc::new(provider));
        let config = config.with_protocol_versions(&[&version::TLS13]).unwrap();
        let config = config.with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::new(Chain(Arc::new(chain))));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.max_fragment_size = Some(self.record_len + 5);
        ServerConnection::new(Arc::new(config)).unwrap()
    }

    /// Everything that the server sends to a client that retries when it is asked to.
    fn flight(&self) -> Vec<u8> {
        let mut connection = self.connection();
        let mut flight = Vec::new();
        let mut says = said();
        while !says.is_empty() {
            let mut rest = &says[..];
            while !rest.is_empty() {
                connection.read_tls(&mut rest).unwrap();
            }
            connection.process_new_packets().unwrap();
            while connection.wants_write() {
                connection.write_tls(&mut flight).unwrap();
            }
            says = read(&flight, flight.len()).second;
            if self.group.name() != rustls::NamedGroup::secp384r1 || flight.len() > 1000 {
                break;
            }
        }
        flight
    }
}

/// Whether a second hello is asked for, the stream of a server, and its chain.
pub fn flights() -> Vec<(bool, Vec<u8>, Vec<Vec<u8>>)> {
    let groups = [(false, kx_group::X25519), (true, kx_group::SECP384R1)];
    let flight = |(is_retried, group)| {
        let server = Server {
            group,
            ..Server::new()
        };
        (is_retried, server.flight(), server.chain)
    };
    groups.into_iter().map(flight).collect()
}

/// Reads a server's stream in two parts.
fn read_cut(flight: &[u8], at: usize) -> Found {
    let (first, second) = flight.split_at(at);
    read_parts([first, second].into_iter())
}

/// Reads a server's stream in parts of this length.
fn read(flight: &[u8], step: usize) -> Found {
    read_parts(flight.chunks(step))
}

#[test]
fn chains_are_read_with_every_suite_and_group() {
    let suites = [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    for suite in suites {
        for (group, is_retried) in [
            (kx_group::X25519, false),
            (kx_group::SECP256R1, false),
            (kx_group::SECP384R1, true),
        ] {
            for record_len in [64, 1_000, 16_384] {
                let mut server = Server {
                    suite,
                    group,
                    record_len,
                    ..Server::new()
                };
                // One that is longer than a record.
                server.chain.push(vec![5; 20_000]);
                let flight = server.flight();
                let case = format!("{suite:?} {group:?} {record_len}");
                for step in [1, 7, 536, 100_000] {
                    let found = read(&flight, step);
                    // The lists would be long in a message.
                    assert!(found.chain == server.chain, "{case} {step}");
                    assert_eq!(!found.second.is_empty(), is_retried, "{case} {step}");
                    assert!(found.is_over, "{case} {step}");
                    let text = found.fields.join("\n");
                    assert!(text.starts_with("TlsAlpnChosen"), "{case} {step}: {text}");
                    assert!(text.contains("TlsNotAfter"), "{case} {step}: {text}");
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_any_cut() {
    for (group, record_len) in [(kx_group::X25519, 16_384), (kx_group::SECP384R1, 500)] {
        let server = Server {
            group,
            record_len,
            chain: vec![certificate(1)],
            ..Server::new()
        };
        let flight = server.flight();
        let whole = read(&flight, flight.len());
        assert!(whole.chain == server.chain);
        for at in 0..flight.len() {
            assert!(read_cut(&flight, at) == whole, "{at}");
        }
    }
}

#[test]
fn damaged_streams_are_read_no_further() {
    let suites = [
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    for suite in suites {
        let server = Server {
            suite,
            record_len: 300,
            ..Server::new()
        };
        let flight = server.flight();
        let whole = read(&flight, flight.len());
        let mut seed = 7_u64;
        let mut partial_count = 0;
        for _ in 0..500 {
            let mut bytes = flight.clone();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] ^= 1 << (seed >> 8 & 7);
            let found = read(&bytes, bytes.len());
            assert!(read(&bytes, 11) == found, "{at}");
            partial_count += u32::from(found.chain.len() < whole.chain.len());
        }
        // Only what precedes the damage is found, and the damage is found behind the chain, too.
        assert!(partial_count > 300, "{partial_count}");
    }
}

#[test]
fn a_tag_ends_the_reading_if_it_is_wrong() {
    // The first protected record; its only fault is the last byte.
    let server = Server {
        record_len: 300,
        ..Server::new()
    };
    let flight = server.flight();
    let heads = |at: &usize| flight[*at..].starts_with(&[APPLICATION_DATA, 3, 3]);
    let at = (0..flight.len()).find(heads).unwrap();
    let len = usize::from(u16::from_be_bytes([flight[at + 3], flight[at + 4]]));
    let (mut end, mut bytes) = (at + 5 + len, flight.clone());
    bytes[end - 1] ^= 1;
    end = end.min(bytes.len());
    let found = read(&bytes[..end], 100);
    let whole = read(&flight[..end], 100);
    assert!(found.is_over && !whole.is_over);
    assert!(found.chain == whole.chain, "they were read before the tag");
}

#[test]
fn hellos_that_contradict_ours_are_not_answered() {
    let group = |id: u16| [&[0, 51, 0, 2][..], &id.to_be_bytes()].concat();
    let version = [0, 43, 0, 2, 3, 4];
    let random = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    let retry = |extensions: &[u8]| {
        let len = (extensions.len() as u16).to_be_bytes();
        let body = [&[3, 3], &random[..], &[0, 0x13, 1, 0], &len, extensions].concat();
        let message = [&[2, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
        [
            &[22, 3, 3][..],
            &(message.len() as u16).to_be_bytes(),
            &message,
        ]
        .concat()
    };
    let cookie = [&[0, 44, 0, 6, 0, 4][..], b"tart"].concat();
    let p521 = retry(&[&version[..], &group(25), &cookie].concat());
    let found = read(&p521, 3);
    assert!(!found.is_over);
    // The change of cipher, and a hello with the cookie and a key of 133 bytes.
    assert!(found.second.starts_with(&[20, 3, 3, 0, 1, 1, 22, 3, 3]));
    assert!(found.second.ends_with(b"\0\x2c\0\x06\0\x04tart"));
    assert!(
        found
            .second
            .windows(133)
            .any(|part| part == GROUPS[3].share)
    );
    let only_cookie = read(&retry(&[&version[..], &cookie].concat()), 3);
    assert!(only_cookie.second.ends_with(b"tart"));
    for extensions in [
        // Nothing new, a share that was sent, an unknown group, no version, a long cookie.
        version.to_vec(),
        [&version[..], &group(29)].concat(),
        [&version[..], &group(30)].concat(),
        group(24),
        [&version[..], &[0, 44, 8, 2, 8, 0], &[1; 2048]].concat(),
    ] {
        let found = read(&retry(&extensions), 50);
        assert!(found.is_over && found.second.is_empty(), "{extensions:?}");
    }
    // A second time.
    let found = read(&p521.repeat(2), 50);
    assert!(found.is_over);
    for other in [
        &b"HTTP/1.1 400 Bad Request"[..],
        &[21, 3, 3, 0, 2, 2, 40],
        &[22, 3, 3, 0, 0],
        // A hello without a body, and another message after it.
        &[22, 3, 3, 0, 5, 2, 0, 0, 0, 0],
    ] {
        assert!(read(other, 3).is_over, "{other:?}");
    }
}
