//! Avro: a record as the bare binary encoding of one value (Avro 1.11, "Binary encoding"), whose
//! schema the reader has from `docs/flow.avsc`. Fields are the columns of Parquet.
//!
//! A message holds one record, without a header: what Spark's `from_avro` and Avro's own datum
//! readers take as they are.

use flow::encode::extra_fields::ExtraFields;
use flow::encode::{Encode, Refusal, Statistics, Sum};
use flow::{EndReason, Extra, OwnedExtra, Record};

use crate::columns::{self, Column, Read, Row};

/// Bytes of a message at most: what brokers take at the least.
const LIMIT: usize = 64 << 10;

/// The encoder: a record a message.
pub(crate) struct Encoder {
    columns: Vec<Column>,
    extra_fields: ExtraFields,
    buffer: Vec<u8>,
    text: Vec<u8>,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encoder {
    /// An encoder that tells this beyond records.
    pub fn new(extra_fields: ExtraFields) -> Encoder {
        Encoder {
            columns: columns::columns(),
            extra_fields,
            buffer: Vec::with_capacity(1024),
            text: Vec::new(),
            held: Sum::default(),
            refused: [Sum::default(); Refusal::COUNT],
        }
    }

    fn write(&mut self, record: &Record, extra: Extra<'_>, reason: EndReason) {
        let row = Row {
            record,
            reason,
            extra,
            extra_fields: self.extra_fields,
        };
        let out = &mut self.buffer;
        for column in &self.columns {
            let value = match column.read {
                Read::Short(_, read) => read(&row).map(i64::from),
                Read::Long(read) => read(&row).map(|value| value as i64),
                Read::Time(read) => read(&row).map(|time_ns| (time_ns / 1000) as i64),
                Read::Sent(way, of, _, read) => {
                    columns::sent(&row, way, of, read).map(|value| value as i64)
                }
                Read::Flag(read) => {
                    out.push(read(&row).into());
                    continue;
                }
                Read::Address(read) => {
                    out.extend(read(&row));
                    continue;
                }
                Read::Text(read) => {
                    self.text.clear();
                    if !read(&row, &mut self.text) {
                        long(0, out);
                        continue;
                    }
                    if column.is_optional {
                        long(1, out);
                    }
                    long(self.text.len() as i64, out);
                    out.extend(&self.text);
                    continue;
                }
            };
            // Of a union the index comes first: null is 0.
            if column.is_optional {
                long(value.is_some().into(), out);
            }
            if let Some(value) = value {
                long(value, out);
            }
        }
    }
}

/// Zig-zag, then seven bits a byte, the least first.
fn long(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The schema, as `docs/flow.avsc` has it.
#[cfg(test)]
pub(crate) fn schema() -> String {
    let mut text = String::from(
        "{\n  \"type\": \"record\",\n  \"name\": \"flow\",\n  \"namespace\": \"barewire\",\n  \
         \"fields\": [",
    );
    for (at, column) in columns::columns().iter().enumerate() {
        let address = "{\"type\": \"fixed\", \"name\": \"address\", \"size\": 16}";
        let kind = match column.read {
            Read::Short(32, _) | Read::Sent(_, _, 32 | 64, _) | Read::Long(_) => "\"long\"",
            Read::Short(..) | Read::Sent(..) => "\"int\"",
            Read::Time(_) => "{\"type\": \"long\", \"logicalType\": \"timestamp-micros\"}",
            Read::Flag(_) => "\"boolean\"",
            Read::Text(_) => "\"string\"",
            // A type is reported once, and named afterwards.
            Read::Address(_) if column.name == "src_address" => address,
            Read::Address(_) => "\"address\"",
        };
        let name = &column.name;
        let comma = if at == 0 { "" } else { "," };
        let (open, close) = if column.is_optional {
            ("[\"null\", ", "]")
        } else {
            ("", "")
        };
        text.push_str(&format!(
            "{comma}\n    {{\"name\": \"{name}\", \"type\": {open}{kind}{close}}}"
        ));
    }
    text.push_str("\n  ]\n}\n");
    text
}

impl Encode for Encoder {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        self.take_with(records, &[])
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        if self.held.flows != 0 {
            return 0;
        }
        for (count, (record, reason)) in records.iter().enumerate() {
            let extra = extras.get(count).map(OwnedExtra::get).unwrap_or_default();
            self.write(record, extra, *reason);
            if self.buffer.len() <= LIMIT {
                self.held.count(record);
                return count + 1;
            }
            self.buffer.clear();
            self.refused[Refusal::TooLarge as usize].count(record);
        }
        records.len()
    }

    fn message(&mut self, _: u64) -> &[u8] {
        &self.buffer
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn next(&mut self) {
        self.buffer.clear();
        self.held = Sum::default();
    }

    fn begin_session(&mut self, _: u64) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn refresh(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn end_session(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_specification_has_them() {
        for (value, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
            (
                i64::MAX,
                &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ] {
            let mut out = Vec::new();
            long(value, &mut out);
            assert_eq!(out, bytes, "{value}");
        }
    }

    /// The lab reads messages with it.
    #[test]
    fn the_documented_schema_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flow.avsc");
        let documented = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            documented == schema(),
            "docs/flow.avsc should be:\n{}",
            schema()
        );
    }
}
