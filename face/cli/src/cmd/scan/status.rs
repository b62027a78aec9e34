//! The counts of a running scan: rates, the time left, JSON lines and Prometheus metrics.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use ::scan::AskedRate;
use export::prometheus::{Endpoint, Kind, Page};
use runtime::scan::{Scan, Totals};
use serde_json::{Value, json};
use sys::Result;

use super::show::number;
use crate::out::say;

/// Shortest interval over which a rate is computed, unless there is no other.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The counts so far.
pub struct Status {
    asked: AskedRate,
    pub totals: Totals,
    pub elapsed: Duration,
    /// Packets and bits a second since the counts before.
    pub pps: f64,
    bps: f64,
}

impl Status {
    /// The counts before the first probe.
    pub fn of(scan: &Scan) -> Self {
        let totals = Totals {
            probes: scan.plan().probe_count(),
            before: scan.setup().from,
            ..Totals::default()
        };
        Self::new(scan.setup().asked_rate(), totals)
    }

    fn new(asked: AskedRate, totals: Totals) -> Self {
        Self {
            asked,
            totals,
            elapsed: Duration::ZERO,
            pps: 0.0,
            bps: 0.0,
        }
    }

    /// Takes new counts, at a time since the beginning.
    pub fn take(&mut self, totals: &Totals, elapsed: Duration) {
        let interval = elapsed.saturating_sub(self.elapsed);
        if interval >= INTERVAL_MIN || self.elapsed.is_zero() {
            let seconds = interval.as_secs_f64().max(1e-3);
            let sent = totals.sent.saturating_sub(self.totals.sent);
            let bytes = totals.sent_bytes.saturating_sub(self.totals.sent_bytes);
            self.pps = sent as f64 / seconds;
            self.bps = bytes as f64 * 8.0 / seconds;
        }
        (self.totals, self.elapsed) = (*totals, elapsed);
    }

    /// The rate asked for.
    pub fn asked(&self) -> AskedRate {
        self.asked
    }

    /// Another rate is asked for; one that follows the answers stays within the same limits.
    pub fn asked_anew(&mut self, rate: f64) {
        if self.asked.min.is_none() {
            self.asked.max = rate;
        }
    }

    /// The rate reached, in the unit of the rate asked for.
    fn reached(&self) -> f64 {
        match self.asked.unit {
            "bps" => self.bps,
            _ => self.pps,
        }
    }

    /// Seconds until all probes are sent, at the rate reached; `None` if it is not known.
    pub fn seconds_left(&self) -> Option<f64> {
        let totals = &self.totals;
        let sent = totals.sent.saturating_sub(totals.resent);
        let done = totals.before + u128::from(sent) + u128::from(totals.failed);
        match totals
            .probes
            .saturating_sub(done + totals.unreachable + totals.own)
        {
            0 => Some(0.0),
            // The first figures are not there yet.
            _ if self.pps < 1e-3 => None,
            left => Some(left as f64 / self.pps),
        }
    }

    /// The line of JSON.
    pub fn to_json(&self) -> Value {
        let totals = &self.totals;
        let mut line = json!({
            "type": "status",
            "seconds": self.elapsed.as_secs_f64(),
            "probes": number(totals.probes),
            "before": number(totals.before),
            "unreachable": number(totals.unreachable),
            "own": number(totals.own),
            "seconds_left": self.seconds_left(),
        });
        for (name, _, value) in counters(totals) {
            line[name] = value.into();
        }
        // No counter: an answer is unrelated until it is recognized.
        line["unrelated"] = totals.unrelated().into();
        let AskedRate { max, min, unit } = self.asked;
        line[format!("rate_asked_{unit}")] = max.into();
        if let Some(min) = min {
            line[format!("rate_min_{unit}")] = min.into();
        }
        line[format!("rate_reached_{unit}")] = self.reached().into();
        line
    }

    /// The page for Prometheus. Its values are whole numbers.
    pub fn page(&self, interface: &str) -> Page {
        let mut page = Page::default();
        let mut one = |name: &str, kind, about: &str, value| {
            page.family(name, kind, about);
            page.value(name, &[("interface", interface)], value);
        };
        for (name, about, value) in counters(&self.totals) {
            let name = format!("barewire_scan_{name}_total");
            one(&name, Kind::Counter, about, value);
        }
        let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let AskedRate { max, unit, .. } = self.asked;
        for (name, about, value) in [
            (
                "probes".to_owned(),
                "Probes of the whole scan, all attempts included.",
                whole(self.totals.probes),
            ),
            (
                "before".to_owned(),
                "Probes sent by the runs that this one resumes.",
                whole(self.totals.before),
            ),
            (
                format!("rate_asked_{unit}"),
                "The rate asked for.",
                max.round() as u64,
            ),
            (
                format!("rate_reached_{unit}"),
                "The rate of the last second.",
                self.reached().round() as u64,
            ),
        ] {
            one(&format!("barewire_scan_{name}"), Kind::Gauge, about, value);
        }
        if let Some(seconds) = self.seconds_left() {
            let about = "Seconds until all probes are sent, at the rate of the last second.";
            let name = "barewire_scan_seconds_left";
            one(name, Kind::Gauge, about, seconds.ceil() as u64);
        }
        page
    }
}

/// The counters: name, description, value.
fn counters(totals: &Totals) -> [(&'static str, &'static str, u64); 14] {
    [
        ("sent", "Probes handed to the device.", totals.sent),
        ("sent_bytes", "Bytes of these probes.", totals.sent_bytes),
        (
            "resent",
            "Probes sent again because the link was down.",
            totals.resent,
        ),
        ("failed", "Probes that the device refused.", totals.failed),
        (
            "received",
            "Packets received that could be answers.",
            totals.received,
        ),
        (
            "answers",
            "Answers received, repeated ones included.",
            totals.answers,
        ),
        ("open", "Ports found open.", totals.open),
        ("closed", "Ports found closed.", totals.closed),
        ("filtered", "Ports found filtered.", totals.filtered),
        ("unfiltered", "Ports found unfiltered.", totals.unfiltered),
        ("up", "Hosts found up by probes without a port.", totals.up),
        ("repeated", "Repeated answers.", totals.repeated),
        (
            "lost",
            "Packets lost between the interface and the scan.",
            totals.lost,
        ),
        ("banners", "Banners read.", totals.grabbed.banners),
    ]
}

/// The endpoint of `--metrics`, if there is one.
pub struct Metrics {
    endpoint: RefCell<Option<Endpoint>>,
    interface: String,
}

impl Metrics {
    /// Listens on the address; nothing is served before [`Metrics::start`].
    ///
    /// # Errors
    /// As [`Endpoint::bind`].
    pub fn bind(address: Option<SocketAddr>, interface: &str) -> Result<Self> {
        Ok(Self {
            endpoint: RefCell::new(address.map(Endpoint::bind).transpose()?),
            interface: interface.to_owned(),
        })
    }

    /// Serves the counts, once privileges are dropped.
    ///
    /// # Errors
    /// As [`Endpoint::start`].
    pub fn start(&self, status: &Status) -> Result<()> {
        self.show(status);
        if let Some(endpoint) = &mut *self.endpoint.borrow_mut() {
            endpoint.start()?;
            say!("metrics at http://{}/metrics", endpoint.address());
        }
        Ok(())
    }

    /// Serves these counts from now on.
    pub fn show(&self, status: &Status) {
        if let Some(endpoint) = &*self.endpoint.borrow() {
            endpoint.show(status.page(&self.interface));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(unit: &'static str) -> Status {
        let (max, min) = (1000.0, None);
        Status::new(AskedRate { max, min, unit }, sent(0))
    }

    fn sent(sent: u64) -> Totals {
        Totals {
            probes: 5000,
            before: 1000,
            sent,
            sent_bytes: sent * 60,
            lost: 3,
            open: 2,
            ..Totals::default()
        }
    }

    #[test]
    fn rates_and_the_time_left_are_those_of_the_last_interval() {
        let mut status = status("pps");
        status.take(&sent(0), Duration::from_secs(1));
        assert_eq!(status.to_json()["seconds_left"], Value::Null);
        status.take(&sent(2000), Duration::from_secs(3));
        let line = status.to_json();
        for (name, value) in [
            ("type", json!("status")),
            ("seconds", json!(3.0)),
            ("seconds_left", json!(2.0)),
            ("probes", json!(5000)),
            ("before", json!(1000)),
            ("sent", json!(2000)),
            ("lost", json!(3)),
            ("open", json!(2)),
            ("rate_asked_pps", json!(1000.0)),
            ("rate_reached_pps", json!(1000.0)),
        ] {
            assert_eq!(line[name], value, "{name}: {line}");
        }
        // Too short for a rate.
        status.take(&sent(4000), Duration::from_millis(3001));
        let line = status.to_json();
        assert_eq!(line["rate_reached_pps"], 1000.0, "{line}");
        assert_eq!(line["seconds_left"], 0.0, "{line}");
    }

    #[test]
    fn the_rate_reached_is_in_the_unit_of_the_rate_asked_for() {
        let mut status = status("bps");
        status.take(&sent(100), Duration::from_secs(2));
        assert_eq!(status.to_json()["rate_reached_bps"], 24_000.0);
        let page = status.page("eth0");
        for line in [
            "# TYPE barewire_scan_sent_total counter\n",
            "barewire_scan_sent_total{interface=\"eth0\"} 100\n",
            "barewire_scan_lost_total{interface=\"eth0\"} 3\n",
            "barewire_scan_probes{interface=\"eth0\"} 5000\n",
            "barewire_scan_rate_reached_bps{interface=\"eth0\"} 24000\n",
            "barewire_scan_seconds_left{interface=\"eth0\"} 78\n",
        ] {
            assert!(page.text().contains(line), "{line}: {}", page.text());
        }
    }
}
