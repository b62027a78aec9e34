//! What the view knows: gathered from figures ten times a second, and from flows that end.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use flow::digest::Digest;
use flow::top::{self, Order, Total};
use flow::{EndReason, Extra, FlowKey, Record};
use port::PortDescription;
use runtime::flows::Status;

use crate::cmd::flows::Origins;

use super::picture::{Entry, Picture, Row};

/// How often rates are computed.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Seconds of history under the rates.
const HISTORY_LEN: usize = 240;
/// Flows shown at the most.
const ROW_COUNT: usize = 64;
/// Records that are summed up between two pictures: what ends beyond that is only counted, so that
/// a picture never costs packets.
const DIGEST_MAX: u32 = 5000;

/// The view, without a terminal.
pub struct View {
    pub picture: Picture,
    at: Duration,
    packets: u64,
    wire_bytes: u64,
    begun: u64,
    /// Bytes of what was shown, one interval ago.
    before: HashMap<FlowKey, u64>,
    rates: HashMap<FlowKey, f64>,
    /// Protocol and name of the flows shown, where decoders know them.
    applications: HashMap<FlowKey, (Cow<'static, str>, String)>,
    /// Flows that have ended.
    digest: Digest,
    digested: u32,
    /// Records that are summed up between two pictures.
    digest_max: u32,
    /// Enrichment of addresses.
    pub origins: Origins,
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
            before: HashMap::new(),
            rates: HashMap::new(),
            applications: HashMap::new(),
            digest: Digest::default(),
            digested: 0,
            digest_max: DIGEST_MAX,
            origins: Origins::default(),
        }
    }

    /// For one picture: all that ends is summed up, and no keys are told of.
    pub fn once(mut self) -> View {
        self.digest_max = u32::MAX;
        self.picture.is_once = true;
        self
    }

    pub fn sort(&mut self, status: &Status<'_>, order: Order) {
        status.switch.set_order(order);
        self.picture.order = order;
    }

    /// A flow has ended.
    pub fn ended(&mut self, record: &Record, extra: &Extra<'_>) {
        if self.digested < self.digest_max {
            self.digested += 1;
            self.digest.add(record, extra);
        } else {
            self.picture.undigested += 1;
        }
    }

    /// Time for another picture.
    pub fn pulse(&mut self, status: &Status<'_>) {
        self.digested = 0;
        if !self.picture.held {
            self.update(status);
        }
    }

    /// Sums of the flows that go on, with their records that have ended.
    fn totals(&self, status: &Status<'_>) -> Vec<Total> {
        let mut sums: HashMap<FlowKey, Total> = HashMap::new();
        for record in status.queues.iter().flat_map(|queue| &queue.live) {
            let total = Total::of(record);
            sums.entry(total.key)
                // Its other direction, in another queue.
                .and_modify(|sum| sum.add(&total))
                .or_insert(total);
        }
        for (key, sum) in &mut sums {
            if let Some(ended) = status.top.get(key) {
                sum.add(ended);
            }
        }
        // A filter looks at all that are kept.
        let wanted = match self.picture.filter.is_empty() {
            true => ROW_COUNT,
            false => usize::MAX,
        };
        for total in status.top.largest(wanted) {
            sums.entry(total.key).or_insert(total);
        }
        let mut totals: Vec<Total> = sums.into_values().collect();
        top::sort(&mut totals, self.picture.order);
        totals.truncate(wanted);
        totals
    }

    fn update(&mut self, status: &Status<'_>) {
        let total = status.total();
        let totals = self.totals(status);
        let passed = status.elapsed.saturating_sub(self.at);
        if passed >= RATE_INTERVAL {
            let seconds = passed.as_secs_f64();
            let picture = &mut self.picture;
            let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            picture.pps = since(total.meter.packets, self.packets);
            picture.bps = since(total.wire_bytes, self.wire_bytes) * 8.0;
            picture.new_per_s = since(total.meter.table.flows, self.begun);
            picture.history.push(picture.pps as u64);
            if picture.history.len() > HISTORY_LEN {
                picture.history.remove(0);
            }
            self.rates.clear();
            for flow in &totals {
                if let Some(before) = self.before.get(&flow.key) {
                    let bytes = flow.bytes.iter().sum();
                    self.rates.insert(flow.key, since(bytes, *before) * 8.0);
                }
            }
            self.before.clear();
            for flow in &totals {
                self.before.insert(flow.key, flow.bytes.iter().sum());
            }
            self.at = status.elapsed;
            self.packets = total.meter.packets;
            self.wire_bytes = total.wire_bytes;
            self.begun = total.meter.table.flows;
        }
        for queue in status.queues {
            for (record, known) in queue.live.iter().zip(&queue.live_applications) {
                if let Some(words) = words(known) {
                    self.applications.insert(*record.key(), words);
                }
            }
        }
        // Of those that are not shown any more nothing is kept.
        let shown: HashSet<FlowKey> = totals.iter().map(|total| total.key).collect();
        self.applications.retain(|key, _| shown.contains(key));
        for total in &totals {
            if let Some((name, headline)) = self.digest.known(&total.key) {
                let words = || (name.clone(), headline.escape_ascii().to_string());
                self.applications.entry(total.key).or_insert_with(words);
            }
        }
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
        picture.rows = totals
            .iter()
            .map(|total| {
                let rate_bps = self.rates.get(&total.key).copied();
                Row::of(total, rate_bps, self.applications.get(&total.key))
            })
            .collect();
        self.lists(status);
    }

    /// Applications and talkers: of flows that have ended, and the largest of those that go on.
    fn lists(&mut self, status: &Status<'_>) {
        let mut applications: HashMap<(Cow<'static, str>, bool), Entry> = HashMap::new();
        let ended = self.digest.applications.largest(usize::MAX);
        for ((name, is_seen), share) in ended {
            let entry = applications.entry((name, is_seen)).or_default();
            entry.add(share.records, share.packets, [share.bytes, 0]);
        }
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
            for (at, record) in queue.live.iter().enumerate() {
                let total = Total::of(record);
                let packets = total.packets.iter().sum();
                let known = queue.live_applications.get(at);
                if let Some(name) = name_of(record, known) {
                    let bytes = total.bytes.iter().sum();
                    let entry = applications.entry(name).or_default();
                    entry.add(1, packets, [bytes, 0]);
                }
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
            remark: remark(addr),
            ..entry
        });
        let talkers = talkers.collect();
        let picture = &mut self.picture;
        picture.talkers = talkers;
        picture.networks = networks;
        picture.applications = applications
            .into_iter()
            .map(|((name, is_seen), entry)| Entry {
                name: name.into_owned(),
                remark: if is_seen { "recognised" } else { "by port" }.to_owned(),
                ..entry
            })
            .collect();
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
    /// Autonomous systems, countries, makers: of flows that have ended, and the largest of those
    /// that go on.
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

/// What a flow that goes on is called, and whether that was seen.
fn name_of(
    record: &Record,
    known: Option<&inspect::Application>,
) -> Option<(Cow<'static, str>, bool)> {
    match known.and_then(inspect::Application::name) {
        Some(name) => Some((name, true)),
        None => {
            let over = flow::encode::beyond::transport(record)?;
            let (key, initiator) = (record.key(), record.initiator());
            let ports = [key.port(initiator), key.port(initiator.other())];
            let name = inspect::guess(over, ports[0], ports[1])?;
            Some((Cow::Borrowed(name), false))
        }
    }
}

/// Protocol and name, if anything was recognised. What a packet brought is made fit to be shown.
fn words(application: &inspect::Application) -> Option<(Cow<'static, str>, String)> {
    let called = application.name()?;
    let name = match application.headline() {
        Some(inspect::Value::Text { bytes, .. }) => bytes.escape_ascii().to_string(),
        Some(inspect::Value::Address(addr)) => addr.to_string(),
        _ => String::new(),
    };
    Some((called, name))
}
