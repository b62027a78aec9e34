//! MQTT: CONNECT and its reply (MQTT 3.1.1 §3.1, §3.2; 5.0 likewise; 3.1 with its older name).

use super::{Context, Decode, First, Match, Progress, Reason, starts};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern};

/// Maximum number of bytes kept of each side: fixed header, variable header and the client
/// identifier.
const KEPT: usize = 160;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;

const NAMES: [&[u8]; 2] = [b"\0\x04MQTT", b"\0\x06MQIsdp"];

/// The remaining length (§2.2.3), and the number of bytes of its encoding.
fn remaining(bytes: &[u8]) -> Result<Option<(u32, usize)>, Reason> {
    let mut sum = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        sum |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((sum, at + 1)));
        }
    }
    match bytes.len() >= 4 {
        true => Err(Reason::BadLength),
        false => Ok(None),
    }
}

pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[Byte::Is(CONNECT)])];

pub(super) fn first(first: &First<'_>) -> Match {
    let Some((kind, rest)) = first.bytes.split_first() else {
        return Match::Maybe;
    };
    if *kind != CONNECT {
        return Match::No;
    }
    match remaining(rest) {
        Err(_) => Match::No,
        Ok(None) => Match::Maybe,
        Ok(Some((len, used))) if len >= 10 => {
            let names = NAMES.iter().map(|name| starts(&rest[used..], name));
            names.max().unwrap_or(Match::No)
        }
        Ok(Some(_)) => Match::No,
    }
}

/// The first bytes of a side.
struct Head {
    bytes: [u8; KEPT],
    len: u8,
    is_over: bool,
}

/// State of a connection.
pub(crate) struct Mqtt {
    sides: [Head; 2],
}

/// Reports the fields of CONNECT, once all of them are present; `is_full` if there will be no more.
fn connect(bytes: &[u8], is_full: bool, out: &mut dyn FieldSink) -> Result<bool, Reason> {
    let Some((len, used)) = remaining(bytes)? else {
        return Ok(false);
    };
    let body = &bytes[used..];
    // The whole packet, or as much of it as is kept.
    let is_whole = body.len() >= len as usize || is_full;
    if !is_whole {
        return Ok(false);
    }
    let body = &body[..body.len().min(len as usize)];
    let name = NAMES.iter().find(|name| body.starts_with(name));
    let rest = &body[name.ok_or(Reason::BadValue)?.len()..];
    let (head, mut rest) = rest.split_first_chunk::<4>().ok_or(Reason::BadLength)?;
    let [version, _flags, keep_high, keep_low] = *head;
    out.field(Field::MqttVersion, Value::Number(version.into()));
    let keep_alive = u16::from_be_bytes([keep_high, keep_low]);
    out.field(Field::MqttKeepAliveS, Value::Number(keep_alive.into()));
    if version == 5 {
        // Properties (5.0 §2.2.2).
        let Some((len, used)) = remaining(rest)? else {
            return Ok(true);
        };
        rest = rest.get(used + len as usize..).unwrap_or(&[]);
    }
    if let Some((len, rest)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len));
        let bytes = &rest[..len.min(rest.len())];
        let is_cut = bytes.len() < len;
        if !bytes.is_empty() {
            out.field(Field::MqttClientId, Value::Text { bytes, is_cut });
        }
    }
    Ok(true)
}

impl Decode for Mqtt {
    fn new() -> Mqtt {
        let head = || Head {
            bytes: [0; KEPT],
            len: 0,
            is_over: false,
        };
        Mqtt {
            sides: [head(), head()],
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let side = &mut self.sides[context.origin.from as usize];
        if !side.is_over {
            let at = usize::from(side.len).min(KEPT);
            let len = input.len().min(KEPT - at);
            side.bytes[at..at + len].copy_from_slice(&input[..len]);
            side.len += len as u8;
            let bytes = &side.bytes[..usize::from(side.len).min(KEPT)];
            let over = match bytes.split_first() {
                Some((&CONNECT, rest)) => connect(rest, bytes.len() == KEPT, out),
                Some((&CONNACK, rest)) if rest.len() >= 3 => {
                    // Length, flags, code.
                    out.field(Field::MqttReturnCode, Value::Number(rest[2].into()));
                    Ok(true)
                }
                Some((&CONNACK, _)) | None => Ok(false),
                Some(_) => Err(Reason::BadValue),
            };
            match over {
                Ok(over) => side.is_over = over,
                Err(reason) => return Progress::Reject(reason),
            }
        }
        match self.sides.iter().all(|side| side.is_over) {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}
