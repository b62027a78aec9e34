//! Expiry: when a flow ends, and why.
//!
//! Packet time drives expiry and never goes backwards: the clock of a table is the latest time
//! passed to it. A flow ends
//! - *idle*, if there was no packet for its protocol's idle timeout;
//! - *active*, if its first packet is older than the active timeout; later packets begin a new
//!   record;
//! - by *end of flow*: TCP, some time after a reset or a FIN from both sides (the linger, which
//!   covers the last acknowledgements), or at once with a new SYN;
//! - *forced*, at the end of input;
//! - by *lack of resources*, to make room for another flow.
//!
//! The contents of a record do not depend on how fast the table is searched for ended flows: a
//! packet for an expired flow ends that flow first. The active timeout is exact by packet times.
//! Idle time is measured by the table's clock in steps of 2^20 ns, so an idle timeout is never
//! early and up to 2.1 ms late.
//!
//! Two things depend on the position of the search, and so on the secret of the hash, but not on
//! how packets are batched: which flow is evicted from a full table, and which idle flows end while
//! the clock is wrong, before it is set back.

use crate::record::Record;

/// Why a flow ended: the values of IPFIX element 136, flowEndReason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// No packet for the idle timeout.
    Idle = 1,
    /// It lasted longer than the active timeout; the next record continues it.
    Active = 2,
    /// Its protocol ended it (TCP: FIN from both sides, or RST).
    EndOfFlow = 3,
    /// The end of input.
    Forced = 4,
    /// It was evicted for lack of resources.
    Resources = 5,
}

impl EndReason {
    /// Number of values, including 0, which is not a reason.
    pub const COUNT: usize = 6;
    /// All reasons.
    pub const ALL: [EndReason; 5] = [
        EndReason::Idle,
        EndReason::Active,
        EndReason::EndOfFlow,
        EndReason::Forced,
        EndReason::Resources,
    ];

    /// The name in reports and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Idle => "idle",
            EndReason::Active => "active",
            EndReason::EndOfFlow => "end",
            EndReason::Forced => "forced",
            EndReason::Resources => "resources",
        }
    }
}

/// Timeouts in nanoseconds, at most [`Timeouts::MAX_NS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Timeouts {
    /// Maximum time from the first packet of a record to its end.
    pub active_ns: u64,
    /// Idle timeout of TCP.
    pub idle_tcp_ns: u64,
    /// Idle timeout of UDP and UDP-Lite.
    pub idle_udp_ns: u64,
    /// Idle timeout of ICMP and ICMPv6.
    pub idle_icmp_ns: u64,
    /// Idle timeout of all other protocols.
    pub idle_other_ns: u64,
    /// Time after the last packet of a closed TCP connection.
    pub linger_ns: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Deadlines are 16 bits of 134 ms, so at most an hour ahead is used. A flow that may live longer
/// is checked then and gets a new one.
const AHEAD_MAX_NS: u64 = 3_600 * SECOND_NS;

impl Timeouts {
    /// Maximum timeout: a day.
    pub const MAX_NS: u64 = 24 * 3_600 * SECOND_NS;

    /// Sets the idle timeout of all protocols.
    pub fn set_idle_ns(&mut self, idle_ns: u64) {
        self.idle_tcp_ns = idle_ns;
        self.idle_udp_ns = idle_ns;
        self.idle_icmp_ns = idle_ns;
        self.idle_other_ns = idle_ns;
    }

    /// Clamps all values to their limits.
    pub(crate) fn clamped(&self) -> Timeouts {
        let clamp = |ns: u64| ns.clamp(1, Timeouts::MAX_NS);
        Timeouts {
            active_ns: clamp(self.active_ns),
            idle_tcp_ns: clamp(self.idle_tcp_ns),
            idle_udp_ns: clamp(self.idle_udp_ns),
            idle_icmp_ns: clamp(self.idle_icmp_ns),
            idle_other_ns: clamp(self.idle_other_ns),
            linger_ns: clamp(self.linger_ns),
        }
    }

    /// Idle timeout of a class.
    #[inline]
    fn quiet_ns(&self, class: Class) -> u64 {
        match class {
            Class::Tcp => self.idle_tcp_ns,
            Class::Udp => self.idle_udp_ns,
            Class::Icmp => self.idle_icmp_ns,
            Class::Other => self.idle_other_ns,
            Class::Closed => self.linger_ns,
        }
    }

    /// Remaining lifetime of a flow after its last packet, and the reason for which it would end.
    #[inline]
    pub(crate) fn left(&self, record: &Record) -> (u64, EndReason) {
        let class = record.class();
        let quiet_ns = self.quiet_ns(class);
        let active_ns = self.active_ns.saturating_sub(record.duration_ns());
        if active_ns < quiet_ns {
            (active_ns, EndReason::Active)
        } else {
            (quiet_ns, class.end())
        }
    }

    /// Whether a packet with this time is within a record's active timeout.
    #[inline]
    pub(crate) fn is_within(&self, record: &Record, time_ns: u64) -> bool {
        time_ns.saturating_sub(record.start_ns()) <= self.active_ns
    }

    /// Whether a flow ended before a packet with this time arrived at this clock, and why.
    pub(crate) fn ended_before(
        &self,
        record: &Record,
        time_ns: u64,
        clock_ns: u64,
    ) -> Option<EndReason> {
        let (left_ns, reason) = self.left(record);
        if is_over(clock_ns, record.seen(), left_ns) {
            return Some(reason);
        }
        if self.is_within(record, time_ns) {
            return None;
        }
        let quiet_ns = time_ns.saturating_sub(record.end_ns());
        let was_quiet = quiet_ns > self.quiet_ns(record.class());
        Some(if was_quiet {
            record.class().end()
        } else {
            EndReason::Active
        })
    }
}

/// The same by [`Class`], for the packet path: one load instead of a branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    active_ns: u64,
    /// Maximum distance of the deadline.
    ahead_ns: [u64; 8],
}

impl Limits {
    pub(crate) fn of(timeouts: &Timeouts) -> Limits {
        const CLASSES: [Class; 5] = [
            Class::Tcp,
            Class::Udp,
            Class::Icmp,
            Class::Other,
            Class::Closed,
        ];
        let mut ahead_ns = [0; 8];
        for class in CLASSES {
            ahead_ns[class as usize] = timeouts.quiet_ns(class).min(AHEAD_MAX_NS);
        }
        Limits {
            active_ns: timeouts.active_ns,
            ahead_ns,
        }
    }

    /// [`Timeouts::is_within`] for a record that began at `start_ns`.
    #[inline(always)]
    pub(crate) fn is_within(&self, start_ns: u64, time_ns: u64) -> bool {
        time_ns.saturating_sub(start_ns) <= self.active_ns
    }

    /// Deadline of a flow that began at `start_ns` and whose latest packet is the latest of all:
    /// the result of [`Timeouts::left`] and [`deadline`], in fewer steps. Times at the end of the
    /// number range wrap: the flow is then checked too early, or an hour too late.
    #[inline(always)]
    pub(crate) fn deadline(&self, class: Class, start_ns: u64, now_ns: u64) -> u16 {
        let active_end_ns = start_ns.wrapping_add(self.active_ns);
        let quiet_end_ns = now_ns.wrapping_add(self.ahead_ns[class as usize & 7]);
        ((active_end_ns.min(quiet_end_ns) >> 27) + 1) as u16
    }
}

/// Class of flows with a common timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    Tcp,
    Udp,
    Icmp,
    Other,
    /// TCP after the end of the connection.
    Closed,
}

impl Class {
    /// Why a flow of this class ends without further packets.
    #[inline]
    fn end(self) -> EndReason {
        if self == Class::Closed {
            EndReason::EndOfFlow
        } else {
            EndReason::Idle
        }
    }

    #[inline]
    pub(crate) fn of(protocol: u8) -> Class {
        match protocol {
            6 => Class::Tcp,
            17 | 136 => Class::Udp,
            1 | 58 => Class::Icmp,
            _ => Class::Other,
        }
    }
}

impl Default for Timeouts {
    /// Active 300 s; idle 30 s; ICMP 10 s; linger 2 s.
    fn default() -> Self {
        Timeouts {
            active_ns: 300 * SECOND_NS,
            idle_tcp_ns: 30 * SECOND_NS,
            idle_udp_ns: 30 * SECOND_NS,
            idle_icmp_ns: 10 * SECOND_NS,
            idle_other_ns: 30 * SECOND_NS,
            linger_ns: 2 * SECOND_NS,
        }
    }
}

/// The clock in steps of 2^20 ns, modulo 2^32 (52 days).
#[inline]
pub(crate) fn tick(clock_ns: u64) -> u32 {
    (clock_ns >> 20) as u32
}

/// Whether a flow has ended whose last packet arrived at tick `seen` and whose remaining lifetime
/// was `left_ns`.
#[inline]
pub(crate) fn is_over(clock_ns: u64, seen: u32, left_ns: u64) -> bool {
    u64::from(tick(clock_ns).wrapping_sub(seen)) > (left_ns >> 20) + 1
}

/// What is left now of `left_ns`, the lifetime of a flow after its last packet, at tick `seen`.
#[inline]
pub(crate) fn left_now(clock_ns: u64, seen: u32, left_ns: u64) -> u64 {
    left_ns.saturating_sub(u64::from(tick(clock_ns).wrapping_sub(seen)) << 20)
}

/// Whether so little time has passed since tick `seen` that deadlines set then have not wrapped.
#[inline]
pub(crate) fn is_recent(tick: u32, seen: u32) -> bool {
    tick.wrapping_sub(seen) <= (AHEAD_MAX_NS >> 20) as u32
}

/// Time of the next check of a flow, in steps of 2^27 ns, modulo 2^16 (2.4 hours).
#[inline]
pub(crate) fn deadline(clock_ns: u64, left_ns: u64) -> u16 {
    ((clock_ns.saturating_add(left_ns.min(AHEAD_MAX_NS)) >> 27) + 1) as u16
}

/// The clock in the steps of [`deadline`].
#[inline]
pub(crate) fn deadline_now(clock_ns: u64) -> u16 {
    (clock_ns >> 27) as u16
}

/// Distance of a deadline; negative if it has passed.
#[inline]
pub(crate) fn until(deadline: u16, now: u16) -> i16 {
    deadline.wrapping_sub(now) as i16
}

const _: () = assert!((AHEAD_MAX_NS >> 27) + 2 < 1 << 15, "deadlines do not wrap");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_never_early_and_at_most_two_steps_late() {
        for seen_ns in [0, 1, (1 << 20) - 1, 1 << 20, 12_345_678_901] {
            for left_ns in [1, 1 << 20, 30 * SECOND_NS, Timeouts::MAX_NS] {
                let seen = tick(seen_ns);
                assert!(!is_over(seen_ns + left_ns, seen, left_ns));
                assert!(is_over(seen_ns + left_ns + 3 * (1 << 20), seen, left_ns));
                let ahead_ns = left_ns.min(AHEAD_MAX_NS);
                let then = deadline_now(seen_ns + ahead_ns);
                assert!((0..=2).contains(&until(deadline(seen_ns, left_ns), then)));
            }
        }
    }

    #[test]
    fn reasons_have_the_values_of_ipfix() {
        for (index, reason) in EndReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index + 1);
        }
    }
}
