//! QUIC packets and frames (RFC 9000 §16, §17.2, §19).

use crate::Reason;

/// Maximum number of frames read per packet.
const FRAME_MAX: usize = 256;

/// Reads an integer of 1 to 8 bytes (RFC 9000 §16).
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let len = (1 << (first >> 6)) - 1;
    let (more, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    let start = u64::from(first & 0x3f);
    Some(
        more.iter()
            .fold(start, |sum, byte| sum << 8 | u64::from(*byte)),
    )
}

/// Positions in a packet with a long header and a length.
pub(super) struct Packet {
    /// Offset of the packet number, which is still protected.
    pub(super) number_at: usize,
    /// Offset after the last byte.
    pub(super) end: usize,
}

/// The packet at the start of a datagram, whose long header ends after `long_len` bytes.
pub(super) fn packet(datagram: &[u8], long_len: usize, is_initial: bool) -> Option<Packet> {
    let mut rest = datagram.get(long_len..)?;
    if is_initial {
        let token_len = usize::try_from(varint(&mut rest)?).ok()?;
        rest = rest.get(token_len..)?;
    }
    let len = usize::try_from(varint(&mut rest)?).ok()?;
    let number_at = datagram.len() - rest.len();
    rest.get(..len)?;
    Some(Packet {
        number_at,
        end: number_at + len,
    })
}

/// Format of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// RFC 9000 §19.
    Ietf,
    /// Google's older frames (quiche, `quic_framer.cc`): the same CRYPTO frame with another number,
    /// and acknowledgements whose type contains the lengths of their numbers.
    Google,
}

/// Iterates over the CRYPTO frames of an Initial packet: offset and data. Other frames that are
/// allowed there (RFC 9000 §12.4) are skipped.
pub(super) fn cryptos(plain: &[u8], kind: Kind) -> Cryptos<'_> {
    Cryptos {
        kind,
        rest: plain,
        left: FRAME_MAX,
    }
}

/// Iterator of [`cryptos`].
pub(super) struct Cryptos<'a> {
    kind: Kind,
    rest: &'a [u8],
    left: usize,
}

const PADDING: u8 = 0;
const PING: u8 = 1;
const ACK: u8 = 2;
const ACK_ECN: u8 = 3;
const CRYPTO: u8 = 6;
const CLOSE: u8 = 0x1c;

// Google's.
const GOOGLE_CLOSE: u8 = 2;
const GOOGLE_PING: u8 = 7;
const GOOGLE_CRYPTO: u8 = 8;

/// Maximum number of acknowledgement ranges skipped.
const ACK_RANGE_MAX: u64 = 256;

impl<'a> Cryptos<'a> {
    /// Returns the next CRYPTO frame, `None` at the end.
    fn step(&mut self) -> Result<Option<(u64, &'a [u8])>, Reason> {
        while self.left != 0 {
            self.left -= 1;
            // Each padding byte is a frame, and there are many.
            let padding = self.rest.iter().take_while(|b| **b == PADDING).count();
            self.rest = &self.rest[padding..];
            let Some((kind, rest)) = self.rest.split_first() else {
                return Ok(None);
            };
            let mut rest = rest;
            let kind = match (self.kind, *kind) {
                (Kind::Ietf, kind) => kind,
                (Kind::Google, GOOGLE_CRYPTO) => CRYPTO,
                (Kind::Google, GOOGLE_PING) => PING,
                (Kind::Google, GOOGLE_CLOSE) => CLOSE,
                (Kind::Google, kind) if kind & 0xc0 == 0x40 => {
                    let len = google_ack_len(kind, rest).ok_or(Reason::BadLength)?;
                    rest = rest.get(len..).ok_or(Reason::BadLength)?;
                    PING
                }
                (Kind::Google, _) => return Err(Reason::BadValue),
            };
            let mut number = || varint(&mut rest).ok_or(Reason::BadLength);
            match kind {
                PING => {}
                ACK | ACK_ECN => {
                    number()?;
                    number()?;
                    let ranges = number()?;
                    number()?;
                    if ranges > ACK_RANGE_MAX {
                        return Err(Reason::TooLong);
                    }
                    let ecn = if kind == ACK_ECN { 3 } else { 0 };
                    for _ in 0..2 * ranges + ecn {
                        number()?;
                    }
                }
                CRYPTO => {
                    let offset = number()?;
                    let len = usize::try_from(number()?).map_err(|_| Reason::BadLength)?;
                    let (data, behind) = rest.split_at_checked(len).ok_or(Reason::BadLength)?;
                    self.rest = behind;
                    return Ok(Some((offset, data)));
                }
                CLOSE => return Ok(None),
                _ => return Err(Reason::BadValue),
            }
            self.rest = rest;
        }
        Ok(None)
    }
}

/// Length of Google's acknowledgement after its type `01nullmm`: the largest number seen (1, 2, 4
/// or 6 bytes by `ll`), a delay of 2 bytes; with `n` a count of blocks; the first block (by `mm`),
/// each other one with its gap; a count of time stamps, the first of 5 bytes, the others of 3.
fn google_ack_len(kind: u8, rest: &[u8]) -> Option<usize> {
    let len_of = |bits: u8| [1, 2, 4, 6][usize::from(bits & 3)];
    let mut at = len_of(kind >> 2) + 2;
    let blocks = match kind & 0x20 {
        0 => 0,
        _ => {
            at += 1;
            usize::from(*rest.get(at - 1)?)
        }
    };
    at += len_of(kind) + blocks * (1 + len_of(kind));
    let stamps = usize::from(*rest.get(at)?);
    at += 1 + if stamps == 0 { 0 } else { 2 + 3 * stamps };
    Some(at)
}

impl<'a> Iterator for Cryptos<'a> {
    type Item = Result<(u64, &'a [u8]), Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.left = 0;
        }
        step.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_the_rfc() {
        // RFC 9000 §A.1.
        let cases: [(&[u8], u64); 4] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, number) in cases {
            for len in 0..bytes.len() {
                assert_eq!(varint(&mut &bytes[..len]), None);
            }
            assert_eq!(varint(&mut &bytes[..]), Some(number));
        }
    }

    #[test]
    fn crypto_is_found_between_other_frames() {
        let plain = [
            0, 0, PING, ACK, 5, 0, 1, 0, 2, 2, CRYPTO, 3, 2, 7, 8, ACK_ECN, 5, 0, 0, 0, 1, 2, 3,
            CRYPTO, 0, 1, 9, 0,
        ];
        let found: std::vec::Vec<_> = cryptos(&plain, Kind::Ietf).collect();
        assert_eq!(found, [Ok((3, &[7u8, 8][..])), Ok((0, &[9][..]))]);
        // A stream frame is not allowed there.
        let mut bad = cryptos(&[8, 0, 0], Kind::Ietf);
        assert_eq!(bad.next(), Some(Err(Reason::BadValue)));
        assert_eq!(bad.next(), None);
        // Google's: an acknowledgement of two blocks with two time stamps.
        let plain = [
            0x60, 9, 1, 1, 1, 2, 3, 4, 2, 0, 1, 1, 1, 1, 0, 2, 2, 7, 8, 5, 1, 9, 0, 0,
        ];
        let found: std::vec::Vec<_> = cryptos(&plain, Kind::Google).collect();
        assert_eq!(found, [Ok((5, &[9u8][..]))]);
        for len in 1..8 {
            let cut = cryptos(&plain[..len], Kind::Google).next();
            assert_eq!(cut, Some(Err(Reason::BadLength)), "{len}");
        }
        assert_eq!(
            cryptos(&[CRYPTO, 0, 5, 1], Kind::Ietf).next(),
            Some(Err(Reason::BadLength))
        );
    }
}
