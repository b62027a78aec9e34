//! MaxMind DB files: MaxMind's own (networks, countries, cities), DB-IP's and IPinfo's.

use std::net::IpAddr;

use maxminddb::{PathElement, Reader};

/// The marker before the file's metadata.
pub(super) const MARK: &[u8] = b"\xab\xcd\xefMaxMind.com";
/// How much of the file's end is searched for it (MaxMind DB File Format Specification, "Database
/// Metadata").
const TAIL_LEN: usize = 128 << 10;

/// A MaxMind DB file.
pub struct Database {
    reader: Reader<Vec<u8>>,
    len: usize,
}

/// The data of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found<'a> {
    /// The autonomous system, or 0.
    pub asn: u32,
    /// Its name.
    pub network: &'a str,
    /// The country, or zeros.
    pub country: [u8; 2],
    /// The city, in English.
    pub city: &'a str,
}

impl Database {
    /// Whether the bytes are a MaxMind DB file.
    pub fn is_one(bytes: &[u8]) -> bool {
        let tail = &bytes[bytes.len().saturating_sub(TAIL_LEN)..];
        tail.windows(MARK.len()).any(|window| window == MARK)
    }

    /// Opens a file that is in memory.
    ///
    /// # Errors
    /// A description of the damage.
    pub fn new(bytes: Vec<u8>) -> Result<Database, String> {
        let len = bytes.len();
        let reader = Reader::from_source(bytes).map_err(|error| error.to_string())?;
        Ok(Database { reader, len })
    }

    /// Looks up an address. In a damaged file nothing is found.
    pub fn find(&self, addr: IpAddr) -> Found<'_> {
        let Ok(found) = self.reader.lookup(addr) else {
            return Found::default();
        };
        let text = |path: &[PathElement<'_>]| {
            let text = found.decode_path::<&str>(path).ok().flatten();
            text.unwrap_or_default()
        };
        let key = PathElement::Key;
        let number = found.decode_path::<u32>(&[key("autonomous_system_number")]);
        // IPinfo writes AS64500.
        let asn = number.ok().flatten().or_else(|| {
            let text = text(&[key("asn")]);
            text.strip_prefix("AS").unwrap_or(text).parse().ok()
        });
        let first = |paths: &[&[PathElement<'_>]]| {
            let mut texts = paths.iter().map(|path| text(path));
            texts.find(|text| !text.is_empty()).unwrap_or_default()
        };
        let code = first(&[
            &[key("country"), key("iso_code")],
            &[key("registered_country"), key("iso_code")],
            &[key("country_code")],
            &[key("country")],
        ]);
        let country = match *code.as_bytes() {
            [a, b] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() => [a, b],
            _ => [0; 2],
        };
        Found {
            asn: asn.unwrap_or(0),
            network: first(&[
                &[key("autonomous_system_organization")],
                &[key("as_name")],
                &[key("name")],
            ]),
            country,
            city: first(&[&[key("city"), key("names"), key("en")], &[key("city")]]),
        }
    }

    /// Memory in bytes.
    pub fn memory_len(&self) -> usize {
        self.len
    }
}
