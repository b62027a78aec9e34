//! Laws of metering over a sample of all captures: TCP streams segmented differently, reordered and
//! repeated, give the same application and transactions; fragments, in any order, count in the flow
//! of their datagram.

use std::collections::{BTreeMap, HashMap, HashSet};

use flow::{EndReason, Extra, Input, Meter, Record, RecordSink, Side};
use inspect::{Inspector, InspectorConfig};
use wire::{Dissection, Fragment, LayerKind, LinkType, dissect};

use crate::flow_laws::{config, sample};
use lab::corpus::Packet;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u16 = 0x02;
const ACK_PSH: u16 = 0x18;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % bound.max(1)
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let with = self.below(at + 1);
            all.swap(at, with);
        }
    }
}

/// The headers of an Ethernet frame captured completely, with an unfragmented IP packet outside of
/// any tunnel.
fn plain((frame, wire_len, _): &Packet) -> Option<Dissection> {
    let mut level = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, frame, *wire_len, &mut level);
    let is_whole = frame.len() as u32 >= *wire_len
        && level.fragment == Fragment::Whole
        && level.inner == LayerKind::None
        && matches!(level.ip_version, 4 | 6)
        && level.has_ports()
        && u64::from(level.payload_offset) + u64::from(level.payload_len) <= frame.len() as u64
        && u32::from(level.ip_offset) + level.ip_total_len <= *wire_len;
    is_whole.then_some(level)
}

/// Sets the length of an IP packet in bytes, including its header.
fn set_ip_len(frame: &mut [u8], level: &Dissection, len: usize) {
    let at = usize::from(level.ip_offset);
    let (at, len) = match level.ip_version {
        4 => (at + 2, len),
        _ => (at + 4, len - 40),
    };
    frame[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
}

/// A segment with the payload bytes `from` to `to`.
fn segment(packet: &Packet, level: &Dissection, from: usize, to: usize) -> Packet {
    let payload_offset = level.payload_offset as usize;
    let (head, rest) = packet.0.split_at(payload_offset);
    let mut frame = [head, &rest[from..to]].concat();
    let ip_len = frame.len() - usize::from(level.ip_offset);
    set_ip_len(&mut frame, level, ip_len);
    let at = usize::from(level.transport_offset) + 4;
    let sequence = level.tcp_seq.wrapping_add(from as u32);
    frame[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
    let wire_len = frame.len() as u32;
    (frame, wire_len, packet.2)
}

/// Selects the segments to split: those of connections in order so far. The decoders hold four
/// segments per flow that arrived early, and splitting those of a capture that is out of order
/// would exceed that.
#[derive(Default)]
struct InOrder {
    /// The next sequence number from a sender to a receiver.
    next: HashMap<(Address, Address), u32>,
    irregular: HashSet<(Address, Address)>,
}

type Address = ([u8; 16], u16);

impl InOrder {
    fn takes(&mut self, level: &Dissection) -> bool {
        let (from, to) = ((level.src, level.src_port), (level.dst, level.dst_port));
        let flow = (from.min(to), from.max(to));
        let syn = u32::from(level.tcp_flags & SYN != 0);
        let end = level.tcp_seq.wrapping_add(level.payload_len + syn);
        let is_next = match self.next.insert((from, to), end) {
            Some(next) => next == level.tcp_seq,
            None => true,
        };
        if !is_next {
            self.irregular.insert(flow);
        }
        !self.irregular.contains(&flow)
    }
}

/// The packets with each segment split in three, of which the last comes before the middle one; the
/// last and the first are sent again. Returns also the number of payload bytes sent again.
fn resegmented(packets: &[Packet], random: &mut Random) -> (Vec<Packet>, u64) {
    let (mut all, mut repeated) = (Vec::new(), 0);
    let mut in_order = InOrder::default();
    for packet in packets {
        let level = plain(packet)
            .filter(|level| level.ip_protocol == TCP && in_order.takes(level))
            .filter(|level| level.tcp_flags & !ACK_PSH == 0 && level.payload_len >= 3);
        let Some(level) = level else {
            all.push(packet.clone());
            continue;
        };
        let len = level.payload_len as usize;
        let one = 1 + random.below(len - 2);
        let two = one + 1 + random.below(len - one - 1);
        for (from, to) in [(0, one), (two, len), (one, two), (two, len), (0, one)] {
            all.push(segment(packet, &level, from, to));
        }
        repeated += (len - two + one) as u64;
    }
    (all, repeated)
}

/// A text per record, and the sum of all payload.
#[derive(Default)]
struct Reported {
    flows: Vec<String>,
    payload_bytes: u64,
}

impl RecordSink for Reported {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.ended_with(record, &Extra::default(), reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        for side in [Side::A, Side::B] {
            self.payload_bytes += record.sent_by(side).payload_bytes;
        }
        self.flows.push(format!(
            "{:?} {} {} {reason:?} {:?} {:?}",
            record.key(),
            record.start_ns(),
            record.end_ns(),
            extra.application(),
            extra.transactions(),
        ));
    }
}

/// Meters packets with all decoders, with limits that no capture reaches, so that the number of
/// segments makes no difference.
fn reported(packets: &[Packet]) -> Reported {
    let mut config = config(0);
    config.extra.inspect_count = u8::MAX;
    let mut meter = Meter::new(&config).unwrap();
    meter.set_inspector(Box::new(Inspector::new(&InspectorConfig {
        flow_count_max: config.table.flow_count_max,
        packet_count_max: u16::MAX,
        follow_count_max: u32::MAX,
        byte_count_max: u32::MAX,
        unknown_count_max: u16::MAX,
        ..InspectorConfig::default()
    })));
    let mut reported = Reported::default();
    let inputs: Vec<_> = packets
        .iter()
        .map(|(bytes, wire_len, time_ns)| Input {
            link: LinkType::ETHERNET,
            bytes,
            wire_len: *wire_len,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        })
        .collect();
    meter.observe_all(&inputs, &mut reported);
    meter.finish(&mut reported);
    assert_eq!(meter.stats().imbalance(), 0);
    reported.flows.sort_unstable();
    reported
}

#[test]
fn segments_cut_reordered_and_repeated_give_the_same_application() {
    let (mut captures, mut segments) = (0, 0);
    for (number, (name, link, packets)) in sample().iter().enumerate() {
        if *link != LinkType::ETHERNET {
            continue;
        }
        let (reshaped, repeated) = resegmented(packets, &mut Random(number as u64 + 1));
        if repeated == 0 {
            continue;
        }
        let (expected, found) = (reported(packets), reported(&reshaped));
        let different = expected.flows.iter().zip(&found.flows);
        let different = different.into_iter().find(|(one, two)| one != two);
        assert!(expected.flows == found.flows, "{name}: {different:#?}");
        assert_eq!(
            found.payload_bytes,
            expected.payload_bytes + repeated,
            "{name}"
        );
        captures += 1;
        segments += reshaped.len() - packets.len();
    }
    println!("{captures} captures, {segments} more segments");
    assert!(captures > 0);
}

/// The fragments of a packet, shuffled; the first of the datagram has the whole transport header.
fn fragments(packet: &Packet, level: &Dissection, id: u32, random: &mut Random) -> Vec<Packet> {
    let [ip, transport] = [level.ip_offset, level.transport_offset].map(usize::from);
    let end = ip + level.ip_total_len as usize;
    let head = (level.payload_offset as usize - transport).next_multiple_of(8);
    let mut starts = vec![0];
    let mut at = head + 8 * random.below(4);
    while at < end - transport {
        starts.push(at);
        at += 8 * (1 + random.below(60));
    }
    let mut pieces = Vec::new();
    for (number, from) in starts.iter().enumerate() {
        let to = starts.get(number + 1).copied().unwrap_or(end - transport);
        let more = number + 1 < starts.len();
        let mut frame = packet.0[..transport].to_vec();
        if level.ip_version == 4 {
            let flags = (from / 8) as u16 | if more { 0x2000 } else { 0 };
            frame[ip + 4..ip + 6].copy_from_slice(&(id as u16).to_be_bytes());
            frame[ip + 6..ip + 8].copy_from_slice(&flags.to_be_bytes());
        } else {
            // RFC 8200, section 4.5.
            let next = std::mem::replace(&mut frame[ip + 6], 44);
            frame.extend([next, 0]);
            frame.extend((*from as u16 | u16::from(more)).to_be_bytes());
            frame.extend(id.to_be_bytes());
        }
        frame.extend(&packet.0[transport + from..transport + to]);
        let ip_len = frame.len() - ip;
        set_ip_len(&mut frame, level, ip_len);
        let wire_len = frame.len() as u32;
        pieces.push((frame, wire_len, packet.2));
    }
    random.shuffle(&mut pieces);
    pieces
}

/// The packets with TCP and UDP datagrams in fragments.
fn fragmented(packets: &[Packet], random: &mut Random) -> Vec<Packet> {
    let mut all = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        let level = plain(packet).filter(|level| {
            // IPv6 extension headers are left alone: some would have to be in each fragment.
            let head_len = level.transport_offset - level.ip_offset;
            let is_direct = level.ip_version == 4 || head_len == 40;
            is_direct && matches!(level.ip_protocol, TCP | UDP) && level.payload_len >= 16
        });
        match level {
            Some(level) => all.extend(fragments(packet, &level, number as u32, random)),
            None => all.push(packet.clone()),
        }
    }
    all
}

/// What fragmentation does not change, by flow: start, end, initiator, and for both sides payload,
/// TCP flags and TTL. Returns also the packets in all records.
fn invariants(packets: &[Packet]) -> (BTreeMap<String, Vec<String>>, u64) {
    let mut meter = Meter::new(&config(0)).unwrap();
    let mut flows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut counted = 0;
    let mut sink = |record: &Record, end: EndReason| {
        counted += record.packets();
        let sides = [Side::A, Side::B].map(|side| {
            let sent = record.sent_by(side);
            (sent.payload_bytes, sent.tcp_flags, sent.ttl_min)
        });
        let times = (record.start_ns(), record.end_ns());
        let text = format!("{:?} {times:?} {end:?} {sides:?}", record.initiator());
        flows
            .entry(format!("{:?}", record.key()))
            .or_default()
            .push(text);
    };
    for (bytes, wire_len, time_ns) in packets {
        let input = Input {
            link: LinkType::ETHERNET,
            bytes,
            wire_len: *wire_len,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
    }
    meter.finish(&mut sink);
    assert_eq!(meter.stats().imbalance(), 0);
    for texts in flows.values_mut() {
        texts.sort_unstable();
    }
    (flows, counted)
}

#[test]
fn fragments_in_any_order_count_in_the_flow_of_their_datagram() {
    let mut captures = 0;
    for (number, (name, link, packets)) in sample().iter().enumerate() {
        if *link != LinkType::ETHERNET {
            continue;
        }
        let pieces = fragmented(packets, &mut Random(number as u64 + 1));
        if pieces.len() == packets.len() {
            continue;
        }
        let ((expected, before), (found, after)) = (invariants(packets), invariants(&pieces));
        let different = expected.iter().zip(&found).find(|(one, two)| one != two);
        assert!(expected == found, "{name}: {different:#?}");
        assert_eq!(
            after - before,
            (pieces.len() - packets.len()) as u64,
            "{name}"
        );
        captures += 1;
    }
    println!("{captures} captures");
    assert!(captures > 0);
}
