//! The table that assigns prefixes of IP addresses to queues.

use std::path::Path;

use ::guard::Prefix;
use sys::{Error, ErrorKind, Result};

use crate::text::read_text;

/// Maximum size of a table's file, in bytes.
const LEN_MAX: u64 = 64 << 20;

/// Maximum number of prefixes.
const PREFIX_COUNT_MAX: usize = 1 << 20;

/// Addresses from `first` up to the next range of the same IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    /// Left-aligned.
    first: u128,
    /// Length of the longest prefix that covers them, and its queue.
    found: Option<(u8, u32)>,
}

/// Prefixes and their queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    name: String,
    /// Of IPv4 and IPv6: sorted, without gaps, from address 0 on.
    ranges: [Vec<Range>; 2],
    queue_max: u32,
}

impl Table {
    /// Reads a table from a file: a prefix and the number of a queue of the application on each
    /// line, comments after `#` or `;`.
    ///
    /// # Errors
    /// The error with file name and line.
    pub fn file(path: &Path) -> Result<Self> {
        let what = || format!("read the table in {}", path.display());
        let text = read_text(path, LEN_MAX, what)?;
        Self::parse(&path.display().to_string(), &text)
            .map_err(|why| Error::new(ErrorKind::InvalidInput, what(), why))
    }

    /// Parses the text of a table.
    ///
    /// # Errors
    /// The error with its line.
    pub fn parse(name: &str, text: &str) -> std::result::Result<Self, String> {
        let mut rows = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let words = line.split(['#', ';']).next().unwrap_or_default();
            let words: Vec<&str> = words.split_whitespace().collect();
            let on_line = |why: String| format!("line {}: {why}", index + 1);
            let (prefix, queue) = match *words.as_slice() {
                [] => continue,
                [prefix, queue] => (prefix, queue),
                _ => {
                    let why = "expected a prefix and the number of a queue";
                    return Err(on_line(why.into()));
                }
            };
            let prefix = Prefix::parse(prefix).map_err(on_line)?;
            let not_a_number = || on_line(format!("\"{queue}\" is not the number of a queue"));
            let queue: u32 = queue.parse().map_err(|_| not_a_number())?;
            rows.push((prefix, queue));
            if rows.len() > PREFIX_COUNT_MAX {
                return Err(on_line(format!("more than {PREFIX_COUNT_MAX} prefixes")));
            }
        }
        if rows.is_empty() {
            return Err("it has no prefixes".into());
        }
        let queue_max = rows.iter().map(|(_, queue)| *queue).max().unwrap_or(0);
        let [mut ipv4, mut ipv6] = [Vec::new(), Vec::new()];
        for (prefix, queue) in rows {
            let (address, len) = prefix.parts();
            match address {
                std::net::IpAddr::V4(v4) => {
                    ipv4.push((u128::from(v4.to_bits()) << 96, len, queue));
                }
                std::net::IpAddr::V6(v6) => ipv6.push((v6.to_bits(), len, queue)),
            }
        }
        Ok(Self {
            name: name.to_owned(),
            ranges: [ranges(ipv4)?, ranges(ipv6)?],
            queue_max,
        })
    }

    /// Its name for users.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The highest queue in it.
    pub fn queue_max(&self) -> u32 {
        self.queue_max
    }

    /// The length of the longest prefix that covers an address, and its queue.
    #[inline]
    fn longest(&self, is_ipv6: bool, address: [u8; 16]) -> Option<(u8, u32)> {
        let ranges = &self.ranges[usize::from(is_ipv6)];
        let address = u128::from_be_bytes(address);
        let behind = ranges.partition_point(|range| range.first <= address);
        ranges.get(behind.wrapping_sub(1))?.found
    }

    /// The queue of a packet between two addresses (left-aligned): that of the longest prefix which
    /// covers one of them. If both have prefixes of one length, that of the lower address, so that
    /// both directions have one queue.
    #[inline]
    pub fn queue(&self, is_ipv6: bool, ends: [[u8; 16]; 2]) -> Option<u32> {
        let [low, high] = if ends[0] <= ends[1] {
            ends
        } else {
            [ends[1], ends[0]]
        };
        let (low, high) = (self.longest(is_ipv6, low), self.longest(is_ipv6, high));
        match (low, high) {
            (Some((low_len, queue)), Some((high_len, _))) if low_len >= high_len => Some(queue),
            (low, high) => high.or(low).map(|(_, queue)| queue),
        }
    }
}

/// Cuts the addresses of one IP version into ranges, from prefixes (first address, length, queue).
fn ranges(mut rows: Vec<(u128, u8, u32)>) -> std::result::Result<Vec<Range>, String> {
    // Shorter prefixes before the longer ones that they cover.
    rows.sort_unstable();
    let mut out = vec![Range {
        first: 0,
        found: None,
    }];
    // The prefixes that cover the address reached: last address, length, queue.
    let mut covering: Vec<(u128, u8, u32)> = Vec::new();
    let mut push = |first: u128, found: Option<(u8, u32)>| {
        out.pop_if(|last| last.first == first);
        if out.last().is_none_or(|last| last.found != found) {
            out.push(Range { first, found });
        }
    };
    let mut before: Option<(u128, u8, u32)> = None;
    for row in rows.into_iter().map(Some).chain([None]) {
        let first = row.map(|(first, _, _)| first);
        while let Some(&(last, _, _)) = covering.last()
            && first.is_none_or(|first| first > last)
        {
            covering.pop();
            if let Some(next) = last.checked_add(1) {
                push(next, covering.last().map(|&(_, len, queue)| (len, queue)));
            }
        }
        let Some((first, len, queue)) = row else {
            break;
        };
        if let Some((at, same_len, other)) = before
            && (at, same_len) == (first, len)
            && other != queue
        {
            let address = std::net::Ipv6Addr::from_bits(first);
            return Err(format!(
                "two queues for one prefix: {other} and {queue}, length {len}, {address}"
            ));
        }
        before = Some((first, len, queue));
        let last = first | u128::MAX.checked_shr(len.into()).unwrap_or(0);
        push(first, Some((len, queue)));
        covering.push((last, len, queue));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> (bool, [u8; 16]) {
        match text.parse().unwrap() {
            std::net::IpAddr::V4(v4) => (false, (u128::from(v4.to_bits()) << 96).to_be_bytes()),
            std::net::IpAddr::V6(v6) => (true, v6.octets()),
        }
    }

    fn queue(table: &Table, from: &str, to: &str) -> Option<u32> {
        let ((is_ipv6, from), (_, to)) = (left(from), left(to));
        let there = table.queue(is_ipv6, [from, to]);
        assert_eq!(there, table.queue(is_ipv6, [to, from]), "both directions");
        there
    }

    #[test]
    fn the_longest_prefix_of_either_end_selects_the_queue() {
        let text = "10.0.0.0/8 1 # all\n10.1.0.0/16 2\n10.1.2.3 3\n\n2001:db8::/32 0 ; six\n";
        let table = Table::parse("t", text).unwrap();
        assert_eq!(table.queue_max(), 3);
        for (from, to, expected) in [
            ("10.9.0.1", "192.0.2.1", Some(1)),
            ("10.9.0.1", "10.1.0.1", Some(2)),
            ("10.1.2.3", "10.1.2.4", Some(3)),
            ("10.255.255.255", "9.0.0.0", Some(1)),
            ("11.0.0.0", "9.255.255.255", None),
            ("2001:db8::1", "::1", Some(0)),
            ("2001:db9::", "2001:db7:ffff::", None),
        ] {
            assert_eq!(queue(&table, from, to), expected, "{from} {to}");
        }
        let whole = Table::parse("t", "0.0.0.0/0 1\n::/0 2\n255.255.255.255 3").unwrap();
        assert_eq!(queue(&whole, "0.0.0.0", "1.1.1.1"), Some(1));
        assert_eq!(queue(&whole, "255.255.255.255", "1.1.1.1"), Some(3));
        assert_eq!(queue(&whole, "::", "ffff::"), Some(2));
    }

    #[test]
    fn errors_name_their_line() {
        for (text, expected) in [
            ("", "it has no prefixes"),
            ("10.0.0.0/8", "line 1: expected a prefix"),
            ("10.0.0.0/8 1\n10.0.0.0/8 x", "line 2: \"x\""),
            ("10.0.0.1/8 1", "line 1: "),
            ("10.0.0.0/8 1\n10.0.0.0/8 2", "two queues for one prefix"),
        ] {
            let why = Table::parse("t", text).unwrap_err();
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }
}
