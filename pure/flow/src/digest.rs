//! Sums over records for reports: endpoints, applications, sizes, durations. Everything is bounded;
//! if entries had to be discarded, they were the smallest, and that is reported.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use crate::encode::extra_fields::{By, Known};
use crate::extra::Extra;
use crate::key::FlowKey;
use crate::known::{KnownFlows, headline};
use crate::origin::{Origin, Origins};
use crate::record::Record;

/// Maximum number of entries in a list before its smaller half is discarded.
const COUNT_MAX: usize = 4096;
/// Number of size bins: below 64 bytes, 128, … and more.
pub const SIZE_BINS: usize = 24;
/// Number of duration bins: below 1 ms, 3 ms, 10 ms, … and more.
pub const DURATION_BINS: usize = 14;

/// A sum over records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of records.
    pub records: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Share {
    fn add(&mut self, packets: u64, bytes: u64) {
        self.records += 1;
        self.packets += packets;
        self.bytes += bytes;
    }
}

/// Sums by key, of which the largest are kept.
#[derive(Debug)]
pub struct Shares<K> {
    sums: HashMap<K, Share>,
    is_exact: bool,
}

impl<K> Default for Shares<K> {
    fn default() -> Shares<K> {
        Shares {
            sums: HashMap::new(),
            is_exact: true,
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Shares<K> {
    fn add(&mut self, key: K, packets: u64, bytes: u64) {
        self.sums.entry(key).or_default().add(packets, bytes);
        if self.sums.len() > COUNT_MAX {
            self.prune();
        }
    }

    #[inline(never)]
    fn prune(&mut self) {
        let mut kept = self.largest(usize::MAX);
        kept.truncate(COUNT_MAX / 2);
        self.sums = kept.into_iter().collect();
        self.is_exact = false;
    }

    /// The largest by bytes, sorted.
    pub fn largest(&self, count: usize) -> Vec<(K, Share)> {
        let sums = self.sums.iter();
        let mut all: Vec<(K, Share)> = sums.map(|(key, share)| (key.clone(), *share)).collect();
        all.sort_by(|a, b| (b.1.bytes, &a.0).cmp(&(a.1.bytes, &b.0)));
        all.truncate(count);
        all
    }

    /// Whether nothing was discarded.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

/// All sums.
#[derive(Debug)]
pub struct Digest {
    /// All records.
    pub total: Share,
    /// Sent traffic by address.
    pub senders: Shares<IpAddr>,
    /// Received traffic by address.
    pub receivers: Shares<IpAddr>,
    /// Traffic by IP protocol and responder's port.
    pub services: Shares<(u8, u16)>,
    /// Traffic by application name, and whether it was identified or guessed by port.
    pub applications: Shares<(Cow<'static, str>, bool)>,
    /// Traffic of no known application.
    pub unknown: Share,
    /// Traffic by name: of servers, questions and the like.
    pub names: Shares<Vec<u8>>,
    /// Sent and received traffic by autonomous system of each endpoint.
    pub networks: Shares<String>,
    /// The same by country.
    pub countries: Shares<String>,
    /// The same by vendor of the network card.
    pub vendors: Shares<String>,
    /// Traffic by IP protocol.
    pub protocols: [Share; 256],
    /// Traffic by IP version: 4, 6.
    pub versions: [Share; 2],
    /// Number of records by bytes of both directions.
    pub sizes: [u64; SIZE_BINS],
    /// Number of records by duration.
    pub durations: [u64; DURATION_BINS],
    /// Number of records in which only one side sent.
    pub one_way: u64,
    /// Applications and names of flows.
    known: KnownFlows,
}

impl Default for Digest {
    fn default() -> Digest {
        Digest {
            total: Share::default(),
            senders: Shares::default(),
            receivers: Shares::default(),
            services: Shares::default(),
            applications: Shares::default(),
            unknown: Share::default(),
            names: Shares::default(),
            networks: Shares::default(),
            countries: Shares::default(),
            vendors: Shares::default(),
            protocols: [Share::default(); 256],
            versions: [Share::default(); 2],
            sizes: [0; SIZE_BINS],
            durations: [0; DURATION_BINS],
            one_way: 0,
            known: KnownFlows::default(),
        }
    }
}

impl Digest {
    /// Adds a record.
    pub fn add(&mut self, record: &Record, extra: &Extra<'_>) {
        let key = record.key();
        let (initiator, responder) = (record.initiator(), record.initiator().other());
        let (packets, bytes) = (record.packets(), record.bytes());
        self.total.add(packets, bytes);
        self.protocols[usize::from(key.protocol())].add(packets, bytes);
        self.versions[usize::from(key.ip_version() == 6)].add(packets, bytes);
        self.sizes[size_bin(bytes)] += 1;
        self.durations[duration_bin(record.duration_ns())] += 1;
        self.one_way += u64::from(record.is_one_way());
        for side in [initiator, responder] {
            let sent = record.sent_by(side);
            if sent.packets != 0 {
                self.senders.add(key.addr(side), sent.packets, sent.bytes);
                self.receivers
                    .add(key.addr(side.other()), sent.packets, sent.bytes);
            }
        }
        if matches!(key.protocol(), 6 | 17 | 132 | 136) {
            let service = (key.protocol(), key.port(responder));
            self.services.add(service, packets, bytes);
        }
        if let Some(origins) = extra.origins {
            self.add_origins(origins, packets, bytes);
        }
        let known = Known::of(record, extra);
        let (name, is_seen) = match (known.found.name(), known.by) {
            (Some(name), _) => (name, true),
            (None, By::Port(_, name)) => (Cow::Borrowed(name), false),
            (None, _) => return self.unknown.add(packets, bytes),
        };
        self.applications
            .add((name.clone(), is_seen), packets, bytes);
        let headline = headline(&known.found);
        if !headline.is_empty() {
            self.names.add(headline.to_vec(), packets, bytes);
        }
        if is_seen {
            self.known.put(key, bytes, name, headline);
        }
    }

    /// Adds the networks, countries and vendors of a record; one at both endpoints counts once.
    pub fn add_origins(&mut self, [one, other]: &Origins, packets: u64, bytes: u64) {
        let country = |end: &Origin| Some(end.country().to_owned()).filter(|name| !name.is_empty());
        let vendor = |end: &Origin| end.vendor.as_deref().map(str::to_owned);
        for (sums, names) in [
            (
                &mut self.networks,
                [one.network_name(), other.network_name()],
            ),
            (&mut self.countries, [country(one), country(other)]),
            (&mut self.vendors, [vendor(one), vendor(other)]),
        ] {
            let [first, second] = names;
            let is_one = first == second;
            for name in [first, second.filter(|_| !is_one)].into_iter().flatten() {
                sums.add(name, packets, bytes);
            }
        }
    }

    /// The decoders' result for a flow, if it is kept: the application and a name.
    pub fn known(&self, key: &FlowKey) -> Option<(&Cow<'static, str>, &[u8])> {
        self.known.get(key)
    }

    /// The decoders' results by flow.
    pub fn into_known_flows(self) -> KnownFlows {
        self.known
    }
}

/// Index of the bin for this many bytes: see [`SIZE_BINS`].
fn size_bin(bytes: u64) -> usize {
    let bits = 64 - (bytes >> 6).leading_zeros() as usize;
    bits.min(SIZE_BINS - 1)
}

/// Upper limits of the duration bins except the last, in nanoseconds.
pub const DURATION_ENDS_NS: [u64; DURATION_BINS - 1] = [
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    100_000_000_000,
    300_000_000_000,
    1_000_000_000_000,
];

fn duration_bin(ns: u64) -> usize {
    DURATION_ENDS_NS.partition_point(|end| *end <= ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::record;

    #[test]
    fn sums_are_those_of_the_records() {
        let mut digest = Digest::default();
        for n in 0..10 {
            digest.add(&record(4, 6, [3, n % 3]), &Extra::default());
            digest.add(&record(6, 58, [1, 0]), &Extra::default());
        }
        assert_eq!(digest.total.records, 20);
        assert_eq!(digest.one_way, 14);
        let tcp = digest.protocols[6];
        assert_eq!((tcp.records, digest.versions[1].records), (10, 10));
        let sent: u64 = digest.senders.largest(9).iter().map(|(_, s)| s.bytes).sum();
        let received = digest.receivers.largest(9);
        let received: u64 = received.iter().map(|(_, s)| s.bytes).sum();
        assert_eq!((sent, received), (digest.total.bytes, digest.total.bytes));
        assert_eq!(digest.services.largest(9), [((6, 80), tcp)]);
        assert_eq!(
            digest.applications.largest(9),
            [((Cow::Borrowed("http"), false), tcp)]
        );
        // The rest has no name: shares are of everything.
        assert_eq!(digest.unknown.records, 10);
        assert_eq!(digest.unknown.bytes + tcp.bytes, digest.total.bytes);
        assert_eq!(digest.sizes.iter().sum::<u64>(), 20);
        assert_eq!(digest.durations.iter().sum::<u64>(), 20);
    }

    #[test]
    fn lists_have_a_bound_and_keep_the_largest() {
        let mut shares = Shares::default();
        for n in 0..100_000_u32 {
            shares.add(n, 1, u64::from(n % 1000 == 7) * 1_000_000 + 1);
            assert!(shares.len() <= COUNT_MAX);
        }
        assert!(!shares.is_exact());
        assert!(shares.largest(100).iter().all(|(n, _)| n % 1000 == 7));
        let mut digest = Digest::default();
        let one = record(4, 17, [1, 0]);
        for n in 0..3 * COUNT_MAX as u16 {
            let ports = crate::key::Ports {
                src: n,
                dst: 1,
                is_answer: false,
            };
            let (key, _) = FlowKey::new(&[1; 16], &[2; 16], ports, 17, 4, false);
            digest.known.put(&key, u64::from(n), "dns".into(), b"name");
            assert!(digest.known.len() <= COUNT_MAX);
        }
        assert_eq!(digest.known(one.key()), None);
    }

    #[test]
    fn bins_begin_at_their_documented_limits() {
        for (bytes, bin) in [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (u64::MAX, 23)] {
            assert_eq!(size_bin(bytes), bin, "{bytes}");
        }
        for (ns, bin) in [(0, 0), (999_999, 0), (1_000_000, 1), (u64::MAX, 13)] {
            assert_eq!(duration_bin(ns), bin, "{ns}");
        }
    }
}
