//! Parses nmap's octets: `192.0.2.*`, `10.0-3.7.1-254`, `198.18.4.1,2,7`.

use std::net::IpAddr;

use super::{AddrRange, bits_of};

/// Maximum number of ranges that octets stand for.
const OCTETS_MAX: usize = 1 << 16;
/// All values of an octet.
const ALL: (u8, u8) = (0, 255);

/// Parses octets, each a number, `*`, a range whose ends may be absent, or a list of these with
/// commas; `None` for any other form. They stand for at most 65,536 ranges.
///
/// # Errors
/// What is wrong with them, as a sentence without a full stop.
pub fn parse_octets(text: &str) -> Option<Result<Vec<AddrRange>, String>> {
    let mut parts = text.split('.');
    let mut octets: [Vec<(u8, u8)>; 4] = Default::default();
    for octet in &mut octets {
        for item in parts.next()?.split(',') {
            match parse_item(item)? {
                Ok((first, last)) if first <= last => octet.push((first, last)),
                Ok(_) => return Some(Err(format!("{text:?} ends before it begins"))),
                Err(number) => {
                    let why = format!(
                        "{number} in {text:?} is no octet, which is at most 255; a port follows a \
                         colon: 192.0.2.7:443"
                    );
                    return Some(Err(why));
                }
            }
        }
        octet.sort_unstable();
        octet.dedup();
    }
    if parts.next().is_some() {
        return None;
    }
    // Octets of all values at the end are part of one range.
    let last = (1..4).rev().find(|at| octets[*at] != [ALL]).unwrap_or(0);
    let count_of = |octet: &Vec<(u8, u8)>| -> usize {
        let width = |(first, last): &(u8, u8)| usize::from(last - first) + 1;
        octet.iter().map(width).sum()
    };
    let count: usize = octets[..last].iter().map(count_of).product();
    if count * octets[last].len() > OCTETS_MAX {
        let why = format!("{text:?} stands for more than {OCTETS_MAX} ranges");
        return Some(Err(format!("{why}: a prefix such as 10.0.0.0/8 is one")));
    }
    let mut out = Vec::new();
    expand(&octets, last, [[0, 0], [0, 0], [0, 0], [0, 0]], 0, &mut out);
    Some(Ok(out))
}

/// One item of an octet; `Some(Err)` is a number that is too large.
fn parse_item(item: &str) -> Option<Result<(u8, u8), u32>> {
    let number = |text: &str, absent: u8| -> Option<u32> {
        match text {
            "" => Some(absent.into()),
            // inet_aton(3) reads numbers that begin with 0 as octal.
            _ if text.len() > 1 && text.starts_with('0') => None,
            _ if text.len() > 9 || !text.bytes().all(|byte| byte.is_ascii_digit()) => None,
            _ => text.parse().ok(),
        }
    };
    let (first, last) = match item.split_once('-') {
        _ if item == "*" => (0, 255),
        _ if item.is_empty() => return None,
        Some((first, last)) => (number(first, 0)?, number(last, 255)?),
        None => (number(item, 0)?, number(item, 0)?),
    };
    Some(match (u8::try_from(first), u8::try_from(last)) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        (Err(_), _) => Err(first),
        _ => Err(last),
    })
}

/// Appends the ranges of all values of the octets from `at` to `last`; the octets after `last`
/// have all values. `ends` are the first and last value of each octet so far.
fn expand(
    octets: &[Vec<(u8, u8)>; 4],
    last: usize,
    mut ends: [[u8; 2]; 4],
    at: usize,
    out: &mut Vec<AddrRange>,
) {
    for &(low, high) in &octets[at] {
        if at < last {
            for value in low..=high {
                ends[at] = [value; 2];
                expand(octets, last, ends, at + 1, out);
            }
            continue;
        }
        ends[at] = [low, high];
        ends[at + 1..].fill([0, 255]);
        let bits = |end: usize| bits_of(IpAddr::from(ends.map(|octet| octet[end]))).1;
        out.push(AddrRange {
            is_ipv6: false,
            first: bits(0),
            last: bits(1),
        });
    }
}
