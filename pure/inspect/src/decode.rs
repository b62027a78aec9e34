//! Decoders: one file and one row of [`DECODERS`] each.
//!
//! A *stream* decoder reads the bytes of both directions of a TCP connection, in pieces of any
//! length; a *datagram* decoder is given whole datagrams, or as much of them as was captured. What
//! it keeps between two pieces is its state, in an [`Arena`] of bounded size. A protocol that
//! switches to another returns [`Progress::ProtocolSwitch`].
//!
//! `docs/guides/decoder.md` describes how to add one.

#[cfg(feature = "laws")]
pub use quic::seal as quic_datagram;

use crate::field::{FieldSink, Protocol};
use crate::identify::{Pattern, Row};
use crate::ports::Transport;

mod arena;
mod dhcp;
mod dns;
mod dtls;
mod frame;
mod http;
mod ldap;
mod mail;
mod mqtt;
mod mysql;
mod netbios;
mod ntp;
mod postgresql;
mod quic;
mod rdp;
mod redis;
mod rtp;
mod rtsp;
mod sides;
mod sip;
mod smb;
mod socks;
mod ssdp;
mod ssh;
mod table;
mod tls;
mod wireguard;

pub use arena::{Arena, PAGE_LEN};
pub(crate) use arena::{Handle, Kind};
pub use table::DECODERS;

/// The sender of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// The initiator of the flow, as far as known.
    Forward = 0,
    /// The other one.
    Reverse = 1,
}

impl Direction {
    /// The other one.
    pub const fn other(self) -> Direction {
        match self {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        }
    }
}

/// Source and time of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The sender.
    pub from: Direction,
    /// When, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Ports of the initiator and of the other side.
    pub ports: [u16; 2],
}

/// Why a decoder gave up; the index of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Bytes that it needed were not captured.
    Gap = 0,
    /// A length contradicts another.
    BadLength,
    /// A value that the protocol does not have there.
    BadValue,
    /// Longer than this decoder follows.
    TooLong,
    /// The bytes look like it, but cannot be authenticated.
    NotAuthentic,
    /// A version or a form that is not read.
    Unsupported,
    /// No decoder recognizes the first bytes.
    Unknown,
    /// As many packets or bytes as may be looked at, and still not done.
    Limit,
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All, in the order of their values.
    pub const ALL: [Reason; Reason::COUNT] = [
        Reason::Gap,
        Reason::BadLength,
        Reason::BadValue,
        Reason::TooLong,
        Reason::NotAuthentic,
        Reason::Unsupported,
        Reason::Unknown,
        Reason::Limit,
    ];

    /// A stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Gap => "gap",
            Reason::BadLength => "bad_length",
            Reason::BadValue => "bad_value",
            Reason::TooLong => "too_long",
            Reason::NotAuthentic => "not_authentic",
            Reason::Unsupported => "unsupported",
            Reason::Unknown => "unknown",
            Reason::Limit => "limit",
        }
    }
}

/// What a decoder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has all that it looks for.
    Done,
    /// It needs at least this many bytes more, of either direction.
    Need(usize),
    /// Decoding has stopped. What it reported before stays valid.
    Reject(Reason),
    /// From here on both directions speak something else.
    ProtocolSwitch(ProtocolSwitch),
}

/// What follows within a flow: TLS after STARTTLS, or the protocol inside a proxy connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolSwitch {
    /// What it is.
    pub next: Next,
    /// Bytes of the input that were the old protocol's. The rest is the new one's, as is all that
    /// the other direction sends from now on.
    pub used: usize,
}

/// The decoder for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This decoder. What the flow is called stays.
    Decoder(Row),
    /// Whichever the first bytes of either direction belong to.
    Identify,
}

/// Bytes that a direction sent before a decoder returned [`Progress::ProtocolSwitch`], and that
/// belong to the next protocol: a client need not wait for the proxy's answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early<'a> {
    /// Its first ones, [`EARLY_MAX`] at most.
    pub(crate) bytes: &'a [u8],
    /// Whether there were more.
    pub(crate) is_cut: bool,
}

/// Bytes of a direction that a decoder may hand over.
pub(crate) const EARLY_MAX: usize = 1024;

/// What a decoder is given with each piece.
pub(crate) struct Context<'a> {
    /// Its source and time.
    pub(crate) origin: Origin,
    /// Whether there is room for following flows past their first transaction.
    pub(crate) may_follow: bool,
    /// Whether a decoder requested it, and it was granted.
    pub(crate) is_followed: bool,
    /// Whether a decoder requested it, and it was refused.
    pub(crate) is_refused: bool,
    /// What the decoders of one thread share: nothing of it outlives a call.
    pub(crate) scratch: &'a mut Scratch,
}

impl Context<'_> {
    /// Whether the flow may be read past its first transaction. Call it once per flow.
    pub(crate) fn follow(&mut self) -> bool {
        self.is_followed |= self.may_follow;
        self.is_refused |= !self.may_follow;
        self.may_follow
    }
}

/// A decoder's state of one flow: the bytes of both directions of a stream, in pieces of any
/// length; or its datagrams, or as much of each as was captured.
///
/// What is found must not depend on where a stream is cut.
pub(crate) trait Decode {
    /// The state of a flow that begins.
    fn new() -> Self
    where
        Self: Sized;

    /// As new, in a place that was another flow's. What is large and need not be written is not:
    /// most flows are read for less than it would take.
    fn clear(&mut self)
    where
        Self: Sized,
    {
        *self = Self::new();
    }

    /// Takes the next bytes of a direction, all of them; or a datagram.
    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress;

    /// Whether there is anything left to read in a direction of a stream.
    fn wants(&self, _from: Direction) -> bool {
        true
    }

    /// The next bytes in a direction of a stream, which do not matter.
    fn skips(&self, _from: Direction) -> u32 {
        0
    }

    /// This many of them were skipped.
    fn skip(&mut self, _from: Direction, _len: u32) {}

    /// Bytes of the next protocol that `from` has sent already. Called when the decoder of the
    /// other direction has returned [`Progress::ProtocolSwitch`].
    fn early(&self, _from: Direction) -> Early<'_> {
        Early {
            bytes: &[],
            is_cut: false,
        }
    }

    /// This many bytes of a direction of a stream are missing.
    fn gap(&mut self, _from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        Progress::Reject(Reason::Gap)
    }

    /// Nothing more will be given: what was held back is reported now.
    fn end(&mut self, _out: &mut dyn FieldSink) {}
}

/// Whether bytes may be the beginning of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// More bytes are needed.
    Maybe,
    Yes,
}

/// The most bytes of a direction that it takes to know the protocol.
pub const FIRST_MAX: usize = 24;

/// A row of [`DECODERS`].
#[derive(Clone, Copy)]
pub struct DecoderRow {
    /// Its name, as in `--decode`.
    pub name: &'static str,
    /// What it recognises.
    pub protocols: &'static [Protocol],
    /// What carries it.
    pub transports: &'static [Transport],
    /// Its ports, registered or customary: for the guess when nothing was seen. Few decoders need
    /// them to recognise anything.
    pub ports: &'static [u16],
    /// What a direction of a stream, or a datagram, begins with.
    pub starts: &'static [Pattern],
    /// Whether it is the protocol where a pattern has matched; none: it is. For a stream it is
    /// called with at most [`FIRST_MAX`] bytes, and once it returns `No` it must return `No` for
    /// more.
    pub(crate) check: Option<fn(&First<'_>) -> Match>,
}

/// What a flow begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) transport: Transport,
    pub(crate) ports: [u16; 2],
}

impl First<'_> {
    // Asked of every datagram: two comparisons, where a search of the slice is a call.
    #[inline]
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports[0] == port || self.ports[1] == port
    }
}

/// Compares with the beginning of something.
pub(crate) fn starts(bytes: &[u8], pattern: &[u8]) -> Match {
    let len = bytes.len().min(pattern.len());
    if bytes[..len] != pattern[..len] {
        Match::No
    } else if len == pattern.len() {
        Match::Yes
    } else {
        Match::Maybe
    }
}

/// What the decoders of one thread share: nothing of it outlives a call.
pub(crate) struct Scratch {
    pub(crate) quic: quic::Scratch,
}

impl Scratch {
    pub(crate) const fn new() -> Scratch {
        Scratch {
            quic: quic::Scratch::new(),
        }
    }
}
