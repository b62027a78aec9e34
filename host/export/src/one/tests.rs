//! Everything but the split into messages is left to the format.

use super::*;
use crate::exporters::tests::records;

/// A format of lines with any number of records, which records its calls.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encode for Lines {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        for (record, _) in records {
            self.text.extend(b"line\n");
            self.held.count(record);
        }
        self.refused[1].flows += 1;
        records.len()
    }

    fn message(&mut self, time_ns: u64) -> &[u8] {
        assert_eq!(time_ns, 7);
        &self.text
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn next(&mut self) {
        self.text.clear();
        self.held = Sum::default();
    }

    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>> {
        vec![b"head".to_vec(), vec![time_ns as u8]]
    }

    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        vec![vec![time_ns as u8, statistics.observed_flows as u8]]
    }

    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        vec![
            b"foot".to_vec(),
            vec![time_ns as u8, statistics.observed_flows as u8],
        ]
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

#[test]
fn lines_are_split_and_all_else_is_left_to_the_format() {
    let mut one = One(Box::new(Lines::default()));
    let records = records(3);
    assert_eq!((one.take(&[]), one.held()), (0, Sum::default()));
    for at in 0..records.len() {
        assert_eq!(one.take(&records[at..]), 1);
        assert_eq!(one.take(&records[at..]), 0, "the message is full");
        let mut held = Sum::default();
        held.count(&records[at].0);
        assert_eq!(one.held(), held);
        assert_eq!(one.message(7), b"line", "without its line feed");
        one.next();
        assert_eq!(one.held(), Sum::default());
    }
    assert_eq!(one.refused()[1].flows, 3);
    let statistics = Statistics {
        observed_flows: 9,
        ..Statistics::default()
    };
    assert_eq!(one.begin_session(5), [b"head".to_vec(), vec![5]]);
    assert_eq!(one.refresh(6, &statistics), [vec![6, 9]]);
    assert_eq!(
        one.end_session(8, &statistics),
        [b"foot".to_vec(), vec![8, 9]]
    );
}
