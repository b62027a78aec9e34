//! NetFlow version 9 (RFC 3954): templates as in IPFIX, one direction per record, times in
//! milliseconds of uptime, sequence numbers that count messages.

use super::extra_fields::{ExtraFields, Known, application_id, application_names};
use super::uptime::Uptime;
use super::{Encode, Refusal, Statistics, Sum};
use crate::element::{Column, Field, NETFLOW9, Standard, VARIABLE_LEN, View, Way, netflow9_index};
use crate::expire::EndReason;
use crate::extra::{Extra, OwnedExtra};
use crate::key::Side;
use crate::record::Record;

/// Length of a header.
pub const HEADER_LEN: usize = 20;
/// Length of a flowset's id and length.
const SET_HEADER_LEN: usize = 4;
const TEMPLATE_SET: u16 = 0;
const OPTIONS_TEMPLATE_SET: u16 = 1;
/// First template id; the others follow in the order of [`NETFLOW9`].
const FLOWS: u16 = 256;
/// Ids of options templates: sampling, statistics, interfaces.
const SAMPLING: u16 = 260;
const STATISTICS: u16 = 261;
const INTERFACE: u16 = 262;
const APPLICATION: u16 = 263;
/// FIRST_SWITCHED and LAST_SWITCHED, and the ports. For ICMP, type and code are in the destination
/// port, as routers export them, and in ICMP_TYPE, which nfdump reads for both versions of IP;
/// goflow2 reads it for IPv4, and for IPv6 the element of IPFIX (139).
const FIRST: u16 = 22;
const LAST: u16 = 21;
const SOURCE_PORT: u16 = 7;
const DESTINATION_PORT: u16 = 11;
/// Number of templates of flows.
const TEMPLATE_COUNT: usize = 4;
/// Length of the fields that are not rows: two times, two ports.
const OWN_LEN: usize = 12;
const ICMP_TYPE: u16 = 32;
/// Length of ICMP_TYPE, which follows them in the templates of ICMP.
const ICMP_TYPE_LEN: usize = 2;
/// Length of an interface's name.
const NAME_LEN: usize = 32;
/// APPLICATION_TAG and APPLICATION_NAME, and the length of a name.
const APPLICATION_TAG: u16 = 95;
const APPLICATION_NAME: u16 = 96;
const APPLICATION_NAME_LEN: usize = 24;
/// IN_SRC_MAC, IN_DST_MAC, MPLS_LABEL_1.
const SOURCE_MAC: u16 = 56;
const DESTINATION_MAC: u16 = 80;
const MPLS_LABEL: u16 = 70;
/// SRC_AS and DST_AS, with four bytes here.
const SOURCE_AS: u16 = 16;
const DESTINATION_AS: u16 = 17;
/// Minimum of the message length limit.
pub const MESSAGE_LEN_MIN: usize = 256;

/// Encoder configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source id.
    pub domain: u32,
    /// Maximum message length in bytes; it must fit the MTU.
    pub message_len_max: usize,
    /// Columns after the standard ones: forward elements of fixed length with IANA numbers; others
    /// are dropped.
    pub extra: Vec<Column>,
    /// Extra fields: MAC addresses, the MPLS label, the application's number, the numbers of
    /// autonomous systems. The format has no fields for the rest.
    pub extra_fields: ExtraFields,
    /// The sampling rate, one packet in N; always exported.
    pub sampling: u32,
    /// The interface of packets, 0 if unknown.
    pub interface: u32,
    /// Names of interfaces, exported in options records.
    pub interfaces: Vec<(u32, String)>,
}

/// NetFlow 9 encoder.
pub struct Encoder {
    config: Config,
    /// Fields after the standard ones.
    extra: Vec<&'static Field>,
    /// Length of records by their index in [`NETFLOW9`].
    lens: [usize; TEMPLATE_COUNT],
    /// The message, up to `at`.
    buffer: Vec<u8>,
    at: usize,
    /// Offset and id of the open flowset; the id is 0 without one.
    set_at: usize,
    set_id: u16,
    record_count: u16,
    /// Extra fields of the current record.
    tail: Vec<u8>,
    /// Number of messages before this one.
    sequence: u32,
    uptime: Uptime,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encoder {
    /// Creates an encoder. Lengths out of range are clamped.
    pub fn new(config: Config) -> Encoder {
        let limit = config
            .message_len_max
            .clamp(MESSAGE_LEN_MIN, usize::from(u16::MAX));
        let extra: Vec<&'static Field> = config
            .extra
            .iter()
            .filter(|column| column.way == Way::Forward)
            .map(|column| column.field)
            .filter(|field| field.element.enterprise == 0 && field.element.len != VARIABLE_LEN)
            // Four bytes of each template, which must fit into a message with the rest.
            .take((limit - 160) / 4)
            .collect();
        let extra_len: usize = extra.iter().map(|f| usize::from(f.element.len)).sum();
        let extra_fields = fields_of(&config.extra_fields).into_iter();
        let extra_fields_len: usize = extra_fields.map(|(_, len)| usize::from(len)).sum();
        Encoder {
            lens: std::array::from_fn(|at| {
                own_len(at) + NETFLOW9[at].len + extra_len + extra_fields_len
            }),
            tail: Vec::new(),
            extra,
            buffer: vec![0; limit],
            at: HEADER_LEN,
            set_at: HEADER_LEN,
            set_id: 0,
            record_count: 0,
            sequence: 0,
            uptime: Uptime::default(),
            held: Sum::default(),
            refused: [Sum::default(); Refusal::COUNT],
            config,
        }
    }

    /// Adds the record of one side, for which there is room.
    #[inline]
    fn push(&mut self, record: &Record, reason: EndReason, side: Side, extra: &Extra<'_>) {
        let index = netflow9_index(record.key());
        let id = FLOWS + index as u16;
        if self.set_id != id {
            self.open_set(id);
        }
        let standard: &Standard = &NETFLOW9[index];
        let Some(out) = self.buffer.get_mut(self.at..) else {
            return;
        };
        let Some((own, rest)) = out.split_first_chunk_mut::<OWN_LEN>() else {
            return;
        };
        let key = record.key();
        let port = if key.is_icmp() {
            // By custom, the destination port contains type and code.
            let kind = key.icmp_type_code(side).unwrap_or_default();
            [0, u16::from_be_bytes(kind)]
        } else {
            [key.port(side), key.port(side.other())]
        };
        let sent = record.sent_by_sender(side);
        let span = self.uptime.span(sent.first_ns, sent.last_ns);
        own[..4].copy_from_slice(&span.first.to_be_bytes());
        own[4..8].copy_from_slice(&span.last.to_be_bytes());
        own[8..10].copy_from_slice(&port[0].to_be_bytes());
        own[10..].copy_from_slice(&port[1].to_be_bytes());
        let mut rest = rest;
        if key.is_icmp() {
            let Some((kind, after)) = rest.split_first_chunk_mut::<ICMP_TYPE_LEN>() else {
                return;
            };
            *kind = port[1].to_be_bytes();
            rest = after;
        }
        if !(standard.put)(record, reason, side, self.config.interface, rest) {
            return;
        }
        let mut at = standard.len;
        if !self.extra.is_empty() {
            let view = View::new(record, reason, side, self.config.interface);
            for field in &self.extra {
                // Fixed lengths are written whole.
                let out = rest.get_mut(at..).unwrap_or_default();
                at += (field.put)(&view, Way::Forward, out).unwrap_or(0);
            }
        }
        if self.config.extra_fields.any() {
            self.tail.clear();
            put_extra(
                &self.config.extra_fields,
                record,
                side,
                extra,
                &mut self.tail,
            );
            if let Some(out) = rest.get_mut(at..at + self.tail.len()) {
                out.copy_from_slice(&self.tail);
            }
        }
        self.at += self.lens[index];
        self.record_count += 1;
    }

    /// Closes the open flowset and opens another.
    #[inline(never)]
    fn open_set(&mut self, id: u16) {
        self.close_set();
        if let Some(head) = self.buffer.get_mut(self.at..self.at + SET_HEADER_LEN) {
            head[..2].copy_from_slice(&id.to_be_bytes());
            self.set_at = self.at;
            self.set_id = id;
            self.at += SET_HEADER_LEN;
        }
    }

    /// Pads the open flowset to words and writes its length (RFC 3954 §5.3).
    fn close_set(&mut self) {
        if self.set_id == 0 {
            return;
        }
        let end = self.at.next_multiple_of(4).min(self.buffer.len());
        self.buffer[self.at..end].fill(0);
        let len = (end - self.set_at) as u16;
        self.buffer[self.set_at + 2..self.set_at + 4].copy_from_slice(&len.to_be_bytes());
        self.at = end;
        self.set_id = 0;
    }

    /// Maximum space that the records of a flow take in the message.
    fn need(&self, record: &Record) -> usize {
        let len = self.lens[netflow9_index(record.key())];
        let sides = if record.is_one_way() { 1 } else { 2 };
        const PADDING_MAX: usize = 3;
        sides * len + SET_HEADER_LEN + 2 * PADDING_MAX
    }

    fn header(&self, count: u16, time_ns: u64) -> [u8; HEADER_LEN] {
        let (uptime, instant_ms) = self.uptime.instant(time_ns);
        // The header's time has whole seconds: the uptime must be that of the full second.
        let uptime = uptime.saturating_sub((instant_ms % 1000) as u32);
        let mut head = [0; HEADER_LEN];
        head[..2].copy_from_slice(&9_u16.to_be_bytes());
        head[2..4].copy_from_slice(&count.to_be_bytes());
        head[4..8].copy_from_slice(&uptime.to_be_bytes());
        head[8..12].copy_from_slice(&((instant_ms / 1000) as u32).to_be_bytes());
        head[12..16].copy_from_slice(&self.sequence.to_be_bytes());
        head[16..].copy_from_slice(&self.config.domain.to_be_bytes());
        head
    }

    /// Builds messages of flowsets: each an id and its records.
    fn control(&mut self, time_ns: u64, sets: &[(u16, Vec<Vec<u8>>)]) -> Vec<Vec<u8>> {
        let mut messages: Vec<(Vec<u8>, u16)> = Vec::new();
        for (id, records) in sets {
            let mut open = None;
            for record in records {
                let full = |(message, _): &(Vec<u8>, u16)| {
                    message.len() + record.len() + SET_HEADER_LEN + 3 > self.buffer.len()
                };
                if messages.last().is_none_or(full) {
                    if let Some((message, _)) = messages.last_mut() {
                        close_set(message, open.take());
                    }
                    messages.push((vec![0; HEADER_LEN], 0));
                }
                let Some((message, count)) = messages.last_mut() else {
                    continue;
                };
                if open.is_none() {
                    open = Some((message.len(), *id));
                    message.extend(id.to_be_bytes());
                    message.extend([0; 2]);
                }
                message.extend(record);
                *count += 1;
            }
            if let Some((message, _)) = messages.last_mut() {
                close_set(message, open);
            }
        }
        let mut done = Vec::new();
        for (mut message, count) in messages {
            let head = self.header(count, time_ns);
            message[..HEADER_LEN].copy_from_slice(&head);
            self.sequence = self.sequence.wrapping_add(1);
            done.push(message);
        }
        done
    }

    /// Builds templates, sampling, interfaces, and statistics if there are any.
    fn facts(&mut self, time_ns: u64, statistics: Option<&Statistics>) -> Vec<Vec<u8>> {
        let templates: [Vec<u8>; TEMPLATE_COUNT] = std::array::from_fn(|at| {
            let id = FLOWS + at as u16;
            let own = [
                (FIRST, 4),
                (LAST, 4),
                (SOURCE_PORT, 2),
                (DESTINATION_PORT, 2),
            ];
            let rows = NETFLOW9[at].columns.iter().map(|column| column.field);
            let rows = rows.chain(self.extra.iter().copied());
            let rows = rows.map(|field| (field.element.id, field.element.len));
            let extra_fields = fields_of(&self.config.extra_fields);
            let kind = (own_len(at) != OWN_LEN).then_some((ICMP_TYPE, ICMP_TYPE_LEN as u16));
            let own = own.into_iter().chain(kind);
            let all: Vec<(u16, u16)> = own.chain(rows).chain(extra_fields).collect();
            numbers([id, all.len() as u16].into_iter().chain(pairs(&all)))
        });
        // Scope: system (1) or interface (2), four bytes (RFC 3954 §6.1).
        let mut options = vec![
            (SAMPLING, 1, vec![(34, 4), (35, 1)]),
            (STATISTICS, 1, vec![(40, 8), (41, 8), (42, 8)]),
            (INTERFACE, 2, vec![(82, NAME_LEN as u16)]),
        ];
        let mut names = Vec::new();
        if self.config.extra_fields.application {
            let name = (APPLICATION_NAME, APPLICATION_NAME_LEN as u16);
            options.push((APPLICATION, 1, vec![(APPLICATION_TAG, 4), name]));
            names = application_names();
        }
        let options = options.into_iter().map(|(id, scope, fields)| {
            let head = [id, 4, 4 * fields.len() as u16, scope, 4];
            numbers(head.into_iter().chain(pairs(&fields)))
        });
        let applications = names.iter().map(|(id, name)| {
            let mut record = self.config.domain.to_be_bytes().to_vec();
            record.extend(id);
            record.extend(text::<APPLICATION_NAME_LEN>(name));
            record
        });
        let mut sampling = self.config.domain.to_be_bytes().to_vec();
        sampling.extend(self.config.sampling.max(1).to_be_bytes());
        // Random.
        sampling.push(2);
        let names = self.config.interfaces.iter().map(|(index, name)| {
            let mut record = index.to_be_bytes().to_vec();
            record.extend(text::<NAME_LEN>(name));
            record
        });
        let account = statistics.map(|s| {
            let mut record = self.config.domain.to_be_bytes().to_vec();
            for value in [s.exported_octets, s.exported_messages, s.exported_records] {
                record.extend(value.to_be_bytes());
            }
            record
        });
        let mut sets = vec![(TEMPLATE_SET, templates.to_vec())];
        // One flowset each: pmacct 1.7 fails after the first one of a flowset.
        sets.extend(options.map(|options| (OPTIONS_TEMPLATE_SET, vec![options])));
        sets.push((SAMPLING, vec![sampling]));
        sets.push((INTERFACE, names.collect()));
        sets.push((STATISTICS, account.into_iter().collect()));
        sets.push((APPLICATION, applications.collect()));
        self.control(time_ns, &sets)
    }
}

/// Extra fields: number and length.
fn fields_of(extra_fields: &ExtraFields) -> Vec<(u16, u16)> {
    let all = [
        (extra_fields.key.mac, (SOURCE_MAC, 6)),
        (extra_fields.key.mac, (DESTINATION_MAC, 6)),
        (extra_fields.key.mpls, (MPLS_LABEL, 3)),
        (extra_fields.application, (APPLICATION_TAG, 4)),
        (extra_fields.origin.network, (SOURCE_AS, 4)),
        (extra_fields.origin.network, (DESTINATION_AS, 4)),
    ];
    let reported = all.into_iter().filter(|(is_selected, _)| *is_selected);
    reported.map(|(_, field)| field).collect()
}

/// Appends their values, in the same order.
fn put_extra(
    extra_fields: &ExtraFields,
    record: &Record,
    side: Side,
    extra: &Extra<'_>,
    out: &mut Vec<u8>,
) {
    let key = extra.key.copied().unwrap_or_default();
    if extra_fields.key.mac {
        out.extend(key.mac[side as usize]);
        out.extend(key.mac[side.other() as usize]);
    }
    if extra_fields.key.mpls {
        out.extend(&(key.mpls_label << 4).to_be_bytes()[1..]);
    }
    if extra_fields.application {
        out.extend(application_id(Known::of(record, extra).by));
    }
    if extra_fields.origin.network {
        for side in [side, side.other()] {
            let asn = extra.origins.map_or(0, |ends| ends[side as usize].asn);
            out.extend(asn.to_be_bytes());
        }
    }
}

/// Text of fixed length; at least the last byte is 0.
fn text<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut out = [0; LEN];
    let len = text.len().min(LEN - 1);
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
    out
}

/// Length of the fields that are not rows, by the index in [`NETFLOW9`].
fn own_len(index: usize) -> usize {
    match index % 2 {
        0 => OWN_LEN,
        _ => OWN_LEN + ICMP_TYPE_LEN,
    }
}

/// Ids and lengths in sequence.
fn pairs(fields: &[(u16, u16)]) -> impl Iterator<Item = u16> {
    fields.iter().flat_map(|(id, len)| [*id, *len])
}

fn numbers(numbers: impl Iterator<Item = u16>) -> Vec<u8> {
    numbers.flat_map(u16::to_be_bytes).collect()
}

/// Pads a flowset to words and writes its length (RFC 3954 §5.3).
fn close_set(message: &mut Vec<u8>, set: Option<(usize, u16)>) {
    if let Some((at, _)) = set {
        message.resize(message.len().next_multiple_of(4), 0);
        let len = (message.len() - at) as u16;
        message[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
    }
}

impl Encode for Encoder {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        self.take_with(records, &[])
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        for (count, (record, reason)) in records.iter().enumerate() {
            let is_first = self.record_count == 0;
            let need = self.need(record);
            if self.at + need > self.buffer.len() {
                if !is_first {
                    return count;
                }
                self.refused[Refusal::TooLarge as usize].count(record);
                continue;
            }
            if !self.uptime.accept(record, is_first) {
                if !is_first {
                    return count;
                }
                self.refused[Refusal::OutOfRange as usize].count(record);
                continue;
            }
            let first = record.initiator();
            let extra = extras.get(count).map(OwnedExtra::get).unwrap_or_default();
            for side in [first, first.other()] {
                if record.packets_of(side) != 0 {
                    self.push(record, *reason, side, &extra);
                }
            }
            self.held.count(record);
        }
        records.len()
    }

    fn message(&mut self, time_ns: u64) -> &[u8] {
        if self.record_count == 0 {
            return &[];
        }
        self.close_set();
        let head = self.header(self.record_count, time_ns);
        self.buffer[..HEADER_LEN].copy_from_slice(&head);
        &self.buffer[..self.at]
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn record_count(&self) -> u64 {
        self.record_count.into()
    }

    fn next(&mut self) {
        if self.record_count != 0 {
            self.sequence = self.sequence.wrapping_add(1);
        }
        self.record_count = 0;
        self.set_id = 0;
        self.at = HEADER_LEN;
        self.held = Sum::default();
    }

    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>> {
        self.facts(time_ns, None)
    }

    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        self.facts(time_ns, Some(statistics))
    }

    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        self.facts(time_ns, Some(statistics))
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

#[cfg(test)]
mod tests;
