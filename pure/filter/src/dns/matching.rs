//! Reference implementation of the rules, which compiled programs are tested against.

use super::{Name, Queries, QueryType};

/// Whether a packet, from its IP header on, is a matching query.
pub fn matches(queries: &Queries, packet: &[u8]) -> bool {
    matches_any(&queries.names, &queries.types, packet)
}

/// Whether a packet, from its IP header on, is a query for any of these names, and of any of these
/// types; of all types if there are none.
pub fn matches_any(names: &[Name], types: &[QueryType], packet: &[u8]) -> bool {
    question(packet).is_some_and(|(labels, kind)| {
        let has_name = names.iter().any(|name| {
            let wanted = labels_of(name.wire());
            let skip = usize::from(name.is_below());
            labels.len() == wanted.len() + skip
                && labels[skip..]
                    .iter()
                    .zip(&wanted)
                    .all(|(a, b)| a.eq_ignore_ascii_case(b))
        });
        has_name && (types.is_empty() || types.iter().any(|t| t.0 == kind))
    })
}

/// Labels and type of a query's first question.
fn question(packet: &[u8]) -> Option<(Vec<&[u8]>, u16)> {
    let mut rest = questions(packet)?;
    let mut labels = Vec::new();
    loop {
        let (&len, after) = rest.split_first()?;
        if len == 0 {
            u16_at(after, 2)?;
            return Some((labels, u16_at(after, 0)?));
        }
        if len > 63 {
            return None;
        }
        labels.push(after.get(..len.into())?);
        rest = &after[len.into()..];
    }
}

/// A query's bytes after the DNS header.
pub(super) fn questions(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header_len = match first >> 4 {
        4 => {
            let header_len = usize::from(first & 15) * 4;
            let is_fragment = u16_at(packet, 6)? & 0x3fff != 0;
            if header_len < 20 || *packet.get(9)? != 17 || is_fragment {
                return None;
            }
            header_len
        }
        6 if *packet.get(6)? == 17 => 40,
        _ => return None,
    };
    let udp = packet.get(header_len..)?;
    let dns = udp.get(8..)?;
    let is_query = *dns.get(2)? & 0x80 == 0 && u16_at(dns, 4)? != 0;
    match u16_at(udp, 2)? == 53 && is_query {
        true => dns.get(12..),
        false => None,
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn labels_of(wire: &[u8]) -> Vec<&[u8]> {
    let mut labels = Vec::new();
    let mut rest = wire;
    while let Some((&len, after)) = rest.split_first()
        && len != 0
    {
        labels.push(&after[..len.into()]);
        rest = &after[len.into()..];
    }
    labels
}
