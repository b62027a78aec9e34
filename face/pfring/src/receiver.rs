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
    /// The packet that was returned last, while it is valid.
    last: Option<Last>,
}

/// Where the packet is that was returned last.
#[derive(Clone, Copy)]
struct Last {
    /// The copy, unless it is in the device's memory.
    copy: Option<usize>,
    wire_len: u32,
}

/// A packet as a ring returns it.
pub struct Returned<'p> {
    /// Its header.
    pub header: Header,
    /// As much of it as the ring returns.
    pub bytes: &'p [u8],
    /// All of it; `None` if the device has delivered less.
    pub whole: Option<&'p [u8]>,
}

/// A packet with what is known of it besides its bytes.
struct Known<'p> {
    bytes: &'p [u8],
    /// The copy in which it is, unless it is in the device's memory.
    copy: Option<usize>,
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
            last: None,
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
        self.last = None;
        let Self {
            reader,
            skipped,
            terms,
            selected,
            ..
        } = self;
        let mut rules = terms.active();
        let advance =
            reader.advance(|packet| terms.samples(packet, selected, &mut rules, skipped))?;
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
        let is_found =
            reader.advance_within(|packet| terms.samples(packet, selected, &mut rules, skipped));
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
        self.last = None;
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
    pub fn packet(&mut self, at: usize) -> Option<Returned<'_>> {
        let Self {
            reader,
            copies,
            terms,
            selected,
            last,
            ..
        } = self;
        let known = known(reader, copies, terms.link_type, at)?;
        let (bytes, wire_len) = (known.bytes, known.wire_len);
        *last = Some(Last {
            copy: known.copy,
            wire_len,
        });
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
        Some(Returned {
            header,
            bytes: &bytes[..len],
            whole: is_whole(bytes, wire_len).then_some(bytes),
        })
    }

    /// The packet that was returned last, as much of it as the device has delivered, and whether
    /// that is all of it. It is not copied again: the program has pointers to the packets of a
    /// call.
    pub fn last(&self) -> Option<(&[u8], bool)> {
        let last = self.last?;
        let bytes: &[u8] = match last.copy {
            Some(at) => self.copies.get(at)?,
            None => self.reader.packet()?.bytes(),
        };
        Some((bytes, is_whole(bytes, last.wire_len)))
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

    /// Whether a packet is selected, and is the one of a sample after so many were skipped.
    fn samples(
        &self,
        packet: &Packet<'_>,
        by: &Selected,
        rules: &mut Active<'_>,
        skipped: &mut u32,
    ) -> bool {
        let is_wanted = self.selects(packet, by, rules);
        *skipped += u32::from(is_wanted);
        is_wanted && *skipped >= by.sampling
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

/// Whether these bytes are all of a packet.
fn is_whole(bytes: &[u8], wire_len: u32) -> bool {
    bytes.len() >= wire_len as usize
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
    let is_copied = tag.is_some() || !packet.is_whole();
    let bytes = match is_copied {
        false => packet.bytes(),
        true => {
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
        copy: is_copied.then_some(at),
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

#[cfg(test)]
mod tests {
    use port::Direction;

    use super::*;
    use crate::settings::Settings;

    /// A UDP packet of 61 bytes.
    fn packet() -> Vec<u8> {
        let mut packet = vec![1; 61];
        packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 47, 0, 0, 0, 0, 64, 17]);
        packet
    }

    /// Receives that packet from a file, as often as it has lengths on the wire.
    fn receiver(name: &str, wire_lens: &[u8]) -> Receiver {
        let mut bytes: Vec<u8> = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0, 0, 4, 0, 1, 0, 0, 0]);
        for &wire_len in wire_lens {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 61, 0, 0, 0, wire_len, 0, 0, 0]);
            bytes.extend(packet());
        }
        let file = format!("pfring-receiver-{name}-{}.pcap", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, bytes).unwrap();
        let options = Settings::new(0, 0).options(Direction::Rx);
        let port = port::open(&format!("file:{}", path.display()), &options).unwrap();
        std::fs::remove_file(path).unwrap();
        let terms = Terms {
            if_index: 0,
            link_type: 1,
            rules: Arc::default(),
            numbers: None,
            parses: false,
            cap_max: 40,
        };
        Receiver::new(Reader::new(port.rx).unwrap().unwrap(), terms)
    }

    #[test]
    fn whole_packets_are_known_whatever_is_returned_of_them() {
        let mut receiver = receiver("whole", &[61, 200]);
        let all = Selection::default().now();
        for (slice, returned) in [(None, 40), (Some((2, 0)), 14)] {
            let is_whole = slice.is_none();
            receiver.select(Selected { slice, ..all });
            assert!(receiver.last().is_none());
            assert!(receiver.advance().unwrap());
            let found = receiver.packet(0).unwrap();
            assert_eq!(found.header.cap_len as usize, returned);
            assert_eq!(found.bytes, &packet()[..returned]);
            // The second was truncated before.
            assert_eq!(found.whole, is_whole.then_some(&packet()[..]));
            assert_eq!(receiver.last(), Some((&packet()[..], is_whole)));
            assert_eq!(receiver.next_time_ns().unwrap().is_some(), is_whole);
        }
        assert!(receiver.last().is_none());
    }

    #[test]
    fn the_last_packet_of_several_is_where_it_was_returned() {
        let mut receiver = receiver("last", &[61, 61]);
        assert!(receiver.advance().unwrap());
        // As if both were in several segments.
        receiver.copies = vec![vec![7; 70], vec![8; 80]];
        receiver.last = Some(Last {
            copy: Some(1),
            wire_len: 80,
        });
        let places = receiver.copies.iter().map(|copy| copy.as_ptr());
        let places: Vec<_> = places.collect();
        let (bytes, is_whole) = receiver.last().unwrap();
        assert_eq!((bytes, is_whole), (&[8; 80][..], true));
        assert_eq!(bytes.as_ptr(), places[1]);
        assert_eq!(receiver.copies[0], [7; 70]);
        assert_eq!(receiver.copies[0].as_ptr(), places[0]);
        assert!(receiver.advance().unwrap() && receiver.last().is_none());
    }
}
