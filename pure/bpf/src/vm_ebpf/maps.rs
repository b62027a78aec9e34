//! Models the kernel's maps for one processor: arrays, hash tables and prefix tries.

use alloc::vec;
use alloc::vec::Vec;

use super::Kernel;

/// Type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An index of 4 bytes; all values exist (`BPF_MAP_TYPE_ARRAY` and `PERCPU_ARRAY`).
    Array,
    /// Arbitrary bytes (`BPF_MAP_TYPE_HASH`).
    Hash,
    /// Like [`Kind::Hash`]; in a full map a new key replaces the oldest.
    LruHash,
    /// A prefix length in bits, and the prefix; a look-up returns the longest prefix that covers
    /// the key (`BPF_MAP_TYPE_LPM_TRIE`).
    Trie,
    /// Perf rings (`BPF_MAP_TYPE_PERF_EVENT_ARRAY`): the maximum number of entries is that of the
    /// outputs that fit.
    Events,
}

#[derive(Clone, Debug)]
struct Map {
    kind: Kind,
    key_len: usize,
    value_len: usize,
    entries_max: usize,
    /// Keys and the numbers of their values, oldest first.
    entries: Vec<(Vec<u8>, u32)>,
}

/// Maps by file descriptor number, and a clock.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    maps: Vec<(i32, Map)>,
    values: Vec<Vec<u8>>,
    /// What programs have output to [`Kind::Events`], oldest first.
    pub events: Vec<Vec<u8>>,
    /// Time of all clocks.
    pub now_ns: u64,
    /// The next random number.
    pub random: u32,
}

const ENOENT: i64 = -2;
const E2BIG: i64 = -7;
const EEXIST: i64 = -17;
const EINVAL: i64 = -22;
const ENOSPC: i64 = -28;

impl Maps {
    /// Creates a set without maps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a map with a file descriptor number.
    pub fn add(&mut self, fd: i32, kind: Kind, (key_len, value_len): (usize, usize), max: usize) {
        let mut map = Map {
            kind,
            key_len,
            value_len,
            entries_max: max,
            entries: Vec::new(),
        };
        if kind == Kind::Array {
            for index in 0..max as u32 {
                let number = self.new_value(vec![0; value_len]);
                map.entries.push((index.to_ne_bytes().into(), number));
            }
        }
        self.maps.push((fd, map));
    }

    /// The value of a key.
    pub fn get(&mut self, fd: i32, key: &[u8]) -> Option<&mut [u8]> {
        let number = self.look_up(fd, key)?;
        self.value(number)
    }

    fn new_value(&mut self, bytes: Vec<u8>) -> u32 {
        self.values.push(bytes);
        self.values.len() as u32 - 1
    }

    fn map(&self, fd: i32) -> Option<&Map> {
        self.maps.iter().find(|row| row.0 == fd).map(|row| &row.1)
    }
}

impl Map {
    fn find(&self, key: &[u8]) -> Option<usize> {
        match self.kind {
            Kind::Trie => self.longest(key),
            Kind::Array => {
                let index = u32::from_ne_bytes(*key.first_chunk()?) as usize;
                (index < self.entries.len()).then_some(index)
            }
            _ => self.entries.iter().position(|(known, _)| known == key),
        }
    }

    fn longest(&self, key: &[u8]) -> Option<usize> {
        let (bits, data) = prefix(key)?;
        let covering = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(at, (key, _))| {
                let (len, prefix) = prefix(key)?;
                (len <= bits && is_covered(prefix, data, len)).then_some((len, at))
            });
        covering.max().map(|(_, at)| at)
    }
}

/// Prefix length and bytes of a trie's key.
fn prefix(key: &[u8]) -> Option<(usize, &[u8])> {
    let (len, data) = key.split_first_chunk::<4>()?;
    let bits = u32::from_ne_bytes(*len) as usize;
    (bits <= data.len() * 8).then_some((bits, data))
}

fn is_covered(prefix: &[u8], data: &[u8], bits: usize) -> bool {
    let (whole, rest) = (bits / 8, bits % 8);
    let mask = !(0xff_u8.checked_shr(rest as u32).unwrap_or(0));
    prefix[..whole] == data[..whole] && (rest == 0 || (prefix[whole] ^ data[whole]) & mask == 0)
}

impl Kernel for Maps {
    fn sizes(&self, fd: i32) -> Option<(usize, usize)> {
        self.map(fd).map(|map| (map.key_len, map.value_len))
    }

    fn look_up(&mut self, fd: i32, key: &[u8]) -> Option<u32> {
        let map = self.map(fd)?;
        map.find(key).map(|at| map.entries[at].1)
    }

    fn update(&mut self, fd: i32, key: &[u8], value: &[u8], flags: u64) -> i64 {
        let Some(map) = self.map(fd) else {
            return EINVAL;
        };
        let exact = match map.kind {
            Kind::Array => map.find(key),
            _ => map.entries.iter().position(|(known, _)| known == key),
        };
        let is_full = map.entries.len() >= map.entries_max;
        match (exact, flags) {
            (Some(_), 1) => return EEXIST,
            (None, 2) => return ENOENT,
            (_, 3..) => return EINVAL,
            (Some(at), _) => {
                let number = map.entries[at].1 as usize;
                self.values[number].copy_from_slice(value);
                return 0;
            }
            (None, _) if map.kind == Kind::Array => return E2BIG,
            (None, _) if map.kind == Kind::Events => return EINVAL,
            (None, _) if map.kind == Kind::Trie && prefix(key).is_none() => return EINVAL,
            (None, _) if is_full && map.kind != Kind::LruHash => return E2BIG,
            (None, _) => {}
        }
        let number = self.new_value(value.into());
        if let Some((_, map)) = self.maps.iter_mut().find(|row| row.0 == fd) {
            if is_full && !map.entries.is_empty() {
                map.entries.remove(0);
            }
            map.entries.push((key.into(), number));
        }
        0
    }

    fn output(&mut self, fd: i32, bytes: &[u8], packet: &[u8]) -> i64 {
        match self.map(fd) {
            Some(map) if map.kind != Kind::Events => EINVAL,
            Some(map) if self.events.len() < map.entries_max => {
                self.events.push([bytes, packet].concat());
                0
            }
            Some(_) => ENOSPC,
            None => EINVAL,
        }
    }

    fn value(&mut self, number: u32) -> Option<&mut [u8]> {
        self.values.get_mut(number as usize).map(Vec::as_mut_slice)
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn random(&mut self) -> u32 {
        self.random
    }
}
