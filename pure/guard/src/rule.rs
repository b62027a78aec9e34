//! Rules, and the kernel memory that they need.

use std::fmt;
use std::net::IpAddr;

use bpf::cbpf::Program;
use bpf::vm_cbpf;

use crate::counters::BLOCK_LEN;
use crate::names::NameTest;
use crate::prefix::List;

/// Maximum number of rules per program: the counters of all rules are one per-CPU value, which the
/// kernel limits to 32 KiB (`PCPU_MIN_UNIT_SIZE`).
pub const RULES_MAX: usize = 800;

/// Highest rate of a limit, in packets per second. The program counts in whole nanoseconds, so the
/// error of the rate stays below 0.5 % up to here.
pub const RATE_PPS_MAX: u32 = 10_000_000;

/// Largest burst of a limit, in packets.
pub const BURST_MAX: u32 = 10_000_000;

/// Distance between two limits in bytes: one cache line each, because processors write them.
pub const LIMIT_STRIDE: usize = 64;

/// A rate with a burst: `burst` packets pass at once, `rate_pps` per second in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    rate_pps: u32,
    burst: u32,
}

impl Limit {
    /// Creates a limit; `None` unless the rate is in 1 to [`RATE_PPS_MAX`] and the burst in 1 to
    /// [`BURST_MAX`].
    pub fn new(rate_pps: u32, burst: u32) -> Option<Self> {
        let fits = (1..=RATE_PPS_MAX).contains(&rate_pps) && (1..=BURST_MAX).contains(&burst);
        fits.then_some(Self { rate_pps, burst })
    }

    /// Default burst: the packets of a tenth of a second, and at least ten. Packets come at random
    /// times: with a shorter burst, what finds the bucket full in pauses is missing in the rate (a
    /// third of it with a burst of one). Below 8/s it is two more than the packets of a second,
    /// because what passes in a minute must not exceed the rate by much either.
    pub fn burst_of(rate_pps: u32) -> u32 {
        (rate_pps / 10).max(rate_pps.saturating_add(2).min(10))
    }

    /// Packets per second.
    pub fn rate_pps(self) -> u32 {
        self.rate_pps
    }

    /// Packets that pass at once after an idle time.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// Time between two packets at this rate.
    pub(crate) fn interval_ns(self) -> u32 {
        let rate = u64::from(self.rate_pps);
        ((1_000_000_000 + rate / 2) / rate) as u32
    }
}

/// Maximum number of sources that per-source limits track, over all rules.
pub const SOURCES_MAX: u32 = 1 << 17;

/// A separate limit for each source prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// The limit of each prefix.
    pub limit: Limit,
    ipv4_len: u8,
    ipv6_len: u8,
}

impl SourceLimit {
    /// Default prefix length for IPv4 sources: the whole address.
    pub const IPV4_LEN: u8 = 32;
    /// Default prefix length for IPv6 sources: one subnet, which a single host may own (RFC 4291,
    /// section 2.5.4).
    pub const IPV6_LEN: u8 = 64;

    /// Creates a limit; `None` unless the lengths are in 1 to 32 and 1 to 128.
    pub fn new(limit: Limit, ipv4_len: u8, ipv6_len: u8) -> Option<Self> {
        let fits = (1..=32).contains(&ipv4_len) && (1..=128).contains(&ipv6_len);
        fits.then_some(Self {
            limit,
            ipv4_len,
            ipv6_len,
        })
    }

    /// Prefix lengths for IPv4 and for IPv6 sources.
    pub fn prefix_lens(self) -> (u8, u8) {
        (self.ipv4_len, self.ipv6_len)
    }

    /// Masks of the first and second half of an address, as loaded, for IPv4 and for IPv6.
    pub(crate) fn masks(self) -> [[u64; 2]; 2] {
        [self.ipv4_len, self.ipv6_len].map(|len| {
            let mask = u128::MAX << (128 - u32::from(len));
            [(mask >> 64) as u64, mask as u64].map(u64::to_be)
        })
    }
}

/// What happens to a packet that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it to the host.
    Pass,
    /// Drop it.
    Drop,
    /// Count it, and continue with the next rule.
    Count,
    /// Pass it to the host while it is within the limit, otherwise drop it. All packets of the rule
    /// share the limit, whatever their source.
    Limit(Limit),
    /// Pass it to the host while it is within the limit of its source prefix and, if present,
    /// within the limit of all packets of the rule; otherwise drop it. Packets without an IP source
    /// count as one source.
    LimitSources(SourceLimit, Option<Limit>),
    /// Answer a SYN to a listening socket of this host with a SYN cookie instead of passing it to
    /// the host; pass an ACK that returns a valid cookie, and drop other packets to a listener.
    /// Packets of connections, and packets to no socket of this host, pass.
    Challenge,
    /// Redirect it to the AF_XDP socket of its receive queue, where user space decides.
    User,
}

impl Verdict {
    /// Whether it ends the evaluation: no later rule is evaluated.
    pub fn decides(self) -> bool {
        self != Self::Count
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Drop => f.write_str("drop"),
            Self::Count => f.write_str("count"),
            Self::Challenge => f.write_str("challenge"),
            Self::User => f.write_str("user"),
            Self::Limit(limit) => write!(f, "limit {}/s", limit.rate_pps),
            Self::LimitSources(source, all) => {
                if let Some(all) = all {
                    write!(f, "limit {}/s and ", all.rate_pps)?;
                } else {
                    f.write_str("limit ")?;
                }
                let (ipv4, ipv6) = source.prefix_lens();
                write!(f, "{}/s per /{ipv4},/{ipv6}", source.limit.rate_pps)
            }
        }
    }
}

/// A filter with a verdict.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Separates the per-source limits of different rules, over all programs that share the map.
    pub id: u32,
    /// The name shown to users.
    pub name: String,
    /// A filter on Ethernet packets; `None` matches every packet.
    pub matcher: Option<Program>,
    /// The IP source must also be in this list.
    pub sources: Option<List>,
    /// The IP destination must also be in this list.
    pub destinations: Option<List>,
    /// It must also be a DNS query for one of these names.
    pub names: Option<NameTest>,
    /// What happens to matching packets.
    pub verdict: Verdict,
    /// Rules with a lower number are evaluated first.
    pub priority: i32,
}

impl Rule {
    /// Creates a rule that matches every packet.
    pub fn new(name: &str, verdict: Verdict) -> Self {
        Self {
            id: 0,
            name: name.to_owned(),
            matcher: None,
            sources: None,
            destinations: None,
            names: None,
            verdict,
            priority: 0,
        }
    }

    /// Whether packets must be in lists, of prefixes or names.
    pub fn has_lists(&self) -> bool {
        self.sources.is_some() || self.destinations.is_some() || self.names.is_some()
    }

    /// Whether the program would match this packet, with these addresses.
    pub fn matches(&self, packet: &[u8], source: IpAddr, destination: IpAddr) -> bool {
        let holds = |list: &Option<List>, address| {
            let list = list.as_deref();
            list.is_none_or(|list| list.iter().any(|prefix| prefix.contains(address)))
        };
        let wire_len = packet.len() as u32;
        let matcher = self.matcher.as_ref();
        holds(&self.sources, source)
            && holds(&self.destinations, destination)
            && self
                .names
                .as_ref()
                .is_none_or(|names| names.matches(packet))
            && matcher.is_none_or(|program| vm_cbpf::run(program, packet, wire_len) != 0)
    }
}

/// Sorts rules into evaluation order: by priority; rules of equal priority keep their order.
pub fn order(rules: &mut [Rule]) {
    rules.sort_by_key(|rule| rule.priority);
}

/// Length of one processor's counters in bytes: one block for all packets, one for undecided
/// packets, and one per rule.
pub fn counters_len(rule_count: usize) -> usize {
    (rule_count + 2) * BLOCK_LEN
}

/// Length of the limits in bytes.
pub fn limits_len(rule_count: usize) -> usize {
    rule_count.max(1) * LIMIT_STRIDE
}
