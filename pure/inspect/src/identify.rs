//! Which decoder a flow belongs to, by its first bytes.

use crate::decode::{DECODERS, DecoderKind, First, Match};
use crate::field::Sink;

/// A set of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoders(u16);

const _: () = assert!(DECODERS.len() <= 16);

impl Decoders {
    /// None.
    pub const NONE: Decoders = Decoders(0);

    /// All.
    pub const ALL: Decoders = Decoders(((1u32 << DECODERS.len()) - 1) as u16);

    /// With the decoder of this name added (a row's, or the name of a protocol that it recognises),
    /// or all of them for `all`.
    pub fn with(self, name: &str) -> Option<Decoders> {
        if name == "all" {
            return Some(Decoders::ALL);
        }
        let at = DECODERS.iter().position(|row| {
            row.name == name || row.protocols.iter().any(|protocol| protocol.name() == name)
        })?;
        Some(Decoders(self.0 | 1 << at))
    }

    /// Those of both.
    pub const fn or(self, other: Decoders) -> Decoders {
        Decoders(self.0 | other.0)
    }

    /// Whether none is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What the first bytes of a direction, or a datagram, are.
pub(crate) enum Found {
    /// Nothing that a decoder reads.
    Unknown,
    /// More bytes will tell.
    Undecided,
    /// The beginning of this.
    Known(DecoderKind),
}

/// Compares with these decoders. Where one knows, it is told to `out`; those that say no leave the
/// set: more bytes do not change their mind.
pub(crate) fn identify(first: &First<'_>, left: &mut Decoders, out: &mut dyn Sink) -> Found {
    let mut found = Found::Unknown;
    let mut asked = left.0;
    while asked != 0 {
        let at = asked.trailing_zeros();
        let bit = 1 << at;
        asked &= !bit;
        let Some(row) = DECODERS.get(at as usize) else {
            break;
        };
        if !row.transports.contains(&first.transport) {
            left.0 &= !bit;
            continue;
        }
        match (row.first)(first) {
            Match::No => left.0 &= !bit,
            Match::Maybe => found = Found::Undecided,
            Match::Yes => {
                // Others say themselves what it is, once they have read on.
                if let [protocol] = row.protocols {
                    out.named(*protocol);
                }
                return Found::Known(row.kind);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Application;
    use crate::ports::Transport;

    fn known(bytes: &[u8], transport: Transport, ports: [u16; 2]) -> Option<DecoderKind> {
        let first = First {
            bytes,
            transport,
            ports,
        };
        let mut out = Application::EMPTY;
        match identify(&first, &mut { Decoders::ALL }, &mut out) {
            Found::Known(kind) => Some(kind),
            _ => None,
        }
    }

    #[test]
    fn who_says_no_does_not_say_yes_to_more() {
        // Beginnings of everything, continued with anything.
        let beginnings: &[&[u8]] = &[
            b"GET /",
            b"HTTP/1.",
            b"PRI * HT",
            b"SIP/2.0 ",
            b"INVITE sip:",
            b"SSH-",
            b"220 ",
            b"ehlo ",
            b"* OK",
            b"\x16\x03\x01\x02\x00\x01",
            b"\x17\x03\x03\0\0",
            b"\x10\x0e\0\x04MQTT",
            b"\0\x1d\xab\xcd\x01\0\0\x01\0\0\0\0\0\0",
            b"",
        ];
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize
        };
        for _ in 0..20_000 {
            let one = beginnings[random() % beginnings.len()];
            let other = beginnings[random() % beginnings.len()];
            let mut bytes = one[..random() % (one.len() + 1)].to_vec();
            bytes.extend(&other[random() % (other.len() + 1)..]);
            bytes.resize_with(crate::decode::FIRST_MAX, || random() as u8);
            for (row, ports) in DECODERS
                .iter()
                .flat_map(|row| [(row, [50_000, 53]), (row, [1, 2])])
            {
                let of = |len: usize| {
                    (row.first)(&First {
                        bytes: &bytes[..len],
                        transport: Transport::Tcp,
                        ports,
                    })
                };
                if !row.transports.contains(&Transport::Tcp) {
                    continue;
                }
                let mut has_refused = false;
                for len in 1..=bytes.len() {
                    let is_refused = of(len) == Match::No;
                    assert!(
                        is_refused || !has_refused,
                        "{}: {}",
                        row.name,
                        bytes[..len].escape_ascii()
                    );
                    has_refused |= is_refused;
                }
            }
        }
    }

    #[test]
    fn beginnings_are_told_apart() {
        let tcp: &[(&[u8], Option<DecoderKind>)] = &[
            (b"GET / HTTP/1.1\r\n", Some(DecoderKind::Http)),
            (b"OPTIONS * HTTP/1.1\r\n", Some(DecoderKind::Http)),
            (b"OPTIONS sip:a@b SIP/2.0\r\n", Some(DecoderKind::Sip)),
            (b"SSH-2.0-x\r\n", Some(DecoderKind::Ssh)),
            (b"220 mail\r\n", Some(DecoderKind::Mail)),
            (b"ehlo me\r\n", Some(DecoderKind::Mail)),
            (b"\x16\x03\x01\x02\x00\x01", Some(DecoderKind::Tls)),
            (b"\x16\x03\x01\x02\x00\x03", None),
            (b"\x10\x0e\x00\x04MQTT", Some(DecoderKind::Mqtt)),
            (b"GETX", None),
            (b"\0\0\0\0", None),
        ];
        for (bytes, kind) in tcp {
            let found = known(bytes, Transport::Tcp, [50_000, 60_000]);
            assert_eq!(found, *kind, "{}", bytes.escape_ascii());
        }
        assert_eq!(known(b"GET / HTTP/1.1", Transport::Udp, [1, 2]), None);
    }

    #[test]
    fn sets_are_made_of_names() {
        let set = Decoders::NONE.with("tls").unwrap().with("smtp").unwrap();
        assert_eq!(
            set,
            Decoders::NONE.with("mail").unwrap().with("tls").unwrap()
        );
        assert_eq!(set.with("all"), Some(Decoders::ALL));
        assert_eq!(set.with("nothing"), None);
        assert!(Decoders::NONE.is_empty());
    }
}
