//! Changes of the rate while the scan runs.

use std::time::{Duration, Instant};

use ::scan::RateChange;
use sys::Result;

use super::super::{Notice, RateControl, now};
use super::Collector;

/// Interval at which the rate may change with the answers.
const OBSERVE: Duration = Duration::from_millis(250);

impl Collector<'_> {
    /// Changes the rate if another one is asked for.
    pub(super) fn obey(&mut self, notice: &mut impl FnMut(Notice<'_>) -> Result<()>) -> Result<()> {
        let control = self.scan.setup().control.as_ref();
        let Some(wanted) = control.map(RateControl::rate) else {
            return Ok(());
        };
        if wanted == self.rate || self.live.is_probed() {
            return Ok(());
        }
        let from = std::mem::replace(&mut self.rate, wanted);
        self.live.set_rate(wanted);
        self.totals.rate_changes += 1;
        let (to, share) = (wanted, None);
        notice(Notice::Rate(RateChange { from, to, share }, now()))
    }

    /// Changes the rate if the share of answers has changed.
    pub(super) fn adapt(
        &mut self,
        now: Instant,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(adaptive) = &mut self.adaptive else {
            return Ok(());
        };
        let is_idle = self.live.is_probed() || self.live.link.is_down();
        if now < self.observed + OBSERVE || is_idle {
            return Ok(());
        }
        self.observed = now;
        let now_ns = self.began.elapsed().as_nanos() as u64;
        let answers = self.totals.answers - self.totals.repeated;
        let done = self.live.done();
        let Some(change) = adaptive.observe(now_ns, done, answers) else {
            return Ok(());
        };
        self.live.set_rate(change.to);
        self.totals.rate_changes += 1;
        notice(Notice::Rate(change, super::super::now()))
    }
}
