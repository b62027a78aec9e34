//! Options records: exporter statistics, sampling, interfaces, and descriptions of own elements.

use super::write::{Writer, specifier};
use super::{Config, OPTIONS_TEMPLATE_SET};
use crate::element::{Element, VARIABLE_LEN};
use crate::encode::Statistics;
use crate::encode::extra_fields::application_names;
use crate::sampling::Sampling;

/// Ids of options templates, after those of data.
const STATISTICS: u16 = 280;
const SAMPLING: u16 = 281;
const INTERFACE: u16 = 282;
const TYPE: u16 = 283;
const APPLICATION: u16 = 284;
const PACKET_SELECTOR: u16 = 285;
const RECORD_SELECTOR: u16 = 286;

/// Id, scope fields, other fields: numbers and lengths.
type Template = (u16, &'static [(u16, u16)], &'static [(u16, u16)]);

const TEMPLATES: &[Template] = &[
    // Per observation domain: messages, octets and flow records exported; flows observed; packets
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
    // Per observation domain: random n-of-N of RFC 5477 (algorithm, size, population), which newer
    // collectors read; and the older form (interval, algorithm), which all others read.
    (
        SAMPLING,
        &[(149, 4)],
        &[(304, 2), (309, 4), (310, 4), (34, 4), (35, 1)],
    ),
    // Per interface: its name.
    (INTERFACE, &[(10, 4)], &[(82, VARIABLE_LEN)]),
    // Per element: type, semantics, units, range, name, description (RFC 5610 §3.9). libfixbuf
    // ignores a template that lacks one of them.
    (
        TYPE,
        &[(346, 4), (303, 2)],
        &[
            (339, 1),
            (344, 1),
            (345, 2),
            (342, 8),
            (343, 8),
            (341, VARIABLE_LEN),
            (340, VARIABLE_LEN),
        ],
    ),
];

/// Random n-of-N, as RFC 5477's selectorAlgorithm and as NetFlow's samplingAlgorithm.
const RANDOM_N_OF_N: u16 = 3;
const RANDOM: u8 = 2;

/// Per application: its name (RFC 6759 §5), with fixed length: nfcapd refuses a variable one here.
const NAMES: Template = (APPLICATION, &[(95, 4)], &[(96, NAME_LEN as u16)]);
const NAME_LEN: usize = 24;

/// Writes all options templates.
pub(super) fn templates(config: &Config, writer: &mut Writer) {
    for (id, scope, fields) in TEMPLATES {
        template(*id, scope, fields, writer);
    }
    if config.extra_fields.application {
        template(NAMES.0, NAMES.1, NAMES.2, writer);
    }
    for selector in selectors(config) {
        let fields: Vec<_> = selector
            .fields
            .iter()
            .map(|(id, len, _)| (*id, *len))
            .collect();
        template(selector.template_id, &[(302, 8)], &fields, writer);
    }
}

fn template(id: u16, scope: &[(u16, u16)], fields: &[(u16, u16)], writer: &mut Writer) {
    let mut record = Vec::new();
    record.extend(id.to_be_bytes());
    record.extend(((scope.len() + fields.len()) as u16).to_be_bytes());
    record.extend((scope.len() as u16).to_be_bytes());
    for &(id, len) in scope.iter().chain(fields) {
        specifier(&mut record, id, len, 0);
    }
    // One set each: pmacct 1.7 fails after the first one of a set.
    writer.end_set();
    writer.record(OPTIONS_TEMPLATE_SET, &record, false);
}

/// Selection of packets or records (RFC 5476 §6.5.3, RFC 7014 §6): fields and their values.
struct Selector {
    template_id: u16,
    /// Number, length, bytes.
    fields: Vec<(u16, u16, Vec<u8>)>,
}

/// The selectors that omit packets or records.
///
/// One in N is reported as a sample and a population even if the algorithm is systematic, for which
/// RFC 5477 has an interval and a space: collectors that support the space element take the
/// interval, 1, for the rate.
fn selectors(config: &Config) -> Vec<Selector> {
    let kinds = [
        (PACKET_SELECTOR, 304, "packets"),
        (RECORD_SELECTOR, 390, "flow records"),
    ];
    let pairs = kinds.into_iter().zip(config.selectors);
    let reported = pairs.filter_map(|((template_id, algorithm_id, what), sampling)| {
        let algorithm = sampling.selector_algorithm()?;
        let number = |id, value: u32| (id, 4, value.to_be_bytes().to_vec());
        let mut fields = vec![(algorithm_id, 2, algorithm.to_be_bytes().to_vec())];
        let words = match sampling {
            Sampling::All => return None,
            Sampling::Count(n) => {
                fields.extend([number(309, 1), number(310, n)]);
                format!("the first of {n} {what}")
            }
            Sampling::Random(n) => {
                let probability = 1.0 / f64::from(n.max(1));
                fields.push((311, 8, probability.to_be_bytes().to_vec()));
                format!("{what} by chance, one in {n}")
            }
            Sampling::Hash(n) => {
                fields.extend([number(309, 1), number(310, n)]);
                let of = ["both addresses", "the key"][usize::from(template_id == RECORD_SELECTOR)];
                format!("{what} by a keyed hash of {of}, one in {n}")
            }
            Sampling::Time { every_ns, open_ns } => {
                let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
                let [open, closed] = match template_id {
                    RECORD_SELECTOR => [396, 397],
                    _ => [307, 308],
                };
                fields.push(number(open, us(open_ns)));
                fields.push(number(closed, us(every_ns.saturating_sub(open_ns))));
                format!("{what} of the first {} us of {}", us(open_ns), us(every_ns))
            }
        };
        let mut name = Vec::new();
        string(&mut name, &words);
        fields.push((335, VARIABLE_LEN, name));
        Some(Selector {
            template_id,
            fields,
        })
    });
    reported.collect()
}

/// Writes constant information: sampling, interfaces, names of applications.
pub(super) fn facts(config: &Config, writer: &mut Writer) {
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
    for (at, selector) in selectors(config).iter().enumerate() {
        let mut record = (at as u64 + 1).to_be_bytes().to_vec();
        record.extend(selector.fields.iter().flat_map(|(_, _, value)| value));
        writer.record(selector.template_id, &record, true);
    }
    if config.extra_fields.application {
        for (id, name) in application_names() {
            let mut record = id.to_vec();
            let len = name.len().min(NAME_LEN);
            record.extend(&name.as_bytes()[..len]);
            record.resize(id.len() + NAME_LEN, 0);
            writer.record(APPLICATION, &record, true);
        }
    }
}

/// Writes types and names of barewire's own elements. They come before the templates that use them:
/// libfixbuf looks them up when it reads a template.
pub(super) fn types(config: &Config, own: &[(u16, String, &'static Element)], writer: &mut Writer) {
    for (id, name, element) in own {
        let mut record = Vec::new();
        record.extend(config.own_enterprise.to_be_bytes());
        record.extend(id.to_be_bytes());
        record.push(element.data_type as u8);
        record.push(element.semantics as u8);
        record.extend((element.units as u16).to_be_bytes());
        // Any value: no range.
        record.extend([0; 16]);
        string(&mut record, name);
        string(&mut record, element.about);
        writer.record(TYPE, &record, true);
    }
}

/// Writes the exporter statistics.
pub(super) fn statistics(config: &Config, statistics: &Statistics, writer: &mut Writer) {
    let mut record = Vec::new();
    record.extend(config.domain.to_be_bytes());
    for value in [
        statistics.exported_messages,
        statistics.exported_octets,
        statistics.exported_records,
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

/// Appends text of variable length; long text is truncated.
fn string(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(254);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend(&text.as_bytes()[..end]);
}
