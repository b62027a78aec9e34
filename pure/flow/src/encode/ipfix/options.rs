//! Options: what an exporter says of itself, of sampling, of interfaces, and of the elements that
//! are its own.

use super::write::{Writer, specifier};
use super::{Config, OPTIONS_TEMPLATE_SET};
use crate::element::{Column, OWN_ENTERPRISE, VARIABLE_LEN};
use crate::encode::Statistics;

/// Ids of options templates: behind those of data.
const STATISTICS: u16 = 280;
const SAMPLING: u16 = 281;
const INTERFACE: u16 = 282;
const TYPE: u16 = 283;

/// Id, scope fields, other fields: numbers and lengths.
type Template = (u16, &'static [(u16, u16)], &'static [(u16, u16)]);

const TEMPLATES: &[Template] = &[
    // Of an observation domain: messages, octets and flows exported; flows observed; packets
    // ignored and dropped; flows, packets and octets not sent.
    (
        STATISTICS,
        &[(149, 4)],
        &[
            (41, 8),
            (40, 8),
            (42, 8),
            (163, 8),
            (164, 8),
            (135, 8),
            (166, 8),
            (167, 8),
            (168, 8),
        ],
    ),
    // Of an observation domain: random n-of-N as RFC 5477 has it (algorithm, size, population),
    // which newer collectors read; and the older form (interval, algorithm), which all others do.
    (
        SAMPLING,
        &[(149, 4)],
        &[(304, 2), (309, 4), (310, 4), (34, 4), (35, 1)],
    ),
    // Of an interface: its name.
    (INTERFACE, &[(10, 4)], &[(82, VARIABLE_LEN)]),
    // Of an element: type, semantics, units, name, description (RFC 5610 §3.9).
    (
        TYPE,
        &[(346, 4), (303, 2)],
        &[
            (339, 1),
            (344, 1),
            (345, 2),
            (341, VARIABLE_LEN),
            (340, VARIABLE_LEN),
        ],
    ),
];

/// Random n-of-N, by RFC 5477's selectorAlgorithm and by NetFlow's samplingAlgorithm.
const RANDOM_N_OF_N: u16 = 3;
const RANDOM: u8 = 2;

/// All options templates.
pub(super) fn templates(writer: &mut Writer) {
    for (id, scope, fields) in TEMPLATES {
        let mut record = Vec::new();
        record.extend(id.to_be_bytes());
        record.extend(((scope.len() + fields.len()) as u16).to_be_bytes());
        record.extend((scope.len() as u16).to_be_bytes());
        for &(id, len) in scope.iter().chain(*fields) {
            specifier(&mut record, id, len, 0);
        }
        // A set each: pmacct 1.7 loses its way behind the first one of a set.
        writer.end_set();
        writer.record(OPTIONS_TEMPLATE_SET, &record, false);
    }
}

/// What does not change: sampling, interfaces, types of our own elements among `columns`.
pub(super) fn facts(config: &Config, columns: Vec<Column>, writer: &mut Writer) {
    let mut record = Vec::new();
    record.extend(config.domain.to_be_bytes());
    record.extend(RANDOM_N_OF_N.to_be_bytes());
    record.extend(1_u32.to_be_bytes());
    record.extend(config.sampling.max(1).to_be_bytes());
    record.extend(config.sampling.max(1).to_be_bytes());
    record.push(RANDOM);
    writer.record(SAMPLING, &record, true);
    for (index, name) in &config.interfaces {
        let mut record = Vec::new();
        record.extend(index.to_be_bytes());
        string(&mut record, name);
        writer.record(INTERFACE, &record, true);
    }
    let mut told = Vec::new();
    for column in columns {
        let element = &column.field.element;
        let (id, enterprise) = column.wire_id(config.own_enterprise);
        if element.enterprise != OWN_ENTERPRISE || told.contains(&id) {
            continue;
        }
        told.push(id);
        let mut record = Vec::new();
        record.extend(enterprise.to_be_bytes());
        record.extend(id.to_be_bytes());
        record.push(element.data_type as u8);
        record.push(element.semantics as u8);
        record.extend((element.units as u16).to_be_bytes());
        string(&mut record, &column.name());
        string(&mut record, element.about);
        writer.record(TYPE, &record, true);
    }
}

/// The exporter's account.
pub(super) fn statistics(config: &Config, statistics: &Statistics, writer: &mut Writer) {
    let mut record = Vec::new();
    record.extend(config.domain.to_be_bytes());
    for value in [
        statistics.exported_messages,
        statistics.exported_octets,
        statistics.exported_flows,
        statistics.observed_flows,
        statistics.ignored_packets,
        statistics.dropped_packets,
        statistics.not_sent.flows,
        statistics.not_sent.packets,
        statistics.not_sent.bytes,
    ] {
        record.extend(value.to_be_bytes());
    }
    writer.record(STATISTICS, &record, true);
}

/// A text of variable length; of a long one the beginning.
fn string(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(254);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend(&text.as_bytes()[..end]);
}
