//! SCTP INIT (RFC 9260 section 3.3.2): the initiate tag and the source port are keyed.
//!
//! An open port answers with INIT ACK, a closed one with ABORT, both carrying the tag as
//! verification tag (section 8.5.1). An ICMP error quotes only 8 bytes, without the tag, so the IP
//! identification is checked, as for UDP.

use wire::checksum::Sum;
use wire::sctp::Sctp;

use super::{Numbers, Probe, Row, Stamp, Template};
use crate::answer::{Answer, AnswerClassifier, Evidence, Quote, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const LEN: usize = 32;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;

pub(super) static ROW: Row = Row {
    probe: Probe::SctpInit,
    word: "sctp-init",
    protocol: Protocol::Sctp,
    ip_protocol: [132, 132],
    template,
    stamp,
    answer,
    quoted,
    filter: [
        "ip and sctp and dst portrange FIRST-LAST",
        "ip6 and sctp and dst portrange FIRST-LAST",
    ],
    source_port_at: 0,
};

fn template(_: bool, _: Options, _: &Payload) -> Template {
    let mut bytes = vec![0; LEN];
    bytes[12] = INIT;
    bytes[15] = (LEN - 12) as u8;
    // A window of 32 KiB, and 10 streams in each direction.
    bytes[22] = 0x80;
    bytes[25] = 10;
    bytes[27] = 10;
    Template {
        bytes,
        stamp: Stamp::default(),
        has_pseudo: false,
    }
}

/// The initiate tag of a probe; 0 is not allowed (RFC 9260 section 3.3.2).
fn tag(seq: u32) -> u32 {
    seq.max(1)
}

fn stamp(_: &Stamp, sctp: &mut [u8], _: Sum, numbers: &Numbers<'_>) {
    let Some(sctp) = sctp.first_chunk_mut::<LEN>() else {
        return;
    };
    let cookie = numbers.cookie;
    sctp[0..2].copy_from_slice(&numbers.src_port.to_be_bytes());
    sctp[2..4].copy_from_slice(&numbers.port.to_be_bytes());
    sctp[16..20].copy_from_slice(&tag(cookie.seq).to_be_bytes());
    sctp[28..32].copy_from_slice(&cookie.timestamp.to_be_bytes());
    sctp[8..12].fill(0);
    let sum = crc32c(sctp);
    sctp[8..12].copy_from_slice(&sum.to_le_bytes());
}

fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let at = usize::from(packet.found.transport_offset);
    let sctp = Sctp::parse(packet.bytes.get(at..)?).ok()?;
    let (state, evidence) = match sctp.chunks().next()?.kind {
        INIT_ACK => (State::Open, Evidence::InitAck),
        ABORT => (State::Closed, Evidence::Abort),
        _ => return None,
    };
    let (target, cookie) = classifier.target(Probe::SctpInit, packet.from, sctp.src_port())?;
    let is_ours =
        sctp.tag() == tag(cookie.seq) && sctp.dst_port() == classifier.source().port(&cookie);
    is_ours.then(|| packet.answer(target, state, evidence))
}

fn quoted(classifier: &AnswerClassifier<'_>, quote: &Quote<'_>) -> Option<Answer> {
    let [s0, s1, d0, d1, ..] = *quote.start;
    let port = u16::from_be_bytes([d0, d1]);
    let (target, cookie) = classifier.target(Probe::SctpInit, quote.to, port)?;
    let is_ours = quote.ip_id == cookie.ip_id
        && u16::from_be_bytes([s0, s1]) == classifier.source().port(&cookie);
    is_ours.then(|| quote.answer(target, State::Filtered))
}

/// CRC32c table: the remainder of each byte for the Castagnoli polynomial, reflected (RFC 9260
/// appendix A).
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let low = rest & 1;
            rest >>= 1;
            if low != 0 {
                rest ^= 0x82f6_3b78;
            }
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    let add = |sum: u32, byte: &u8| (sum >> 8) ^ REMAINDERS[usize::from(sum as u8 ^ byte)];
    !bytes.iter().fold(u32::MAX, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        // Test vectors of RFC 3720 appendix B.4, and the check value of the CRC catalogue.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
