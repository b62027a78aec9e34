//! Records with extra fields: columns after the standard ones, in separate templates, so that
//! records without them do not change.
//!
//! Each application has a template with its own fields, for each shape of a flow that can have it;
//! a template with all fields serves mixtures. If a record alone does not fit into a message,
//! fields are omitted ([`Trim`]), not the record.

mod groups;

use inspect::{Application, FIELDS, Field, FieldSet};

use groups::GROUPS;

use super::lists::{self, ListSize};
use super::write::{Writer, specifier, variable};
use super::{Encoder, HEADER_LEN, NO_SET, SET_HEADER_LEN, TEMPLATE_ID_MIN, TEMPLATE_SET};
use crate::element::{
    APPLICATION, ApplicationElement, DataType, Element, OWN_ENTERPRISE, Semantics, Units,
    VARIABLE_LEN, View, standard_index,
};
use crate::encode::Refusal;
use crate::encode::extra_fields::{ExtraFields, Known, application_id, community_id};
use crate::expire::EndReason;
use crate::extra::{Extra, OwnedExtra};
use crate::key::Side;
use crate::origin::{OriginParts, Origins, TEXTS};
use crate::record::Record;

/// The tunnel number: one element for all kinds, because the record does not store the kind.
const TUNNEL: Element = Element {
    name: "tunnelIdentifier",
    id: 10,
    enterprise: OWN_ENTERPRISE,
    len: 4,
    data_type: DataType::Unsigned32,
    semantics: Semantics::Identifier,
    units: Units::None,
    about: "VXLAN or GENEVE network, GTP-U endpoint, GRE key and the like",
};

const COMMUNITY_ID: Element = Element {
    name: "communityIdentifier",
    id: 11,
    enterprise: OWN_ENTERPRISE,
    len: VARIABLE_LEN,
    data_type: DataType::String,
    semantics: Semantics::Identifier,
    units: Units::None,
    about: "Community ID, version 1",
};

const LOST: Element = Element {
    name: "applicationFieldsLost",
    id: 12,
    enterprise: OWN_ENTERPRISE,
    len: 1,
    data_type: DataType::Unsigned8,
    semantics: Semantics::Quantity,
    units: Units::None,
    about: "Fields of the application that there was no room for; 255 is that or more",
};

/// Enrichment of source and destination, in the order of [`TEXTS`].
const ORIGIN: [[Element; 2]; TEXTS.len()] = [
    [
        origin("sourceAsName", 13, "Name of the source's autonomous system"),
        origin(
            "destinationAsName",
            14,
            "Name of the destination's autonomous system",
        ),
    ],
    [
        origin(
            "sourceCountryCode",
            15,
            "Country of the source (ISO 3166-1)",
        ),
        origin(
            "destinationCountryCode",
            16,
            "Country of the destination (ISO 3166-1)",
        ),
    ],
    [
        origin("sourceCityName", 17, "City of the source"),
        origin("destinationCityName", 18, "City of the destination"),
    ],
    [
        origin("sourceMacVendor", 19, "Maker of the source's network card"),
        origin(
            "destinationMacVendor",
            20,
            "Maker of the destination's network card",
        ),
    ],
];

const fn origin(name: &'static str, id: u16, about: &'static str) -> Element {
    Element {
        name,
        id,
        about,
        ..COMMUNITY_ID
    }
}

/// The elements of the selected enrichment.
fn origins(parts: &OriginParts) -> impl Iterator<Item = &'static Element> {
    let rows = TEXTS.iter().zip(&ORIGIN);
    let reported = rows.filter(|((_, is_selected, _), _)| is_selected(parts));
    reported.flat_map(|(_, elements)| elements)
}

/// IANA elements: number and length.
const SOURCE_AS: (u16, u16) = (16, 4);
const DESTINATION_AS: (u16, u16) = (17, 4);
const SOURCE_MAC: (u16, u16) = (56, 6);
const DESTINATION_MAC: (u16, u16) = (80, 6);
const MPLS_TOP: (u16, u16) = (70, 3);
const APPLICATION_ID: (u16, u16) = (95, 4);
const APPLICATION_NAME: (u16, u16) = (96, VARIABLE_LEN);

/// First index of these templates: template ids 320 and up, after all options.
const INDEX_MIN: usize = 64;
const SHAPES: usize = 8;

/// Maximum number of columns of these templates before the application's own.
pub(super) fn columns_max(extra_fields: &ExtraFields) -> usize {
    const WITHOUT_ORIGIN: usize = 10;
    let networks = if extra_fields.origin.network { 2 } else { 0 };
    let measured = lists::columns(extra_fields, true).count();
    WITHOUT_ORIGIN + networks + origins(&extra_fields.origin).count() + measured
}

/// The part of a record after the standard columns.
struct Rest<'a> {
    record: &'a Record,
    extra: &'a Extra<'a>,
    known: Option<&'a Known>,
    /// Index of the group that has the application's fields.
    group: usize,
    trim: Trim,
}

/// A group of fields.
struct Group {
    number: usize,
    fields: FieldSet,
    elements: Vec<&'static ApplicationElement>,
}

/// Additional state of an encoder for extra fields.
pub(super) struct Rich {
    extra_fields: ExtraFields,
    groups: Vec<Group>,
    /// The part after the standard columns of the current record.
    tail: Vec<u8>,
    /// Scratch buffer for the numbers of a list.
    numbers: Vec<i64>,
}

/// Ways to shorten a record that does not fit into a message: each entry includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trim {
    Nothing,
    /// The numbers of lists have the shortest sufficient length (RFC 7011 §6.2). Skipped unless it
    /// helps: libfixbuf 2.4 misreads such lists.
    ShortNumbers,
    ByteHistograms,
    ApplicationFields,
    Origins,
    Lists,
}

impl Trim {
    const ALL: [Trim; 6] = [
        Trim::Nothing,
        Trim::ShortNumbers,
        Trim::ByteHistograms,
        Trim::ApplicationFields,
        Trim::Origins,
        Trim::Lists,
    ];
}

impl Rich {
    /// Creates the state for messages of this length; `others` are the columns of the longest
    /// template without the application's own. Groups whose template would not fit are dropped.
    pub(super) fn new(extra_fields: ExtraFields, limit: usize, others: usize) -> Rich {
        let number = 0..GROUPS.len();
        let groups = number
            .filter(|n| *n == 0 || extra_fields.application)
            .map(|number| {
                let is_in = |name: &str| groups::has(number, name);
                let rows = FIELDS.iter().filter(|row| is_in(row.name));
                let fields: Vec<Field> = rows.map(|row| row.field).collect();
                Group {
                    number,
                    fields: fields.iter().copied().collect(),
                    elements: fields.iter().map(|f| &APPLICATION[*f as usize]).collect(),
                }
            });
        let fits = |group: &Group| {
            // Those of IANA have no enterprise number (RFC 7011 §3.2).
            let len = |element: &&ApplicationElement| match element.element.enterprise {
                0 => 4,
                _ => 8,
            };
            let columns = 8 * others + group.elements.iter().map(len).sum::<usize>();
            group.number == 0 || HEADER_LEN + SET_HEADER_LEN + 4 + columns <= limit
        };
        Rich {
            extra_fields,
            groups: groups.filter(fits).collect(),
            tail: Vec::with_capacity(4096),
            numbers: Vec::with_capacity(256),
        }
    }

    /// The smallest group that has all fields of an application; the group without fields if none
    /// has.
    fn group_of(&self, application: &Application) -> &Group {
        let present = application.field_set();
        let serves = |group: &&Group| present.is_subset(group.fields);
        let groups = self.groups.iter().filter(serves);
        let smallest = groups.min_by_key(|group| group.elements.len());
        // The first one always exists.
        smallest.unwrap_or(&self.groups[0])
    }

    /// Appends specifiers of the columns after the standard ones; returns their number.
    fn specifiers(&self, group: &Group, is_both: bool, own: u32, out: &mut Vec<u8>) -> usize {
        let mut count = 0;
        let mut add = |(id, len): (u16, u16), enterprise| {
            specifier(out, id, len, enterprise);
            count += 1;
        };
        let key = &self.extra_fields.key;
        for (is_there, column) in [
            (key.mac, SOURCE_MAC),
            (key.mac, DESTINATION_MAC),
            (key.mpls, MPLS_TOP),
        ] {
            if is_there {
                add(column, 0);
            }
        }
        if key.tunnel {
            add((TUNNEL.id, TUNNEL.len), own);
        }
        if self.extra_fields.community_seed.is_some() {
            add((COMMUNITY_ID.id, COMMUNITY_ID.len), own);
        }
        if self.extra_fields.origin.network {
            add(SOURCE_AS, 0);
            add(DESTINATION_AS, 0);
        }
        for element in origins(&self.extra_fields.origin) {
            add((element.id, element.len), own);
        }
        for column in lists::columns(&self.extra_fields, is_both) {
            let (column, enterprise) = lists::specifier(&column, own);
            add(column, enterprise);
        }
        if self.extra_fields.application {
            add(APPLICATION_ID, 0);
            add(APPLICATION_NAME, 0);
        }
        if group.number != 0 {
            add((LOST.id, LOST.len), own);
        }
        for ApplicationElement { element, .. } in &group.elements {
            let enterprise = if element.enterprise == 0 { 0 } else { own };
            add((element.id, element.len), enterprise);
        }
        count
    }

    /// Barewire's own elements in these templates.
    pub(super) fn own_elements(&self, is_biflow: bool) -> Vec<(u16, String, &'static Element)> {
        let extra_fields = &self.extra_fields;
        let mut elements: Vec<&'static Element> = Vec::new();
        if extra_fields.key.tunnel {
            elements.push(&TUNNEL);
        }
        if extra_fields.community_seed.is_some() {
            elements.push(&COMMUNITY_ID);
        }
        elements.extend(origins(&extra_fields.origin));
        if extra_fields.application {
            elements.push(&LOST);
            let rows = APPLICATION.iter().map(|row| &row.element);
            elements.extend(rows.filter(|element| element.enterprise == OWN_ENTERPRISE));
        }
        let named = elements
            .into_iter()
            .map(|of| (of.id, of.name.to_owned(), of));
        named
            .chain(lists::own_elements(extra_fields, is_biflow))
            .collect()
    }

    /// Fills the tail of a record according to its group.
    fn fill(&mut self, of: &Rest<'_>, source: Side, is_both: bool, own: u32) {
        let Rich {
            extra_fields,
            groups,
            tail,
            numbers,
        } = self;
        let Rest {
            record,
            extra,
            known,
            group,
            trim,
        } = *of;
        tail.clear();
        let key_extra = extra.key.copied().unwrap_or_default();
        let key = &extra_fields.key;
        if key.mac {
            tail.extend(key_extra.mac[source as usize]);
            tail.extend(key_extra.mac[source.other() as usize]);
        }
        if key.mpls {
            // Label, three bits of class, bottom of the stack (RFC 3032 §2.1).
            tail.extend(&(key_extra.mpls_label << 4).to_be_bytes()[1..]);
        }
        if key.tunnel {
            tail.extend(key_extra.tunnel_id.to_be_bytes());
        }
        if let Some(seed) = extra_fields.community_seed {
            let id = community_id(record, seed);
            variable(tail, |out| out.extend(id.as_str().as_bytes()));
        }
        if extra_fields.origin.any() {
            let origins = extra.origins.filter(|_| trim < Trim::Origins);
            put_origins(&extra_fields.origin, origins, source, tail);
        }
        for column in lists::columns(extra_fields, is_both) {
            let size = match trim {
                Trim::Nothing => ListSize::Natural,
                Trim::Lists => ListSize::Empty,
                Trim::ShortNumbers => ListSize::Reduced,
                _ if lists::is_byte_histogram(&column) => ListSize::Empty,
                _ => ListSize::Reduced,
            };
            let of = (record, extra, column.side(source));
            lists::put(&column, of, (own, size), numbers, tail);
        }
        let Some(known) = known else { return };
        tail.extend(application_id(known.by));
        let name = known.name().unwrap_or_default();
        variable(tail, |out| out.extend(name.as_bytes()));
        let group = groups.iter().find(|of| of.number == group);
        let Some(group) = group.filter(|group| group.number != 0) else {
            return;
        };
        tail.push(known.found.lost());
        for row in &group.elements {
            if row.element.len == VARIABLE_LEN {
                variable(tail, |out| row.put(&known.found, out));
            } else {
                row.put(&known.found, tail);
            }
        }
    }
}

/// Appends the enrichment of the endpoints.
fn put_origins(parts: &OriginParts, of: Option<&Origins>, source: Side, out: &mut Vec<u8>) {
    let nobody = Origins::default();
    let ends = of.unwrap_or(&nobody);
    let ends = [&ends[source as usize], &ends[source.other() as usize]];
    if parts.network {
        out.extend(ends.iter().flat_map(|end| end.asn.to_be_bytes()));
    }
    for (_, _, text) in TEXTS
        .iter()
        .filter(|(_, is_selected, _)| is_selected(parts))
    {
        for end in ends {
            variable(out, |out| out.extend(text(end).as_bytes()));
        }
    }
}

impl Encoder {
    /// Like `take`, with extra fields.
    pub(super) fn take_rich(
        &mut self,
        records: &[(Record, EndReason)],
        extras: &[OwnedExtra],
    ) -> usize {
        let Some(mut rich) = self.rich.take() else {
            return 0;
        };
        let mut taken = records.len();
        for (count, (record, reason)) in records.iter().enumerate() {
            let extra = extras.get(count).map(OwnedExtra::get).unwrap_or_default();
            let known = rich
                .extra_fields
                .application
                .then(|| Known::of(record, &extra));
            let known = known.as_ref();
            let group = known.map_or(0, |known| rich.group_of(&known.found).number);
            let mut fits = false;
            for trim in Trim::ALL {
                let group = if trim < Trim::ApplicationFields {
                    group
                } else {
                    0
                };
                let rest = Rest {
                    record,
                    extra: &extra,
                    known,
                    group,
                    trim,
                };
                fits = self.push_rich(&mut rich, &rest, *reason);
                if fits || self.record_count != 0 {
                    self.shortened += u64::from(fits && trim > Trim::ShortNumbers);
                    break;
                }
                // Too long for any message.
                self.reset_message();
            }
            if fits {
                self.held.count(record);
            } else if self.record_count != 0 {
                taken = count;
                break;
            } else {
                self.refused[Refusal::TooLarge as usize].count(record);
            }
        }
        self.rich = Some(rich);
        taken
    }

    fn reset_message(&mut self) {
        self.at = HEADER_LEN;
        self.set_index = NO_SET;
    }

    /// Adds one record of both sides, or one for each side that sent: all of them or none.
    fn push_rich(&mut self, rich: &mut Rich, rest: &Rest<'_>, reason: EndReason) -> bool {
        let (record, group) = (rest.record, rest.group);
        let initiator = record.initiator();
        let is_both = self.config.is_biflow && !record.is_one_way();
        let mark = (self.at, self.set_at, self.set_index, self.record_count);
        for side in [initiator, initiator.other()] {
            let is_wanted = match is_both {
                true => side == initiator,
                false => record.sent_by(side).packets != 0,
            };
            if !is_wanted {
                continue;
            }
            let shape = standard_index(record, is_both);
            rich.fill(rest, side, is_both, self.config.own_enterprise);
            let index = INDEX_MIN + group * SHAPES + shape;
            let view = View::new(record, reason, side, self.config.interface);
            if self.push_columns(&view, shape, index, &rich.tail).is_none() {
                (self.at, self.set_at, self.set_index, self.record_count) = mark;
                return false;
            }
        }
        true
    }

    /// Adds the columns of a plain template, and the tail.
    fn push_columns(
        &mut self,
        view: &View<'_>,
        shape: usize,
        index: usize,
        tail: &[u8],
    ) -> Option<()> {
        if index != self.set_index && !self.open_set(index) {
            return None;
        }
        let standard = self.standard(shape).columns;
        let before = match shape & 1 {
            0 => &[],
            _ => self.extra_reverse.as_slice(),
        };
        let mut at = self.at;
        for columns in [before, standard, &self.extra] {
            at = super::put_columns(columns, view, &mut self.buffer, at)?;
        }
        self.buffer
            .get_mut(at..at + tail.len())?
            .copy_from_slice(tail);
        self.at = at + tail.len();
        self.record_count += 1;
        Some(())
    }

    /// Writes the templates of records with extra fields.
    pub(super) fn rich_templates(&self, rich: &Rich, writer: &mut Writer) {
        for group in &rich.groups {
            for shape in self.used() {
                // Only flows with ports have applications.
                let is_icmp = shape & 2 != 0;
                if is_icmp && group.number != 0 {
                    continue;
                }
                let index = INDEX_MIN + group.number * SHAPES + shape;
                let mut fields = Vec::new();
                let mut count = 0;
                for column in self.columns(shape) {
                    self.specify(column, &mut fields);
                    count += 1;
                }
                let own = self.config.own_enterprise;
                count += rich.specifiers(group, shape & 1 != 0, own, &mut fields);
                let mut record = Vec::new();
                record.extend((TEMPLATE_ID_MIN + index as u16).to_be_bytes());
                record.extend((count as u16).to_be_bytes());
                record.extend(fields);
                writer.record(TEMPLATE_SET, &record, false);
            }
        }
    }
}

#[cfg(test)]
mod tests;
