//! Checks whether data answer a request, by the identification that answers echo.

use super::{hex, positive};

/// For requests without an identification: any data may be an answer.
pub(super) fn any(_: &[u8], _: u32) -> Option<bool> {
    None
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

fn half(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

/// DNS and NBNS: a response (RFC 1035 section 4.1.1).
pub(super) fn dns(data: &[u8], key: u32) -> Option<bool> {
    (data.len() >= 12 && data[2] & 0x80 != 0).then(|| half(data, 0) == Some(key as u16))
}

/// NTP: a server's packet echoes the probe's transmit timestamp as its origin (RFC 5905 section
/// 7.3).
pub(super) fn ntp(data: &[u8], key: u32) -> Option<bool> {
    (data.len() >= 48 && data[0] & 7 == 4).then(|| word(data, 28) == Some(key))
}

/// SNMP v1 and v2c: the request id of the response (RFC 3416 section 3).
pub(super) fn snmp(data: &[u8], key: u32) -> Option<bool> {
    let (0x30, message, _) = ber(data)? else {
        return None;
    };
    let (2, [0 | 1], rest) = ber(message)? else {
        return None;
    };
    let (4, _, rest) = ber(rest)? else {
        return None;
    };
    let (0xa2, pdu, _) = ber(rest)? else {
        return None;
    };
    Some(ber(pdu)?.1 == positive(key).to_be_bytes())
}

/// SNMP v3: the message id of a report (RFC 3412 section 6).
pub(super) fn snmp_v3(data: &[u8], key: u32) -> Option<bool> {
    let (0x30, message, _) = ber(data)? else {
        return None;
    };
    let (2, [3], rest) = ber(message)? else {
        return None;
    };
    let (0x30, header, _) = ber(rest)? else {
        return None;
    };
    Some(ber(header)?.1 == positive(key).to_be_bytes())
}

/// Tag, contents and remainder of a BER element with a definite length.
fn ber(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, len], rest) = data.split_first_chunk()?;
    let (len, rest) = match len {
        0..=0x7f => (usize::from(len), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(len - 0x80))?;
            let len = bytes
                .iter()
                .fold(0, |len, byte| (len << 8) | usize::from(*byte));
            (len, rest)
        }
        _ => return None,
    };
    // A response may be truncated.
    let (contents, rest) = rest.split_at(len.min(rest.len()));
    Some((tag, contents, rest))
}

/// SIP: a response echoes the branch and the call id (RFC 3261 section 8.2.6.2).
pub(super) fn sip(data: &[u8], key: u32) -> Option<bool> {
    let digits = hex(key);
    let has = || data.windows(digits.len()).any(|window| window == digits);
    data.starts_with(b"SIP/2.0 ").then(has)
}

/// memcached over UDP: the request id of the frame header.
pub(super) fn memcached(data: &[u8], key: u32) -> Option<bool> {
    (data.len() >= 8 && data[2..4] == [0, 0]).then(|| half(data, 0) == Some(key as u16))
}

/// QUIC version negotiation: version 0, and the probe's source connection id as destination (RFC
/// 8999).
pub(super) fn quic(data: &[u8], key: u32) -> Option<bool> {
    let is_negotiation = *data.first()? & 0x80 != 0 && word(data, 1) == Some(0);
    is_negotiation.then(|| data.get(5) == Some(&8) && word(data, 6) == Some(key))
}

/// TFTP: an error, or the first block of data, or accepted options (RFC 1350, RFC 2347).
pub(super) fn tftp(data: &[u8], _: u32) -> Option<bool> {
    match data {
        [0, 5, 0, 0..=8, ..] | [0, 3, 0, 1, ..] | [0, 6, ..] => Some(true),
        _ => None,
    }
}

/// SSDP: a response to the search, which may come from any port.
pub(super) fn ssdp(data: &[u8], _: u32) -> Option<bool> {
    data.starts_with(b"HTTP/1.1 200").then_some(true)
}

/// ONC RPC: the transaction id of a reply (RFC 5531 section 9).
pub(super) fn rpc(data: &[u8], key: u32) -> Option<bool> {
    (word(data, 4)? == 1).then(|| word(data, 0) == Some(key))
}

/// ISAKMP: the initiator's cookie (RFC 2408 section 3.1).
pub(super) fn isakmp(data: &[u8], key: u32) -> Option<bool> {
    let is_whole = data.len() >= 28 && matches!(data[17], 0x10 | 0x20);
    is_whole.then(|| word(data, 0) == Some(key))
}

/// CoAP: the token, after a header of four bytes (RFC 7252 section 3).
pub(super) fn coap(data: &[u8], key: u32) -> Option<bool> {
    match *data.first()? {
        first if first >> 6 != 1 => None,
        // An empty acknowledgment or a reset has only the message id, which is not keyed.
        first if first & 15 == 4 => Some(word(data, 4) == Some(key)),
        _ => None,
    }
}

/// STUN: the transaction id of a response (RFC 8489 section 5).
pub(super) fn stun(data: &[u8], key: u32) -> Option<bool> {
    let is_response = data.len() >= 20 && data[0] == 1 && word(data, 4) == Some(0x2112_a442);
    is_response.then(|| word(data, 8) == Some(key))
}

/// Connectionless LDAP: the message id (RFC 4511 section 4.1.1).
pub(super) fn ldap(data: &[u8], key: u32) -> Option<bool> {
    let (0x30, message, _) = ber(data)? else {
        return None;
    };
    let (2, id, _) = ber(message)? else {
        return None;
    };
    Some(id == positive(key).to_be_bytes())
}

/// OpenVPN: the acknowledged session id in a hard reset from the server.
pub(super) fn openvpn(data: &[u8], key: u32) -> Option<bool> {
    let is_reset = data.len() >= 22 && data[0] >> 3 == 8 && data[9] == 1;
    is_reset.then(|| word(data, 14) == Some(key))
}

/// EtherNet/IP: the sender's context (List Identity).
pub(super) fn enip(data: &[u8], key: u32) -> Option<bool> {
    (data.len() >= 24 && data[..2] == [0x63, 0]).then(|| word(data, 12) == Some(key))
}
