//! Maps networks to networks and ports to ports, for rewriting.

use crate::range::{Prefix, parse_prefix};
use crate::{Error, Result};

/// Maps one network to another: `10.0.0.0/8=192.168.0.0/8` keeps the host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddrMap {
    from: Prefix,
    to: Prefix,
}

impl AddrMap {
    /// Parses `FROM=TO`. `TO` may be a smaller network than `FROM`: excess host bits are then
    /// dropped, and with a single address all of `FROM` maps to it.
    ///
    /// # Errors
    /// If the two are not networks of one IP version, or `TO` is larger.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((from, to)) = text.split_once('=') else {
            let why = format!("{text:?} is not a map of addresses");
            return Err(Error::new(why).with_hint("write FROM=TO: 10.0.0.0/8=192.168.0.0/16"));
        };
        let (from, to) = (parse_prefix(from)?, parse_prefix(to)?);
        if from.version != to.version {
            return Err(Error::new(format!(
                "{text:?} maps one IP version to the other"
            )));
        }
        if to.len < from.len {
            let why = format!("{text:?}: the second network is larger than the first");
            let hint = "give it a prefix at least as long: the rest would be undefined";
            return Err(Error::new(why).with_hint(hint));
        }
        Ok(Self { from, to })
    }

    /// IP version, 4 or 6.
    #[inline]
    pub(crate) fn version(&self) -> u8 {
        self.from.version
    }

    /// The new address for an address of the network.
    #[inline]
    pub(crate) fn apply(&self, bits: u128) -> Option<u128> {
        self.from
            .contains(bits)
            .then_some(self.to.bits | bits & self.to.host_mask)
    }
}

/// Maps ports: `80=8080`, `1000-1999=5000` (to 5000 and following).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMap {
    low: u16,
    high: u16,
    to: u16,
}

impl PortMap {
    /// Parses `FROM=TO` or `LOW-HIGH=TO`.
    ///
    /// # Errors
    /// For invalid ports, or a target above 65535.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            let why = format!("{text:?} is not a map of ports");
            Error::new(why).with_hint("write 80=8080, or 1000-1999=5000 for a row of them")
        };
        let (from, to) = text.split_once('=').ok_or_else(bad)?;
        let (low, high) = from.split_once('-').unwrap_or((from, from));
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
        let (low, high, to) = (port(low)?, port(high)?, port(to)?);
        if high < low || to.checked_add(high - low).is_none() {
            return Err(bad());
        }
        Ok(Self { low, high, to })
    }

    #[inline]
    pub(crate) fn apply(&self, port: u16) -> Option<u16> {
        (self.low..=self.high)
            .contains(&port)
            .then(|| self.to + (port - self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::addr_bits;

    fn map(text: &str, addr: &str) -> Option<u128> {
        AddrMap::parse(text)
            .unwrap()
            .apply(addr_bits(addr.parse().unwrap()))
    }

    fn bits(addr: &str) -> Option<u128> {
        Some(addr_bits(addr.parse().unwrap()))
    }

    #[test]
    fn host_bits_that_fit_are_kept() {
        assert_eq!(map("10.0.0.0/8=192.0.0.0/8", "10.1.2.3"), bits("192.1.2.3"));
        assert_eq!(
            map("10.0.0.0/8=192.168.0.0/16", "10.1.2.3"),
            bits("192.168.2.3")
        );
        assert_eq!(map("0.0.0.0/0=10.0.0.1", "8.8.8.8"), bits("10.0.0.1"));
        assert_eq!(map("10.0.0.0/8=192.0.0.0/8", "11.1.2.3"), None);
        assert_eq!(
            map("2001:db8::/32=fd00::/32", "2001:db8::7"),
            bits("fd00::7")
        );
        for bad in [
            "10.0.0.0/8",
            "10.0.0.0/8=::/8",
            "10.0.0.0/16=10.0.0.0/8",
            "a=b",
            "1.1.1.1/8=2.0.0.0/8",
        ] {
            assert!(AddrMap::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn port_ranges_map_in_order() {
        let one = PortMap::parse("80=8080").unwrap();
        assert_eq!((one.apply(80), one.apply(81)), (Some(8080), None));
        let row = PortMap::parse("1000-1999=5000").unwrap();
        assert_eq!(
            (row.apply(1000), row.apply(1999), row.apply(2000)),
            (Some(5000), Some(5999), None)
        );
        for bad in ["80", "80=", "9-1=5", "0-10=65530", "80=65536"] {
            assert!(PortMap::parse(bad).is_err(), "{bad}");
        }
    }
}
