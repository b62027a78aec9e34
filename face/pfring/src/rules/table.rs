//! The rules, and which of them decides on a packet.

use std::collections::{BTreeMap, HashMap};

use super::{Action, Flow, Seen};
use crate::ring::Outcome;
use crate::status::{GENERIC, NO_MEMORY};

/// Maximum number of hash rules.
const HASH_COUNT_MAX: usize = 1 << 16;
/// Maximum number of wildcard rules, each of which is compared with a packet.
const WILDCARD_COUNT_MAX: usize = 1024;
/// Seconds after which a bypass ends that has matched nothing: the connection is over, and another
/// one may have its addresses and ports.
const BYPASS_IDLE_S: u32 = 120;
/// Interval in nanoseconds at which a full table is searched for bypasses that have ended.
const SEARCH_EVERY_NS: u64 = 1_000_000_000;
/// `FILTERING_RULE_AUTO_RULE_ID`: the lowest free number.
const ANY_NUMBER: u16 = u16::MAX;

/// Packets that matched a hash rule (`hash_filtering_rule_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets of the flow.
    pub matched: u64,
    /// Those of them that were dropped.
    pub dropped: u64,
    /// Seconds since the last of them.
    pub idle_s: u32,
}

#[derive(Debug)]
struct Entry {
    action: Action,
    counts: Counts,
    /// When it last matched, or was added ([`rule_ns`](super::rule_ns)).
    last_ns: u64,
    /// Whether it ends once it has been idle for [`BYPASS_IDLE_S`].
    expires: bool,
}

impl Entry {
    fn has_ended(&self, now_ns: u64) -> bool {
        self.expires && idle_s(self.last_ns, now_ns) >= BYPASS_IDLE_S
    }
}

/// A rule for ranges. Zero addresses, masks and numbers match everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    /// What happens to a packet that matches.
    pub action: Action,
    /// Whether source and destination may be swapped.
    pub is_bidirectional: bool,
    /// Whether it stays although it is idle.
    pub is_locked: bool,
    /// The IP version of the addresses, 0 without any.
    pub version: u8,
    /// Addresses and masks of source and destination.
    pub hosts: [([u8; 16], [u8; 16]); 2],
    /// First and last port of source and destination.
    pub ports: [(u16, u16); 2],
    /// Addresses of the stations; the first is the source.
    pub stations: [[u8; 6]; 2],
    /// The outer VLAN.
    pub vlan: u16,
    /// The EtherType.
    pub ether_type: u16,
    /// The IP protocol.
    pub protocol: u8,
    /// TCP flags, all of which are set.
    pub tcp_flags: u8,
    /// The interface's index.
    pub if_index: u32,
}

impl Wildcard {
    fn matches(&self, seen: &Seen, link: &Link) -> bool {
        let it = &seen.headers;
        let is = |wanted: u32, found: u32| wanted == 0 || wanted == found;
        let flags = u16::from(self.tcp_flags);
        is(self.if_index, link.if_index)
            && is(self.vlan.into(), seen.vlans[0].into())
            && is(self.ether_type.into(), link.ether_type.into())
            && is(self.protocol.into(), it.ip_protocol.into())
            && is(self.version.into(), it.ip_version.into())
            && it.tcp_flags & flags == flags
            && (self.matches_ends(seen, link, false)
                || self.is_bidirectional && self.matches_ends(seen, link, true))
    }

    fn matches_ends(&self, seen: &Seen, link: &Link, is_swapped: bool) -> bool {
        let it = &seen.headers;
        let mut ends = [
            (it.src, it.src_port, link.stations[0]),
            (it.dst, it.dst_port, link.stations[1]),
        ];
        if is_swapped {
            ends.reverse();
        }
        (0..2).all(|at| {
            let (address, port, station) = ends[at];
            let (first, last) = self.ports[at];
            (self.stations[at] == [0; 6] || self.stations[at] == station)
                && (last == 0 || (first..=last).contains(&port))
                && is_host(self.hosts[at], address)
        })
    }
}

fn is_host((wanted, mask): ([u8; 16], [u8; 16]), found: [u8; 16]) -> bool {
    let mut bytes = wanted.iter().zip(mask).zip(found);
    bytes.all(|((wanted, mask), found)| wanted & mask == found & mask)
}

/// What wildcard rules know of the link header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Source and destination.
    pub stations: [[u8; 6]; 2],
    /// The EtherType behind VLAN tags, 0 if unknown.
    pub ether_type: u16,
    /// The interface's index, 0 if unknown.
    pub if_index: u32,
}

impl Link {
    /// Reads an Ethernet header; empty for other link types.
    pub fn new(link_type: u16, bytes: &[u8], if_index: u32) -> Self {
        const ETHERNET: u16 = 1;
        const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
        const TAG_COUNT_MAX: usize = 4;
        let mut link = Self {
            if_index,
            ..Self::default()
        };
        let Some((head, _)) = bytes
            .split_first_chunk::<12>()
            .filter(|_| link_type == ETHERNET)
        else {
            return link;
        };
        let (to, from) = head.split_at(6);
        link.stations[0].copy_from_slice(from);
        link.stations[1].copy_from_slice(to);
        let kinds = (0..=TAG_COUNT_MAX).map_while(|tag| bytes.get(12 + 4 * tag..)?.first_chunk());
        let mut kinds = kinds.map(|kind| u16::from_be_bytes(*kind));
        link.ether_type = kinds.find(|kind| !TAGS.contains(kind)).unwrap_or(0);
        link
    }
}

/// All rules, and what happens to other packets. Times are those of [`rule_ns`](super::rule_ns).
#[derive(Debug)]
pub struct Table {
    hash: HashMap<Flow, Entry>,
    /// When the full table was last searched for bypasses that have ended.
    searched_ns: Option<u64>,
    wildcards: BTreeMap<u16, (Wildcard, u64)>,
    /// What happens to packets that match no rule.
    pub policy: Action,
}

impl Table {
    /// A table that passes everything.
    pub fn new() -> Self {
        Self {
            hash: HashMap::new(),
            searched_ns: None,
            wildcards: BTreeMap::new(),
            policy: Action::Pass,
        }
    }

    /// Whether it passes everything.
    pub fn is_idle(&self) -> bool {
        self.hash.is_empty() && self.wildcards.is_empty() && self.policy == Action::Pass
    }

    /// Adds a hash rule, or replaces that of the same flow.
    ///
    /// # Errors
    /// `NO_MEMORY` if there are too many.
    pub fn add(&mut self, flow: Flow, action: Action, now_ns: u64) -> Outcome<()> {
        let entry = self.entry(flow, action, now_ns)?;
        // A bypass becomes a rule.
        entry.expires = false;
        Ok(())
    }

    /// Drops the packets of a flow until it has been idle for two minutes. A hash rule of the flow
    /// stays, and drops from now on.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn bypass(&mut self, flow: Flow, now_ns: u64) -> Outcome<()> {
        self.entry(flow, Action::Drop, now_ns).map(drop)
    }

    /// Sets the action of a flow; what is new expires.
    fn entry(&mut self, flow: Flow, action: Action, now_ns: u64) -> Outcome<&mut Entry> {
        if self.hash.len() >= HASH_COUNT_MAX && !self.hash.contains_key(&flow) {
            self.remove_ended(now_ns);
            if self.hash.len() >= HASH_COUNT_MAX {
                return Err(NO_MEMORY);
            }
        }
        let entry = self.hash.entry(flow).or_insert(Entry {
            action,
            counts: Counts::default(),
            last_ns: now_ns,
            expires: true,
        });
        (entry.action, entry.last_ns) = (action, now_ns);
        Ok(entry)
    }

    /// Removes bypasses that have ended. All entries are looked at, while packets wait for the
    /// table: not each time that a program asks for another bypass.
    fn remove_ended(&mut self, now_ns: u64) {
        let since_ns = self.searched_ns.map(|last| now_ns.saturating_sub(last));
        if since_ns.is_none_or(|since| since >= SEARCH_EVERY_NS) {
            self.searched_ns = Some(now_ns);
            self.hash.retain(|_, entry| !entry.has_ended(now_ns));
        }
    }

    /// Removes a hash rule.
    ///
    /// # Errors
    /// `GENERIC` if there is none.
    pub fn remove(&mut self, flow: &Flow) -> Outcome<()> {
        self.hash.remove(flow).map(drop).ok_or(GENERIC)
    }

    /// The counts of a hash rule.
    ///
    /// # Errors
    /// `GENERIC` if there is none.
    pub fn counts(&self, flow: &Flow, now_ns: u64) -> Outcome<Counts> {
        let entry = self.hash.get(flow).ok_or(GENERIC)?;
        Ok(Counts {
            idle_s: idle_s(entry.last_ns, now_ns),
            ..entry.counts
        })
    }

    /// Adds a wildcard rule, or replaces that of the same number.
    ///
    /// # Errors
    /// `NO_MEMORY` if there are too many.
    pub fn add_wildcard(&mut self, number: u16, rule: Wildcard, now_ns: u64) -> Outcome<()> {
        let number = match number {
            ANY_NUMBER => (0..ANY_NUMBER).find(|number| !self.wildcards.contains_key(number)),
            number => Some(number),
        };
        let number = number.ok_or(NO_MEMORY)?;
        if self.wildcards.len() >= WILDCARD_COUNT_MAX && !self.wildcards.contains_key(&number) {
            return Err(NO_MEMORY);
        }
        self.wildcards.insert(number, (rule, now_ns));
        Ok(())
    }

    /// Removes a wildcard rule.
    ///
    /// # Errors
    /// `GENERIC` if there is none.
    pub fn remove_wildcard(&mut self, number: u16) -> Outcome<()> {
        self.wildcards.remove(&number).map(drop).ok_or(GENERIC)
    }

    /// Removes hash rules that matched nothing for at least so many seconds; all for 0.
    pub fn purge(&mut self, idle_min_s: u16, now_ns: u64) {
        let min_s = u32::from(idle_min_s);
        self.hash
            .retain(|_, entry| idle_s(entry.last_ns, now_ns) < min_s);
    }

    /// Removes wildcard rules that are not locked, and matched nothing for at least so many
    /// seconds; all for 0.
    pub fn purge_wildcards(&mut self, idle_min_s: u16, now_ns: u64) {
        let min_s = u32::from(idle_min_s);
        self.wildcards
            .retain(|_, (rule, last_ns)| rule.is_locked || idle_s(*last_ns, now_ns) < min_s);
    }

    /// Decides on a packet; `now_ns` is the present time.
    pub fn decide(&mut self, seen: &Seen, link: &Link, now_ns: u64) -> Action {
        let found = seen.flow().map(|flow| (flow, self.hash.get_mut(&flow)));
        match found {
            Some((_, Some(entry))) if !entry.has_ended(now_ns) => {
                entry.last_ns = now_ns;
                entry.counts.matched += 1;
                entry.counts.dropped += u64::from(entry.action == Action::Drop);
                return entry.action;
            }
            Some((flow, Some(_))) => {
                self.hash.remove(&flow);
            }
            _ => {}
        }
        let mut wildcards = self.wildcards.values_mut();
        match wildcards.find(|(rule, _)| rule.matches(seen, link)) {
            Some((rule, last_ns)) => {
                *last_ns = now_ns;
                rule.action
            }
            None => self.policy,
        }
    }
}

fn idle_s(last_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(last_ns) / 1_000_000_000).unwrap_or(u32::MAX)
}
