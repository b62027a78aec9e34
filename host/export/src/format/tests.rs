//! Tests of all message formats: what is held is what was taken, messages are complete, and control
//! messages surround the records.

use flow::encode::{Statistics, Sum};

use super::*;
use crate::exporters::tests::{records, setup};

/// Formats, a target of each, and the number of messages when a session starts, when templates are
/// due, and when it ends.
const TABLE: [(&str, [usize; 3]); 9] = [
    ("ipfix:tcp://127.0.0.1", [1, 1, 1]),
    ("ipfix:udp://127.0.0.1", [1, 1, 1]),
    ("netflow9:udp://127.0.0.1", [1, 1, 1]),
    ("netflow5:udp://127.0.0.1", [0, 0, 0]),
    ("json:tcp://127.0.0.1:1", [0, 0, 0]),
    ("eve:udp://127.0.0.1:1", [0, 0, 0]),
    ("csv:/tmp/unused.csv", [1, 0, 0]),
    ("json:kafka://127.0.0.1/topic", [0, 0, 0]),
    ("avro:kafka://127.0.0.1/topic", [0, 0, 0]),
];

#[test]
fn every_format_keeps_the_rules_of_messages() {
    let all = records(300);
    let mut expected = Sum::default();
    all.iter().for_each(|(record, _)| expected.count(record));
    for (url, counts) in TABLE {
        let target = Target::parse(url).unwrap();
        let Make::Messages(make) = target.format.make else {
            panic!("{url} makes messages");
        };
        let mut encoder = make(&target, &setup());
        let statistics = Statistics::default();
        let begin = encoder.begin_session(1);
        assert!(encoder.message(1).is_empty(), "{url}");
        let (mut rest, mut sum, mut messages) = (&all[..], Sum::default(), 0);
        while !rest.is_empty() {
            let taken = encoder.take(rest);
            let mut held = Sum::default();
            rest[..taken]
                .iter()
                .for_each(|(record, _)| held.count(record));
            assert_eq!(encoder.held(), held, "{url}");
            sum.add(&held);
            let message = encoder.message(1);
            assert!((1..=64 << 10).contains(&message.len()), "{url}");
            assert_eq!(encoder.record_count() >= held.flows, taken != 0, "{url}");
            messages += 1;
            rest = &rest[taken..];
            encoder.next();
            assert_eq!(encoder.held(), Sum::default(), "{url}");
        }
        assert_eq!(sum, expected, "{url}");
        let is_one = target.sink.names == Names::Topic;
        assert_eq!(messages == all.len(), is_one, "{url}: a record a message");
        assert!(encoder.refused().iter().all(|sum| sum.flows == 0), "{url}");
        let refresh = encoder.refresh(1, &statistics);
        let end = encoder.end_session(1, &statistics);
        assert_eq!(
            [begin, refresh, end].map(|list| list.len()),
            counts,
            "{url}"
        );
    }
    let names: Vec<_> = TABLE
        .iter()
        .map(|(url, _)| url.split(':').next().unwrap())
        .collect();
    for format in FORMATS {
        let is_store = matches!(format.make, Make::Store(_));
        assert_eq!(names.contains(&format.name), !is_store, "{}", format.name);
        assert_eq!(find(format.name).map(|found| found.name), Some(format.name));
    }
    assert!(find("netflow").is_none());
}
