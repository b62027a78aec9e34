//! Avro: each record is the bare binary encoding of one value (Avro 1.11, "Binary encoding"), with
//! the schema in `docs/flow.avsc`. The fields are the columns of Parquet.
//!
//! A message is one record without a header, as read by Spark's `from_avro` and Avro's own datum
//! readers.

use flow::encode::extra_fields::ExtraFields;
use flow::encode::measured::{Measure, MeasuredColumn};
use flow::encode::{Encode, Refusal, Statistics, Sum};
use flow::{EndReason, Extra, OwnedExtra, Record};

use crate::columns::{self, Column, Read, Row};

/// Maximum length of a message: the smallest limit of brokers.
const LIMIT: usize = 64 << 10;

/// An encoder with one record per message.
pub(crate) struct Encoder {
    columns: Vec<Column>,
    extra_fields: ExtraFields,
    buffer: Vec<u8>,
    text: Vec<u8>,
    list: Vec<i64>,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encoder {
    /// Creates an encoder that adds these extra fields to records.
    pub fn new(extra_fields: ExtraFields) -> Encoder {
        Encoder {
            columns: columns::columns(&all_or_none(extra_fields)),
            extra_fields,
            buffer: Vec::with_capacity(1024),
            text: Vec::new(),
            list: Vec::new(),
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
                Read::Sent(way, of) => columns::sent(&row, way, of).map(|value| value as i64),
                Read::Flag(read) => {
                    out.push(read(&row).into());
                    continue;
                }
                Read::Address(read) => {
                    out.extend(read(&row));
                    continue;
                }
                Read::Measured(column) => {
                    measured(&row, &column, &mut self.list, out);
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
            // A union starts with the index: null is 0.
            if column.is_optional {
                long(value.is_some().into(), out);
            }
            if let Some(value) = value {
                long(value, out);
            }
        }
    }
}

/// There are two schemas, without and with measured fields, and not one for each selection: fields
/// not requested are null.
fn all_or_none(extra_fields: ExtraFields) -> ExtraFields {
    let any = extra_fields.measured();
    ExtraFields {
        packets: any,
        timing: any,
        bytes: any,
        ..extra_fields
    }
}

/// Encodes a measured value, or null; an array is one block and an empty one.
fn measured(row: &Row<'_>, column: &MeasuredColumn, list: &mut Vec<i64>, out: &mut Vec<u8>) {
    if let Measure::Fraction(_) = column.row.measure {
        let value = columns::fraction(row, column);
        long(value.is_some().into(), out);
        out.extend(value.into_iter().flat_map(f64::to_le_bytes));
        return;
    }
    list.clear();
    columns::list(row, column, list);
    long((!list.is_empty()).into(), out);
    if !list.is_empty() {
        long(list.len() as i64, out);
        list.iter().for_each(|value| long(*value, out));
        long(0, out);
    }
}

/// Zig-zag encoding in seven bits per byte, least significant first.
fn long(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The schema as in `docs/flow.avsc`, or with measured fields as in `docs/flow-full.avsc`.
#[cfg(test)]
pub(crate) fn schema(extra_fields: &ExtraFields) -> String {
    let mut text = String::from(
        "{\n  \"type\": \"record\",\n  \"name\": \"flow\",\n  \"namespace\": \"barewire\",\n  \
         \"fields\": [",
    );
    for (at, column) in columns::columns(extra_fields).iter().enumerate() {
        let address = "{\"type\": \"fixed\", \"name\": \"address\", \"size\": 16}";
        let kind = match column.read {
            Read::Short(32, _) | Read::Long(_) => "\"long\"",
            Read::Sent(_, of) if of.bits >= 32 => "\"long\"",
            Read::Short(..) | Read::Sent(..) => "\"int\"",
            Read::Time(_) => "{\"type\": \"long\", \"logicalType\": \"timestamp-micros\"}",
            Read::Flag(_) => "\"boolean\"",
            Read::Measured(column) => match column.row.measure {
                Measure::Fraction(_) => "\"double\"",
                Measure::List { .. } => "{\"type\": \"array\", \"items\": \"long\"}",
            },
            Read::Text(_) => "\"string\"",
            // A type is defined once, and referred to by name afterwards.
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
    fn numbers_are_encoded_as_in_the_avro_specification() {
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

    /// The lab reads messages with this schema.
    #[test]
    fn the_documented_schema_is_current() {
        let full = all_or_none(ExtraFields {
            bytes: true,
            ..ExtraFields::default()
        });
        for (name, extra_fields) in [("flow", ExtraFields::default()), ("flow-full", full)] {
            let path = format!("{}/../../docs/{name}.avsc", env!("CARGO_MANIFEST_DIR"));
            let documented = std::fs::read_to_string(path).unwrap_or_default();
            let schema = schema(&extra_fields);
            assert!(
                documented == schema,
                "docs/{name}.avsc should be:\n{schema}"
            );
        }
    }
}
