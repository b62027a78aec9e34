//! Traffic by application, of ended flows and of the largest live ones.

use std::borrow::Cow;
use std::collections::HashMap;

use flow::Record;
use flow::digest::Digest;
use flow::encode::extra_fields::transport;
use flow::top::Total;
use runtime::flows::QueueStatus;

use crate::live::picture::Entry;

/// An entry for each application, and one for traffic of no known application, if there is any.
pub fn sums(digest: &Digest, queues: &[QueueStatus]) -> Vec<Entry> {
    let mut named: HashMap<(Cow<'static, str>, bool), Entry> = HashMap::new();
    let mut unknown = Entry {
        name: "unknown".to_owned(),
        ..Entry::default()
    };
    for (name, share) in digest.applications.largest(usize::MAX) {
        let entry = named.entry(name).or_default();
        entry.add(share.records, share.packets, [share.bytes, 0]);
    }
    let share = digest.unknown;
    unknown.add(share.records, share.packets, [share.bytes, 0]);
    for queue in queues {
        for (at, record) in queue.live.iter().enumerate() {
            let entry = match name_of(record, queue.live_applications.get(at)) {
                Some(name) => named.entry(name).or_default(),
                None => &mut unknown,
            };
            let total = Total::of(record);
            let bytes = total.bytes.iter().sum();
            entry.add(1, total.packets.iter().sum(), [bytes, 0]);
        }
    }
    let entries = named.into_iter().map(|((name, is_seen), entry)| Entry {
        name: name.into_owned(),
        remark: if is_seen { "recognised" } else { "by port" }.to_owned(),
        ..entry
    });
    let unknown = (unknown.packets != 0).then_some(unknown);
    entries.chain(unknown).collect()
}

/// The application name of a live flow, and whether it was identified.
fn name_of(
    record: &Record,
    known: Option<&inspect::Application>,
) -> Option<(Cow<'static, str>, bool)> {
    match known.and_then(inspect::Application::name) {
        Some(name) => Some((name, true)),
        None => {
            let over = transport(record)?;
            let (key, initiator) = (record.key(), record.initiator());
            let ports = [key.port(initiator), key.port(initiator.other())];
            let name = inspect::guess(over, ports[0], ports[1])?;
            Some((Cow::Borrowed(name), false))
        }
    }
}

#[cfg(test)]
mod tests {
    use flow::{EndReason, Extra, HashKey, Input, Meter, MeterConfig};
    use wire::LinkType;

    use super::*;

    /// The record of a UDP packet of 128 bytes to a port.
    fn record(port: u16) -> Record {
        let mut packet = vec![
            0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend(
            [50_000, port, 108, 0]
                .iter()
                .flat_map(|word: &u16| word.to_be_bytes()),
        );
        packet.resize(128, 0);
        let mut meter = Meter::new(&MeterConfig::new(HashKey::from_seed(1))).unwrap();
        let mut found = None;
        let mut sink = |record: &Record, _: EndReason| found = Some(*record);
        let input = Input {
            link: LinkType::RAW,
            bytes: &packet,
            wire_len: 128,
            time_ns: 1,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
        meter.finish(&mut sink);
        found.unwrap()
    }

    #[test]
    fn traffic_of_no_application_is_a_row() {
        let mut digest = Digest::default();
        digest.add(&record(53), &Extra::default());
        let found = sums(&digest, &[]);
        let names = |entries: &[Entry]| -> Vec<(String, u64)> {
            let mut names: Vec<(String, u64)> = entries
                .iter()
                .map(|entry| (entry.name.clone(), entry.bytes[0]))
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&found), [("dns".to_owned(), 128)]);
        // One that has ended, and two that live.
        digest.add(&record(9999), &Extra::default());
        let queue = QueueStatus {
            live: vec![record(9998), record(53)],
            ..QueueStatus::default()
        };
        let found = sums(&digest, &[queue]);
        assert_eq!(
            names(&found),
            [("dns".to_owned(), 256), ("unknown".to_owned(), 256)]
        );
    }
}
