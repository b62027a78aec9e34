//! Short forms of numbers, times and addresses. A number is never truncated: it gets a larger unit.
//! An IPv4 address and a port are never shortened.

use std::net::IpAddr;

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Width of the longest IPv4 address with a port: `255.255.255.255:65535`.
pub const IPV4_WIDTH: u16 = 21;

/// A number in three digits and a decimal unit: `999`, `1.23k`, `12.3M`; at most five characters.
pub fn short(value: u64) -> String {
    let mut number = value as f64;
    let mut units = ["", "k", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // What would be rounded to 1000 gets the next unit.
    while number >= 999.5
        && let Some(next) = units.next()
    {
        number /= 1000.0;
        unit = next;
    }
    match number {
        _ if unit.is_empty() => value.to_string(),
        n if n < 9.995 => format!("{n:.2}{unit}"),
        n if n < 99.95 => format!("{n:.1}{unit}"),
        n => format!("{n:.0}{unit}"),
    }
}

/// All digits if they fit, else [`short`].
pub fn number(value: u64, width: usize) -> String {
    let digits = value.to_string();
    match digits.len() <= width {
        true => digits,
        false => short(value),
    }
}

/// A duration in at most five characters: `1.2s`, `59s`, `3m20s`, `59m`, `3h20m`, `2d03h`.
pub fn span(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..10 => format!("{seconds}.{}s", ns / 100_000_000 % 10),
        10..60 => format!("{seconds}s"),
        60..600 => format!("{minutes}m{:02}s", seconds % 60),
        600..3600 => format!("{minutes}m"),
        3600..36_000 => format!("{hours}h{:02}m", minutes % 60),
        36_000..86_400 => format!("{hours}h"),
        86_400..864_000 => format!("{days}d{:02}h", hours % 24),
        864_000..864_000_000 => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

/// One endpoint of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub addr: IpAddr,
    pub port: Option<u16>,
}

impl End {
    /// The endpoint without shortening.
    pub fn whole(&self) -> String {
        match (self.addr, self.port) {
            (addr, None) => addr.to_string(),
            (IpAddr::V4(addr), Some(port)) => format!("{addr}:{port}"),
            (IpAddr::V6(addr), Some(port)) => format!("[{addr}]:{port}"),
        }
    }

    /// An IPv6 address that does not fit keeps its first groups, as many as fit, and its last one:
    /// `[2001:db8:…:5678]:443`. Everything else is [`End::whole`], however wide.
    pub fn fitted(&self, width: usize) -> String {
        let whole = self.whole();
        let IpAddr::V6(addr) = self.addr else {
            return whole;
        };
        if whole.chars().count() <= width {
            return whole;
        }
        // As usually written, with `::` for zeros.
        let text = addr.to_string();
        let groups: Vec<&str> = text.split(':').collect();
        let last = groups.last().copied().unwrap_or_default();
        let mut shortest = String::new();
        for kept in (0..groups.len().saturating_sub(1)).rev() {
            let addr = [&groups[..kept], &["…", last]].concat().join(":");
            shortest = match self.port {
                Some(port) => format!("[{addr}]:{port}"),
                None => addr,
            };
            if shortest.chars().count() <= width {
                break;
            }
        }
        shortest
    }
}

/// At most `width` characters of text, which may be cut; not used for numbers and addresses.
pub fn words(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let first: String = text.chars().take(width.saturating_sub(1)).collect();
    match width {
        0 => String::new(),
        _ => format!("{first}…"),
    }
}

/// As many complete parts as fit, in order, separated by `gap`.
pub fn fit(parts: Vec<(String, Style)>, gap: &'static str, width: u16) -> Line<'static> {
    let mut line = Vec::new();
    let mut room = usize::from(width);
    for (text, style) in parts {
        let between = if line.is_empty() { "" } else { gap };
        let len = text.chars().count() + between.len();
        // A shorter one may still fit.
        if text.is_empty() || len > room {
            continue;
        }
        room -= len;
        line.push(Span::raw(between));
        line.push(Span::styled(text, style));
    }
    Line::from(line)
}

/// Text from packets for a terminal: bytes that are not printable ASCII as `\x1b`, the others as
/// they are, also a backslash (`DOMAIN\user`).
pub fn visible(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for &byte in text {
        match byte {
            b' '..=b'~' => shown.push(byte.into()),
            _ => shown.extend(byte.escape_ascii().map(char::from)),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_would_act_on_is_escaped() {
        let name = b"DOMAIN\\user \"it's\" \x1b[2J\n\xc3\xbc";
        let shown = "DOMAIN\\user \"it's\" \\x1b[2J\\n\\xc3\\xbc";
        assert_eq!(visible(name), shown);
    }

    #[test]
    fn numbers_get_larger_units_and_are_never_wider_than_five() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (1234, "1.23k"),
            (9_995, "10.0k"),
            (99_950, "100k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short(value), text, "{value}");
        }
        let mut value = 1_u64;
        while let Some(next) = value.checked_mul(3) {
            assert!(short(value).len() <= 5, "{value}");
            assert!(span(value).len() <= 5, "{value}: {}", span(value));
            value = next;
        }
        assert_eq!(number(123_456, 6), "123456");
        assert_eq!(number(1_234_567, 6), "1.23M");
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [
            (1.25, "1.2s"),
            (59.9, "59s"),
            (200.0, "3m20s"),
            (3599.0, "59m"),
            (12_000.0, "3h20m"),
            (86_399.0, "23h"),
            (184_000.0, "2d03h"),
        ] {
            assert_eq!(span((seconds * 1e9) as u64), text);
        }
    }

    #[test]
    fn only_ipv6_addresses_are_shortened() {
        let end = |addr: &str, port| End {
            addr: addr.parse().unwrap(),
            port,
        };
        let widest = end("255.255.255.255", Some(65535));
        assert_eq!(widest.whole().len(), usize::from(IPV4_WIDTH));
        assert_eq!(widest.fitted(5), "255.255.255.255:65535");
        let long = end("2001:db8:1234:5678:9abc:def0:1234:5679", Some(54321));
        for (width, text) in [
            (50, "[2001:db8:1234:5678:9abc:def0:1234:5679]:54321"),
            (45, "[2001:db8:1234:5678:9abc:def0:…:5679]:54321"),
            (28, "[2001:db8:1234:…:5679]:54321"),
            (21, "[2001:…:5679]:54321"),
            (3, "[…:5679]:54321"),
        ] {
            assert_eq!(long.fitted(width), text);
        }
        assert_eq!(end("2001:db8::1", None).fitted(12), "2001:db8::1");
        assert_eq!(
            end("fe80::ba:1234:5678:101", None).fitted(20),
            "fe80::ba:1234:…:101"
        );
        let widest = end("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some(65535));
        assert!(widest.fitted(21).chars().count() <= 21);
    }

    #[test]
    fn parts_are_complete_or_omitted() {
        let parts = ["one", "twelve", "x"].map(|text| (text.to_owned(), Style::new()));
        let text = |width| fit(parts.to_vec(), ", ", width).to_string();
        assert_eq!(text(20), "one, twelve, x");
        assert_eq!(text(10), "one, x");
        assert_eq!(text(2), "x");
    }
}
