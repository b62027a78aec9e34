//! Parses address ranges: `192.0.2.7`, `192.0.2.0/24`, `192.0.2.1-192.0.2.9`, `192.0.2.1-9`,
//! `2001:db8::/64`.

use std::net::IpAddr;

use super::{AddrRange, bits_of};

/// Parses a range.
///
/// # Errors
/// What is wrong with it, as a sentence without a full stop.
pub fn parse_range(text: &str) -> Result<AddrRange, String> {
    let addr = |part: &str| {
        part.parse::<IpAddr>()
            .map_err(|_| format!("{text:?} is not an address, a prefix or a range"))
    };
    if let Some((base, len)) = text.split_once('/') {
        return prefix(text, addr(base)?, len);
    }
    let Some((first, last)) = text.split_once('-') else {
        return Ok(AddrRange::single(addr(text)?));
    };
    let from = addr(first.trim_end())?;
    let last = last.trim_start();
    let to = match (from, last.parse::<u8>()) {
        // nmap's short form: the last byte alone.
        (IpAddr::V4(v4), Ok(byte)) => {
            let [a, b, c, _] = v4.octets();
            IpAddr::from([a, b, c, byte])
        }
        _ => addr(last)?,
    };
    let ((is_ipv6, first), (is_ipv6_last, last)) = (bits_of(from), bits_of(to));
    if is_ipv6 != is_ipv6_last {
        return Err(format!(
            "{text:?} goes from one address family to the other"
        ));
    }
    if first > last {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok(AddrRange {
        is_ipv6,
        first,
        last,
    })
}

/// Maximum number of ranges that octets stand for.
const OCTETS_MAX: usize = 1 << 16;

/// Parses nmap's octets: `192.0.2.*`, `10.0-3.7.1-254`; `None` for any other
/// form. They stand for at most 65,536 ranges.
///
/// # Errors
/// What is wrong with them, as a sentence without a full stop.
pub fn parse_octets(text: &str) -> Option<Result<Vec<AddrRange>, String>> {
    let mut parts = text.split('.');
    let mut octets = [(0, 0); 4];
    for octet in &mut octets {
        let part = parts.next()?;
        let number = |text: &str, absent: u8| match text {
            "" => Some(absent),
            // inet_aton(3) reads numbers that begin with 0 as octal.
            _ if text.starts_with('+') || (text.len() > 1 && text.starts_with('0')) => None,
            _ => text.parse::<u8>().ok(),
        };
        *octet = match part.split_once('-') {
            _ if part == "*" => (0, 255),
            Some((first, last)) => (number(first, 0)?, number(last, 255)?),
            None => (
                number(part, 0).filter(|_| !part.is_empty())?,
                number(part, 0)?,
            ),
        };
    }
    if parts.next().is_some() {
        return None;
    }
    let [a, b, c, d] = octets;
    if octets.iter().any(|(first, last)| first > last) {
        return Some(Err(format!("{text:?} ends before it begins")));
    }
    // Octets of all values at the end are part of one range.
    let is_all = |octet| octet == (0, 255);
    let joined = [b, c, d]
        .iter()
        .rev()
        .take_while(|octet| is_all(**octet))
        .count();
    let whole = |octet: (u8, u8), is_joined: bool| match is_joined {
        true => vec![octet],
        false => (octet.0..=octet.1).map(|value| (value, value)).collect(),
    };
    let (a, b, c) = (
        whole(a, joined > 2),
        whole(b, joined > 1),
        whole(c, joined > 0),
    );
    if a.len() * b.len() * c.len() > OCTETS_MAX {
        let why = format!("{text:?} stands for more than {OCTETS_MAX} ranges");
        return Some(Err(format!("{why}: a prefix such as 10.0.0.0/8 is one")));
    }
    let mut out = Vec::new();
    for a in &a {
        for b in &b {
            for c in &c {
                let first = [a.0, b.0, c.0, d.0];
                let last = [a.1, b.1, c.1, d.1];
                out.push(AddrRange {
                    is_ipv6: false,
                    first: bits_of(IpAddr::from(first)).1,
                    last: bits_of(IpAddr::from(last)).1,
                });
            }
        }
    }
    Some(Ok(out))
}

fn prefix(text: &str, base: IpAddr, len: &str) -> Result<AddrRange, String> {
    let (is_ipv6, bits) = bits_of(base);
    let width = if is_ipv6 { 128 } else { 32 };
    let len = len
        .parse::<u32>()
        .ok()
        .filter(|len| {
            *len <= width && len.to_string().len() == text.len() - text.find('/').unwrap_or(0) - 1
        })
        .ok_or_else(|| {
            format!("the prefix length of {text:?} is not a number from 0 to {width}")
        })?;
    let host = match is_ipv6 {
        true => u128::MAX.unbounded_shr(len),
        false => u32::MAX.unbounded_shr(len).into(),
    };
    Ok(AddrRange {
        is_ipv6,
        first: bits & !host,
        last: bits | host,
    })
}

/// The words of one line of a file: separated by commas or blanks, `#` begins a comment.
pub fn words_of(line: &str) -> impl Iterator<Item = &str> {
    let line = line.split('#').next().unwrap_or_default();
    let words = line.split([',', ' ', '\t', '\r', '\n']);
    words.filter(|word| !word.is_empty())
}

/// Parses the ranges on one line of a file, as [`words_of`] splits it.
///
/// # Errors
/// As [`parse_range`].
pub fn parse_line(line: &str, out: &mut Vec<AddrRange>) -> Result<(), String> {
    for word in words_of(line) {
        out.push(parse_range(word)?);
    }
    Ok(())
}
