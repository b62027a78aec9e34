//! DHCP (RFC 2131, options of RFC 2132): the client, its request, and the lease.

use core::net::Ipv4Addr;

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};
use crate::text::{Text, decimal, hex};

/// Length of the fixed part with the magic cookie.
const HEADER_LEN: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Maximum number of options read.
const OPTION_MAX: usize = 128;

fn is_message(bytes: &[u8]) -> bool {
    bytes.get(236..HEADER_LEN) == Some(&COOKIE[..]) && matches!(bytes[0], 1 | 2) && bytes[2] <= 16
}

pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[Byte::In(1, 2)])];

pub(super) fn first(first: &First<'_>) -> Match {
    let ports = first.has_port(67) || first.has_port(68);
    match ports && is_message(first.bytes) {
        true => Match::Yes,
        false => Match::No,
    }
}

/// No state is kept between messages: everything reported is in the first one.
pub(super) struct Dhcp;

impl Decode for Dhcp {
    fn new() -> Dhcp {
        Dhcp
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        datagram(input, out)
    }
}

fn datagram(bytes: &[u8], out: &mut dyn FieldSink) -> Progress {
    if !is_message(bytes) {
        return Progress::Reject(Reason::BadValue);
    }
    out.named(Protocol::Dhcp);
    if bytes[1] == 1 && bytes[2] == 6 {
        let mut text = Text::<17>::EMPTY;
        for (at, byte) in bytes[28..34].iter().enumerate() {
            if at != 0 {
                text.push(b":");
            }
            text.push(&hex(*byte));
        }
        out.field(Field::DhcpMac, text.value());
    }
    let given = Ipv4Addr::new(bytes[16], bytes[17], bytes[18], bytes[19]);
    if !given.is_unspecified() {
        out.field(Field::DhcpOffered, Value::Address(given.into()));
    }
    let mut rest = &bytes[HEADER_LEN..];
    let mut kind = 0;
    for _ in 0..OPTION_MAX {
        let Some((option, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        match option {
            0 => continue,
            255 => break,
            _ => {}
        }
        let Some((len, behind)) = rest.split_first() else {
            break;
        };
        let whole = behind.split_at_checked(usize::from(*len));
        // Options truncated by the capture are not reported.
        let Some((value, behind)) = whole else { break };
        rest = behind;
        if *option == 53 {
            kind = value.first().copied().unwrap_or(0);
        }
        report(*option, value, out);
    }
    // An acknowledgement or its refusal ends the exchange.
    match kind {
        5 | 6 => Progress::Done,
        _ => Progress::Need(HEADER_LEN),
    }
}

fn report(option: u8, value: &[u8], out: &mut dyn FieldSink) {
    match option {
        53 => {
            if let [kind] = value {
                out.field(Field::DhcpType, Value::Number((*kind).into()));
            }
        }
        12 | 60 => {
            // Some clients count a trailing zero (RFC 2132 §2 forbids it).
            let end = value.iter().rposition(|byte| *byte != 0);
            let text = &value[..end.map_or(0, |end| end + 1)];
            let field = match option {
                12 => Field::DhcpHostName,
                _ => Field::DhcpVendor,
            };
            if !text.is_empty() {
                out.field(field, Value::text(text));
            }
        }
        50 => {
            if let Ok(octets) = <[u8; 4]>::try_from(value) {
                let addr = Ipv4Addr::from(octets);
                out.field(Field::DhcpRequested, Value::Address(addr.into()));
            }
        }
        55 => {
            let mut text = Text::<128>::EMPTY;
            for (at, parameter) in value.iter().enumerate() {
                if at != 0 {
                    text.push(b",");
                }
                text.push(decimal((*parameter).into(), &mut [0; 20]));
            }
            out.field(Field::DhcpParameters, text.value());
        }
        _ => {}
    }
}
