//! The rules for lists of any length: a look-up of the name instead of a comparison with each.

use std::collections::HashSet;

use super::matching::{questions, u16_at};
use super::{Queries, QueryType};
use crate::p0f::Start;

/// Maximum length of a question's name that can match: a first label of 63 bytes, and the fixed
/// labels of a name of 255 bytes.
const NAME_MAX: usize = 64 + 255;

/// Queries to match, in hash tables.
#[derive(Clone, Debug)]
pub struct QuerySet {
    exact: HashSet<Box<[u8]>>,
    below: HashSet<Box<[u8]>>,
    types: Vec<QueryType>,
}

impl QuerySet {
    /// Builds the tables.
    pub fn new(queries: &Queries) -> Self {
        let of = |is_below| {
            let names = queries.names.iter().filter(|n| n.is_below() == is_below);
            names.map(|name| name.wire().into()).collect()
        };
        Self {
            exact: of(false),
            below: of(true),
            types: queries.types.clone(),
        }
    }

    /// Whether a packet is a matching query.
    pub fn matches(&self, start: Start, packet: &[u8]) -> bool {
        match (start, packet.get(12..)) {
            (Start::Ip, _) => self.matches_ip(packet),
            (Start::Ethernet, Some([8, 0, ip @ ..])) => is_version(ip, 4) && self.matches_ip(ip),
            (Start::Ethernet, Some([0x86, 0xdd, ip @ ..])) => {
                is_version(ip, 6) && self.matches_ip(ip)
            }
            _ => false,
        }
    }

    fn matches_ip(&self, packet: &[u8]) -> bool {
        let mut name = [0; NAME_MAX];
        let Some((name, kind)) = question(packet, &mut name) else {
            return false;
        };
        let has_type = self.types.is_empty() || self.types.iter().any(|t| t.0 == kind);
        let below = name.get(1 + usize::from(name[0])..);
        has_type
            && (self.exact.contains(name) || below.is_some_and(|name| self.below.contains(name)))
    }
}

fn is_version(ip: &[u8], version: u8) -> bool {
    ip.first().is_some_and(|first| first >> 4 == version)
}

/// Name, in lower case and wire format, and type of a query's first question.
fn question<'a>(packet: &[u8], name: &'a mut [u8; NAME_MAX]) -> Option<(&'a [u8], u16)> {
    let bytes = questions(packet)?;
    let mut at = 0;
    loop {
        match usize::from(*bytes.get(at)?) {
            0 => break,
            len @ 1..=63 => at += 1 + len,
            _ => return None,
        }
    }
    let (wire, rest) = bytes.split_at_checked(at + 1)?;
    u16_at(rest, 2)?;
    let name = name.get_mut(..wire.len())?;
    name.copy_from_slice(wire);
    // No length byte is a letter.
    name.make_ascii_lowercase();
    Some((name, u16_at(rest, 0)?))
}
