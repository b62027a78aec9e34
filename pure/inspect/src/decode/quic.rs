//! QUIC: the Initial packets of both sides (RFC 9000 §17.2.2), decrypted with keys derived from the
//! client's first connection id (RFC 9001 §5.2), which are not secret, and the hellos in their
//! CRYPTO frames.
//!
//! CRYPTO frames may arrive in any order, over several packets and datagrams; data ahead of the
//! first missing byte are kept within a window of 3072 bytes. The supported versions are in
//! [`VERSIONS`]; for all others only the version is reported.

use super::tls::{Carrier, Hello};
use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};

mod frame;
mod protect;
mod window;

use protect::Keys;
pub(crate) use protect::Scratch;
pub(crate) use window::Window;

/// Number of 64-byte words kept after the first missing byte of a CRYPTO stream.
const WINDOW_WORDS: usize = 48;

/// Versions whose Initial packets can be decrypted with the same keys.
struct Version {
    /// Range of version numbers.
    first: u32,
    last: u32,
    salt: [u8; 20],
    labels: &'static protect::Labels,
    /// Type of Initial packets: bits 4 and 5 of the first byte.
    initial: u8,
    frames: frame::Kind,
}

const SALT_V1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];
const SALT_V2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb,
    0xf9, 0xbd, 0x2e, 0xd9,
];
const SALT_DRAFT_29: [u8; 20] = [
    0xaf, 0xbf, 0xec, 0x28, 0x99, 0x93, 0xd2, 0x4c, 0x9e, 0x97, 0x86, 0xf1, 0x9c, 0x61, 0x11, 0xe0,
    0x43, 0x90, 0xa8, 0x99,
];
const SALT_DRAFT_23: [u8; 20] = [
    0xc3, 0xee, 0xf7, 0x12, 0xc7, 0x2e, 0xbb, 0x5a, 0x11, 0xa7, 0xd2, 0x43, 0x2b, 0xb4, 0x63, 0x65,
    0xbe, 0xf9, 0xf5, 0x02,
];
const SALT_DRAFT_21: [u8; 20] = [
    0x7f, 0xbc, 0xdb, 0x0e, 0x7c, 0x66, 0xbb, 0xe9, 0x19, 0x3a, 0x96, 0xcd, 0x21, 0x51, 0x9e, 0xbd,
    0x7a, 0x02, 0x64, 0x4a,
];
const SALT_T050: [u8; 20] = [
    0x7f, 0xf5, 0x79, 0xe5, 0xac, 0xd0, 0x72, 0x91, 0x55, 0x80, 0x30, 0x4c, 0x43, 0xa2, 0x36, 0x7c,
    0x60, 0x48, 0x83, 0x10,
];
const SALT_T051: [u8; 20] = [
    0x7a, 0x4e, 0xde, 0xf4, 0xe7, 0xcc, 0xee, 0x5f, 0xa4, 0x50, 0x6c, 0x19, 0x12, 0x4f, 0xc8, 0xcc,
    0xda, 0x6e, 0x03, 0x3d,
];

const fn version(first: u32, last: u32, salt: [u8; 20]) -> Version {
    Version {
        first,
        last,
        salt,
        labels: &protect::LABELS_V1,
        initial: 0,
        frames: frame::Kind::Ietf,
    }
}

/// A version of Google's, by its letters.
const fn google(name: [u8; 4], salt: [u8; 20]) -> Version {
    let number = u32::from_be_bytes(name);
    Version {
        frames: frame::Kind::Google,
        ..version(number, number, salt)
    }
}

/// RFC 9001 §5.2, RFC 9369 §3.3.1, draft-ietf-quic-tls; Facebook's numbers for drafts 22 and 27
/// (mvfst), Google's `T050` and `T051` (quiche), which have their own salts.
const VERSIONS: &[Version] = &[
    version(1, 1, SALT_V1),
    Version {
        labels: &protect::LABELS_V2,
        initial: 1,
        ..version(0x6b33_43cf, 0x6b33_43cf, SALT_V2)
    },
    version(0xff00_0021, 0xff00_0022, SALT_V1),
    version(0xff00_001d, 0xff00_0020, SALT_DRAFT_29),
    version(0xff00_0017, 0xff00_001c, SALT_DRAFT_23),
    version(0xff00_0015, 0xff00_0016, SALT_DRAFT_21),
    version(0xface_b001, 0xface_b001, SALT_DRAFT_21),
    version(0xface_b002, 0xface_b002, SALT_DRAFT_23),
    version(0xface_b00e, 0xface_b00e, SALT_DRAFT_23),
    google(*b"T050", SALT_T050),
    google(*b"T051", SALT_T051),
];

/// Candidate versions for the numbers reserved to force negotiation (RFC 9000 §15): no document
/// defines keys for them, so clients use those of the version that they prefer.
const FORCED: &[Version] = &[version(0, 0, SALT_V1), version(0, 0, SALT_DRAFT_29)];

fn is_forced(version: u32) -> bool {
    version & 0x0f0f_0f0f == 0x0a0a_0a0a
}

impl Version {
    /// The candidates for a version number: one, except for numbers that force negotiation; none if
    /// its Initial packets cannot be decrypted.
    fn of(number: u32) -> &'static [Version] {
        let is_it = |row: &&Version| (row.first..=row.last).contains(&number);
        match VERSIONS.iter().find(is_it) {
            Some(row) => core::slice::from_ref(row),
            None if is_forced(number) => FORCED,
            None => &[],
        }
    }
}

/// Whether a version is assigned: RFC, draft, Google (`Q050`, `T051`), Facebook (`0xfaceb0..`), or
/// reserved to force negotiation (RFC 9000 §15). Only datagrams of these versions are identified as
/// QUIC by their first bytes.
fn is_assigned(version: u32) -> bool {
    let [a, b, c, d] = version.to_be_bytes();
    !Version::of(version).is_empty()
        || (a, b, c) == (0xff, 0, 0)
        || (matches!(a, b'Q' | b'T') && b == b'0' && c.is_ascii_digit() && d.is_ascii_digit())
        || (a, b, c) == (0xfa, 0xce, 0xb0)
}

/// A long header with the fixed bit.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[Byte::In(0xc0, 0xff)])];

pub(super) fn first(first: &First<'_>) -> Match {
    // Long header with the fixed bit (Google's Q046 has it, too), and room for the required fields.
    match Long::parse(first.bytes) {
        Some(long) if long.is_fixed && is_assigned(long.version) => Match::Yes,
        _ => Match::No,
    }
}

/// Whether a datagram begins with an Initial packet of a version that can be decrypted.
pub(crate) fn is_initial(bytes: &[u8]) -> bool {
    let Some(long) = Long::parse(bytes) else {
        return false;
    };
    let version = Version::of(long.version).first();
    version.is_some_and(|version| long.is_fixed && (long.first >> 4) & 3 == version.initial)
}

/// The invariant part of a long header (RFC 8999 §5.1).
struct Long<'a> {
    first: u8,
    is_fixed: bool,
    version: u32,
    destination: &'a [u8],
    /// Length up to and including the source connection id.
    len: usize,
}

impl<'a> Long<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Long<'a>> {
        let (head, rest) = bytes.split_first_chunk::<6>()?;
        let (destination, rest) = rest.split_at_checked(head[5].into())?;
        let (source_len, rest) = rest.split_first()?;
        let (source, rest) = rest.split_at_checked(usize::from(*source_len))?;
        // RFC 9000 §17.2: connection ids have at most 20 bytes in every known version.
        if head[0] & 0x80 == 0 || destination.len() > 20 || source.len() > 20 {
            return None;
        }
        Some(Long {
            first: head[0],
            is_fixed: head[0] & 0x40 != 0,
            version: u32::from_be_bytes([head[1], head[2], head[3], head[4]]),
            destination,
            len: bytes.len() - rest.len(),
        })
    }
}

/// Maximum number of packets read per datagram.
const COALESCED_MAX: usize = 8;
/// Number of datagrams with undecryptable Initial packets after which decoding stops.
const BAD_MAX: u8 = 4;

/// State of a connection.
pub(crate) struct Quic {
    /// The client's keys, once they have decrypted one of its packets.
    client: Option<Keys>,
    /// The server's keys, derived on demand.
    server: Option<Keys>,
    /// The version of the keys.
    made_with: &'static Version,
    /// The connection id that the keys are derived from.
    id: [u8; 20],
    id_len: u8,
    bad: u8,
    /// The hello being read: the client's, then the server's.
    reads: Reads,
    version: u32,
    window: Window<WINDOW_WORDS>,
    hello: Hello,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Client,
    Server,
    Nothing,
}

impl Decode for Quic {
    fn new() -> Quic {
        Quic {
            client: None,
            server: None,
            made_with: &VERSIONS[0],
            id: [0; 20],
            id_len: 0,
            bad: 0,
            reads: Reads::Client,
            version: 0,
            window: Window::new(),
            hello: Hello::new(),
        }
    }

    fn clear(&mut self) {
        let Quic {
            client,
            server,
            made_with: _,
            id: _,
            id_len,
            bad,
            reads,
            version,
            window,
            hello,
        } = self;
        (*client, *server) = (None, None);
        (*id_len, *bad, *reads, *version) = (0, 0, Reads::Client, 0);
        window.clear();
        hello.clear();
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let scratch = &mut context.scratch.quic;
        let mut rest = bytes;
        for _ in 0..COALESCED_MAX {
            let Some(long) = Long::parse(rest) else {
                // A short header: the rest is encrypted with keys that only the endpoints have.
                break;
            };
            if self.version == 0 {
                self.version = long.version;
                out.named(Protocol::Quic);
                out.field(Field::QuicVersion, Value::Number(long.version.into()));
            }
            // Version negotiation: the client starts again.
            if long.version == 0 {
                return self.progress();
            }
            let versions = Version::of(long.version);
            let Some(version) = versions.first() else {
                return match is_assigned(long.version) {
                    true => Progress::Reject(Reason::Unsupported),
                    false => self.progress(),
                };
            };
            let kind = (long.first >> 4) & 3;
            let retry = (version.initial + 3) & 3;
            if kind == retry {
                return self.progress();
            }
            let Some(packet) = frame::packet(rest, long.len, kind == version.initial) else {
                break;
            };
            if kind == version.initial {
                match self.initial(versions, &long, &rest[..packet.end], &packet, scratch, out) {
                    Ok(()) => {}
                    Err(reason) => return Progress::Reject(reason),
                }
                if self.reads == Reads::Nothing {
                    return Progress::Done;
                }
            }
            rest = &rest[packet.end..];
        }
        self.progress()
    }
}

impl Quic {
    fn progress(&self) -> Progress {
        match self.reads {
            Reads::Nothing => Progress::Done,
            _ if self.bad >= BAD_MAX => Progress::Reject(Reason::NotAuthentic),
            // A connection id, the shortest packet.
            _ => Progress::Need(21),
        }
    }

    fn initial(
        &mut self,
        versions: &'static [Version],
        long: &Long<'_>,
        bytes: &[u8],
        packet: &frame::Packet,
        scratch: &mut Scratch,
        out: &mut dyn FieldSink,
    ) -> Result<(), Reason> {
        // The direction is a guess, so it does not identify the sender: the keys that fit do.
        let is_same_id = &self.id[..usize::from(self.id_len)] == long.destination;
        if let Some(client) = &self.client {
            // A server's packets never have the client's first connection id as destination;
            // packets to other ids are mostly from the server.
            if !is_same_id {
                let id = &self.id[..usize::from(self.id_len)];
                let Version { salt, labels, .. } = self.made_with;
                let server = &*self
                    .server
                    .get_or_insert_with(|| Keys::of(salt, labels, id, true));
                if let Some(plain) = scratch.open(server, bytes, packet.number_at) {
                    return self.frames(1, plain, out);
                }
            }
            if let Some(plain) = scratch.open(client, bytes, packet.number_at) {
                return self.frames(0, plain, out);
            }
        }
        // The client's first packet, or its first one after a Retry, creates new keys.
        if !is_same_id || self.client.is_none() {
            for version in versions {
                let keys = Keys::of(&version.salt, version.labels, long.destination, false);
                let Some(plain) = scratch.open(&keys, bytes, packet.number_at) else {
                    continue;
                };
                self.id[..long.destination.len()].copy_from_slice(long.destination);
                self.id_len = long.destination.len() as u8;
                if self.client.is_some() && self.reads == Reads::Client {
                    self.window.clear();
                    self.hello.clear();
                }
                (self.client, self.server) = (Some(keys), None);
                self.made_with = version;
                return self.frames(0, plain, out);
            }
        }
        self.bad = self.bad.saturating_add(1);
        Ok(())
    }

    /// Processes the frames of a decrypted packet. `sender` is 0 for the client.
    fn frames(
        &mut self,
        sender: usize,
        plain: &[u8],
        out: &mut dyn FieldSink,
    ) -> Result<(), Reason> {
        let wanted = match self.reads {
            Reads::Client => 0,
            Reads::Server => 1,
            Reads::Nothing => return Ok(()),
        };
        if sender != wanted {
            return Ok(());
        }
        for crypto in frame::cryptos(plain, self.made_with.frames) {
            let (offset, data) = crypto?;
            let hello = &mut self.hello;
            let is_whole = self
                .window
                .take(offset, data, &mut |bytes| hello.feed(bytes))?;
            if is_whole {
                self.hello.report(Carrier::Quic, out);
                self.reads = match self.reads {
                    Reads::Client => Reads::Server,
                    _ => Reads::Nothing,
                };
                self.window.clear();
                self.hello.clear();
                break;
            }
        }
        Ok(())
    }
}

/// A datagram with one authentic Initial packet that contains these frames, for tests. The client's
/// has the destination `id`, the server's none, as for a client without one.
///
/// # Panics
/// If the version is not supported, or the frames do not fit into a datagram.
#[cfg(feature = "laws")]
pub fn seal(
    version: u32,
    id: &[u8],
    is_server: bool,
    number: u32,
    frames: &[u8],
) -> alloc::vec::Vec<u8> {
    let row = Version::of(version)
        .first()
        .expect("a version that can be read");
    let keys = &Keys::of(&row.salt, row.labels, id, is_server);
    // The minimum length that contains a sample (RFC 9001 §5.4.2).
    let mut padded = frames.to_vec();
    padded.resize(frames.len().max(4), 0);
    let mut packet = alloc::vec![0xc3 | row.initial << 4];
    packet.extend(version.to_be_bytes());
    let destination = if is_server { &[][..] } else { id };
    packet.push(destination.len() as u8);
    packet.extend(destination);
    // Neither source id nor token; the length includes the packet number and the tag.
    packet.extend([0, 0]);
    let len = u16::try_from(padded.len() + 20).expect("frames that fit");
    assert!(len < 1 << 14, "too many frames");
    packet.extend((len | 0x4000).to_be_bytes());
    protect::seal(keys, packet, number, &padded)
}
