//! The data of the view: from counters ten times a second, and from ended flows.

mod applications;
mod one;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use flow::digest::Digest;
use flow::top::{Order, Total};
use flow::{EndReason, Extra, FlowKey, KnownFlows, Record};
use port::PortDescription;
use runtime::flows::Status;

use crate::cmd::flows::{Origins, protocol_name};
use crate::short::visible;

use super::picture::{End, Entry, Picture, Row};
use one::Histories;

/// Interval over which rates of the port are computed.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Length of the rate history in seconds.
const HISTORY_LEN: usize = 240;
/// Maximum number of flows shown.
pub const ROW_COUNT: usize = 128;
/// How long an ended flow stays visible.
const ENDED_SHOWN: Duration = Duration::from_secs(10);
/// Maximum number of records summed up between two screen updates: further ones are only counted,
/// so that an update never costs packets.
const DIGEST_MAX: u32 = 5000;

/// The view without a terminal.
pub struct View {
    pub picture: Picture,
    at: Duration,
    packets: u64,
    wire_bytes: u64,
    begun: u64,
    /// Protocol and name of the flows shown, if decoded.
    applications: HashMap<FlowKey, (Cow<'static, str>, String)>,
    /// Rates over time of the flows shown, and the opened flow.
    histories: Histories,
    /// Flows currently shown.
    shown: HashSet<FlowKey>,
    /// Ended flows still shown, with the time of their end.
    ended: HashMap<FlowKey, (Total, Duration)>,
    /// Sums over ended flows.
    digest: Digest,
    digested: u32,
    /// Maximum number of records summed up between two screens.
    digest_max: u32,
    /// Enrichment of addresses.
    pub origins: Origins,
}

/// A flow and its rates in bytes per second, from the initiator and to it.
#[derive(Clone, Copy)]
struct Flow {
    total: Total,
    rate: Option<[u64; 2]>,
    is_ended: bool,
}

impl Flow {
    /// Adds the same flow of another queue: its other direction.
    fn add(&mut self, other: &Flow) {
        if let Some(rate) = other.rate {
            let turned = self.total.initiator != other.total.initiator;
            let sum = self.rate.get_or_insert_default();
            for (at, rate) in rate.into_iter().enumerate() {
                sum[if turned { 1 - at } else { at }] += rate;
            }
        }
        self.total.add(&other.total);
    }

    fn row(&self, application: Option<&(Cow<'static, str>, String)>) -> Row {
        let total = &self.total;
        let key = &total.key;
        let has_ports = matches!(key.protocol(), 6 | 17 | 132 | 136);
        let end = |side| End {
            addr: key.addr(side),
            port: has_ports.then(|| key.port(side)),
        };
        let (protocol, name) = match application {
            Some((protocol, name)) => (protocol.to_string(), name.clone()),
            None => (protocol_name(key.protocol()), String::new()),
        };
        Row {
            key: *key,
            protocol,
            name,
            source: end(total.initiator),
            destination: end(total.initiator.other()),
            remark: match key.icmp_type(total.initiator) {
                Some(kind) => format!("type {kind}"),
                None => String::new(),
            },
            packets: total.packets,
            bytes: total.bytes,
            rate_bps: self
                .rate
                .map(|rate| rate.map(|bytes| bytes.saturating_mul(8))),
            duration_ns: total.end_ns.saturating_sub(total.start_ns),
            is_ended: self.is_ended,
        }
    }
}

impl View {
    pub fn new(name: &str, description: &PortDescription, memory_len: usize, order: Order) -> View {
        let facts = description.facts.iter();
        let modes = facts.filter(|(name, _)| matches!(*name, "attach mode" | "bind mode"));
        let modes: Vec<&str> = modes.map(|(_, value)| value.as_str()).collect();
        View {
            picture: Picture {
                name: name.to_owned(),
                facts: modes.join(", "),
                memory_len: memory_len as u64,
                order,
                ..Picture::default()
            },
            at: Duration::ZERO,
            packets: 0,
            wire_bytes: 0,
            begun: 0,
            applications: HashMap::new(),
            histories: Histories::default(),
            shown: HashSet::new(),
            ended: HashMap::new(),
            digest: Digest::default(),
            digested: 0,
            digest_max: DIGEST_MAX,
            origins: Origins::default(),
        }
    }

    /// Configures it for a snapshot: all ended flows are summed up, and no keys are shown.
    pub fn once(mut self) -> View {
        self.digest_max = u32::MAX;
        self.picture.is_once = true;
        self
    }

    pub fn sort(&mut self, status: &Status<'_>, order: Order) {
        status.switch.set_order(order);
        self.picture.order = order;
    }

    /// Opens the selected flow, or the first one.
    pub fn open(&mut self, status: &Status<'_>) {
        let picture = &mut self.picture;
        let first = || picture.shown_rows().next().map(|row| row.key);
        if let Some(key) = picture.selected.or_else(first) {
            picture.selected = Some(key);
            picture.first = 0;
            self.histories.open(key);
            self.picture.opened = self.histories.opened(status, &self.picture.rows);
        }
    }

    /// Returns to the list of flows.
    pub fn close(&mut self) {
        self.histories.close();
        self.picture.opened = None;
        self.picture.first = 0;
    }

    /// Handles a record of a flow that has ended or continues.
    pub fn ended(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        if self.digested >= self.digest_max {
            self.picture.undigested += 1;
            return;
        }
        self.digested += 1;
        self.digest.add(record, extra);
        if reason != EndReason::Active && self.shown.contains(record.key()) {
            let now = self.picture.elapsed;
            let total = Total::of(record);
            self.ended.insert(total.key, (total, now));
            self.histories.ended(record, extra);
        }
    }

    /// Decoded fields of ended flows.
    pub fn into_known_flows(self) -> KnownFlows {
        self.digest.into_known_flows()
    }

    /// Updates the data for the next screen.
    pub fn pulse(&mut self, status: &Status<'_>) {
        self.digested = 0;
        if !self.picture.held {
            self.update(status);
        }
    }

    /// Live flows including their earlier records; flows that ended recently; and, if all are
    /// scanned or this is a snapshot, the largest ended ones.
    fn flows(&mut self, status: &Status<'_>) -> Vec<Flow> {
        let mut flows: HashMap<FlowKey, Flow> = HashMap::new();
        for queue in status.queues {
            for (at, record) in queue.live.iter().enumerate() {
                let flow = Flow {
                    total: Total::of(record),
                    rate: queue.live_rates.get(at).copied().flatten(),
                    is_ended: false,
                };
                flows
                    .entry(flow.total.key)
                    .and_modify(|sum| sum.add(&flow))
                    .or_insert(flow);
            }
        }
        for (key, flow) in &mut flows {
            if let Some(ended) = status.top.get(key) {
                flow.total.add(ended);
            }
        }
        // The list of live flows is up to a second old: a flow with later packets is live again.
        self.ended.retain(|key, (total, at)| {
            let live = flows.get(key);
            let goes_on = live.is_some_and(|flow| flow.total.end_ns > total.end_ns);
            !goes_on && status.elapsed.saturating_sub(*at) < ENDED_SHOWN
        });
        for (key, (total, _)) in &self.ended {
            let total = status.top.get(key).unwrap_or(total);
            flows.insert(*key, gone(total));
        }
        let wanted = match (self.picture.filter.is_empty(), self.picture.is_once) {
            (false, _) => usize::MAX,
            (true, true) => ROW_COUNT,
            (true, false) => 0,
        };
        for total in status.top.largest(wanted) {
            flows.entry(total.key).or_insert_with(|| gone(&total));
        }
        let mut flows: Vec<Flow> = flows.into_values().collect();
        sort(&mut flows, self.picture.order);
        flows.truncate(wanted.max(ROW_COUNT));
        flows
    }

    fn update(&mut self, status: &Status<'_>) {
        let total = status.total();
        let flows = self.flows(status);
        let passed = status.elapsed.saturating_sub(self.at);
        if passed >= RATE_INTERVAL {
            let seconds = passed.as_secs_f64();
            let picture = &mut self.picture;
            let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            picture.pps = since(total.meter.packets, self.packets);
            picture.bps = since(total.wire_bytes, self.wire_bytes) * 8.0;
            picture.new_per_s = since(total.meter.table.flows, self.begun);
            picture.history.push(picture.bps as u64);
            if picture.history.len() > HISTORY_LEN {
                picture.history.remove(0);
            }
            self.histories.push(&flows);
            self.at = status.elapsed;
            self.packets = total.meter.packets;
            self.wire_bytes = total.wire_bytes;
            self.begun = total.meter.table.flows;
        }
        self.name_flows(status, &flows);
        let picture = &mut self.picture;
        picture.elapsed = status.elapsed;
        picture.packets = total.meter.packets;
        picture.wire_bytes = total.wire_bytes;
        picture.live = total.meter.table.live;
        picture.capacity = total.capacity;
        picture.evicted = total.meter.table.ended[EndReason::Resources as usize];
        picture.refused = total.meter.refused;
        picture.unsampled = total.meter.unsampled;
        picture.account = status.account.clone();
        picture.has_origins = self.origins.with(|_| ()).is_some();
        picture.rows = flows
            .iter()
            .map(|flow| flow.row(self.applications.get(&flow.total.key)))
            .collect();
        if picture.opened.is_some() {
            picture.opened = self.histories.opened(status, &picture.rows);
        }
        self.lists(status);
    }

    /// Looks up decoded fields of the flows shown; those of others are dropped.
    fn name_flows(&mut self, status: &Status<'_>, flows: &[Flow]) {
        for queue in status.queues {
            for (record, known) in queue.live.iter().zip(&queue.live_applications) {
                if let Some(words) = words(known) {
                    self.applications.insert(*record.key(), words);
                }
            }
        }
        self.shown.clear();
        self.shown.extend(flows.iter().map(|flow| flow.total.key));
        let shown = &self.shown;
        self.applications.retain(|key, _| shown.contains(key));
        for flow in flows {
            if let Some((name, headline)) = self.digest.known(&flow.total.key) {
                let words = || (name.clone(), visible(headline));
                self.applications
                    .entry(flow.total.key)
                    .or_insert_with(words);
            }
        }
    }

    /// Updates applications and talkers, over ended flows and the largest live ones.
    fn lists(&mut self, status: &Status<'_>) {
        let mut talkers: HashMap<IpAddr, Entry> = HashMap::new();
        for (addr, share) in self.digest.senders.largest(512) {
            let entry = talkers.entry(addr).or_default();
            entry.add(share.records, share.packets, [share.bytes, 0]);
        }
        for (addr, share) in self.digest.receivers.largest(512) {
            let entry = talkers.entry(addr).or_default();
            entry.add(0, share.packets, [0, share.bytes]);
        }
        for queue in status.queues {
            for record in &queue.live {
                let total = Total::of(record);
                let packets = total.packets.iter().sum();
                for (end, side) in [total.initiator, total.initiator.other()]
                    .iter()
                    .enumerate()
                {
                    let entry = talkers.entry(total.key.addr(*side)).or_default();
                    entry.add(1, packets, [total.bytes[end], total.bytes[1 - end]]);
                }
            }
        }
        let networks = self.networks(status);
        let remark = |addr: IpAddr| {
            let origin = self.origins.with(|table| table.of_address(addr));
            let origin = origin.unwrap_or_default();
            let network = origin.network_name().unwrap_or_default();
            [origin.country(), &network].join(" ").trim().to_owned()
        };
        let talkers = talkers.into_iter().map(|(addr, entry)| Entry {
            name: addr.to_string(),
            addr: Some(addr),
            remark: remark(addr),
            ..entry
        });
        let talkers = talkers.collect();
        let picture = &mut self.picture;
        picture.talkers = talkers;
        picture.networks = networks;
        picture.applications = applications::sums(&self.digest, status.queues);
        let by_packets = picture.order == Order::Packets;
        for list in [
            &mut picture.applications,
            &mut picture.talkers,
            &mut picture.networks,
        ] {
            list.sort_by_key(|entry| {
                let size = if by_packets {
                    entry.packets
                } else {
                    entry.bytes.iter().sum()
                };
                (std::cmp::Reverse(size), entry.name.clone())
            });
        }
    }
}

impl View {
    /// Autonomous systems, countries and vendors, over ended flows and the largest live ones.
    fn networks(&self, status: &Status<'_>) -> Vec<Entry> {
        let mut live = Digest::default();
        for record in status.queues.iter().flat_map(|queue| &queue.live) {
            let extra = Extra::default();
            let Some(origins) = self.origins.with(|table| table.of(record, &extra)) else {
                break;
            };
            live.add_origins(&origins, record.packets(), record.bytes());
        }
        let mut entries = Vec::new();
        for (remark, lists) in [
            ("network", [&self.digest.networks, &live.networks]),
            ("country", [&self.digest.countries, &live.countries]),
            ("card", [&self.digest.vendors, &live.vendors]),
        ] {
            let mut sums: HashMap<String, Entry> = HashMap::new();
            for (name, share) in lists.iter().flat_map(|list| list.largest(512)) {
                let entry = sums.entry(name).or_default();
                entry.add(share.records, share.packets, [share.bytes, 0]);
            }
            entries.extend(sums.into_iter().map(|(name, entry)| Entry {
                name,
                remark: remark.to_owned(),
                ..entry
            }));
        }
        entries
    }
}

/// Protocol and name, if identified. Text from packets is escaped.
fn words(application: &inspect::Application) -> Option<(Cow<'static, str>, String)> {
    let called = application.name()?;
    let name = match application.headline() {
        Some(inspect::Value::Text { bytes, .. }) => visible(bytes),
        Some(inspect::Value::Address(addr)) => addr.to_string(),
        _ => String::new(),
    };
    Some((called, name))
}

/// The row of an ended flow.
fn gone(total: &Total) -> Flow {
    Flow {
        total: *total,
        rate: None,
        is_ended: true,
    }
}

/// Sorts the largest first; equal ones in a stable order.
fn sort(flows: &mut [Flow], order: Order) {
    let moved = |flow: &Flow| flow.rate.map_or(0, |rate| rate[0] + rate[1]);
    flows.sort_by_cached_key(|flow| {
        let size = match order {
            Order::Rate => moved(flow),
            order => order.of_total(&flow.total),
        };
        let bytes = flow.total.bytes.iter().sum::<u64>();
        (
            std::cmp::Reverse((size, bytes)),
            flow.total.start_ns,
            flow.total.key.port(flow.total.initiator),
        )
    });
}
