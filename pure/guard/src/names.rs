//! Lists of DNS names: the entries of the single hash table that serves all lists.
//!
//! A key is a name in wire format and lower case, with zeros after it. The value has two words with
//! one bit per list: the first for the name itself, the second for names of exactly one more label
//! (`*.example.com`). Two look-ups therefore answer for every list of every rule: of the name, and
//! of the name without its first label.

use std::collections::BTreeMap;
use std::sync::Arc;

use filter::dns::{Name, QueryType, matches_any};

use crate::emit::EmitError;
use crate::prefix::LISTS_MAX;
use crate::rule::Rule;

/// Maximum number of names in all lists together. The kernel needs up to 350 bytes for each.
pub const NAMES_MAX: usize = 1 << 20;

/// A list of names, shared by rules.
pub type NameList = Arc<[Name]>;

/// DNS queries that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTest {
    /// Any of these names.
    pub list: NameList,
    /// Any of these types; all types if empty.
    pub types: Vec<QueryType>,
}

impl NameTest {
    /// Whether an Ethernet packet, with up to two VLAN tags, is such a query: a statement of the
    /// rule that is independent of the program.
    pub fn matches(&self, packet: &[u8]) -> bool {
        let mut rest = packet.get(12..).unwrap_or_default();
        for _ in 0..2 {
            if let [0x81, 0, _, _, inner @ ..] | [0x88, 0xa8, _, _, inner @ ..] = rest {
                rest = inner;
            }
        }
        let (version, ip) = match rest {
            [8, 0, ip @ ..] => (4, ip),
            [0x86, 0xdd, ip @ ..] => (6, ip),
            _ => return false,
        };
        let is_version = ip.first().is_some_and(|first| first >> 4 == version);
        is_version && matches_any(&self.list, &self.types, ip)
    }
}

/// An entry of the hash table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The key, of [`NameTable::key_len`] bytes.
    pub key: Vec<u8>,
    /// The lists that contain the name, and those that contain it after `*.`, one bit each.
    pub lists: [u64; 2],
}

/// The hash table of a program's rules, and the size of its scratch memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable {
    /// Length of a key in bytes: that of the longest name, in whole words. 0 without names.
    pub key_len: usize,
    /// Bytes for each processor in which the program builds keys; 0 without names.
    pub scratch_len: usize,
    /// One entry per name.
    pub entries: Vec<NameEntry>,
}

/// The different lists of a program's rules; a list's index is its bit.
pub(crate) struct NameLists {
    lists: Vec<NameList>,
    /// Length of a key, as [`NameTable::key_len`].
    pub key_len: usize,
    /// Whether there are names without `*.`.
    pub has_exact: bool,
    /// Whether there are names with `*.`.
    pub has_below: bool,
}

impl NameLists {
    pub(crate) fn of(rules: &[Rule]) -> Result<Self, EmitError> {
        let mut lists: Vec<NameList> = Vec::new();
        for test in rules.iter().filter_map(|rule| rule.names.as_ref()) {
            if index(&lists, &test.list).is_none() {
                lists.push(Arc::clone(&test.list));
            }
        }
        let count = lists.iter().map(|list| list.len()).sum();
        if lists.len() > LISTS_MAX {
            let count = lists.len();
            return Err(EmitError::TooManyNameLists { count });
        }
        if count > NAMES_MAX {
            return Err(EmitError::TooManyNames { count });
        }
        let names = || lists.iter().flat_map(|list| list.iter());
        let longest = names().map(|name| name.wire().len()).max();
        let has = |is_below| names().any(|name| name.is_below() == is_below);
        Ok(Self {
            key_len: longest.unwrap_or(0).next_multiple_of(8),
            has_exact: has(false),
            has_below: has(true),
            lists,
        })
    }

    /// The bit of a list.
    pub(crate) fn bit(&self, list: &NameList) -> u64 {
        index(&self.lists, list).map_or(0, |index| 1 << index)
    }
}

fn index(lists: &[NameList], list: &NameList) -> Option<usize> {
    lists
        .iter()
        .position(|known| Arc::ptr_eq(known, list) || known == list)
}

/// The hash table for all lists of these rules; each name occurs once.
///
/// # Errors
/// `TooManyNameLists`, `TooManyNames`.
pub fn name_table(rules: &[Rule]) -> Result<NameTable, EmitError> {
    let lists = NameLists::of(rules)?;
    let mut all: BTreeMap<&[u8], [u64; 2]> = BTreeMap::new();
    for (index, list) in lists.lists.iter().enumerate() {
        for name in list.iter() {
            let words = all.entry(name.wire()).or_default();
            words[usize::from(name.is_below())] |= 1 << index;
        }
    }
    let entries = all.into_iter().map(|(wire, words)| {
        let mut key = wire.to_vec();
        key.resize(lists.key_len, 0);
        NameEntry { key, lists: words }
    });
    Ok(NameTable {
        entries: entries.collect(),
        key_len: lists.key_len,
        scratch_len: match lists.key_len {
            0 => 0,
            _ => crate::emit::names::scratch_len(&lists),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Verdict;

    fn rule(names: &str) -> Rule {
        Rule {
            names: Some(NameTest {
                list: Name::parse_list(names).unwrap().into(),
                types: Vec::new(),
            }),
            ..Rule::new("", Verdict::Drop)
        }
    }

    #[test]
    fn a_name_has_one_entry_with_the_lists_of_both_forms() {
        let rules = [
            rule("example.com b.test"),
            rule("*.example.com"),
            rule("EXAMPLE.com *.example.com"),
            rule("*.example.com"),
        ];
        let table = name_table(&rules).unwrap();
        assert_eq!(table.key_len, 16);
        let entries: Vec<_> = table
            .entries
            .iter()
            .map(|e| (&e.key[..], e.lists))
            .collect();
        assert_eq!(
            entries,
            [
                (&b"\x01b\x04test\0\0\0\0\0\0\0\0\0"[..], [0b001, 0]),
                (b"\x07example\x03com\0\0\0\0", [0b101, 0b110]),
            ]
        );
        assert_eq!(name_table(&[]).unwrap(), NameTable::default());
    }

    #[test]
    fn too_many_lists_are_refused() {
        let rules: Vec<Rule> = (0..=LISTS_MAX)
            .map(|n| rule(&format!("n{n}.test")))
            .collect();
        assert!(name_table(&rules[..LISTS_MAX]).is_ok());
        let error = name_table(&rules).unwrap_err().to_string();
        assert!(error.contains("65 lists of names"), "{error}");
    }
}
