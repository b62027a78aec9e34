//! Receiving: the current packet stays in the device's memory until the next call.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use port::{Packet, Ready};
use runtime::in_place::{Advance, Reader, gather, tag_of};
use sys::Result;

use crate::header::{FLOW_PACKET, Header, Parsed};
use crate::rules::{Action, Link, Numbers, Rules, Seen, Table, rule_ns};
use crate::settings::Wanted;

/// Topmost layer of the headers that are parsed.
const LEVEL: u8 = 4;

/// The rules for the packets of one call, if there are any, and the time for them.
type Active<'t> = Option<(MutexGuard<'t, Table>, u64)>;

/// What a ring's packets are returned with.
#[derive(Clone)]
pub struct Terms {
    /// The index of the interface, 0 if unknown.
    pub if_index: u32,
    /// The link type of packets.
    pub link_type: u16,
    /// The rules, which select packets.
    pub rules: Arc<Rules>,
    /// The numbers of flows, if packets get them.
    pub numbers: Option<Arc<Mutex<Numbers>>>,
    /// Whether headers are parsed.
    pub parses: bool,
}

/// The receiving half of a ring.
pub struct Receiver {
    reader: Reader,
    terms: Terms,
    wanted: Wanted,
    sampling: u32,
    /// Packets skipped since the last one that was returned.
    skipped: u32,
    /// The current packet if it is not in one piece: in several segments, or with its VLAN tag
    /// beside it.
    copy: Vec<u8>,
}

impl Receiver {
    /// Returns packets of a reader.
    pub fn new(reader: Reader, terms: Terms) -> Self {
        Self {
            reader,
            terms,
            wanted: Wanted::Both,
            sampling: 1,
            skipped: 0,
            copy: Vec::new(),
        }
    }

    /// Sets which packets are returned, and one in how many.
    pub fn select(&mut self, wanted: Wanted, sampling: u32) {
        self.wanted = wanted;
        self.sampling = sampling.max(1);
    }

    /// Moves to the next packet; false if there is none.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn advance(&mut self) -> Result<bool> {
        let Self {
            reader,
            skipped,
            terms,
            ..
        } = self;
        let (wanted, sampling) = (self.wanted, self.sampling);
        let mut rules = terms.active();
        let advance = reader.advance(|packet| {
            let is_wanted = terms.selects(packet, wanted, &mut rules);
            *skipped += u32::from(is_wanted);
            is_wanted && *skipped >= sampling
        })?;
        let is_found = advance == Advance::Found;
        if is_found {
            *skipped = 0;
        }
        Ok(is_found)
    }

    /// Receives the packets that wait, about `max` at most, and returns how many of them direction
    /// and rules select. Those that rules drop are counted as always.
    pub fn discard(&mut self, max: u64) -> u64 {
        let Self { reader, terms, .. } = self;
        let wanted = self.wanted;
        let mut rules = terms.active();
        let (mut seen, mut count) = (0, 0);
        while seen < max {
            let advance = reader.advance(|packet| {
                seen += 1;
                count += u64::from(terms.selects(packet, wanted, &mut rules));
                false
            });
            // A call searches a bounded number of batches.
            if !matches!(advance, Ok(Advance::Unfinished)) {
                break;
            }
        }
        count
    }

    /// The current packet; its bytes are valid until the next [`advance`](Self::advance).
    pub fn packet(&mut self) -> Option<(Header, &[u8])> {
        let Self {
            reader,
            copy,
            terms,
            ..
        } = self;
        let packet = reader.packet()?;
        let tag = tag_of(&packet, terms.link_type);
        let mut wire_len = packet.wire_len();
        let bytes = match tag {
            None if packet.is_whole() => packet.bytes(),
            _ => {
                wire_len = wire_len.saturating_add(gather(&packet, tag, copy));
                copy
            }
        };
        let number = terms.number(bytes, wire_len);
        let parsed = || Parsed::new(terms.link_type, bytes, wire_len, LEVEL);
        let header = Header {
            time_ns: packet.time_ns().unwrap_or_else(now_ns),
            cap_len: bytes.len() as u32,
            wire_len,
            is_outgoing: packet.is_outgoing(),
            if_index: terms.if_index,
            hash: number.or(packet.rss_hash()).unwrap_or(0),
            flags: number.map_or(0, |_| FLOW_PACKET),
            parsed: terms.parses.then(parsed),
        };
        Some((header, bytes))
    }

    /// Whether [`advance`](Self::advance) has packets without receiving.
    pub fn has_packet(&self) -> bool {
        self.reader.has_more()
    }

    /// Sleeps until there may be packets, at most `timeout`.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        self.reader.wait(timeout)
    }

    /// Updates the descriptor of [`fd`](Self::fd); the current packet stays valid.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn refresh(&mut self) -> Result<()> {
        self.reader.refresh()
    }

    /// A descriptor that is readable when there may be packets, after each
    /// [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn fd(&mut self) -> Result<Option<RawFd>> {
        self.reader.fd()
    }
}

impl Terms {
    fn active(&self) -> Active<'_> {
        self.rules.active().map(|table| (table, rule_ns()))
    }

    /// Whether direction and rules select a packet; one that rules drop is counted.
    fn selects(&self, packet: &Packet<'_>, wanted: Wanted, rules: &mut Active<'_>) -> bool {
        let is_wanted = match wanted {
            Wanted::Both => true,
            Wanted::Received => !packet.is_outgoing(),
            Wanted::Sent => packet.is_outgoing(),
        };
        is_wanted
            && match rules {
                Some((table, now_ns)) => self.passes(packet, table, *now_ns),
                None => true,
            }
    }

    /// Whether rules pass a packet; one that they drop is counted.
    fn passes(&self, packet: &Packet<'_>, table: &mut Table, now_ns: u64) -> bool {
        let (bytes, tag) = (packet.bytes(), tag_of(packet, self.link_type));
        let tag = tag.map(|tag| tag.tci & 0xfff);
        let seen = Seen::new(self.link_type, bytes, packet.wire_len(), tag);
        let link = Link::new(self.link_type, bytes, self.if_index);
        let passes = table.decide(&seen, &link, now_ns) == Action::Pass;
        if !passes {
            self.rules.count_dropped();
        }
        passes
    }

    /// The number of a packet's flow, if packets get one.
    fn number(&self, bytes: &[u8], wire_len: u32) -> Option<u32> {
        let numbers = self.numbers.as_ref()?;
        let flow = Seen::new(self.link_type, bytes, wire_len, None).flow()?;
        let mut numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
        Some(numbers.number(flow))
    }
}

/// The present time, for packets without a timestamp.
pub fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
