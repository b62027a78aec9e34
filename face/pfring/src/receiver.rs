//! Receiving: the current packet stays in the device's memory until the next call.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use port::{Packet, Ready};
use runtime::in_place::{Advance, Reader, gather, tag_of};
use sys::Result;
use wire::Dissection;

use crate::header::{FLOW_PACKET, Header, Parsed};
use crate::rules::{Action, Link, Numbers, Rules, Seen, Table, rule_ns};
use crate::settings::{Selected, Selection, Wanted};

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
    /// Maximum number of bytes returned of a packet.
    pub cap_max: u32,
}

/// The receiving half of a ring.
pub struct Receiver {
    reader: Reader,
    terms: Terms,
    selected: Selected,
    /// Packets skipped since the last one that was returned.
    skipped: u32,
    /// Whether the current packet was only looked at, and is the next one that is returned.
    is_next: bool,
    /// Packets of a call that are not in one piece: in several segments, or with the VLAN tag
    /// beside them.
    copies: Vec<Vec<u8>>,
}

/// A packet with what is known of it besides its bytes.
struct Known<'p> {
    bytes: &'p [u8],
    wire_len: u32,
    time_ns: Option<u64>,
    is_outgoing: bool,
    hash: Option<u32>,
}

impl Receiver {
    /// Returns packets of a reader.
    pub fn new(reader: Reader, terms: Terms) -> Self {
        Self {
            reader,
            terms,
            selected: Selection::default().now(),
            skipped: 0,
            is_next: false,
            copies: Vec::new(),
        }
    }

    /// Sets which packets are returned, and how much of them.
    pub fn select(&mut self, selected: Selected) {
        self.selected = selected;
    }

    /// Moves to the next packet; false if there is none.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn advance(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.is_next) {
            return Ok(true);
        }
        let Self {
            reader,
            skipped,
            terms,
            selected,
            ..
        } = self;
        let mut rules = terms.active();
        let advance = reader.advance(|packet| {
            let is_wanted = terms.selects(packet, selected, &mut rules);
            *skipped += u32::from(is_wanted);
            is_wanted && *skipped >= selected.sampling
        })?;
        let is_found = advance == Advance::Found;
        if is_found {
            *skipped = 0;
        }
        Ok(is_found)
    }

    /// Moves to the next packet that was received already, so that the previous ones stay valid;
    /// false if there is none.
    pub fn advance_within(&mut self) -> bool {
        let Self {
            reader,
            skipped,
            terms,
            selected,
            ..
        } = self;
        let mut rules = terms.active();
        let is_found = reader.advance_within(|packet| {
            let is_wanted = terms.selects(packet, selected, &mut rules);
            *skipped += u32::from(is_wanted);
            is_wanted && *skipped >= selected.sampling
        });
        if is_found {
            *skipped = 0;
        }
        is_found
    }

    /// The time of the packet that is returned next, in nanoseconds since 1970; the previous packet
    /// is no longer valid. `None` if there is none.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn next_time_ns(&mut self) -> Result<Option<u64>> {
        self.is_next = self.advance()?;
        let packet = self.reader.packet().filter(|_| self.is_next);
        Ok(packet.map(|packet| packet.time_ns().unwrap_or_else(now_ns)))
    }

    /// Receives the packets that wait, about `max` at most, and returns how many of them direction
    /// and rules select. Those that rules drop are counted as always.
    pub fn discard(&mut self, max: u64) -> u64 {
        let Self {
            reader,
            terms,
            selected,
            is_next,
            ..
        } = self;
        let mut rules = terms.active();
        let (mut seen, mut count) = (0, u64::from(std::mem::take(is_next)));
        while seen < max {
            let advance = reader.advance(|packet| {
                seen += 1;
                count += u64::from(terms.selects(packet, selected, &mut rules));
                false
            });
            // A call searches a bounded number of batches.
            if !matches!(advance, Ok(Advance::Unfinished)) {
                break;
            }
        }
        count
    }

    /// The current packet; its bytes are valid until the next [`advance`](Self::advance), and those
    /// of several packets of a call if each has its own number `at`.
    pub fn packet(&mut self, at: usize) -> Option<(Header, &[u8])> {
        let Self {
            reader,
            copies,
            terms,
            selected,
            ..
        } = self;
        let known = known(reader, copies, terms.link_type, at)?;
        let (bytes, wire_len) = (known.bytes, known.wire_len);
        let number = terms.number(bytes, wire_len);
        let parsed = || Parsed::new(terms.link_type, bytes, wire_len, LEVEL);
        let sliced = selected.slice.map_or(usize::MAX, |(layer, more)| {
            let headers = Seen::new(terms.link_type, bytes, wire_len, None).headers;
            headers_len(&headers, layer).saturating_add(more as usize)
        });
        let len = bytes.len().min(sliced).min(terms.cap_max as usize);
        let header = Header {
            time_ns: known.time_ns.unwrap_or_else(now_ns),
            cap_len: len as u32,
            wire_len,
            is_outgoing: known.is_outgoing,
            if_index: terms.if_index,
            hash: number.or(known.hash).unwrap_or(0),
            flags: number.map_or(0, |_| FLOW_PACKET),
            parsed: terms.parses.then(parsed),
        };
        Some((header, &bytes[..len]))
    }

    /// The packet that was returned last, as much of it as the device has delivered, and whether
    /// that is all of it.
    pub fn last(&mut self) -> Option<(&[u8], bool)> {
        if self.is_next {
            return None;
        }
        let Self {
            reader,
            copies,
            terms,
            ..
        } = self;
        let known = known(reader, copies, terms.link_type, 0)?;
        Some((known.bytes, known.bytes.len() >= known.wire_len as usize))
    }

    /// Whether [`advance`](Self::advance) has packets without receiving.
    pub fn has_packet(&self) -> bool {
        self.is_next || self.reader.has_more()
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

    /// Whether direction, VLAN and rules select a packet; one that rules drop is counted.
    fn selects(&self, packet: &Packet<'_>, by: &Selected, rules: &mut Active<'_>) -> bool {
        let is_wanted = match by.wanted {
            Wanted::Both => true,
            Wanted::Received => !packet.is_outgoing(),
            Wanted::Sent => packet.is_outgoing(),
        };
        is_wanted
            && by.vlan.is_none_or(|vlan| self.is_in(packet, vlan))
            && match rules {
                Some((table, now_ns)) => self.passes(packet, table, *now_ns),
                None => true,
            }
    }

    /// Whether a packet is in this VLAN by its outer tag; without a tag it is in 0.
    fn is_in(&self, packet: &Packet<'_>, vlan: u16) -> bool {
        let tag = tag_of(packet, self.link_type).map(|tag| tag.tci & 0xfff);
        let seen = Seen::new(self.link_type, packet.bytes(), packet.wire_len(), tag);
        seen.vlans[0] == vlan
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

/// The current packet, in one piece: in the device's memory, or in the copy of this number.
fn known<'p>(
    reader: &'p Reader,
    copies: &'p mut Vec<Vec<u8>>,
    link_type: u16,
    at: usize,
) -> Option<Known<'p>> {
    let packet = reader.packet()?;
    let tag = tag_of(&packet, link_type);
    let mut wire_len = packet.wire_len();
    let (time_ns, hash) = (packet.time_ns(), packet.rss_hash());
    let is_outgoing = packet.is_outgoing();
    let bytes = match tag {
        None if packet.is_whole() => packet.bytes(),
        _ => {
            if copies.len() <= at {
                copies.resize_with(at + 1, Vec::new);
            }
            let copy = &mut copies[at];
            wire_len = wire_len.saturating_add(gather(&packet, tag, copy));
            copy
        }
    };
    Some(Known {
        bytes,
        wire_len,
        time_ns,
        is_outgoing,
        hash,
    })
}

/// Length of the headers up to the end of layer 2, 3 or 4 (`packet_slicing_level`); of a packet
/// without them, any.
fn headers_len(headers: &Dissection, layer: u8) -> usize {
    let end = match layer {
        _ if headers.ip_version == 0 => return usize::MAX,
        2 => headers.ip_offset as usize,
        3 => headers.transport_offset as usize,
        _ => headers.payload_offset as usize,
    };
    if end == 0 { usize::MAX } else { end }
}

/// The present time, for packets without a timestamp.
pub fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
