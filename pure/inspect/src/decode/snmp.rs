//! SNMP versions 1, 2c and 3 (RFC 1157 §4, RFC 3416 §3, RFC 3412 §6): the version, the identifier
//! of the authoritative engine (RFC 3414 §2.4), and the description of the system (sysDescr.0, RFC
//! 3418) in a response.
//!
//! Communities and user names are not reported: they may be secrets.

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern};
use crate::text::{Text, hex};

// Tags (X.690 §8.1.2).
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// PDUs from GetRequest to Report, and of these: Response, Report, and those without an answer (the
/// traps of versions 1 and 2, and an InformRequest, which is as good as one).
const PDUS: core::ops::RangeInclusive<u8> = 0xa0..=0xa8;
const RESPONSE: u8 = 0xa2;
const TRAP_V1: u8 = 0xa4;
const INFORM: u8 = 0xa6;
const TRAP: u8 = 0xa7;
const REPORT: u8 = 0xa8;

/// Object identifier of sysDescr.0.
const SYS_DESCR: &[u8] = &[0x2b, 6, 1, 2, 1, 1, 1, 0];
/// Maximum number of variables read of a response.
const VARIABLES_MAX: usize = 64;
/// Maximum length of an engine's identifier (RFC 3411 §5).
const ENGINE_MAX: usize = 32;

/// A sequence with its length in one, two, three or five bytes, that begins with a version.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::In(0, 0x7f),
        Byte::Is(INTEGER),
        Byte::Is(1),
        Byte::In(0, 3),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x81),
        Byte::Any,
        Byte::Is(INTEGER),
        Byte::Is(1),
        Byte::In(0, 3),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x82),
        Byte::Any,
        Byte::Any,
        Byte::Is(INTEGER),
        Byte::Is(1),
        Byte::In(0, 3),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x84),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Any,
        Byte::Any,
        Byte::Is(INTEGER),
        Byte::Is(1),
        Byte::In(0, 3),
    ]),
];

/// A BER element, as much of it as is present.
struct Element<'a> {
    tag: u8,
    body: &'a [u8],
    /// Whether bytes of the body are missing.
    is_cut: bool,
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let add = |len: usize, digit: &u8| (len << 8) | usize::from(*digit);
            (digits.iter().fold(0, add), rest)
        }
        _ => return None,
    };
    let (body, behind) = rest.split_at(len.min(rest.len()));
    Some(Element {
        tag: *tag,
        body,
        is_cut: body.len() < len,
        rest: behind,
    })
}

/// The next element, if it has this tag.
fn expect(bytes: &[u8], tag: u8) -> Option<Element<'_>> {
    element(bytes).filter(|element| element.tag == tag)
}

struct Message<'a> {
    /// 1, 2 (2c) or 3.
    version: u8,
    engine: &'a [u8],
    /// Tag and contents of the PDU; `None` if it is encrypted.
    pdu: Option<(u8, &'a [u8])>,
}

fn message(bytes: &[u8]) -> Option<Message<'_>> {
    let outer = expect(bytes, SEQUENCE).filter(|outer| outer.rest.is_empty())?;
    let number = expect(outer.body, INTEGER)?;
    match number.body {
        [number @ 0..=1] => {
            let community = expect(outer.body.get(3..)?, OCTETS)?;
            Some(Message {
                version: number + 1,
                engine: &[],
                pdu: Some(pdu(community.rest)?),
            })
        }
        [3] => message_v3(number.rest),
        _ => None,
    }
}

/// The rest of a message of version 3, from `msgGlobalData` on.
fn message_v3(bytes: &[u8]) -> Option<Message<'_>> {
    let head = expect(bytes, SEQUENCE)?;
    let id = expect(head.body, INTEGER)?;
    let len_max = expect(id.rest, INTEGER)?;
    let flags = expect(len_max.rest, OCTETS).filter(|flags| flags.body.len() == 1)?;
    expect(flags.rest, INTEGER)?;
    let security = expect(head.rest, OCTETS)?;
    let parameters = expect(security.body, SEQUENCE)?;
    let engine = expect(parameters.body, OCTETS)?;
    let is_engine = !engine.is_cut && engine.body.len() <= ENGINE_MAX;
    let scoped = element(security.rest)?;
    let pdu = match scoped.tag {
        SEQUENCE => {
            let context = expect(scoped.body, OCTETS)?;
            let name = expect(context.rest, OCTETS)?;
            Some(pdu(name.rest)?)
        }
        OCTETS => None,
        _ => return None,
    };
    Some(Message {
        version: 3,
        engine: if is_engine { engine.body } else { &[] },
        pdu,
    })
}

fn pdu(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let pdu = element(bytes).filter(|pdu| PDUS.contains(&pdu.tag))?;
    pdu.rest.is_empty().then_some((pdu.tag, pdu.body))
}

/// The value of sysDescr.0 in a response, and whether it is cut off.
fn description(pdu: &[u8]) -> Option<(&[u8], bool)> {
    // Request, error status, error index.
    let mut rest = pdu;
    for _ in 0..3 {
        rest = expect(rest, INTEGER)?.rest;
    }
    let mut list = expect(rest, SEQUENCE)?.body;
    for _ in 0..VARIABLES_MAX {
        let variable = expect(list, SEQUENCE)?;
        let name = expect(variable.body, OBJECT)?;
        if name.body == SYS_DESCR {
            let value = expect(name.rest, OCTETS)?;
            return Some((value.body, value.is_cut));
        }
        list = variable.rest;
    }
    None
}

pub(super) fn first(first: &First<'_>) -> Match {
    match message(first.bytes) {
        Some(_) => Match::Yes,
        None => Match::No,
    }
}

/// State of a flow.
pub(crate) struct Snmp {
    has_version: bool,
    has_engine: bool,
}

impl Decode for Snmp {
    fn new() -> Snmp {
        Snmp {
            has_version: false,
            has_engine: false,
        }
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let Some(message) = message(input) else {
            return Progress::Reject(Reason::BadValue);
        };
        if !core::mem::replace(&mut self.has_version, true) {
            out.field(Field::SnmpVersion, Value::Number(message.version.into()));
        }
        if !message.engine.is_empty() && !self.has_engine {
            self.has_engine = true;
            let mut digits = Text::<{ 2 * ENGINE_MAX }>::EMPTY;
            for byte in message.engine {
                digits.push(&hex(*byte));
            }
            out.field(Field::SnmpEngine, digits.value());
        }
        match message.pdu {
            Some((RESPONSE, pdu)) => {
                if let Some((bytes, is_cut)) = description(pdu) {
                    out.field(Field::SnmpSysDescr, Value::Text { bytes, is_cut });
                }
                Progress::Done
            }
            Some((REPORT | TRAP_V1 | TRAP | INFORM, _)) => Progress::Done,
            _ => Progress::Need(1),
        }
    }
}
