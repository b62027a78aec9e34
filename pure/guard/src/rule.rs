//! What a rule is, and how much memory of the kernel's the rules need.

use std::fmt;
use std::net::IpAddr;

use bpf::cbpf::Program;
use bpf::vm_cbpf;

use crate::counters::BLOCK_LEN;
use crate::prefix::List;

/// Most rules of one program: the counters of all are one per-CPU value, which the kernel limits
/// to 32 KiB (`PCPU_MIN_UNIT_SIZE`).
pub const RULES_MAX: usize = 800;

/// Highest rate of a limit, in packets a second. The program counts in whole nanoseconds: the
/// error of the rate is below 0.5 % up to here.
pub const RATE_PPS_MAX: u32 = 10_000_000;

/// Largest burst of a limit, in packets.
pub const BURST_MAX: u32 = 10_000_000;

/// Bytes from one limit to the next: a cache line each, since processors write them.
pub const LIMIT_STRIDE: usize = 64;

/// A rate with a burst: `burst` packets pass at once, and `rate_pps` a second in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    rate_pps: u32,
    burst: u32,
}

impl Limit {
    /// `None` when the rate is not in 1 to [`RATE_PPS_MAX`] or the burst not in 1 to
    /// [`BURST_MAX`].
    pub fn new(rate_pps: u32, burst: u32) -> Option<Self> {
        let fits = (1..=RATE_PPS_MAX).contains(&rate_pps) && (1..=BURST_MAX).contains(&burst);
        fits.then_some(Self { rate_pps, burst })
    }

    /// The burst of a limit that states none: what comes in a tenth of a second.
    pub fn burst_of(rate_pps: u32) -> u32 {
        (rate_pps / 10).max(1)
    }

    /// Packets a second.
    pub fn rate_pps(self) -> u32 {
        self.rate_pps
    }

    /// Packets that pass at once after a silence.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// From one packet to the next at this rate.
    pub(crate) fn interval_ns(self) -> u32 {
        let rate = u64::from(self.rate_pps);
        ((1_000_000_000 + rate / 2) / rate) as u32
    }
}

/// Sources that limits per source remember, all rules together.
pub const SOURCES_MAX: u32 = 1 << 17;

/// A limit for each source prefix by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// What each may send.
    pub limit: Limit,
    ipv4_len: u8,
    ipv6_len: u8,
}

impl SourceLimit {
    /// The prefix of an IPv4 source if none is stated: the address.
    pub const IPV4_LEN: u8 = 32;
    /// The prefix of an IPv6 source if none is stated: what one host has to itself (RFC 4291,
    /// section 2.5.4).
    pub const IPV6_LEN: u8 = 64;

    /// `None` when a length is not in 1 to 32 or 1 to 128.
    pub fn new(limit: Limit, ipv4_len: u8, ipv6_len: u8) -> Option<Self> {
        let fits = (1..=32).contains(&ipv4_len) && (1..=128).contains(&ipv6_len);
        fits.then_some(Self {
            limit,
            ipv4_len,
            ipv6_len,
        })
    }

    /// The length of the prefix of IPv4 and of IPv6 sources.
    pub fn prefix_lens(self) -> (u8, u8) {
        (self.ipv4_len, self.ipv6_len)
    }

    /// The masks of the first and second half of an address, as loaded: of IPv4, of IPv6.
    pub(crate) fn masks(self) -> [[u64; 2]; 2] {
        [self.ipv4_len, self.ipv6_len].map(|len| {
            let mask = u128::MAX << (128 - u32::from(len));
            [(mask >> 64) as u64, mask as u64].map(u64::to_be)
        })
    }
}

/// What becomes of a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the host.
    Pass,
    /// It is dropped.
    Drop,
    /// It is counted, and the next rule is asked.
    Count,
    /// It goes to the host as long as the limit has room, and is dropped else. The limit is one
    /// for all packets of the rule, whatever their source.
    Limit(Limit),
    /// It goes to the host as long as the limit of its source prefix has room and, if there is one,
    /// the limit of all packets of the rule; it is dropped else. Packets without an IP source are
    /// one source.
    LimitSources(SourceLimit, Option<Limit>),
    /// A SYN to a listening socket of this host is answered with a SYN cookie, and does not go to
    /// the host; an ACK that returns a cookie does, and other packets to a listener are dropped.
    /// Packets of connections, and to no socket of this host, pass.
    Challenge,
}

impl Verdict {
    /// Whether it ends the search: no further rule is asked.
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

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Tells limits per source of different rules apart, over all programs that share the map.
    pub id: u32,
    /// Its name for users.
    pub name: String,
    /// A filter on Ethernet packets; none matches every packet.
    pub matcher: Option<Program>,
    /// The IP source is also in this list.
    pub sources: Option<List>,
    /// The IP destination is also in this list.
    pub destinations: Option<List>,
    /// What becomes of the packets.
    pub verdict: Verdict,
    /// Rules with a lower number are asked first.
    pub priority: i32,
}

impl Rule {
    /// Whether the program would match this packet, between these addresses.
    pub fn matches(&self, packet: &[u8], source: IpAddr, destination: IpAddr) -> bool {
        let holds = |list: &Option<List>, address| {
            let list = list.as_deref();
            list.is_none_or(|list| list.iter().any(|prefix| prefix.contains(address)))
        };
        let wire_len = packet.len() as u32;
        let matcher = self.matcher.as_ref();
        holds(&self.sources, source)
            && holds(&self.destinations, destination)
            && matcher.is_none_or(|program| vm_cbpf::run(program, packet, wire_len) != 0)
    }
}

/// Puts rules into the order in which the program asks them: by priority, and as given among
/// equals.
pub fn order(rules: &mut [Rule]) {
    rules.sort_by_key(|rule| rule.priority);
}

/// Bytes of one processor's counters: a block for what was seen, one for what no rule decided, one
/// a rule.
pub fn counters_len(rule_count: usize) -> usize {
    (rule_count + 2) * BLOCK_LEN
}

/// Bytes of the limits.
pub fn limits_len(rule_count: usize) -> usize {
    rule_count.max(1) * LIMIT_STRIDE
}
