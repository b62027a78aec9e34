//! Prefix lists: parsing, and the entries of the single trie that serves all lists.
//!
//! The kernel's trie (`BPF_MAP_TYPE_LPM_TRIE`) returns the value of the longest prefix that covers
//! an address. The value here is a word with one bit per list, and a longer prefix includes the
//! bits of all shorter ones that cover it. One look-up therefore answers for every list of every
//! rule.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::emit::EmitError;
use crate::rule::Rule;

/// Maximum number of different lists per program: one bit each in a word.
pub const LISTS_MAX: usize = 64;

/// Maximum number of prefixes in all lists together. The kernel needs about 200 bytes for each.
pub const PREFIXES_MAX: usize = 1 << 20;

/// Length of a trie key in bytes: the prefix length in bits (native order), the family, the
/// address.
pub const KEY_LEN: usize = 24;

/// Bits of a key's data: 32 for the family, 128 for an address.
pub(crate) const KEY_BITS: u32 = 160;

/// An IP prefix (RFC 4632, RFC 4291 section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    is_ipv6: bool,
    /// Left-aligned, with zeros after the prefix length.
    bits: u128,
    len: u8,
}

/// A prefix list, shared by rules.
pub type List = Arc<[Prefix]>;

impl Prefix {
    /// Parses `192.0.2.0/24`, `2001:db8::/32`, or a single address.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let expected = "expected an IP prefix such as 192.0.2.0/24 or 2001:db8::/32";
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("\"{text}\": {expected}"))?;
        let (is_ipv6, bits, len_max) = match address {
            IpAddr::V4(v4) => (false, u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (true, v6.to_bits(), 128),
        };
        let len = match len {
            None => len_max,
            Some(len) => {
                let is_number = !len.is_empty() && len.bytes().all(|b| b.is_ascii_digit());
                let number = len.parse::<u8>().ok().filter(|_| is_number);
                number
                    .filter(|&n| n <= len_max)
                    .ok_or_else(|| format!("\"{text}\": the length is a number up to {len_max}"))?
            }
        };
        let whole = Self { is_ipv6, bits, len };
        let cut = Self {
            bits: bits & whole.mask(),
            ..whole
        };
        match cut == whole {
            true => Ok(whole),
            false => Err(format!("\"{text}\" has bits beyond its length; {cut}?")),
        }
    }

    fn mask(&self) -> u128 {
        u128::MAX
            .checked_shl(128 - u32::from(self.len))
            .unwrap_or_default()
    }

    /// A prefix from its left-aligned bits; those after its length are ignored. `None` for a length
    /// that the family does not have.
    pub(crate) fn from_bits(is_ipv6: bool, bits: u128, len: u8) -> Option<Self> {
        let whole = Self { is_ipv6, bits, len };
        (len <= if is_ipv6 { 128 } else { 32 }).then(|| Self {
            bits: bits & whole.mask(),
            ..whole
        })
    }

    /// Whether each address of the other prefix is one of this.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.is_ipv6 == other.is_ipv6
            && self.len <= other.len
            && other.bits & self.mask() == self.bits
    }

    /// Whether the prefix covers an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (is_ipv6, bits, len) = match address {
            IpAddr::V4(v4) => (false, u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (true, v6.to_bits(), 128),
        };
        self.covers(&Self { is_ipv6, bits, len })
    }

    /// Its first address, and its length in bits.
    pub fn parts(&self) -> (IpAddr, u8) {
        let address = match self.is_ipv6 {
            true => Ipv6Addr::from_bits(self.bits).into(),
            false => Ipv4Addr::from_bits((self.bits >> 96) as u32).into(),
        };
        (address, self.len)
    }

    fn key(&self) -> [u8; KEY_LEN] {
        let mut key = [0; KEY_LEN];
        key[..4].copy_from_slice(&(32 + u32::from(self.len)).to_ne_bytes());
        key[7] = if self.is_ipv6 { 6 } else { 4 };
        key[8..].copy_from_slice(&self.bits.to_be_bytes());
        key
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, len) = self.parts();
        write!(f, "{address}/{len}")
    }
}

/// Parses a list: one prefix per line; blank lines and comments (`#`, `;`) are skipped.
///
/// # Errors
/// What is wrong, with the line number; more than [`PREFIXES_MAX`] prefixes.
pub fn parse_list(text: &str) -> Result<Vec<Prefix>, String> {
    let mut prefixes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split(['#', ';']).next().unwrap_or_default().trim();
        if words.is_empty() {
            continue;
        }
        let prefix = Prefix::parse(words).map_err(|why| format!("line {}: {why}", index + 1))?;
        prefixes.push(prefix);
        if prefixes.len() > PREFIXES_MAX {
            let line = index + 1;
            return Err(format!("line {line}: more than {PREFIXES_MAX} prefixes"));
        }
    }
    Ok(prefixes)
}

/// An entry of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrieEntry {
    /// The key.
    pub key: [u8; KEY_LEN],
    /// The lists that cover every address of this prefix, one bit each.
    pub lists: u64,
}

/// The different lists of a program's rules; a list's index is its bit.
pub(crate) struct Lists(Vec<List>);

impl Lists {
    pub(crate) fn of(rules: &[Rule]) -> Result<Self, EmitError> {
        let mut lists = Self(Vec::new());
        for rule in rules {
            for list in [&rule.sources, &rule.destinations].into_iter().flatten() {
                if lists.index(list).is_none() {
                    lists.0.push(Arc::clone(list));
                }
            }
        }
        let prefix_count = lists.0.iter().map(|list| list.len()).sum();
        if lists.0.len() > LISTS_MAX {
            let count = lists.0.len();
            return Err(EmitError::TooManyLists { count });
        }
        if prefix_count > PREFIXES_MAX {
            return Err(EmitError::TooManyPrefixes {
                count: prefix_count,
            });
        }
        Ok(lists)
    }

    fn index(&self, list: &List) -> Option<usize> {
        self.0
            .iter()
            .position(|known| Arc::ptr_eq(known, list) || known == list)
    }

    /// The bit of a list.
    pub(crate) fn bit(&self, list: &List) -> u64 {
        self.index(list).map_or(0, |index| 1 << index)
    }
}

/// The trie entries for all lists of these rules; each prefix occurs once.
///
/// # Errors
/// `TooManyLists`, `TooManyPrefixes`.
pub fn trie_entries(rules: &[Rule]) -> Result<Vec<TrieEntry>, EmitError> {
    let lists = Lists::of(rules)?;
    let mut all: Vec<(Prefix, u64)> = Vec::new();
    for (index, list) in lists.0.iter().enumerate() {
        all.extend(list.iter().map(|prefix| (*prefix, 1 << index)));
    }
    // Shorter prefixes before the longer ones that they cover.
    all.sort_unstable_by_key(|(prefix, _)| (prefix.is_ipv6, prefix.bits, prefix.len));
    all.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        kept.1 |= if is_same { later.1 } else { 0 };
        is_same
    });
    let mut covering: Vec<(Prefix, u64)> = Vec::new();
    let mut entries = Vec::with_capacity(all.len());
    for (prefix, mut lists) in all {
        while covering
            .pop_if(|(outer, _)| !outer.covers(&prefix))
            .is_some()
        {}
        lists |= covering.last().map_or(0, |(_, lists)| *lists);
        covering.push((prefix, lists));
        let key = prefix.key();
        entries.push(TrieEntry { key, lists });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Verdict;

    fn list(texts: &[&str]) -> List {
        texts.iter().map(|t| Prefix::parse(t).unwrap()).collect()
    }

    fn rule(sources: List, destinations: Option<List>) -> Rule {
        Rule {
            id: 0,
            name: String::new(),
            matcher: None,
            sources: Some(sources),
            destinations,
            names: None,
            verdict: Verdict::Drop,
            priority: 0,
        }
    }

    #[test]
    fn prefixes_are_read_and_printed() {
        for text in [
            "192.0.2.0/24",
            "0.0.0.0/0",
            "::/0",
            "2001:db8::/32",
            "::1/128",
        ] {
            assert_eq!(Prefix::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Prefix::parse("10.0.0.1").unwrap().to_string(),
            "10.0.0.1/32"
        );
        for (text, why) in [
            ("10.0.0.1/24", "10.0.0.0/24?"),
            ("10.0.0.0/33", "up to 32"),
            ("2001:db8::/129", "up to 128"),
            ("10.0.0.0/+8", "up to 32"),
            ("10.0.0/8", "expected"),
            ("", "expected"),
        ] {
            let error = Prefix::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_list_skips_comments_and_names_the_line_of_an_error() {
        let text = "# ours\n\n10.0.0.0/8 ; office\n2001:db8::/32\n";
        assert_eq!(
            parse_list(text).unwrap(),
            *list(&["10.0.0.0/8", "2001:db8::/32"])
        );
        let error = parse_list("10.0.0.0/8\n#\nnext\n").unwrap_err();
        assert!(error.starts_with("line 3: \"next\""), "{error}");
    }

    /// Simulates a look-up in the kernel's trie by trying every entry.
    fn look_up(entries: &[TrieEntry], address: &str) -> u64 {
        let key = Prefix::parse(address).unwrap().key();
        let bits = |key: &[u8; KEY_LEN]| u32::from_ne_bytes([key[0], key[1], key[2], key[3]]);
        let covers = |entry: &&TrieEntry| {
            (0..bits(&entry.key) as usize).all(|bit| {
                let (byte, mask) = (4 + bit / 8, 0x80 >> (bit % 8));
                entry.key[byte] & mask == key[byte] & mask
            })
        };
        let longest = entries.iter().filter(covers).max_by_key(|e| bits(&e.key));
        longest.map_or(0, |entry| entry.lists)
    }

    #[test]
    fn the_longest_prefix_has_the_lists_of_all_that_cover_it() {
        let first = list(&["10.0.0.0/8", "10.1.2.0/24", "2001:db8::/32"]);
        let second = list(&["10.1.0.0/16", "10.1.2.3", "::/0"]);
        let third = list(&["10.1.2.0/24", "0.0.0.0/0"]);
        let rules = [
            rule(Arc::clone(&first), Some(Arc::clone(&second))),
            rule(third, Some(first)),
        ];
        let entries = trie_entries(&rules).unwrap();
        assert_eq!(entries.len(), 7);
        for (address, lists) in [
            ("192.0.2.1", 0b100),
            ("10.9.9.9", 0b101),
            ("10.1.9.9", 0b111),
            ("10.1.2.3", 0b111),
            ("2001:db8::1", 0b011),
            ("fe80::1", 0b010),
        ] {
            assert_eq!(look_up(&entries, address), lists, "{address}");
        }
    }

    #[test]
    fn too_many_lists_are_refused() {
        let rules: Vec<Rule> = (0..=LISTS_MAX)
            .map(|n| rule(list(&[&format!("10.0.0.{n}")]), None))
            .collect();
        assert!(trie_entries(&rules[..LISTS_MAX]).is_ok());
        let error = trie_entries(&rules).unwrap_err().to_string();
        assert!(error.contains("65 prefix lists"), "{error}");
    }
}
