//! Object identifiers (X.690 §8.19) and the names that OpenSSL has for those of certificates.

use crate::text::{Text, decimal};

/// Maximum length of an identifier as text.
pub(super) const OID_MAX: usize = 64;

/// Attributes of distinguished names, by their short names (RFC 4519, RFC 5280 appendix A, EV
/// guidelines §9.2).
const ATTRIBUTES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.16", "postalAddress"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.18", "postOfficeBox"),
    ("2.5.4.19", "physicalDeliveryOfficeName"),
    ("2.5.4.20", "telephoneNumber"),
    ("2.5.4.23", "facsimileTelephoneNumber"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.45", "x500UniqueIdentifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.72", "role"),
    ("2.5.4.97", "organizationIdentifier"),
    ("2.5.4.98", "c3"),
    ("2.5.4.99", "n3"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.3", "mail"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.2.840.113549.1.9.7", "challengePassword"),
    ("1.2.840.113549.1.9.8", "unstructuredAddress"),
    ("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
    ("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
    ("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
];

/// Algorithms of signatures.
const SIGNATURES: &[(&str, &str)] = &[
    ("1.2.840.113549.1.1.2", "md2WithRSAEncryption"),
    ("1.2.840.113549.1.1.3", "md4WithRSAEncryption"),
    ("1.2.840.113549.1.1.4", "md5WithRSAEncryption"),
    ("1.2.840.113549.1.1.5", "sha1WithRSAEncryption"),
    ("1.2.840.113549.1.1.10", "rsassaPss"),
    ("1.2.840.113549.1.1.11", "sha256WithRSAEncryption"),
    ("1.2.840.113549.1.1.12", "sha384WithRSAEncryption"),
    ("1.2.840.113549.1.1.13", "sha512WithRSAEncryption"),
    ("1.2.840.113549.1.1.14", "sha224WithRSAEncryption"),
    ("1.2.840.113549.1.1.15", "sha512-224WithRSAEncryption"),
    ("1.2.840.113549.1.1.16", "sha512-256WithRSAEncryption"),
    ("1.2.840.10040.4.3", "dsaWithSHA1"),
    ("1.2.840.10045.4.1", "ecdsa-with-SHA1"),
    ("1.2.840.10045.4.3.1", "ecdsa-with-SHA224"),
    ("1.2.840.10045.4.3.2", "ecdsa-with-SHA256"),
    ("1.2.840.10045.4.3.3", "ecdsa-with-SHA384"),
    ("1.2.840.10045.4.3.4", "ecdsa-with-SHA512"),
    ("1.3.14.3.2.3", "md5WithRSA"),
    ("1.3.14.3.2.13", "dsaWithSHA"),
    ("1.3.14.3.2.27", "dsaWithSHA1-old"),
    ("1.3.14.3.2.29", "sha1WithRSA"),
    ("1.3.36.3.3.1.2", "ripemd160WithRSA"),
    ("1.3.101.112", "ED25519"),
    ("1.3.101.113", "ED448"),
    ("1.2.156.10197.1.501", "SM2-with-SM3"),
    ("1.2.643.2.2.3", "GOST R 34.11-94 with GOST R 34.10-2001"),
    (
        "1.2.643.7.1.1.3.2",
        "GOST R 34.10-2012 with GOST R 34.11-2012 (256 bit)",
    ),
    (
        "1.2.643.7.1.1.3.3",
        "GOST R 34.10-2012 with GOST R 34.11-2012 (512 bit)",
    ),
    ("2.16.840.1.101.3.4.3.1", "dsa_with_SHA224"),
    ("2.16.840.1.101.3.4.3.2", "dsa_with_SHA256"),
    ("2.16.840.1.101.3.4.3.3", "dsa_with_SHA384"),
    ("2.16.840.1.101.3.4.3.4", "dsa_with_SHA512"),
    ("2.16.840.1.101.3.4.3.5", "dsa_with_SHA3-224"),
    ("2.16.840.1.101.3.4.3.6", "dsa_with_SHA3-256"),
    ("2.16.840.1.101.3.4.3.7", "dsa_with_SHA3-384"),
    ("2.16.840.1.101.3.4.3.8", "dsa_with_SHA3-512"),
    ("2.16.840.1.101.3.4.3.9", "ecdsa_with_SHA3-224"),
    ("2.16.840.1.101.3.4.3.10", "ecdsa_with_SHA3-256"),
    ("2.16.840.1.101.3.4.3.11", "ecdsa_with_SHA3-384"),
    ("2.16.840.1.101.3.4.3.12", "ecdsa_with_SHA3-512"),
    ("2.16.840.1.101.3.4.3.13", "RSA-SHA3-224"),
    ("2.16.840.1.101.3.4.3.14", "RSA-SHA3-256"),
    ("2.16.840.1.101.3.4.3.15", "RSA-SHA3-384"),
    ("2.16.840.1.101.3.4.3.16", "RSA-SHA3-512"),
    ("2.16.840.1.101.3.4.3.17", "ML-DSA-44"),
    ("2.16.840.1.101.3.4.3.18", "ML-DSA-65"),
    ("2.16.840.1.101.3.4.3.19", "ML-DSA-87"),
    ("2.16.840.1.101.3.4.3.20", "SLH-DSA-SHA2-128s"),
    ("2.16.840.1.101.3.4.3.21", "SLH-DSA-SHA2-128f"),
    ("2.16.840.1.101.3.4.3.22", "SLH-DSA-SHA2-192s"),
    ("2.16.840.1.101.3.4.3.23", "SLH-DSA-SHA2-192f"),
    ("2.16.840.1.101.3.4.3.24", "SLH-DSA-SHA2-256s"),
    ("2.16.840.1.101.3.4.3.25", "SLH-DSA-SHA2-256f"),
    ("2.16.840.1.101.3.4.3.26", "SLH-DSA-SHAKE-128s"),
    ("2.16.840.1.101.3.4.3.27", "SLH-DSA-SHAKE-128f"),
    ("2.16.840.1.101.3.4.3.28", "SLH-DSA-SHAKE-192s"),
    ("2.16.840.1.101.3.4.3.29", "SLH-DSA-SHAKE-192f"),
    ("2.16.840.1.101.3.4.3.30", "SLH-DSA-SHAKE-256s"),
    ("2.16.840.1.101.3.4.3.31", "SLH-DSA-SHAKE-256f"),
];

/// An identifier as text: `2.5.4.3`. One that is too long or incomplete is cut.
pub(super) fn dotted(oid: &[u8]) -> Text<OID_MAX> {
    let mut text = Text::EMPTY;
    let mut put = |arc: u64| {
        if !text.is_empty() {
            text.push_char('.');
        }
        let mut digits = [0; 20];
        let digits = decimal(arc, &mut digits);
        digits
            .iter()
            .for_each(|digit| text.push_char(char::from(*digit)));
    };
    let (mut arc, mut is_first, mut is_whole) = (0_u64, true, true);
    for byte in oid {
        if arc > u64::MAX >> 7 {
            is_whole = false;
            break;
        }
        arc = arc << 7 | u64::from(byte & 0x7f);
        is_whole = byte & 0x80 == 0;
        if !is_whole {
            continue;
        }
        // The first number holds two arcs (§8.19.4).
        if core::mem::take(&mut is_first) {
            let first = (arc / 40).min(2);
            put(first);
            put(arc - 40 * first);
        } else {
            put(arc);
        }
        arc = 0;
    }
    if !is_whole {
        text.cut();
    }
    text
}

fn named(table: &'static [(&str, &str)], text: &Text<OID_MAX>) -> Option<&'static str> {
    let found = table.iter().find(|(oid, _)| oid.as_bytes() == text.bytes());
    found.map(|(_, name)| *name)
}

/// The short name of an attribute.
pub(super) fn attribute(text: &Text<OID_MAX>) -> Option<&'static str> {
    named(ATTRIBUTES, text)
}

/// The name of a signature algorithm.
pub(super) fn signature(text: &Text<OID_MAX>) -> Option<&'static str> {
    named(SIGNATURES, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_dotted_numbers() {
        for (bytes, expected, is_cut) in [
            (&[0x55, 4, 3][..], "2.5.4.3", false),
            (
                &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11],
                "1.2.840.113549.1.1.11",
                false,
            ),
            (&[0x88, 0x37, 3], "2.999.3", false),
            (&[39], "0.39", false),
            (&[0x55, 0x84], "2.5", true),
            (&[0xff; 12], "", true),
            (&[], "", false),
        ] {
            let text = dotted(bytes);
            assert_eq!(text.bytes(), expected.as_bytes());
            assert_eq!(text.is_cut(), is_cut, "{expected}");
        }
        assert!(dotted(&[0x2a; 100]).is_cut());
        assert_eq!(attribute(&dotted(&[0x55, 4, 10])), Some("O"));
        assert_eq!(signature(&dotted(&[0x2b, 0x65, 0x70])), Some("ED25519"));
    }
}
