//! Results of barewire's decoders for the flows of a capture, without the flow table.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use inspect::{
    Application, Decoders, Direction, Field, Inspector, InspectorConfig, InspectorStats, Segment,
    Transport, Value,
};
use lab::corpus;
use port::{PortOptions, Ready};
use wire::{Dissection, LinkType};

/// Whether UDP, and both endpoints, the lesser one first.
pub type Pair = (bool, (IpAddr, u16), (IpAddr, u16));

/// The pair of two endpoints.
pub fn pair(is_udp: bool, one: (IpAddr, u16), other: (IpAddr, u16)) -> Pair {
    (is_udp, one.min(other), one.max(other))
}

/// The results for a flow.
pub struct Found {
    pub pair: Pair,
    pub application: Application,
}

impl Found {
    /// A field as text.
    pub fn text(&self, field: Field) -> Option<String> {
        self.application.get(field).map(show)
    }
}

/// A value as text.
pub fn show(value: Value<'_>) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Text { bytes, is_cut } => {
            let end = if is_cut { "..." } else { "" };
            format!("{}{end}", String::from_utf8_lossy(bytes))
        }
        Value::Digest(sum) => sum.iter().map(|byte| format!("{byte:02x}")).collect(),
        Value::Address(addr) => addr.to_string(),
    }
}

struct Flow {
    number: u32,
    initiator: (IpAddr, u16),
    /// Sequence numbers of the SYN of either side, which distinguish a connection from the next
    /// one.
    syn: Option<u32>,
}

/// Flows by endpoints, with the decoders' results.
struct Flows {
    inspector: Inspector,
    flows: HashMap<Pair, Flow>,
    found: Vec<Found>,
}

impl Flows {
    /// Handles a packet with ports, by its innermost headers.
    fn packet(&mut self, level: &Dissection, bytes: &[u8], time_ns: u64) {
        let (Some(src), Some(dst)) = (level.src_addr(), level.dst_addr()) else {
            return;
        };
        let (source, destination) = ((src, level.src_port), (dst, level.dst_port));
        let is_udp = level.ip_protocol == 17;
        let pair = pair(is_udp, source, destination);
        let is_syn = level.tcp_flags & 0x02 != 0 && !is_udp;
        let is_first = is_syn && level.tcp_flags & 0x10 == 0;
        if let Some(flow) = self.flows.get_mut(&pair)
            && is_first
            && flow.syn.is_some_and(|syn| syn != level.tcp_seq)
        {
            finish(pair, flow, &mut self.inspector, &mut self.found);
            self.flows.remove(&pair);
        }
        let flow = self.flows.entry(pair).or_insert(Flow {
            number: inspect::NONE,
            initiator: match is_syn && !is_first {
                true => destination,
                false => source,
            },
            syn: None,
        });
        if is_first {
            flow.syn = Some(level.tcp_seq);
        }
        let (from, ports) = match flow.initiator == source {
            true => (Direction::Forward, [level.src_port, level.dst_port]),
            false => (Direction::Reverse, [level.dst_port, level.src_port]),
        };
        let segment = Segment {
            transport: match is_udp {
                true => Transport::Udp,
                false => Transport::Tcp,
            },
            from,
            time_ns,
            ports,
            sequence: level.tcp_seq,
            is_syn,
            begins: None,
            payload: level.payload(bytes),
            payload_len: level.payload_len,
        };
        self.inspector.packet(&mut flow.number, &segment);
    }
}

/// The flows of a file by its innermost IP headers; `None` if it is damaged from its start.
pub fn decode(path: &Path) -> Option<(Vec<Found>, InspectorStats)> {
    let check = |error: String| assert!(corpus::is_damaged(path), "{}: {error}", path.display());
    let name = format!("file:{}", path.display());
    let mut port = port::open(&name, &PortOptions::default())
        .map_err(|error| check(error.to_string()))
        .ok()?;
    let mut all = Flows {
        inspector: Inspector::new(&InspectorConfig {
            decoders: Decoders::ALL,
            flow_count_max: 1 << 14,
            ..InspectorConfig::default()
        }),
        flows: HashMap::new(),
        found: Vec::new(),
    };
    let mut level = Dissection::EMPTY;
    loop {
        let batch = match port.rx[0].receive() {
            Ok(batch) => batch,
            Err(error) => {
                check(error.to_string());
                break;
            }
        };
        let is_empty = batch.is_empty();
        for packet in batch.iter() {
            let description = port.control.describe();
            let link = description.interfaces[usize::from(packet.interface_index())].0;
            let bytes = packet.bytes();
            wire::dissect_innermost(LinkType(link), bytes, packet.wire_len(), &mut level);
            let is_transport = level.has_ports() && matches!(level.ip_protocol, 6 | 17);
            if is_transport && !level.fragment.is_later() {
                all.packet(&level, bytes, packet.time_ns().unwrap_or(0));
            }
        }
        drop(batch);
        if is_empty && !matches!(port.rx[0].wait(Duration::ZERO), Ok(Ready::Packets)) {
            break;
        }
    }
    for (pair, flow) in &mut all.flows {
        finish(*pair, flow, &mut all.inspector, &mut all.found);
    }
    assert!(all.inspector.is_idle(), "{}", path.display());
    let stats = all.inspector.stats();
    assert_eq!(stats.imbalance(), 0, "{}", path.display());
    Some((all.found, stats))
}

fn finish(pair: Pair, flow: &mut Flow, inspector: &mut Inspector, found: &mut Vec<Found>) {
    if let Some(application) = inspector.end(&mut flow.number, Application::clone) {
        found.push(Found { pair, application });
    }
}

/// Separator of several values of one packet in tshark's output.
pub const AND: char = '\u{1e}';

/// The tshark columns that [`ends`] reads; they must come first.
pub const ENDS: [&str; 8] = [
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ipv6.dst",
    "tcp.srcport",
    "udp.srcport",
    "tcp.dstport",
    "udp.dstport",
];

/// The endpoints of a packet, from a row that starts with [`ENDS`]. In a tunnel there are addresses
/// of both families: those in `known` are chosen.
pub fn ends(row: &[String], known: &BTreeSet<Pair>) -> Option<Pair> {
    let last = |at: usize| row[at].rsplit(AND).next().filter(|text| !text.is_empty());
    let is_udp = last(4).is_none();
    let port = |at: usize| -> Option<u16> { last(at + usize::from(is_udp))?.parse().ok() };
    let (from, to) = (port(4)?, port(6)?);
    let by = |at: usize| -> Option<Pair> {
        let (src, dst) = (last(at)?.parse().ok()?, last(at + 2)?.parse().ok()?);
        Some(pair(is_udp, (src, from), (dst, to)))
    };
    let (v4, v6) = (by(0), by(1));
    v4.filter(|v4| known.contains(v4)).or(v6).or(v4)
}
