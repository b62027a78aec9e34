//! Type and size of a certificate's key (RFC 3279 §2.3, RFC 5480, RFC 8410).

use super::element;
use super::oid;

/// How the size of a key is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Bits of the modulus, the first number of the key.
    Modulus,
    /// Bits of the prime, the first number of the parameters.
    Prime,
    /// Bits of the curve's order.
    Curve,
    /// Bits of the encoded key.
    Encoding,
}

/// Types of keys, their names, and how their size is found.
const KEYS: &[(&str, &str, Size)] = &[
    ("1.2.840.113549.1.1.1", "rsa", Size::Modulus),
    ("2.5.8.1.1", "rsa", Size::Modulus),
    ("1.2.840.113549.1.1.7", "rsa-oaep", Size::Modulus),
    ("1.2.840.113549.1.1.10", "rsa-pss", Size::Modulus),
    ("1.2.840.10040.4.1", "dsa", Size::Prime),
    ("1.3.14.3.2.12", "dsa", Size::Prime),
    ("1.2.840.113549.1.3.1", "dh", Size::Prime),
    ("1.2.840.10046.2.1", "dh", Size::Prime),
    ("1.2.840.10045.2.1", "ec", Size::Curve),
    ("1.3.132.1.12", "ec", Size::Curve),
    ("1.3.101.110", "x25519", Size::Encoding),
    ("1.3.101.111", "x448", Size::Encoding),
    ("1.3.101.112", "ed25519", Size::Encoding),
    ("1.3.101.113", "ed448", Size::Encoding),
    ("2.16.840.1.101.3.4.3.17", "ml-dsa-44", Size::Encoding),
    ("2.16.840.1.101.3.4.3.18", "ml-dsa-65", Size::Encoding),
    ("2.16.840.1.101.3.4.3.19", "ml-dsa-87", Size::Encoding),
];

/// Curves whose order is shorter or longer than the numbers of their points (SEC 2, RFC 5639): the
/// bits of their order.
const CURVES: &[(&str, u64)] = &[
    ("1.3.132.0.1", 163),
    ("1.3.132.0.2", 162),
    ("1.3.132.0.3", 238),
    ("1.3.132.0.4", 113),
    ("1.3.132.0.5", 113),
    ("1.3.132.0.7", 110),
    ("1.3.132.0.8", 161),
    ("1.3.132.0.9", 161),
    ("1.3.132.0.15", 163),
    ("1.3.132.0.16", 281),
    ("1.3.132.0.17", 282),
    ("1.3.132.0.22", 131),
    ("1.3.132.0.23", 131),
    ("1.3.132.0.24", 193),
    ("1.3.132.0.25", 193),
    ("1.3.132.0.26", 232),
    ("1.3.132.0.27", 233),
    ("1.3.132.0.29", 126),
    ("1.3.132.0.30", 161),
    ("1.3.132.0.32", 225),
    ("1.3.132.0.35", 521),
    ("1.3.132.0.36", 407),
    ("1.3.132.0.37", 409),
    ("1.3.132.0.38", 570),
    ("1.3.132.0.39", 570),
    ("1.2.840.10045.3.1.4", 239),
    ("1.2.840.10045.3.1.5", 239),
    ("1.2.840.10045.3.1.6", 239),
];

/// What the algorithm of a key says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    row: Option<&'static (&'static str, &'static str, Size)>,
    is_unknown: bool,
    /// Bits that follow from the parameters.
    bits: Option<u64>,
}

impl Kind {
    pub(super) const UNKNOWN: Kind = Kind {
        row: None,
        is_unknown: true,
        bits: None,
    };

    /// Selects the algorithm by its identifier.
    pub(super) fn of(identifier: &[u8]) -> Kind {
        let text = oid::dotted(identifier);
        Kind {
            row: KEYS.iter().find(|(oid, ..)| oid.as_bytes() == text.bytes()),
            is_unknown: false,
            bits: None,
        }
    }

    /// Whether no algorithm was selected yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    pub(super) fn name(&self) -> Option<&'static str> {
        self.row.map(|(_, name, _)| *name)
    }

    /// Reads the parameters of the algorithm: their tag, and the contents as far as present.
    pub(super) fn parameters(&mut self, tag: u8, contents: &[u8]) {
        const OBJECT_IDENTIFIER: u8 = 0x06;
        self.bits = match (self.row, tag) {
            (Some((.., Size::Prime)), _) => {
                element::first(contents).and_then(|(prime, _)| element::integer_bits(&prime))
            }
            (Some((.., Size::Curve)), OBJECT_IDENTIFIER) => {
                let text = oid::dotted(contents);
                let curve = CURVES
                    .iter()
                    .find(|(oid, _)| oid.as_bytes() == text.bytes());
                curve.map(|(_, bits)| *bits)
            }
            // The prime of a curve that is spelled out, behind the version (RFC 3279 §2.3.5).
            (Some((.., Size::Curve)), _) => element::all(contents).nth(1).and_then(|field| {
                let prime = element::all(field.contents).nth(1)?;
                element::integer_bits(&prime)
            }),
            _ => None,
        };
    }

    /// The size of the key: of `len` bytes, of which the first are present.
    pub(super) fn bits(&self, key: &[u8], len: u32) -> Option<u64> {
        let encoded = u64::from(len.saturating_sub(1)) * 8;
        // The number of unused bits comes first.
        let key = key.get(1..)?;
        match self.row.map(|(.., size)| *size) {
            Some(Size::Modulus) => {
                let (numbers, _) = element::first(key)?;
                element::integer_bits(&element::first(numbers.contents)?.0)
            }
            Some(Size::Prime) => self.bits,
            Some(Size::Curve) => self.bits.or(match key.first()? {
                // A compressed point has one number, others have two (SEC 1 §2.3.3).
                2 | 3 => Some(encoded.saturating_sub(8)),
                _ => Some(encoded.saturating_sub(8) / 2),
            }),
            Some(Size::Encoding) => Some(encoded),
            None => None,
        }
    }
}
