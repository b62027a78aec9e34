//! Parses address ranges: `192.0.2.7`, `192.0.2.0/24`, `192.0.2.1-192.0.2.9`, `192.0.2.1-9`,
//! `2001:db8::/64`, `[2001:db8::1]`.

use std::net::IpAddr;

use super::{AddrRange, bits_of, words_of};

/// Parses a range.
///
/// # Errors
/// What is wrong with it, as a sentence without a full stop.
pub fn parse_range(text: &str) -> Result<AddrRange, String> {
    let addr = |part: &str| {
        let in_brackets = part
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let addr = match in_brackets {
            Some(addr) => addr.parse().map(IpAddr::V6),
            None => part.parse::<IpAddr>(),
        };
        addr.map_err(|_| format!("{text:?} is not an address, a prefix or a range"))
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
