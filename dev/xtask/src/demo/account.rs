//! The account of every packet in words: the kernel's counters of both ends, what the probe
//! counted, and the flows that it exported.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// Maximum number of applications named.
const NAMED: usize = 6;

/// Figures from the probe's metrics page (docs/export.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Packets that the port delivered to the meter.
    pub metered: u64,
    /// Packets of these that belong to no flow: not IP, or damaged.
    pub refused: u64,
    /// Packets that the port left to the host, mostly ARP.
    pub passed: u64,
    /// Packets that the port lost.
    pub dropped: u64,
}

impl Figures {
    /// Parses the page; `None` if it is incomplete.
    pub fn read(page: &str) -> Option<Figures> {
        let sum = |name: &str| -> Option<u64> {
            let values = page.lines().filter(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            });
            let mut values = values.map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            let first = values.next()??;
            Some(first + values.flatten().sum::<u64>())
        };
        Some(Figures {
            metered: sum("barewire_packets_total")?,
            refused: sum("barewire_packets_refused_total")?,
            passed: sum("barewire_port_passed_total")?,
            dropped: sum("barewire_port_lost_total")?,
        })
    }

    /// All packets that reached the probe.
    pub fn received(&self) -> u64 {
        self.metered + self.passed + self.dropped
    }
}

/// The kernel's counters of the run.
pub struct Kernel {
    /// Packets that the sender's interface sent.
    pub sent: u64,
    /// Packets that the other interface received.
    pub received: u64,
    /// Packets of these that it dropped.
    pub dropped: u64,
}

/// Flows by application, largest count first.
pub struct Applications {
    flows: u64,
    by_name: Vec<(String, u64)>,
}

impl Applications {
    /// Reads exported records, one JSON object per line. A flow with several records counts once.
    pub fn read(records: &str) -> Result<Applications> {
        let mut flows: BTreeMap<String, Option<String>> = BTreeMap::new();
        for line in records.lines() {
            let record: Value = serde_json::from_str(line).context("an exported record")?;
            if record["type"] != "flow" {
                continue;
            }
            let key = [
                "protocol",
                "src",
                "src_port",
                "dst",
                "dst_port",
                "icmp_type",
            ];
            let key: Vec<String> = key.iter().map(|part| record[*part].to_string()).collect();
            let name = record["application"]["protocol"].as_str();
            let entry = flows.entry(key.join(" ")).or_default();
            if let Some(name) = name.filter(|_| record["application"]["by"] == "content") {
                *entry = Some(name.to_owned());
            }
        }
        let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
        for name in flows.values().flatten() {
            *by_name.entry(name.clone()).or_default() += 1;
        }
        let mut by_name: Vec<(String, u64)> = by_name.into_iter().collect();
        by_name.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        Ok(Applications {
            flows: flows.len() as u64,
            by_name,
        })
    }
}

/// The lines of the account.
pub fn words(kernel: &Kernel, figures: Option<Figures>, applications: &Applications) -> String {
    let mut out = format!(
        "    {:>12} packets sent, by the kernel's counter of the sender\n\
         \x20   {:>12} received, by its counter of the other end, {} of them dropped\n",
        grouped(kernel.sent),
        grouped(kernel.received),
        none_or(kernel.dropped),
    );
    if let Some(figures) = figures {
        out += &format!(
            "    {:>12} counted by barewire: {} in flows, {} in none (not IP), \
             {} left to the host, {} lost\n",
            grouped(figures.received()),
            grouped(figures.metered.saturating_sub(figures.refused)),
            grouped(figures.refused),
            grouped(figures.passed),
            grouped(figures.dropped),
        );
        let difference = kernel.received.abs_diff(figures.received());
        out += &match difference {
            0 => "    Every packet is accounted for.\n".to_owned(),
            n => format!("    The two counts differ by {}.\n", grouped(n)),
        };
    }
    let names = applications.by_name.iter().take(NAMED);
    let names: Vec<String> = names
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !names.is_empty() {
        let flows = grouped(applications.flows);
        out += &format!(
            "    {flows} flows; named by their content: {}\n",
            names.join(", ")
        );
    }
    out
}

fn none_or(count: u64) -> String {
    match count {
        0 => "none".into(),
        n => grouped(n),
    }
}

/// Formats `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP barewire_packets_total Packets metered.\n\
        # TYPE barewire_packets_total counter\nbarewire_packets_total{interface=\"e\"} 199900\n\
        barewire_packets_refused_total{reason=\"not_ip\"} 90\n\
        barewire_packets_refused_total{reason=\"truncated\"} 10\n\
        barewire_port_passed_total{queue=\"0\"} 70\n\
        barewire_port_passed_total{queue=\"1\"} 30\n\
        barewire_port_lost_total{queue=\"0\",reason=\"ring\"} 0\n";

    #[test]
    fn figures_are_sums_over_labels() {
        let figures = Figures::read(PAGE).unwrap();
        assert_eq!(
            (figures.metered, figures.refused, figures.passed),
            (199_900, 100, 100)
        );
        assert_eq!(figures.received(), 200_000);
        assert_eq!(Figures::read("barewire_packets_total 1\n"), None);
        assert_eq!(Figures::read(""), None);
    }

    #[test]
    fn a_flow_of_several_records_counts_once() {
        let record = |port: u16, rest: &str| {
            format!(
                "{{\"type\":\"flow\",\"protocol\":6,\"src\":\"::1\",\"src_port\":{port}{rest}}}\n"
            )
        };
        let http = ",\"application\":{\"protocol\":\"http\",\"by\":\"content\"}";
        let guess = ",\"application\":{\"protocol\":\"dns\",\"by\":\"port\"}";
        let text = record(1, http) + &record(1, "") + &record(2, http) + &record(3, guess);
        let applications = Applications::read(&text).unwrap();
        assert_eq!(applications.flows, 3);
        assert_eq!(applications.by_name, [("http".to_owned(), 2)]);
        assert!(Applications::read("nonsense").is_err());
    }

    #[test]
    fn the_demo_account_shows_an_imbalance() {
        let kernel = Kernel {
            sent: 200_000,
            received: 200_000,
            dropped: 0,
        };
        let none = Applications::read("").unwrap();
        let text = words(&kernel, Figures::read(PAGE), &none);
        assert!(text.contains("200,000 packets sent"), "{text}");
        assert!(text.contains("199,800 in flows, 100 in none"), "{text}");
        assert!(text.contains("Every packet is accounted for."), "{text}");
        let kernel = Kernel {
            received: 200_007,
            ..kernel
        };
        let text = words(&kernel, Figures::read(PAGE), &none);
        assert!(
            text.contains("differ by 7") && !text.contains("accounted for"),
            "{text}"
        );
    }
}
