//! Generated captures for the benchmark of flows, with the traffic mixes by which flow probes are
//! compared.
//!
//! - `a`: packets of 60 to 74 bytes over many flows, popularity as 1/rank (Zipf), each flow at
//!   least once; four fifths IPv4, half TCP (a SYN first, then ACKs), half UDP; 1 Mpps.
//! - `b`: conversations in both directions, IP lengths of 46, 576 and 1500 bytes as 7:4:1, half of
//!   the packets with VLAN tags (0x8100, 0x88a8 and 0x9100), fragments, IPv6 extension headers.
//! - `d`: as `a`, but every packet belongs to a different flow.
//!
//! They are the same every time. Checksums are not filled in: no probe verifies them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use wire::file::pcap::{self, Precision};
use wire::{LinkType, Timestamp};

/// xorshift64* (Vigna 2016).
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed that is not 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn is_one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A flow of `a` and `d` by number.
struct Flow {
    is_six: bool,
    is_tcp: bool,
    ports: [u16; 2],
    /// The host bytes of source and destination.
    hosts: [u32; 2],
}

impl Flow {
    fn of(number: u32) -> Self {
        let mut random = Random::new(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        const SERVICES: [u16; 8] = [53, 80, 123, 443, 443, 443, 8080, 51820];
        Self {
            is_six: random.below(5) == 0,
            is_tcp: random.below(2) == 0,
            ports: [
                1024 + random.below(64_512) as u16,
                SERVICES[random.below(8) as usize],
            ],
            hosts: [number, random.below(1 << 16) as u32],
        }
    }
}

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// An IPv4 header, without its checksum.
fn ipv4(protocol: u8, total_len: u16, id: u16, fragment: u16, ends: [[u8; 4]; 2]) -> [u8; 20] {
    let mut head = [0; 20];
    head[0] = 0x45;
    head[2..4].copy_from_slice(&total_len.to_be_bytes());
    head[4..6].copy_from_slice(&id.to_be_bytes());
    head[6..8].copy_from_slice(&fragment.to_be_bytes());
    head[8..10].copy_from_slice(&[64, protocol]);
    head[12..16].copy_from_slice(&ends[0]);
    head[16..].copy_from_slice(&ends[1]);
    head
}

fn ipv6(next: u8, payload_len: u16, ends: [[u8; 16]; 2]) -> [u8; 40] {
    let mut head = [0; 40];
    head[0] = 0x60;
    head[4..6].copy_from_slice(&payload_len.to_be_bytes());
    head[6..8].copy_from_slice(&[next, 64]);
    head[8..24].copy_from_slice(&ends[0]);
    head[24..].copy_from_slice(&ends[1]);
    head
}

fn tcp(ports: [u16; 2], seq: u32, flags: u8) -> [u8; 20] {
    let mut head = [0; 20];
    head[..2].copy_from_slice(&ports[0].to_be_bytes());
    head[2..4].copy_from_slice(&ports[1].to_be_bytes());
    head[4..8].copy_from_slice(&seq.to_be_bytes());
    head[12..16].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
    head
}

fn udp(ports: [u16; 2], len: u16) -> [u8; 8] {
    let mut head = [0; 8];
    head[..2].copy_from_slice(&ports[0].to_be_bytes());
    head[2..4].copy_from_slice(&ports[1].to_be_bytes());
    head[4..6].copy_from_slice(&len.to_be_bytes());
    head
}

fn six(network: u8, host: u32) -> [u8; 16] {
    let mut addr = [
        0x20, 1, 0x0d, 0xb8, 0, 0, 0, network, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    addr[12..].copy_from_slice(&host.to_be_bytes());
    addr
}

/// A packet of a flow of `a`.
fn small(flow: &Flow, is_first: bool, out: &mut Vec<u8>) {
    out.clear();
    out.extend(MACS);
    let flags = if is_first { 2 } else { 16 };
    let transport_len: u16 = match (flow.is_six, flow.is_tcp) {
        (_, true) => 20,
        (false, false) => 26,
        (true, false) => 8,
    };
    let protocol = if flow.is_tcp { 6 } else { 17 };
    if flow.is_six {
        out.extend([0x86, 0xdd]);
        let ends = [six(1, flow.hosts[0]), six(2, flow.hosts[1])];
        out.extend(ipv6(protocol, transport_len, ends));
    } else {
        out.extend([8, 0]);
        let ends = [
            (10 << 24 | flow.hosts[0]).to_be_bytes(),
            (172 << 24 | 16 << 16 | flow.hosts[1]).to_be_bytes(),
        ];
        out.extend(ipv4(protocol, 20 + transport_len, 0, 0x4000, ends));
    }
    if flow.is_tcp {
        out.extend(tcp(flow.ports, 1, flags));
    } else {
        out.extend(udp(flow.ports, transport_len));
    }
    let end = if flow.is_six {
        54 + usize::from(transport_len)
    } else {
        60
    };
    out.resize(end, 0);
}

/// A packet of a flow of `a`, by the flow's number.
pub fn packet_of(number: u32, is_first: bool, out: &mut Vec<u8>) {
    small(&Flow::of(number), is_first, out);
}

/// The flow of each packet: each flow once, further packets by 1/rank, in random order.
pub fn sequence(packet_count: u32, flow_count: u32) -> Vec<u32> {
    let mut random = Random::new(20_260_101);
    let mut sums = Vec::with_capacity(flow_count as usize);
    let mut sum = 0.0;
    for rank in 1..=flow_count {
        sum += 1.0 / f64::from(rank);
        sums.push(sum);
    }
    let mut all: Vec<u32> = (0..flow_count.min(packet_count)).collect();
    while all.len() < packet_count as usize {
        let draw = random.next() as f64 / u64::MAX as f64 * sum;
        let rank = sums.partition_point(|s| *s < draw) as u32;
        all.push(rank.min(flow_count - 1));
    }
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    all
}

/// Start time of captures.
const START_NS: u64 = 1_700_000_000_000_000_000;

/// A writer of packets, one per microsecond or at given times.
pub struct Capture {
    file: BufWriter<File>,
    time_ns: u64,
}

impl Capture {
    /// Creates an empty Ethernet capture.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let mut head = [0; pcap::HEADER_LEN];
        pcap::emit_header(
            &mut head,
            LinkType::ETHERNET,
            65_535,
            Precision::Microseconds,
        );
        file.write_all(&head)?;
        Ok(Self {
            file,
            time_ns: START_NS,
        })
    }

    /// Writes a packet with this time from the start.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_at(&mut self, packet: &[u8], wire_len: u32, at_ns: u64) -> Result<()> {
        let mut head = [0; pcap::RECORD_LEN];
        let time = Timestamp(START_NS + at_ns);
        let len = packet.len() as u32;
        pcap::emit_record(&mut head, time, len, wire_len, Precision::Microseconds);
        self.file.write_all(&head)?;
        self.file.write_all(packet)?;
        Ok(())
    }

    fn put(&mut self, packet: &[u8], gap_ns: u64) -> Result<()> {
        let mut head = [0; pcap::RECORD_LEN];
        let len = packet.len() as u32;
        let time = Timestamp(self.time_ns);
        pcap::emit_record(&mut head, time, len, len, Precision::Microseconds);
        self.file.write_all(&head)?;
        self.file.write_all(packet)?;
        self.time_ns += gap_ns;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end(mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }
}

/// Writes `a`, or with as many flows as packets `d`.
///
/// # Errors
/// If the file cannot be written.
pub fn many_flows(path: &Path, packet_count: u32, flow_count: u32) -> Result<()> {
    let mut capture = Capture::create(path)?;
    let mut seen = vec![false; flow_count as usize];
    let mut packet = Vec::with_capacity(128);
    for number in sequence(packet_count, flow_count) {
        let is_first = !std::mem::replace(&mut seen[number as usize], true);
        small(&Flow::of(number), is_first, &mut packet);
        capture.put(&packet, 1000)?;
    }
    capture.end()
}

/// A conversation of `b`.
struct Conversation {
    flow: Flow,
    tags: &'static [[u8; 4]],
    has_extension: bool,
    seq: [u32; 2],
    is_open: bool,
}

const TAGS: [&[[u8; 4]]; 8] = [
    &[],
    &[],
    &[],
    &[],
    &[[0x81, 0, 0, 7]],
    &[[0x81, 0, 0, 9]],
    &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]],
    &[[0x91, 0, 0, 3], [0x81, 0, 0, 4]],
];

/// Writes `b`.
///
/// # Errors
/// If the file cannot be written.
pub fn mixed(path: &Path, packet_count: u32) -> Result<()> {
    const ACTIVE: usize = 2000;
    let mut capture = Capture::create(path)?;
    let mut random = Random::new(20_260_102);
    let mut next = 0;
    let mut begin = |random: &mut Random| {
        next += 1;
        Conversation {
            flow: Flow::of(next),
            tags: TAGS[random.below(8) as usize],
            has_extension: random.is_one_in(3),
            seq: [1; 2],
            is_open: false,
        }
    };
    let mut active: Vec<Conversation> = (0..ACTIVE).map(|_| begin(&mut random)).collect();
    let mut written = 0;
    while written < packet_count {
        let at = random.below(ACTIVE as u64) as usize;
        if random.is_one_in(40) {
            active[at] = begin(&mut random);
        }
        let len = match random.below(12) {
            0..7 => 46,
            7..11 => 576,
            _ => 1500,
        };
        written += packet(&mut active[at], &mut random, len, &mut capture)?;
    }
    capture.end()
}

impl Conversation {
    /// The next packet of a side, from the transport header on, of at most this many bytes.
    fn body(&mut self, way: usize, len: usize) -> Vec<u8> {
        let flow = &self.flow;
        let ports = match way {
            0 => flow.ports,
            _ => [flow.ports[1], flow.ports[0]],
        };
        let transport_len = if flow.is_tcp { 20 } else { 8 };
        let payload_len = len.saturating_sub(transport_len);
        let mut body = Vec::with_capacity(len);
        if flow.is_tcp {
            let flags = match (self.is_open, payload_len) {
                (false, _) => 2,
                (true, 0) => 16,
                _ => 24,
            };
            body.extend(tcp(ports, self.seq[way], flags));
            let moves = if self.is_open { payload_len as u32 } else { 1 };
            self.seq[way] = self.seq[way].wrapping_add(moves);
        } else {
            body.extend(udp(ports, (8 + payload_len) as u16));
        }
        let payload_len = if flow.is_tcp && !self.is_open {
            0
        } else {
            payload_len
        };
        body.resize(transport_len + payload_len, 0xa5);
        self.is_open = true;
        body
    }
}

/// Writes one packet of a conversation, or the fragments of one; returns their number.
fn packet(
    of: &mut Conversation,
    random: &mut Random,
    len: usize,
    capture: &mut Capture,
) -> Result<u32> {
    let back = of.is_open && random.is_one_in(2);
    let way = usize::from(back);
    let flow = &of.flow;
    let ip_len = if flow.is_six { 40 } else { 20 };
    let extension_len = if flow.is_six && of.has_extension {
        8
    } else {
        0
    };
    let is_cut = !flow.is_tcp && random.is_one_in(20);
    let len = if is_cut { 3000 } else { len };
    let body = of.body(way, len.saturating_sub(ip_len + extension_len));
    let flow = &of.flow;
    let id = random.next() as u16;
    let pieces = if is_cut { 3 } else { 1 };
    let piece_len = body.len().div_ceil(pieces).next_multiple_of(8);
    let mut out = Vec::with_capacity(1600);
    for (nth, piece) in body.chunks(piece_len).enumerate() {
        out.clear();
        out.extend(MACS);
        for tag in of.tags {
            out.extend(tag);
        }
        let units = (nth * piece_len / 8) as u16;
        let has_more = nth + 1 < pieces && is_cut;
        let protocol = if flow.is_tcp { 6 } else { 17 };
        if flow.is_six {
            six_packet(
                flow,
                back,
                protocol,
                extension_len,
                (is_cut, units, has_more, id),
                piece,
                &mut out,
            );
        } else {
            out.extend([8, 0]);
            let mut ends = [
                (10 << 24 | flow.hosts[0]).to_be_bytes(),
                (198 << 24 | 18 << 16 | flow.hosts[1]).to_be_bytes(),
            ];
            if back {
                ends.swap(0, 1);
            }
            let field = units | if has_more { 0x2000 } else { 0 };
            out.extend(ipv4(protocol, (20 + piece.len()) as u16, id, field, ends));
            out.extend(piece);
        }
        out.resize(out.len().max(60), 0);
        capture.put(&out, 20_000)?;
    }
    Ok(pieces as u32)
}

/// Writes an IPv6 packet from the EtherType on.
fn six_packet(
    flow: &Flow,
    back: bool,
    protocol: u8,
    extension_len: usize,
    (is_cut, units, has_more, id): (bool, u16, bool, u16),
    piece: &[u8],
    out: &mut Vec<u8>,
) {
    const DESTINATION_OPTIONS: u8 = 60;
    const FRAGMENT: u8 = 44;
    out.extend([0x86, 0xdd]);
    let mut ends = [six(1, flow.hosts[0]), six(2, flow.hosts[1])];
    if back {
        ends.swap(0, 1);
    }
    let fragment_len = if is_cut { 8 } else { 0 };
    let behind = if is_cut { FRAGMENT } else { protocol };
    let first = if extension_len != 0 {
        DESTINATION_OPTIONS
    } else {
        behind
    };
    let len = extension_len + fragment_len + piece.len();
    out.extend(ipv6(first, len as u16, ends));
    if extension_len != 0 {
        out.extend([behind, 0, 1, 4, 0, 0, 0, 0]);
    }
    if is_cut {
        let field = units << 3 | u16::from(has_more);
        out.extend([protocol, 0]);
        out.extend(field.to_be_bytes());
        out.extend([0, 0]);
        out.extend(id.to_be_bytes());
    }
    out.extend(piece);
}
