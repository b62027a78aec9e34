//! Link-layer addresses. IP addresses are those of `core::net`.

use core::fmt;
use core::str::FromStr;

/// A 48-bit MAC address in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether the group bit is set, which includes broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether the address is locally administered, not assigned by a vendor.
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six hexadecimal bytes separated by `:` or `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacParseError;

impl fmt::Display for MacParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a MAC address is six hexadecimal bytes joined by ':' (02:00:00:00:00:01)")
    }
}

impl core::error::Error for MacParseError {}

impl FromStr for Mac {
    type Err = MacParseError;

    fn from_str(text: &str) -> Result<Mac, MacParseError> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or(MacParseError)?;
            // from_str_radix alone would take "+1".
            if !(1..=2).contains(&part.len()) || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(MacParseError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacParseError)?;
        }
        if parts.next().is_some() {
            Err(MacParseError)
        } else {
            Ok(Mac(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn text_round_trip() {
        let mac: Mac = "02:00:5e-10:00:0a".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:0a");
        assert!(mac.is_local() && !mac.is_multicast());
        for bad in [
            "",
            "1:2:3:4:5",
            "1:2:3:4:5:6:7",
            "g:2:3:4:5:6",
            "+1:2:3:4:5:6",
            "001:2:3:4:5:6",
        ] {
            assert_eq!(bad.parse::<Mac>(), Err(MacParseError), "{bad}");
        }
    }
}
