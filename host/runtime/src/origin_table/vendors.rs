//! MAC vendors: IEEE's registries (`oui.csv`, `mam.csv`, `oui36.csv`) and Wireshark's `manuf`. The
//! longest prefix wins.

use std::collections::HashMap;
use std::sync::Arc;

use super::ranges::{cut, split};

/// Maximum number of prefixes.
const PREFIXES_MAX: usize = 1 << 20;
/// Maximum line length in bytes.
const LINE_MAX: usize = 4096;
/// Bits of a MAC address.
const ADDRESS_BITS: u32 = 48;

/// Line prefixes of IEEE's registries.
const REGISTRIES: [&str; 5] = ["MA-L,", "MA-M,", "MA-S,", "CID,", "IAB,"];

/// The vendors of one or more files.
#[derive(Debug, Default)]
pub struct Vendors {
    /// By prefix length, longest first.
    by_len: Vec<(u32, HashMap<u64, Arc<str>>)>,
    count: usize,
}

impl Vendors {
    /// Adds a file.
    ///
    /// # Errors
    /// The line and the problem.
    pub fn add(&mut self, text: &[u8]) -> Result<(), String> {
        let before = self.count;
        // A quoted postal address in IEEE's files spans several lines.
        let mut is_inside = false;
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let wrong = |why: &str| format!("line {}: {why}", at + 1);
            if line.len() > LINE_MAX {
                return Err(wrong("the line is too long"));
            }
            let line = String::from_utf8_lossy(line);
            let line = line.trim_matches(['\u{feff}', '\r', ' ']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let is_ieee = REGISTRIES.iter().any(|name| line.starts_with(name));
            let has_odd_quotes = line.bytes().filter(|byte| *byte == b'"').count() % 2 != 0;
            if is_inside && !is_ieee {
                is_inside = !has_odd_quotes;
                continue;
            }
            is_inside = is_ieee && has_odd_quotes;
            // IEEE's files have commas, and an occasional stray tab.
            let fields = match is_ieee {
                true => split(&line.replace('\t', " ")),
                false => split(line),
            };
            let Some((prefix, len, name)) = entry(&fields) else {
                // Column names, and comments of others.
                if at == 0 || self.count > before && !line.starts_with("MA-") {
                    continue;
                }
                return Err(wrong("it does not start with a MAC prefix"));
            };
            self.count += 1;
            if self.count > PREFIXES_MAX {
                return Err(wrong("there are more than a million prefixes"));
            }
            let list = match self.by_len.iter().position(|(of, _)| *of == len) {
                Some(list) => list,
                None => {
                    self.by_len.push((len, HashMap::new()));
                    self.by_len.len() - 1
                }
            };
            self.by_len[list].1.insert(prefix, name);
        }
        if self.count == before {
            return Err("it contains no MAC vendors".into());
        }
        self.by_len.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        Ok(())
    }

    /// The vendor of the card with this address.
    pub fn find(&self, mac: [u8; 6]) -> Option<&Arc<str>> {
        let number = mac.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let mut lists = self.by_len.iter();
        lists.find_map(|(len, list)| list.get(&(number >> (ADDRESS_BITS - len))))
    }

    /// Approximate memory in bytes.
    pub fn memory_len(&self) -> usize {
        const ENTRY_LEN: usize = 72;
        self.count * ENTRY_LEN
    }
}

/// A prefix, its length in bits, and a name.
fn entry(fields: &[String]) -> Option<(u64, u32, Arc<str>)> {
    let [first, second, rest @ ..] = fields else {
        return None;
    };
    // IEEE: registry, assignment, organization, address.
    let (prefix, name) = match first.as_str() {
        "MA-L" | "MA-M" | "MA-S" | "CID" | "IAB" => (second.as_str(), rest.first()?.as_str()),
        prefix => {
            // Wireshark: prefix, short name, long name.
            let long = rest.first().filter(|name| !name.is_empty());
            (prefix, long.unwrap_or(second).as_str())
        }
    };
    let (digits, len) = match prefix.split_once('/') {
        Some((digits, len)) => (digits, Some(len.parse::<u32>().ok()?)),
        None => (prefix, None),
    };
    let mut number = 0_u64;
    let mut bits = 0;
    for letter in digits.chars() {
        let digit = match letter {
            ':' | '-' | '.' => continue,
            letter => letter.to_digit(16)?,
        };
        number = number << 4 | u64::from(digit);
        bits += 4;
        if bits > ADDRESS_BITS {
            return None;
        }
    }
    let len = len.unwrap_or(bits);
    if bits < 8 || !(8..=ADDRESS_BITS).contains(&len) || name.is_empty() {
        return None;
    }
    // As many bits as the prefix length, regardless of the digits present.
    let whole = number << (ADDRESS_BITS - bits);
    Some((whole >> (ADDRESS_BITS - len), len, cut(name).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(vendors: &Vendors, mac: [u8; 6]) -> Option<&str> {
        vendors.find(mac).map(|name| &**name)
    }

    #[test]
    fn registries_and_manuf_are_read() {
        let mut vendors = Vendors::default();
        let ieee = "Registry,Assignment,Organization Name,Organization Address\n\
                    MA-L,002272,\"American Micro, Inc.\",\"2181 Buchanan\nLoop, US\"\n\
                    MA-M,50A4D01,Private,\nMA-S,001BC5000,Converging Systems,x\n";
        vendors.add(ieee.as_bytes()).unwrap();
        let manuf = "# remark\n00:00:00\tXerox\tXerox Corporation\n\
                     00:1B:C5:00:10:00/36\tOpenRB\n01-80-C2-00-00-00/45\tBridge\t\n";
        vendors.add(manuf.as_bytes()).unwrap();
        assert_eq!(
            find(&vendors, [0, 0x22, 0x72, 1, 2, 3]),
            Some("American Micro, Inc.")
        );
        assert_eq!(
            find(&vendors, [0x50, 0xa4, 0xd0, 0x1f, 0, 0]),
            Some("Private")
        );
        assert_eq!(find(&vendors, [0x50, 0xa4, 0xd0, 0x2f, 0, 0]), None);
        assert_eq!(
            find(&vendors, [0, 0x1b, 0xc5, 0, 0x0f, 9]),
            Some("Converging Systems")
        );
        assert_eq!(find(&vendors, [0, 0x1b, 0xc5, 0, 0x1f, 9]), Some("OpenRB"));
        assert_eq!(
            find(&vendors, [0, 0, 0, 9, 9, 9]),
            Some("Xerox Corporation")
        );
        assert_eq!(find(&vendors, [1, 0x80, 0xc2, 0, 0, 7]), Some("Bridge"));
        assert_eq!(find(&vendors, [1, 0x80, 0xc2, 0, 0, 8]), None);
    }

    /// A line of a postal address may look like the start of a line of Wireshark's.
    #[test]
    fn a_postal_address_over_several_lines_is_not_a_vendor() {
        let mut vendors = Vendors::default();
        let ieee = "Registry,Assignment,Organization Name,Organization Address\n\
                    MA-L,002272,One,\"1\tStreet\n94085,US\n00:00:00,CA\"\nMA-L,002273,Two,x\n\
                    MA-L,002274,Three,\"never ended\nMA-L,002275,Four,x\n";
        vendors.add(ieee.as_bytes()).unwrap();
        assert_eq!(find(&vendors, [0x94, 0x08, 0x50, 0, 0, 0]), None);
        assert_eq!(find(&vendors, [0, 0, 0, 0, 0, 1]), None);
        for (last, name) in [(2, "One"), (3, "Two"), (4, "Three"), (5, "Four")] {
            assert_eq!(find(&vendors, [0, 0x22, 0x70 + last, 0, 0, 1]), Some(name));
        }
    }

    #[test]
    fn errors_are_reported() {
        for (text, words) in [
            ("", "no MAC vendors"),
            ("Registry,Assignment\n", "no MAC vendors"),
            ("#\nxyz,abc\n", "line 2"),
            ("#\n00:00:00/49\tx\n", "line 2"),
            ("#\n00:00:00:00:00:00:00\tx\n", "line 2"),
        ] {
            let error = Vendors::default().add(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let good = b"00:00:00/24\tXerox\tXerox Corporation\nMA-L,002272,A,b\n";
        for at in 0..good.len() {
            for byte in [0, b'\n', b',', b'/', b'9', b'\t', 0xff] {
                let mut bytes = good.to_vec();
                bytes[at] = byte;
                let mut vendors = Vendors::default();
                if vendors.add(&bytes).is_ok() {
                    let _ = vendors.find([0xff; 6]);
                }
            }
        }
    }
}
