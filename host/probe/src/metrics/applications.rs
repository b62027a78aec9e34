//! Counts by application, with a bounded number of labels: a series lasts as long as the probe
//! runs.

use std::collections::BTreeMap;

use export::prometheus::{Kind, Page};
use flow::encode::extra_fields::{By, Known};
use flow::{Extra, Record};

/// Maximum number of applications with their own series. Later ones are summed up as `other`:
/// libndpi has several hundred names, and hostile traffic can produce all of them.
pub const APPLICATION_COUNT_MAX: usize = 64;

/// Maximum length of a name in bytes; names come from tables, so none is longer today.
const NAME_LEN_MAX: usize = 64;

/// Counts of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    records: u64,
    packets: u64,
    bytes: u64,
}

/// Counts of the records so far.
#[derive(Default)]
pub struct Applications {
    /// By name and the source of the name.
    sums: BTreeMap<(String, &'static str), Sum>,
    /// Records of further applications, beyond [`APPLICATION_COUNT_MAX`].
    other: Sum,
    /// Records without a known application.
    unknown: Sum,
}

impl Applications {
    /// Adds a record.
    pub fn add(&mut self, record: &Record, extra: &Extra<'_>) {
        let known = Known::of(record, extra);
        let by = match known.by {
            By::Content(_) => "content",
            By::Ndpi => "ndpi",
            By::Port(..) => "port",
            By::Nothing(_) => "none",
        };
        self.count(known.name(), by, record.packets(), record.bytes());
    }

    fn count(&mut self, name: Option<&str>, by: &'static str, packets: u64, bytes: u64) {
        let sum = match name {
            None => &mut self.unknown,
            Some(name) => {
                let end = name.floor_char_boundary(NAME_LEN_MAX);
                let key = (name[..end].to_owned(), by);
                let has_room = self.sums.len() < APPLICATION_COUNT_MAX;
                match self.sums.contains_key(&key) || has_room {
                    true => self.sums.entry(key).or_default(),
                    false => &mut self.other,
                }
            }
        };
        sum.records += 1;
        sum.packets += packets;
        sum.bytes += bytes;
    }

    /// Writes the metric families.
    pub fn write(&self, page: &mut Page) {
        type Value = fn(&Sum) -> u64;
        let families: [(&str, &str, Value); 3] = [
            (
                "barewire_application_records_total",
                "Flow records, by application.",
                |sum| sum.records,
            ),
            (
                "barewire_application_packets_total",
                "Packets in flow records, by application.",
                |sum| sum.packets,
            ),
            (
                "barewire_application_bytes_total",
                "Bytes in flow records, by application.",
                |sum| sum.bytes,
            ),
        ];
        for (family, about, value) in families {
            page.family(family, Kind::Counter, about);
            for ((name, by), sum) in &self.sums {
                let labels = [("application", name.as_str()), ("by", by)];
                page.value(family, &labels, value(sum));
            }
            for (name, sum) in [("other", &self.other), ("unknown", &self.unknown)] {
                let labels = [("application", name), ("by", "none")];
                page.value(family, &labels, value(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_over_the_limit_are_summed_up_and_no_count_is_lost() {
        let mut applications = Applications::default();
        for number in 0..1000 {
            applications.count(Some(&format!("app{number}")), "ndpi", 2, 100);
        }
        applications.count(Some("app0"), "ndpi", 1, 7);
        applications.count(None, "none", 5, 50);
        let mut page = Page::default();
        applications.write(&mut page);
        let text = page.text();
        let bytes: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("barewire_application_bytes_total{"))
            .collect();
        assert_eq!(bytes.len(), APPLICATION_COUNT_MAX + 2);
        let total: u64 = bytes
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(total, 1000 * 100 + 7 + 50);
        for line in [
            "barewire_application_bytes_total{application=\"app0\",by=\"ndpi\"} 107",
            "barewire_application_records_total{application=\"app0\",by=\"ndpi\"} 2",
            "barewire_application_records_total{application=\"other\",by=\"none\"} 936",
            "barewire_application_packets_total{application=\"unknown\",by=\"none\"} 5",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}\n{text}");
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let mut applications = Applications::default();
        applications.count(Some(&"é".repeat(100)), "ndpi", 1, 1);
        let (name, _) = applications.sums.keys().next().unwrap();
        assert_eq!(name.len(), NAME_LEN_MAX);
    }
}
