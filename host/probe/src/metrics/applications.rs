//! Counts by application, with a bounded number of labels: a series lasts as long as the probe
//! runs.

use std::collections::BTreeMap;

use export::prometheus::{Kind, Page};
use flow::encode::extra_fields::Known;
use flow::tally::{Amount, NAME_COUNT_MAX, NAME_LEN_MAX, Sums};
use flow::{Extra, Record};

/// Counts of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    records: u64,
    amount: Amount,
}

/// Counts so far: of records when they end; of packets and bytes also while flows are active.
#[derive(Default)]
pub struct Applications {
    /// By name and the source of the name. An application keeps its place.
    sums: BTreeMap<(String, &'static str), Sum>,
    /// Further applications, beyond [`NAME_COUNT_MAX`].
    other: Sum,
    /// No known application.
    unknown: Sum,
}

impl Applications {
    /// Counts a record.
    pub fn add(&mut self, record: &Record, extra: &Extra<'_>) {
        let known = Known::of(record, extra);
        self.sum(known.name(), known.by.name()).records += 1;
    }

    /// Sets packets and bytes to the sums of all queues.
    pub fn set<'s>(&mut self, queues: impl Iterator<Item = &'s Sums>) {
        let sums = self.sums.values_mut();
        for sum in sums.chain([&mut self.other, &mut self.unknown]) {
            sum.amount = Amount::default();
        }
        for queue in queues {
            self.other.amount.add(queue.other);
            self.unknown.amount.add(queue.unknown);
            for (by, names) in &queue.named {
                for (name, amount) in names {
                    self.sum(Some(name), by).amount.add(*amount);
                }
            }
        }
    }

    /// The sum of an application; a new one has its own while there are few.
    fn sum(&mut self, name: Option<&str>, by: &'static str) -> &mut Sum {
        let Some(name) = name else {
            return &mut self.unknown;
        };
        let name = &name[..name.floor_char_boundary(NAME_LEN_MAX)];
        let key = (name.to_owned(), by);
        let has_room = self.sums.len() < NAME_COUNT_MAX;
        match self.sums.contains_key(&key) || has_room {
            true => self.sums.entry(key).or_default(),
            false => &mut self.other,
        }
    }

    /// Writes the metric families.
    pub fn write(&self, page: &mut Page, interface: &str) {
        type Value = fn(&Sum) -> u64;
        let families: [(&str, &str, Value); 3] = [
            (
                "barewire_application_records_total",
                "Flow records, by application.",
                |sum| sum.records,
            ),
            (
                "barewire_application_packets_total",
                "Packets by application, of active flows too.",
                |sum| sum.amount.packets,
            ),
            (
                "barewire_application_bytes_total",
                "Bytes by application, of active flows too.",
                |sum| sum.amount.bytes,
            ),
        ];
        for (family, about, value) in families {
            page.family(family, Kind::Counter, about);
            let named = self.sums.iter();
            let named = named.map(|((name, by), sum)| (name.as_str(), *by, sum));
            let rest = [("other", &self.other), ("unknown", &self.unknown)];
            for (name, by, sum) in named.chain(rest.map(|(name, sum)| (name, "none", sum))) {
                let labels = [("interface", interface), ("application", name), ("by", by)];
                page.value(family, &labels, value(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    /// A queue with as many names as it may have.
    fn queue(prefix: &str, factor: u64) -> Sums {
        let amount = Amount {
            packets: factor,
            bytes: 100 * factor,
        };
        let names = (0..NAME_COUNT_MAX).map(|n| (Cow::Owned(format!("{prefix}{n}")), amount));
        let mut sums = Sums::default();
        sums.named.insert("ndpi", names.collect());
        (sums.other, sums.unknown) = (amount, amount);
        sums
    }

    fn bytes(applications: &Applications) -> Vec<(String, u64)> {
        let mut page = Page::default();
        applications.write(&mut page, "eth0");
        let lines = page.text().lines();
        let lines = lines.filter(|line| line.starts_with("barewire_application_bytes_total{"));
        let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
        pairs
            .map(|(labels, value)| (labels.to_owned(), value.parse().unwrap()))
            .collect()
    }

    /// The series are those of the first names, whatever the queues have later; none decreases.
    #[test]
    fn names_over_the_limit_are_summed_up_and_no_count_is_lost() {
        let mut applications = Applications::default();
        let mut before: Vec<(String, u64)> = Vec::new();
        for factor in 1..4 {
            let queues = [queue("b", factor), queue("a", factor)];
            applications.set(queues.iter());
            let now = bytes(&applications);
            assert_eq!(now.len(), NAME_COUNT_MAX + 2);
            let total: u64 = now.iter().map(|(_, value)| value).sum();
            assert_eq!(total, 2 * (NAME_COUNT_MAX as u64 + 2) * 100 * factor);
            for ((labels, value), (of_before, less)) in now.iter().zip(&before) {
                assert!(
                    labels == of_before && value > less,
                    "{labels}: {value}, {less}"
                );
            }
            before = now;
        }
        let is_there = |labels: &str, value: u64| {
            let name = format!("barewire_application_bytes_total{{interface=\"eth0\",{labels}}}");
            let found = before.iter().find(|(labels, _)| *labels == name);
            assert_eq!(found.map(|(_, value)| *value), Some(value), "{labels}");
        };
        is_there("application=\"b0\",by=\"ndpi\"", 300);
        is_there("application=\"unknown\",by=\"none\"", 600);
        let others = NAME_COUNT_MAX as u64 + 2;
        is_there("application=\"other\",by=\"none\"", 300 * others);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let mut applications = Applications::default();
        applications.sum(Some(&"é".repeat(100)), "ndpi").records += 1;
        let (name, _) = applications.sums.keys().next().unwrap();
        assert_eq!(name.len(), NAME_LEN_MAX);
    }
}
