//! Sets of values for a field: `10.0.0.0/24`, `10.0.0.1-10.0.0.9`, `1024-65535`, and lists of them.

use std::net::IpAddr;

use wire::Mac;

use crate::rng::Rng;
use crate::{Error, Result};

/// Maximum number of items in a list.
const SPAN_COUNT_MAX: usize = 4096;

/// Order in which the values of a range are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As written, repeatedly.
    #[default]
    Sequential,
    /// Each at random.
    Random,
}

/// Values from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    low: u128,
    high: u128,
    /// Number of values in the spans before it.
    first: u128,
}

/// A non-empty list of values and spans, in the order in which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    spans: Vec<Span>,
    last: u128,
}

impl Range {
    /// Creates a range of one value.
    pub fn one(value: u128) -> Self {
        let span = Span {
            low: value,
            high: value,
            first: 0,
        };
        Self {
            spans: vec![span],
            last: 0,
        }
    }

    /// Creates a range from pairs of first and last values.
    ///
    /// # Errors
    /// For no pairs, too many, one that ends before it starts, or more than 2^128 values in all.
    pub fn from_spans(pairs: &[(u128, u128)]) -> Result<Self> {
        if pairs.is_empty() || pairs.len() > SPAN_COUNT_MAX {
            let why = format!(
                "a list has 1 to {SPAN_COUNT_MAX} items, not {}",
                pairs.len()
            );
            return Err(Error::new(why));
        }
        let too_many = || Error::new("the list has more than 2^128 values");
        let mut spans = Vec::with_capacity(pairs.len());
        let mut first = 0u128;
        let mut last = 0;
        for (i, &(low, high)) in pairs.iter().enumerate() {
            if high < low {
                return Err(Error::new("a range ends before it starts"));
            }
            if i != 0 {
                first = u128::checked_add(last, 1).ok_or_else(too_many)?;
            }
            last = first.checked_add(high - low).ok_or_else(too_many)?;
            spans.push(Span { low, high, first });
        }
        Ok(Self { spans, last })
    }

    /// Parses numbers up to `max`: `80`, `1024-65535`, `53,80,443`.
    ///
    /// # Errors
    /// The error names the invalid item.
    pub fn numbers(text: &str, max: u64) -> Result<Self> {
        let number = |item: &str| match item.parse::<u64>() {
            Ok(value) if value <= max => Ok(u128::from(value)),
            _ => Err(Error::new(format!(
                "{item:?} is not a number from 0 to {max}"
            ))),
        };
        Self::parse(text, "80, 1024-65535, or 53,80,443", |item| {
            match item.split_once('-') {
                Some((low, high)) => Ok((number(low)?, number(high)?)),
                None => number(item).map(|value| (value, value)),
            }
        })
    }

    /// Parses addresses of one IP version: `10.0.0.1`, `10.0.0.0/24` (including the first and last
    /// address), `2001:db8::1-2001:db8::ff`, and lists of these. Returns the version as well.
    ///
    /// # Errors
    /// The error names the invalid item; IPv4 and IPv6 in one list are refused.
    pub fn addrs(text: &str) -> Result<(u8, Self)> {
        let mut version = 0;
        let range = Self::parse(
            text,
            "10.0.0.1, 10.0.0.0/24, or 10.0.0.1-10.0.0.9",
            |item| {
                let (low, high) = match item.split_once('-') {
                    Some((low, high)) => (parse_addr(low)?, parse_addr(high)?),
                    None => parse_prefix(item)?.bounds(),
                };
                for addr in [low, high] {
                    if version != 0 && version != version_of(addr) {
                        return Err(Error::new("IPv4 and IPv6 addresses do not mix in one list"));
                    }
                    version = version_of(addr);
                }
                Ok((addr_bits(low), addr_bits(high)))
            },
        )?;
        Ok((version, range))
    }

    /// Parses MAC addresses: `02:00:00:00:00:01`, `02:00:00:00:00:01-02:00:00:00:00:ff`, and lists
    /// of these.
    ///
    /// # Errors
    /// The error names the invalid item.
    pub fn macs(text: &str) -> Result<Self> {
        let mac = |item: &str| match item.parse::<Mac>() {
            Ok(mac) => Ok(mac_bits(mac)),
            Err(error) => Err(Error::new(format!("{item:?}: {error}"))),
        };
        // MAC addresses may also be separated by '-': a range is then recognised by its length.
        Self::parse(text, "02:00:00:00:00:01", |item| {
            match item.parse::<Mac>() {
                Ok(mac) => Ok((mac_bits(mac), mac_bits(mac))),
                Err(_) => match item.split_once('-') {
                    Some((low, high)) => Ok((mac(low)?, mac(high)?)),
                    None => mac(item).map(|value| (value, value)),
                },
            }
        })
    }

    fn parse(
        text: &str,
        example: &str,
        mut item: impl FnMut(&str) -> Result<(u128, u128)>,
    ) -> Result<Self> {
        let hinted = |error: Error| match error.hint {
            Some(_) => error,
            None => error.with_hint(format!("write for example {example}")),
        };
        let mut pairs = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            if pairs.len() == SPAN_COUNT_MAX {
                return Err(Error::new(format!("more than {SPAN_COUNT_MAX} items")));
            }
            let (low, high) = item(part).map_err(hinted)?;
            if high < low {
                return Err(hinted(Error::new(format!(
                    "{part:?} ends before it starts"
                ))));
            }
            pairs.push((low, high));
        }
        Self::from_spans(&pairs)
    }

    /// Number of values, less one: the count of all 2^128 IPv6 addresses would not fit.
    pub fn last_index(&self) -> u128 {
        self.last
    }

    /// The only value, if there is one.
    pub fn single(&self) -> Option<u128> {
        (self.last == 0).then(|| self.spans[0].low)
    }

    /// The smallest value.
    pub fn min(&self) -> u128 {
        self.spans.iter().map(|s| s.low).min().unwrap_or(0)
    }

    /// The largest value.
    pub fn max(&self) -> u128 {
        self.spans.iter().map(|s| s.high).max().unwrap_or(0)
    }

    /// The value with this index; an index past the end returns the last value.
    #[inline]
    pub fn get(&self, index: u128) -> u128 {
        let index = index.min(self.last);
        let at = match self.spans.len() {
            1 => 0,
            _ => self.spans.partition_point(|s| s.first <= index) - 1,
        };
        self.spans[at].low + (index - self.spans[at].first)
    }
}

/// Endless iteration over a range.
#[derive(Clone, Debug)]
pub struct Walk {
    range: Range,
    order: Order,
    span: usize,
    value: u128,
    /// Copy of `value` and the span's end if all values fit into 64 bits: everything but IPv6.
    narrow_value: u64,
    narrow_high: u64,
    is_wide: bool,
}

impl Walk {
    /// Starts at the first value.
    pub fn new(range: Range, order: Order) -> Self {
        let mut new = Self {
            is_wide: u64::try_from(range.max()).is_err(),
            range,
            order,
            span: 0,
            value: 0,
            narrow_value: 0,
            narrow_high: 0,
        };
        new.enter(0);
        new
    }

    /// The next value.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u128 {
        if !self.is_wide {
            return self.next_narrow(rng).into();
        }
        if self.order == Order::Random {
            return self.range.get(rng.up_to(self.range.last));
        }
        let value = self.value;
        if value == self.range.spans[self.span].high {
            self.enter(self.span + 1);
        } else {
            self.value += 1;
        }
        value
    }

    /// The next value of a range whose values fit into 64 bits; the lower half for others.
    #[inline]
    pub(crate) fn next_narrow(&mut self, rng: &mut Rng) -> u64 {
        if self.is_wide {
            return self.next(rng) as u64;
        }
        if self.order == Order::Random {
            return self.range.get(rng.up_to(self.range.last)) as u64;
        }
        let value = self.narrow_value;
        if value == self.narrow_high {
            self.enter(self.span + 1);
        } else {
            self.narrow_value = value + 1;
        }
        value
    }

    /// Moves to the start of a span; the first follows the last.
    #[cold]
    fn enter(&mut self, span: usize) {
        self.span = if span == self.range.spans.len() {
            0
        } else {
            span
        };
        let span = self.range.spans[self.span];
        self.value = span.low;
        self.narrow_value = span.low as u64;
        self.narrow_high = span.high as u64;
    }
}

/// An IP prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) version: u8,
    /// Network bits; the host bits are zero.
    pub(crate) bits: u128,
    /// Mask of the host bits.
    pub(crate) host_mask: u128,
    pub(crate) len: u8,
}

impl Prefix {
    fn bounds(self) -> (IpAddr, IpAddr) {
        let addr = |bits: u128| match self.version {
            4 => IpAddr::V4((bits as u32).into()),
            _ => IpAddr::V6(bits.into()),
        };
        (addr(self.bits), addr(self.bits | self.host_mask))
    }

    #[inline]
    pub(crate) fn contains(&self, bits: u128) -> bool {
        bits & !self.host_mask == self.bits
    }
}

/// Parses `10.0.0.0/8`, `2001:db8::/32`, or a single address.
pub(crate) fn parse_prefix(text: &str) -> Result<Prefix> {
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (parse_addr(addr)?, Some(len)),
        None => (parse_addr(text)?, None),
    };
    let version = version_of(addr);
    let width: u8 = if version == 4 { 32 } else { 128 };
    let len = match len.map(str::parse) {
        None => width,
        Some(Ok(len)) if len <= width => len,
        Some(_) => {
            let why = format!("{text:?}: a prefix of IPv{version} has 0 to {width} bits");
            return Err(Error::new(why));
        }
    };
    let host_bits = u32::from(width - len);
    let host_mask = 1u128.checked_shl(host_bits).unwrap_or(0).wrapping_sub(1);
    let bits = addr_bits(addr);
    if bits & host_mask != 0 {
        let prefix = Prefix {
            version,
            bits: bits & !host_mask,
            host_mask,
            len,
        };
        let network = prefix.bounds().0;
        let why = format!("{text:?} has bits set behind its first {len}");
        return Err(Error::new(why).with_hint(format!("{network}/{len} is the whole network")));
    }
    Ok(Prefix {
        version,
        bits,
        host_mask,
        len,
    })
}

fn parse_addr(text: &str) -> Result<IpAddr> {
    let why = || Error::new(format!("{text:?} is not an IP address"));
    text.trim().parse().map_err(|_| why())
}

fn version_of(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 4 } else { 6 }
}

pub(crate) fn addr_bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => addr.to_bits().into(),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

fn mac_bits(mac: Mac) -> u128 {
    mac.0
        .iter()
        .fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(range: Range, count: usize) -> Vec<u128> {
        let mut walk = Walk::new(range, Order::Sequential);
        let mut rng = Rng::new(0);
        (0..count).map(|_| walk.next(&mut rng)).collect()
    }

    #[test]
    fn lists_repeat_in_their_order() {
        let range = Range::numbers("5,1-3,9", 65535).unwrap();
        assert_eq!(values(range.clone(), 7), [5, 1, 2, 3, 9, 5, 1]);
        assert_eq!((range.last_index(), range.min(), range.max()), (4, 1, 9));
        let by_index: Vec<_> = (0..5).map(|i| range.get(i)).collect();
        assert_eq!(by_index, [5, 1, 2, 3, 9]);
        assert_eq!(range.get(99), 9);
        assert_eq!(Range::numbers("7", 9).unwrap().single(), Some(7));
    }

    #[test]
    fn addresses_of_both_versions() {
        let (version, range) = Range::addrs("10.0.0.254-10.0.1.1").unwrap();
        assert_eq!(version, 4);
        assert_eq!(
            values(range, 5)[..4],
            [0x0a0000fe, 0x0a0000ff, 0x0a000100, 0x0a000101]
        );
        let (version, range) = Range::addrs("10.0.0.0/24,10.2.0.7").unwrap();
        assert_eq!((version, range.last_index()), (4, 256));
        let (version, range) = Range::addrs("::/0").unwrap();
        assert_eq!((version, range.last_index()), (6, u128::MAX));
        assert_eq!(range.get(u128::MAX), u128::MAX);
        let (_, range) = Range::addrs("2001:db8::1-2001:db8::3").unwrap();
        assert_eq!(range.last_index(), 2);
        let (version, range) = Range::addrs("0.0.0.0/0").unwrap();
        assert_eq!((version, range.last_index()), (4, u32::MAX.into()));
    }

    #[test]
    fn macs_with_either_separator() {
        let range = Range::macs("02-00-00-00-00-01").unwrap();
        assert_eq!(range.single(), Some(0x0200_0000_0001));
        let range = Range::macs("02:00:00:00:00:ff-02:00:00:00:01:00,ff:ff:ff:ff:ff:ff").unwrap();
        assert_eq!(
            values(range, 3),
            [0x0200_0000_00ff, 0x0200_0000_0100, 0xffff_ffff_ffff]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "", "x", "9-1", "1,,2", "-1", "1-", "70000", "1-70000", "0x10",
        ] {
            assert!(Range::numbers(bad, 65535).is_err(), "{bad}");
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.9-10.0.0.1",
            "10.0.0.1,::1",
            "::1-10.0.0.1",
            "10.0",
        ] {
            assert!(Range::addrs(bad).is_err(), "{bad}");
        }
        let error = Range::addrs("10.0.0.1/24").unwrap_err();
        assert!(error.hint.unwrap().contains("10.0.0.0/24"));
        assert!(Range::addrs("::/0,::1").is_err(), "2^128 + 1 values");
        assert!(Range::macs("02:00").is_err());
    }

    #[test]
    fn random_values_are_in_range_and_repeat_with_the_seed() {
        let (_, range) = Range::addrs("10.0.0.0/30,10.9.0.0/16").unwrap();
        let draw = |seed| {
            let (mut walk, mut rng) = (Walk::new(range.clone(), Order::Random), Rng::new(seed));
            (0..500).map(|_| walk.next(&mut rng)).collect::<Vec<_>>()
        };
        let drawn = draw(3);
        assert_eq!(drawn, draw(3));
        assert_ne!(drawn, draw(4));
        assert!(
            drawn
                .iter()
                .all(|v| v >> 2 == 0x0a000000 >> 2 || v >> 16 == 0x0a09)
        );
    }
}
