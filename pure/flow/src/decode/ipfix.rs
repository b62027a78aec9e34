//! Parses IPFIX messages (RFC 7011) from any exporter.
//!
//! It never panics on any input, and work and memory are bounded: at most [`TEMPLATE_MAX`]
//! templates of [`FIELD_MAX`] fields, and a record always has at least one byte.

use std::collections::HashMap;

use crate::element::VARIABLE_LEN;
use crate::encode::ipfix::{
    HEADER_LEN, OPTIONS_TEMPLATE_SET, SET_HEADER_LEN, TEMPLATE_ID_MIN, TEMPLATE_SET, VERSION,
};

/// Maximum number of templates; more are refused.
pub const TEMPLATE_MAX: usize = 4096;
/// Maximum number of fields of a template; templates with more are refused.
pub const FIELD_MAX: usize = 1024;

/// Why a message, or the rest of it, cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Shorter than a header, or than the length in the header.
    Short,
    /// Not version 10.
    Version,
    /// A set with an impossible length, or one that exceeds the message.
    Set,
    /// A template that is truncated, has no fields or no bytes, or lacks a required scope.
    Template,
    /// Too many templates, or too many fields in one.
    TooMany,
    /// A record whose values exceed its set.
    Record,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the message in bytes.
    pub len: usize,
    /// Export time in seconds since the Unix epoch.
    pub seconds: u32,
    /// Sequence number: the number of data records sent before.
    pub sequence: u32,
    /// Observation domain id.
    pub domain: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Damage::Short`], also if the message continues beyond `bytes`; [`Damage::Version`].
    pub fn parse(bytes: &[u8]) -> Result<Header, Damage> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(Damage::Short);
        };
        let long =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if u16::from_be_bytes([head[0], head[1]]) != VERSION {
            return Err(Damage::Version);
        }
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if len < HEADER_LEN || len > bytes.len() {
            return Err(Damage::Short);
        }
        Ok(Header {
            len,
            seconds: long(4),
            sequence: long(8),
            domain: long(12),
        })
    }
}

/// A field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specifier {
    /// Number of the information element.
    pub id: u16,
    /// Enterprise number; 0 is the IANA registry.
    pub enterprise: u32,
    /// Length in bytes, or [`VARIABLE_LEN`].
    pub len: u16,
}

#[derive(Clone, Debug)]
struct Template {
    fields: Vec<Specifier>,
    scope_count: usize,
    /// Minimum length of a record, above 0.
    len_min: usize,
}

/// A data record.
#[derive(Clone, Copy, Debug)]
pub struct DataRecord<'a> {
    /// Id of the template.
    pub template_id: u16,
    /// Number of scope fields; 0 unless it is an options record.
    pub scope_count: usize,
    /// The observation domain.
    pub domain: u32,
    fields: &'a [Specifier],
    bytes: &'a [u8],
}

impl<'a> DataRecord<'a> {
    /// Fields and their values, in order.
    pub fn values(&self) -> impl Iterator<Item = (Specifier, &'a [u8])> + use<'a> {
        let mut rest = self.bytes;
        self.fields.iter().map_while(move |field| {
            let (value, behind) = value(field, rest)?;
            rest = behind;
            Some((*field, value))
        })
    }

    /// The first value of an element.
    pub fn get(&self, enterprise: u32, id: u16) -> Option<&'a [u8]> {
        let mut values = self.values();
        values
            .find(|(field, _)| (field.enterprise, field.id) == (enterprise, id))
            .map(|(_, value)| value)
    }

    /// The same as an unsigned number of up to eight bytes (RFC 7011 §6.2).
    pub fn unsigned(&self, enterprise: u32, id: u16) -> Option<u64> {
        let value = self.get(enterprise, id)?;
        (value.len() <= 8).then(|| {
            value
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        })
    }

    /// All bytes of the record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Splits off a value.
fn value<'a>(field: &Specifier, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (len, bytes) = if field.len != VARIABLE_LEN {
        (usize::from(field.len), bytes)
    } else {
        match bytes {
            [255, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
            [255, ..] | [] => return None,
            [len, rest @ ..] => (usize::from(*len), rest),
        }
    };
    bytes.split_at_checked(len)
}

/// Templates of one transport session, and loss counters.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    templates: HashMap<(u32, u16), Template>,
    /// Next expected sequence number, by domain.
    expected: HashMap<u32, u32>,
    /// Data records lost, according to the sequence numbers.
    pub missed: u64,
    /// Sets whose template is unknown.
    pub unknown_sets: u64,
}

impl Decoder {
    /// Creates a decoder without templates.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Reads the message at the start of `bytes`, and passes on each data record.
    ///
    /// # Errors
    /// Where the message is damaged. Records before the damage have been passed on.
    pub fn message(
        &mut self,
        bytes: &[u8],
        show: &mut dyn FnMut(&DataRecord<'_>),
    ) -> Result<Header, Damage> {
        let header = Header::parse(bytes)?;
        let mut rest = &bytes[HEADER_LEN..header.len];
        let (mut count, mut unknown) = (0_u32, false);
        while !rest.is_empty() {
            let Some(head) = rest.first_chunk::<SET_HEADER_LEN>() else {
                return Err(Damage::Set);
            };
            let id = u16::from_be_bytes([head[0], head[1]]);
            let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
            let Some(set) = rest.get(SET_HEADER_LEN..len) else {
                return Err(Damage::Set);
            };
            rest = &rest[len..];
            match id {
                TEMPLATE_SET | OPTIONS_TEMPLATE_SET => {
                    self.template_set(header.domain, id == OPTIONS_TEMPLATE_SET, set)?;
                }
                TEMPLATE_ID_MIN.. => match self.templates.get(&(header.domain, id)) {
                    Some(template) => {
                        count += data_set(header.domain, id, template, set, show)?;
                    }
                    None => {
                        self.unknown_sets += 1;
                        unknown = true;
                    }
                },
                // Reserved.
                _ => return Err(Damage::Set),
            }
        }
        if let Some(expected) = self.expected.get(&header.domain) {
            let gap = header.sequence.wrapping_sub(*expected);
            // A late message is not a loss.
            if gap < 1 << 31 {
                self.missed += u64::from(gap);
            }
        }
        if unknown {
            // The number of records in it is unknown.
            self.expected.remove(&header.domain);
        } else if self.expected.len() < TEMPLATE_MAX {
            let next = header.sequence.wrapping_add(count);
            self.expected.insert(header.domain, next);
        }
        Ok(header)
    }

    fn template_set(&mut self, domain: u32, has_scope: bool, set: &[u8]) -> Result<(), Damage> {
        let mut rest = Cursor(set);
        // Remaining bytes shorter than a record are padding.
        while rest.0.len() >= 4 {
            let id = rest.short()?;
            let field_count = usize::from(rest.short()?);
            if field_count == 0 {
                self.withdraw(domain, id);
                continue;
            }
            if id < TEMPLATE_ID_MIN {
                return Err(Damage::Template);
            }
            let scope_count = if has_scope {
                usize::from(rest.short()?)
            } else {
                0
            };
            if has_scope && (scope_count == 0 || scope_count > field_count) {
                return Err(Damage::Template);
            }
            if field_count > FIELD_MAX {
                return Err(Damage::TooMany);
            }
            let fields: Vec<Specifier> = (0..field_count)
                .map(|_| rest.specifier())
                .collect::<Result<_, _>>()?;
            let len_min = fields
                .iter()
                .map(|field| match field.len {
                    VARIABLE_LEN => 1,
                    len => usize::from(len),
                })
                .sum();
            if len_min == 0 {
                return Err(Damage::Template);
            }
            let key = (domain, id);
            if self.templates.len() >= TEMPLATE_MAX && !self.templates.contains_key(&key) {
                return Err(Damage::TooMany);
            }
            let template = Template {
                fields,
                scope_count,
                len_min,
            };
            self.templates.insert(key, template);
        }
        Ok(())
    }

    fn withdraw(&mut self, domain: u32, id: u16) {
        self.templates.retain(|(other, known), template| {
            let is_options = template.scope_count != 0;
            let is_meant = match id {
                TEMPLATE_SET => !is_options,
                OPTIONS_TEMPLATE_SET => is_options,
                id => *known == id,
            };
            *other != domain || !is_meant
        });
    }

    /// Number of known templates.
    pub fn template_count(&self) -> usize {
        self.templates.len()
    }
}

fn data_set(
    domain: u32,
    id: u16,
    template: &Template,
    set: &[u8],
    show: &mut dyn FnMut(&DataRecord<'_>),
) -> Result<u32, Damage> {
    let (mut rest, mut count) = (set, 0);
    // Remaining bytes shorter than a record are padding.
    while rest.len() >= template.len_min {
        let mut behind = rest;
        for field in &template.fields {
            behind = value(field, behind).ok_or(Damage::Record)?.1;
        }
        let (bytes, next) = rest.split_at(rest.len() - behind.len());
        show(&DataRecord {
            template_id: id,
            scope_count: template.scope_count,
            domain,
            fields: &template.fields,
            bytes,
        });
        rest = next;
        count += 1;
    }
    Ok(count)
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn short(&mut self) -> Result<u16, Damage> {
        let (head, rest) = self.0.split_first_chunk::<2>().ok_or(Damage::Template)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*head))
    }

    fn specifier(&mut self) -> Result<Specifier, Damage> {
        let (id, len) = (self.short()?, self.short()?);
        let enterprise = if id & 0x8000 == 0 {
            0
        } else {
            u32::from(self.short()?) << 16 | u32::from(self.short()?)
        };
        Ok(Specifier {
            id: id & 0x7fff,
            enterprise,
            len,
        })
    }
}
