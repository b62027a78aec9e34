//! NetFlow times: milliseconds since the exporter started, in 32 bits.
//!
//! They span 49 days, and a collector converts them to times of day with each header's uptime and
//! time of day. Captures may be older than that; the assumed start therefore lies before the first
//! record, and is moved, between messages, when a record does not fit.

use crate::record::Record;

/// Assumed time between the exporter's start and the first record.
const BEFORE_MS: u64 = 3_600_000;
const NS_IN_MS: u64 = 1_000_000;

/// Assumed start of the exporter.
#[derive(Debug, Default)]
pub(super) struct Uptime {
    boot_ms: Option<u64>,
    /// The latest end of a flow in the message.
    last_ms: u64,
}

/// Start and end of a flow, in milliseconds of uptime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Uptime {
    /// Whether a record's times fit into the current message. Before the first record of a message
    /// the assumed start may be moved.
    pub(super) fn accept(&mut self, record: &Record, is_first: bool) -> bool {
        let (start, end) = (record.start_ns() / NS_IN_MS, record.end_ns() / NS_IN_MS);
        if is_first {
            self.last_ms = 0;
        }
        let fits = |boot: u64| start >= boot && end - boot <= u64::from(u32::MAX);
        match self.boot_ms {
            Some(boot) if fits(boot) => {}
            _ if !is_first => return false,
            _ => {
                let boot = start.saturating_sub(BEFORE_MS);
                if !fits(boot) {
                    return false;
                }
                self.boot_ms = Some(boot);
            }
        }
        self.last_ms = self.last_ms.max(end);
        true
    }

    /// Converts the times of an accepted record's direction.
    pub(super) fn span(&self, first_ns: u64, last_ns: u64) -> Span {
        let boot = self.boot_ms.unwrap_or(0);
        let uptime = |time_ns: u64| (time_ns / NS_IN_MS).saturating_sub(boot) as u32;
        Span {
            first: uptime(first_ns),
            last: uptime(last_ns),
        }
    }

    /// Uptime and time of day of one instant, both in milliseconds, for a header. It is the current
    /// time, unless the flows of the message are too far from it for one uptime to express both.
    pub(super) fn instant(&self, now_ns: u64) -> (u32, u64) {
        let now_ms = now_ns / NS_IN_MS;
        let boot = self.boot_ms.unwrap_or(now_ms);
        let is_near = now_ms >= self.last_ms.max(boot) && now_ms - boot <= u64::from(u32::MAX);
        let instant = if is_near {
            now_ms
        } else {
            self.last_ms.max(boot)
        };
        ((instant - boot) as u32, instant)
    }
}
