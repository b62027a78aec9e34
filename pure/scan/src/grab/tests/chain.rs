//! Chains of certificates that take several segments.

use super::*;

/// A DER element (X.690 section 8.1) with these contents.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let len = (contents.len() as u16).to_be_bytes();
    [&[tag, 0x82][..], &len, contents].concat()
}

/// A certificate with a key and a signature of RSA, of 2,048 bits each.
pub(crate) fn certificate(serial: u8) -> Vec<u8> {
    let validity = der(0x17, b"240229235959Z").repeat(2);
    let name = der(0x30, &[]);
    let extensions = der(0xa3, &der(0x30, &der(0x30, &der(4, &[7; 400]))));
    let signed = [
        der(0xa0, &der(2, &[2])),
        der(2, &[serial; 16]),
        der(0x30, &[]),
        name.clone(),
        der(0x30, &validity),
        name,
        der(0x30, &der(3, &[serial; 270])),
        extensions,
    ];
    let parts = [
        der(0x30, &signed.concat()),
        der(0x30, &[]),
        der(3, &[9; 257]),
    ];
    der(0x30, &parts.concat())
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat()
}

/// A server's first flight: each message is a record.
fn flight(chain: &[Vec<u8>]) -> Vec<u8> {
    let hello = [&[3, 3][..], &[5; 32], &[0, 0xc0, 0x2f, 0]].concat();
    let list: Vec<u8> = chain.iter().flat_map(|der| sized(der)).collect();
    let messages = [
        (2, hello),
        (11, sized(&list)),
        (12, vec![8; 300]),
        (14, vec![]),
    ];
    let record = |(kind, body): (u8, Vec<u8>)| {
        let message = [&[kind][..], &sized(&body)].concat();
        let len = (message.len() as u16).to_be_bytes();
        [&[22, 3, 3][..], &len, &message].concat()
    };
    messages.into_iter().flat_map(record).collect()
}

/// The whole of a server's stream arrives before its second hello was asked for.
#[test]
fn an_encrypted_chain_is_kept_to_its_end() {
    for (is_retried, flight, chain) in crate::grab::tls::tests::flights() {
        for pieces in [(1_460, 1_460), (90, 90)] {
            let manner = Manner {
                answers: true,
                closes: false,
                pieces,
                ..Manner::says(&flight)
            };
            let outcome = converse(443, &manner, Wire::default());
            let banner = &outcome.banners[0];
            let kept = banner.certificates.iter().map(|one| &*one.der);
            assert!(kept.eq(chain.iter().map(|der| &**der)), "{pieces:?}");
            assert_eq!(banner.ending, Ending::Enough, "{pieces:?}");
            let text = json(banner);
            assert!(has_dates(banner), "{pieces:?}: {text}");
            assert!(text.contains("http/1.1"), "{pieces:?}: {text}");
            let heard = &outcome.server.heard;
            assert_eq!(heard.len() > 600, is_retried, "{pieces:?}: {}", heard.len());
        }
    }
}

/// Whether the fields of the server's certificate are there.
fn has_dates(banner: &Banner) -> bool {
    let values = banner.certificate.values();
    values
        .iter()
        .any(|(field, _)| *field == inspect::Field::TlsNotAfter)
}

#[test]
fn a_chain_is_kept_to_its_end() {
    let chain = [1, 2, 3].map(certificate);
    assert!(chain[0].len() > 1_000);
    for pieces in [(1_460, 1_460), (1_100, 536), (4_096, 4_096), (90, 90)] {
        let manner = Manner {
            answers: true,
            closes: false,
            pieces,
            ..Manner::says(&flight(&chain))
        };
        let outcome = converse(443, &manner, Wire::default());
        let banner = &outcome.banners[0];
        let kept: Vec<&[u8]> = banner.certificates.iter().map(|one| &*one.der).collect();
        assert_eq!(kept, chain, "{pieces:?}");
        // It does not wait for the pause of an unknown service.
        assert_eq!(banner.ending, Ending::Enough, "{pieces:?}");
        assert!(has_dates(banner), "{pieces:?}: {}", json(banner));
    }
}
