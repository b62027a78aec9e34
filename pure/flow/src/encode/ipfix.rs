//! IPFIX encoder: messages of RFC 7011, biflows by RFC 5103.
//!
//! A flow with packets from both sides is one data record with reverse elements; a flow from one
//! side is a record without them. In uniflow mode each side is a separate record, for collectors
//! that ignore reverse elements. Counters are deltas.

use super::extra_fields::ExtraFields;
use super::{Encode, Refusal, Statistics, Sum};
use crate::element::{
    Column, Element, OWN_ENTERPRISE, REVERSE_ENTERPRISE, STANDARD, Standard, UNIFLOW, VARIABLE_LEN,
    View, standard_index,
};
use crate::expire::EndReason;
use crate::extra::OwnedExtra;
use crate::key::Side;
use crate::record::Record;
use crate::sampling::Sampling;

mod lists;
mod options;
mod rich;
mod write;

use rich::Rich;
use write::Writer;

/// The version in the header of a message.
pub const VERSION: u16 = 10;
/// Length of a message header: version, length, export time, sequence number, observation domain
/// (RFC 7011 §3.1).
pub const HEADER_LEN: usize = 16;
/// Length of a set header: id and length (RFC 7011 §3.3.2).
pub const SET_HEADER_LEN: usize = 4;
/// Set id of templates.
pub const TEMPLATE_SET: u16 = 2;
/// Set id of options templates.
pub const OPTIONS_TEMPLATE_SET: u16 = 3;
/// First template id.
pub const TEMPLATE_ID_MIN: u16 = 256;
/// Minimum of [`Config::message_len_max`].
pub const MESSAGE_LEN_MIN: usize = 256;
/// Maximum number of extra columns.
pub const EXTRA_MAX: usize = 64;

/// Encoder configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Observation domain id.
    pub domain: u32,
    /// Maximum message length in bytes. Over UDP it must fit the MTU; a longer record is refused.
    pub message_len_max: usize,
    /// Whether both directions are in one record (RFC 5103).
    pub is_biflow: bool,
    /// Columns after the standard ones. Uniflow mode omits reverse ones.
    pub extra: Vec<Column>,
    /// Extra fields, in separate templates.
    pub extra_fields: ExtraFields,
    /// The sampling rate, one packet in N; always exported.
    pub sampling: u32,
    /// How packets, and then records, were selected here: exported in addition to the rate.
    pub selectors: [Sampling; 2],
    /// The interface of packets, 0 if unknown.
    pub interface: u32,
    /// Names of interfaces, exported in options records.
    pub interfaces: Vec<(u32, String)>,
    /// Enterprise number of barewire's own elements.
    pub own_enterprise: u32,
    /// Whether bytes include the link header: they are then exported as layer2OctetDeltaCount.
    pub is_layer2: bool,
    /// Whether the transport is lossless within a session: templates are not repeated.
    pub is_reliable: bool,
    /// Whether templates are withdrawn at the end: never over UDP (RFC 7011 §8.4).
    pub withdraws: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            domain: 0,
            message_len_max: 1400,
            is_biflow: true,
            extra: Vec::new(),
            extra_fields: ExtraFields::default(),
            sampling: 1,
            selectors: [Sampling::All; 2],
            interface: 0,
            interfaces: Vec::new(),
            own_enterprise: OWN_ENTERPRISE,
            is_layer2: false,
            is_reliable: false,
            withdraws: false,
        }
    }
}

/// Numbers of octetDeltaCount and layer2OctetDeltaCount.
const OCTETS: u16 = 1;
const LAYER2_OCTETS: u16 = 352;

/// No set is open.
const NO_SET: usize = usize::MAX;

/// Number of standard templates.
const TEMPLATES: usize = 8;

/// IPFIX encoder.
pub struct Encoder {
    config: Config,
    /// The message, up to `at`.
    buffer: Vec<u8>,
    at: usize,
    /// Offset of the open set, and the index of its template.
    set_at: usize,
    set_index: usize,
    /// Number of data records in the message.
    record_count: u32,
    /// Number of data records sent before the message.
    sequence: u32,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
    /// Number of records encoded without some of their extra fields.
    shortened: u64,
    /// Extra columns after the standard ones: forward elements.
    extra: Vec<Column>,
    /// Extra columns before the standard ones of records with both directions: reverse elements
    /// precede forward ones, as in [`STANDARD`].
    extra_reverse: Vec<Column>,
    /// By index in [`STANDARD`]: the functions that write records without extra fields, one data
    /// record each.
    runs: [Option<&'static Standard>; TEMPLATES],
    /// State for records with extra fields. If set, all records are written with it.
    rich: Option<Box<Rich>>,
}

impl Encoder {
    /// Creates an encoder. Lengths out of range are clamped. Extra columns beyond [`EXTRA_MAX`] are
    /// dropped, and those with which a template would not fit into a message.
    pub fn new(config: Config) -> Encoder {
        let limit = config
            .message_len_max
            .clamp(MESSAGE_LEN_MIN, usize::from(u16::MAX));
        // Id and count, then at most eight bytes per column.
        let room = (limit - HEADER_LEN - SET_HEADER_LEN - 4) / 8;
        let standard = STANDARD.iter().map(|s| s.columns.len()).max();
        let standard = standard.unwrap_or(0);
        let standard = match config.extra_fields.any() {
            true => standard + rich::columns_max(&config.extra_fields),
            false => standard,
        };
        let room = room.saturating_sub(standard).min(EXTRA_MAX);
        let all = config.extra.iter().copied().take(room);
        let (extra, extra_reverse): (Vec<Column>, Vec<Column>) =
            all.partition(|column| column.way == crate::element::Way::Forward);
        let others = standard + extra.len() + extra_reverse.len();
        let rich = config.extra_fields.any();
        let rich = rich.then(|| Box::new(Rich::new(config.extra_fields, limit, others)));
        let runs = std::array::from_fn(|index| match (config.is_biflow, index % 2) {
            _ if others != standard => None,
            (true, _) => STANDARD.get(index),
            (false, 0) => UNIFLOW.get(index / 2),
            (false, _) => None,
        });
        Encoder {
            rich,
            runs,
            buffer: vec![0; limit],
            at: HEADER_LEN,
            set_at: HEADER_LEN,
            set_index: NO_SET,
            record_count: 0,
            sequence: 0,
            held: Sum::default(),
            refused: [Sum::default(); Refusal::COUNT],
            shortened: 0,
            extra,
            extra_reverse,
            config,
        }
    }

    /// Number of data records sent before the current message.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    #[inline(always)]
    fn standard(&self, index: usize) -> &'static Standard {
        if self.config.is_biflow {
            &STANDARD[index]
        } else {
            &UNIFLOW[index / 2]
        }
    }

    /// Indices of the templates in use: those with both directions for biflows only.
    fn used(&self) -> impl Iterator<Item = usize> + use<> {
        let step = if self.config.is_biflow { 1 } else { 2 };
        (0..STANDARD.len()).step_by(step)
    }

    /// The columns of a template, by its index in [`STANDARD`].
    fn columns(&self, index: usize) -> impl Iterator<Item = &Column> {
        let standard = self.standard(index).columns.iter();
        self.before(index).iter().chain(standard).chain(&self.extra)
    }

    /// The extra columns before the standard ones.
    fn before(&self, index: usize) -> &[Column] {
        match index & 1 {
            0 => &[],
            _ => &self.extra_reverse,
        }
    }

    /// Adds records while they use this template and fit; returns how many. None if a record may
    /// contain more than the template, or become several.
    #[inline]
    fn push_run(&mut self, records: &[(Record, EndReason)], index: usize) -> usize {
        let Some(standard) = self.runs[index % TEMPLATES] else {
            return 0;
        };
        if index != self.set_index && !self.open_set(index) {
            return 0;
        }
        let Some(out) = self.buffer.get_mut(self.at..) else {
            return 0;
        };
        let count = (standard.put_run)(records, self.config.interface, out, &mut self.held);
        self.at += count * standard.len;
        self.record_count += count as u32;
        count
    }

    /// Adds one data record, or `count` of one side each. Returns false if there is no room.
    #[inline]
    fn push(&mut self, record: &Record, reason: EndReason, side: Side, is_both: bool) -> bool {
        let index = standard_index(record, is_both);
        let standard = self.standard(index);
        if index != self.set_index && !self.open_set(index) {
            return false;
        }
        let interface = self.config.interface;
        let view = || View::new(record, reason, side, interface);
        let mut at = self.at;
        if index & 1 != 0 && !self.extra_reverse.is_empty() {
            match put_columns(&self.extra_reverse, &view(), &mut self.buffer, at) {
                Some(end) => at = end,
                None => return false,
            }
        }
        let Some(out) = self.buffer.get_mut(at..) else {
            return false;
        };
        if !(standard.put)(record, reason, side, interface, out) {
            return false;
        }
        at += standard.len;
        if !self.extra.is_empty() {
            match put_columns(&self.extra, &view(), &mut self.buffer, at) {
                Some(end) => at = end,
                None => return false,
            }
        }
        self.at = at;
        self.record_count += 1;
        true
    }

    /// Closes the open set and opens that of another template.
    #[inline(never)]
    fn open_set(&mut self, index: usize) -> bool {
        self.close_set();
        let Some(header) = self.set_header(self.at) else {
            return false;
        };
        let id = TEMPLATE_ID_MIN + index as u16;
        header[..2].copy_from_slice(&id.to_be_bytes());
        self.set_at = self.at;
        self.set_index = index;
        self.at += SET_HEADER_LEN;
        true
    }

    #[inline(always)]
    fn set_header(&mut self, at: usize) -> Option<&mut [u8; SET_HEADER_LEN]> {
        self.buffer.get_mut(at..)?.first_chunk_mut()
    }

    /// Writes the length of the open set. A set without records is removed.
    #[inline(always)]
    fn close_set(&mut self) {
        if self.set_index == NO_SET {
            return;
        }
        let len = self.at - self.set_at;
        if len == SET_HEADER_LEN {
            self.at = self.set_at;
        } else if let Some(header) = self.set_header(self.set_at) {
            // The buffer is no longer than the length field allows.
            header[2..].copy_from_slice(&(len as u16).to_be_bytes());
        }
        self.set_index = NO_SET;
    }

    /// Adds both sides of a record, or the one that sent, as separate records.
    #[inline(never)]
    fn push_sides(&mut self, record: &Record, reason: EndReason) -> bool {
        let initiator = record.initiator();
        let sides = [initiator, initiator.other()];
        let index = standard_index(record, false);
        if let Some(standard) = self.runs[index % TEMPLATES]
            && !record.is_one_way()
        {
            return self.push_two(standard, index, record, reason, sides);
        }
        // A flow without packets is refused: it would be exported as if both sides had sent.
        let mark = (self.at, self.set_at, self.set_index, self.record_count);
        for side in sides {
            if record.packets_of(side) != 0 && !self.push(record, reason, side, false) {
                // Both or neither. A set closed meanwhile is closed again with the same result.
                (self.at, self.set_at, self.set_index, self.record_count) = mark;
                return false;
            }
        }
        true
    }

    /// The same if both sides have sent, and there are no fields beyond the template.
    #[inline(always)]
    fn push_two(
        &mut self,
        standard: &Standard,
        index: usize,
        record: &Record,
        reason: EndReason,
        sides: [Side; 2],
    ) -> bool {
        if index != self.set_index && !self.open_set(index) {
            return false;
        }
        let len = standard.len;
        let out = self.buffer.get_mut(self.at..);
        let Some((first, second)) = out.and_then(|out| out.split_at_mut_checked(len)) else {
            return false;
        };
        if second.len() < len {
            return false;
        }
        for (side, out) in sides.into_iter().zip([first, second]) {
            (standard.put)(record, reason, side, self.config.interface, out);
        }
        self.at += 2 * len;
        self.record_count += 2;
        true
    }

    /// Export time in seconds.
    fn seconds(time_ns: u64) -> u32 {
        (time_ns / 1_000_000_000) as u32
    }

    fn writer(&self, time_ns: u64) -> Writer {
        Writer::new(
            self.buffer.len(),
            self.config.domain,
            Self::seconds(time_ns),
            self.sequence,
        )
    }

    /// Messages with all templates; options templates and the descriptions of barewire's own
    /// elements come first.
    fn templates(&self, writer: &mut Writer) {
        options::templates(&self.config, writer);
        options::types(&self.config, &self.own_elements(), writer);
        if let Some(rich) = &self.rich {
            self.rich_templates(rich, writer);
        } else {
            for index in self.used() {
                let id = TEMPLATE_ID_MIN + index as u16;
                let columns: Vec<&Column> = self.columns(index).collect();
                let mut record = Vec::new();
                record.extend(id.to_be_bytes());
                record.extend((columns.len() as u16).to_be_bytes());
                for column in columns {
                    self.specify(column, &mut record);
                }
                writer.record(TEMPLATE_SET, &record, false);
            }
        }
    }

    /// Appends the specifier of a column.
    fn specify(&self, column: &Column, out: &mut Vec<u8>) {
        let (id, enterprise) = column.wire_id(self.config.own_enterprise);
        let is_octets = id == OCTETS && matches!(enterprise, 0 | REVERSE_ENTERPRISE);
        let id = if self.config.is_layer2 && is_octets {
            LAYER2_OCTETS
        } else {
            id
        };
        write::specifier(out, id, column.field.element.len, enterprise);
    }
}

/// Writes the values of these columns from an offset on; returns the offset after them.
#[inline(never)]
fn put_columns(
    columns: &[Column],
    view: &View<'_>,
    out: &mut [u8],
    mut at: usize,
) -> Option<usize> {
    for column in columns {
        let out = out.get_mut(at..)?;
        at += if column.field.element.len == VARIABLE_LEN {
            put_variable(column, view, out)?
        } else {
            (column.field.put)(view, column.way, out)?
        };
    }
    Some(at)
}

/// Writes a value after its length (RFC 7011 §7).
fn put_variable(column: &Column, view: &View<'_>, out: &mut [u8]) -> Option<usize> {
    const LONG: usize = 3;
    let len = (column.field.put)(view, column.way, out.get_mut(LONG..)?)?;
    if len < 255 {
        out[0] = len as u8;
        out.copy_within(LONG..LONG + len, 1);
        return Some(1 + len);
    }
    out[0] = 255;
    out[1..LONG].copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
    Some(LONG + len)
}

impl Encode for Encoder {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        if self.rich.is_some() {
            return self.take_rich(records, &[]);
        }
        let mut rest = records;
        while let Some((record, reason)) = rest.first() {
            let is_both = !record.is_one_way();
            let taken = self.push_run(rest, standard_index(record, is_both));
            rest = &rest[taken..];
            if taken != 0 {
                continue;
            }
            let fits = if is_both && !self.config.is_biflow || record.packets() == 0 {
                self.push_sides(record, *reason)
            } else {
                let side = if is_both {
                    record.initiator()
                } else {
                    record.sender()
                };
                self.push(record, *reason, side, is_both)
            };
            if fits {
                self.held.count(record);
            } else if self.record_count != 0 {
                break;
            } else {
                // It does not even fit alone.
                self.at = HEADER_LEN;
                self.set_index = NO_SET;
                self.refused[Refusal::TooLarge as usize].count(record);
            }
            rest = &rest[1..];
        }
        records.len() - rest.len()
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        if self.rich.is_some() {
            return self.take_rich(records, extras);
        }
        self.take(records)
    }

    fn message(&mut self, time_ns: u64) -> &[u8] {
        if self.record_count == 0 {
            return &[];
        }
        self.close_set();
        let header = write::header(
            self.at,
            Self::seconds(time_ns),
            self.sequence,
            self.config.domain,
        );
        self.buffer[..HEADER_LEN].copy_from_slice(&header);
        &self.buffer[..self.at]
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn record_count(&self) -> u64 {
        self.record_count.into()
    }

    fn next(&mut self) {
        self.sequence = self.sequence.wrapping_add(self.record_count);
        self.record_count = 0;
        self.at = HEADER_LEN;
        self.set_index = NO_SET;
        self.held = Sum::default();
    }

    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>> {
        self.sequence = 0;
        let mut writer = self.writer(time_ns);
        self.templates(&mut writer);
        options::facts(&self.config, &mut writer);
        self.finish(writer)
    }

    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        let mut writer = self.writer(time_ns);
        if !self.config.is_reliable {
            self.templates(&mut writer);
            options::facts(&self.config, &mut writer);
        }
        options::statistics(&self.config, statistics, &mut writer);
        self.finish(writer)
    }

    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        let mut writer = self.writer(time_ns);
        options::statistics(&self.config, statistics, &mut writer);
        if self.config.withdraws {
            // All templates of a kind: the set id without fields (RFC 7011 §8.1).
            for kind in [TEMPLATE_SET, OPTIONS_TEMPLATE_SET] {
                let mut record = Vec::new();
                record.extend(kind.to_be_bytes());
                record.extend(0_u16.to_be_bytes());
                writer.record(kind, &record, false);
            }
        }
        self.finish(writer)
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }

    fn shortened(&self) -> u64 {
        self.shortened
    }
}

impl Encoder {
    /// Barewire's own elements in all templates: number, name, description. Each is described once.
    fn own_elements(&self) -> Vec<(u16, String, &'static Element)> {
        let columns = self.used().flat_map(|index| self.columns(index));
        let columns = columns.map(|column| {
            let (id, _) = column.wire_id(self.config.own_enterprise);
            (id, column.name(), &column.field.element)
        });
        let rich = self
            .rich
            .iter()
            .flat_map(|rich| rich.own_elements(self.config.is_biflow));
        let mut own: Vec<_> = columns.chain(rich).collect();
        own.retain(|(_, _, element)| element.enterprise == OWN_ENTERPRISE);
        own.sort_by_key(|(id, _, _)| *id);
        own.dedup_by_key(|(id, _, _)| *id);
        own
    }

    fn finish(&mut self, writer: Writer) -> Vec<Vec<u8>> {
        let (messages, sequence) = writer.finish();
        self.sequence = sequence;
        messages
    }
}

#[cfg(test)]
mod tests;
