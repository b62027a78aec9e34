//! The counters as Prometheus metrics.

use ::guard::Counters;
use export::prometheus::{Kind, Page};
use runtime::guard::steer::SteerTotals;
use runtime::guard::{FloodTotals, Totals};

/// A metric of each rule: name, description, value.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const RULES: &[Family] = &[
    (
        "barewire_guard_rule_packets_total",
        "Packets that a rule matched.",
        |c| c.packets,
    ),
    (
        "barewire_guard_rule_bytes_total",
        "Bytes of packets that a rule matched, from the Ethernet header on.",
        |c| c.bytes,
    ),
    (
        "barewire_guard_rule_dropped_packets_total",
        "Packets that a rule dropped; in a dry run, would have dropped.",
        |c| c.dropped,
    ),
    (
        "barewire_guard_rule_dropped_bytes_total",
        "Bytes of packets that a rule dropped; in a dry run, would have dropped.",
        |c| c.dropped_bytes,
    ),
    (
        "barewire_guard_rule_answered_packets_total",
        "SYNs that a rule answered with a SYN cookie.",
        |c| c.answered,
    ),
];

/// A metric of each flood in progress.
type FloodFamily = (&'static str, &'static str, fn(&FloodTotals) -> u64);

const FLOODS: &[FloodFamily] = &[
    (
        "barewire_guard_flood_packets_per_second",
        "Packets of a flood in progress, with the normal ones, in the last second.",
        |flood| flood.rate_pps,
    ),
    (
        "barewire_guard_flood_passed_packets_per_second",
        "Packets of a flood in progress that passed in the last second.",
        |flood| flood.passed_pps,
    ),
    (
        "barewire_guard_flood_covered_percent",
        "Share of what exceeds the normal rate that rules stopped in the last second.",
        |flood| flood.covered_percent,
    ),
];

/// Rules in user space beyond this number have no metrics of their own.
const RULES_MAX: usize = 800;

/// Adds the metrics of packets that were redirected to user space.
fn steered(steer: &SteerTotals, one: &mut impl FnMut(&str, Kind, &str, u64)) {
    for (name, about, value) in [
        (
            "barewire_guard_steered_returned_packets_total",
            "Steered packets returned to the host.",
            steer.given_back,
        ),
        (
            "barewire_guard_steered_dropped_packets_total",
            "Steered packets dropped in user space.",
            steer.dropped,
        ),
        (
            "barewire_guard_steered_lost_packets_total",
            "Steered packets lost because the ring of a worker was full.",
            steer.lost,
        ),
        (
            "barewire_guard_steered_failed_packets_total",
            "Steered packets that could not be returned.",
            steer.failed,
        ),
    ] {
        one(name, Kind::Counter, about, value);
    }
    let about = "Workers in user space.";
    let workers = steer.workers as u64;
    one("barewire_guard_workers", Kind::Gauge, about, workers);
}

/// Renders the metrics page.
pub fn page(interface: &str, dry_run: bool, totals: &Totals) -> Page {
    let mut page = Page::default();
    let label = [("interface", interface)];
    let mut one = |name: &str, kind, about: &str, value| {
        page.family(name, kind, about);
        page.value(name, &label, value);
    };
    let seen = "barewire_guard_packets_total";
    one(
        seen,
        Kind::Counter,
        "Packets received.",
        totals.seen.packets,
    );
    let bytes = "barewire_guard_bytes_total";
    one(bytes, Kind::Counter, "Bytes received.", totals.seen.bytes);
    let about = "Packets passed to the host.";
    let name = "barewire_guard_passed_packets_total";
    one(name, Kind::Counter, about, totals.passed());
    let about = "Packets dropped; in a dry run, that would have been.";
    let name = "barewire_guard_dropped_packets_total";
    one(name, Kind::Counter, about, totals.dropped());
    let about = "SYNs answered with a SYN cookie.";
    let name = "barewire_guard_answered_packets_total";
    one(name, Kind::Counter, about, totals.answered());
    let about = "Packets that rules matched which a reload has removed.";
    let name = "barewire_guard_removed_packets_total";
    one(name, Kind::Counter, about, totals.removed.packets);
    let about = "Packets that no rule decided; they passed.";
    let name = "barewire_guard_unmatched_packets_total";
    one(name, Kind::Counter, about, totals.unmatched.packets);
    let about = "Samples of dropped packets that were written.";
    let name = "barewire_guard_samples_total";
    one(name, Kind::Counter, about, totals.samples.taken);
    let about = "Samples of dropped packets that were lost.";
    let name = "barewire_guard_samples_lost_total";
    one(name, Kind::Counter, about, totals.samples.lost);
    let about = "Packets redirected to user space.";
    let name = "barewire_guard_steered_packets_total";
    one(name, Kind::Counter, about, totals.steered());
    if let Some(steer) = &totals.steer {
        steered(steer, &mut one);
    }
    let about = "1 if nothing is dropped.";
    one("barewire_guard_dry_run", Kind::Gauge, about, dry_run.into());
    for (name, about, value) in FLOODS {
        let Some(floods) = &totals.floods else { break };
        page.family(name, Kind::Gauge, about);
        for flood in floods {
            let labels = [("interface", interface), ("flood", &*flood.of)];
            page.value(name, &labels, value(flood));
        }
    }
    for (name, about, value) in RULES {
        page.family(name, Kind::Counter, about);
        for rule in &totals.rules {
            let labels = [("interface", interface), ("rule", &*rule.spec.name)];
            page.value(name, &labels, value(&rule.counters));
        }
        let user = totals.steer.iter().flat_map(|steer| &steer.rules);
        for rule in user.take(RULES_MAX) {
            let labels = [("interface", interface), ("rule", &*rule.spec.name)];
            page.value(name, &labels, value(&rule.counters));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::guard::Verdict;
    use runtime::guard::{RuleSpec, RuleTotals};

    #[test]
    fn every_rule_has_its_own_metrics() {
        let counters = Counters {
            packets: 5,
            dropped: 3,
            ..Counters::default()
        };
        let rule = |name: &str| RuleTotals {
            spec: RuleSpec::new(name, Verdict::Drop),
            is_expired: false,
            counters,
        };
        let totals = Totals {
            seen: counters,
            removed: counters,
            rules: vec![rule("udp"), rule("a \"b\"")],
            floods: Some(vec![FloodTotals {
                of: "packets to 192.0.2.0/24".into(),
                covered_percent: 98,
                ..FloodTotals::default()
            }]),
            ..Totals::default()
        };
        let page = page("eth0", false, &totals);
        for line in [
            "barewire_guard_packets_total{interface=\"eth0\"} 5\n",
            "barewire_guard_answered_packets_total{interface=\"eth0\"} 0\n",
            "barewire_guard_removed_packets_total{interface=\"eth0\"} 5\n",
            "barewire_guard_rule_dropped_packets_total{interface=\"eth0\",rule=\"udp\"} 3\n",
            "barewire_guard_rule_packets_total{interface=\"eth0\",rule=\"a \\\"b\\\"\"} 5\n",
            "barewire_guard_flood_covered_percent{interface=\"eth0\",\
             flood=\"packets to 192.0.2.0/24\"} 98\n",
        ] {
            assert!(page.text().contains(line), "{line}: {}", page.text());
        }
    }
}
