//! Decoders: one file and one row in [`DECODERS`] each.
//!
//! A *stream* decoder reads the bytes of both directions of a TCP connection, in segments of any
//! length; a *datagram* decoder reads whole datagrams, or as much of them as was captured. Between
//! two calls it keeps its state in an [`Arena`] of bounded size. If the protocol switches to
//! another, it returns [`Progress::ProtocolSwitch`].
//!
//! `docs/guides/decoder.md` describes how to add one.

pub(crate) use quic::is_initial as quic_is_initial;
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
mod memcached;
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
mod snmp;
mod socks;
mod ssdp;
mod ssh;
mod table;
mod telnet;
mod tls;
mod vnc;
mod wireguard;

pub use arena::{Arena, PAGE_LEN};
pub(crate) use arena::{Handle, Kind};
pub use table::DECODERS;
pub use tls::{EncryptedMessages, certificate};

/// Direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the initiator of the flow, as far as known.
    Forward = 0,
    /// From the responder.
    Reverse = 1,
}

impl Direction {
    /// The opposite direction.
    pub const fn other(self) -> Direction {
        match self {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        }
    }
}

/// Source and time of data.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The direction.
    pub from: Direction,
    /// Time of arrival in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Ports of the initiator and the responder.
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
    /// A value that the protocol does not allow there.
    BadValue,
    /// Longer than this decoder supports.
    TooLong,
    /// The data look like the protocol, but authentication failed.
    NotAuthentic,
    /// An unsupported version or form.
    Unsupported,
    /// No decoder recognizes the first bytes.
    Unknown,
    /// The limit of packets or bytes was reached before the decoder finished.
    Limit,
}

impl Reason {
    /// Number of reasons.
    pub const COUNT: usize = 8;

    /// All reasons, in the order of their values.
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

/// Result of a decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The decoder has all the data it needs.
    Done,
    /// It needs at least this many more bytes, in either direction.
    Need(usize),
    /// It gave up. What it reported before stays valid.
    Reject(Reason),
    /// Both directions switch to another protocol.
    ProtocolSwitch(ProtocolSwitch),
}

/// The next protocol in a flow: TLS after STARTTLS, or the protocol inside a proxy connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolSwitch {
    /// The next protocol.
    pub next: Next,
    /// Number of input bytes that belong to the old protocol. The rest belongs to the new one, as
    /// does everything that the other direction sends from now on.
    pub used: usize,
}

/// The decoder for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This decoder. The flow keeps its name.
    Decoder(Row),
    /// The decoder identified by the first bytes of either direction.
    Identify,
}

/// Bytes that a direction sent before the decoder returned [`Progress::ProtocolSwitch`], and that
/// belong to the next protocol: a client need not wait for the proxy's reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early<'a> {
    /// The first bytes, at most [`EARLY_MAX`].
    pub(crate) bytes: &'a [u8],
    /// Whether there were more.
    pub(crate) is_cut: bool,
}

/// Maximum number of bytes per direction that a decoder passes to the next one.
pub(crate) const EARLY_MAX: usize = 1024;

/// Context of a call to a decoder.
pub(crate) struct Context<'a> {
    /// Source and time of the data.
    pub(crate) origin: Origin,
    /// Whether there is room to follow flows past their first transaction.
    pub(crate) may_follow: bool,
    /// Whether a decoder requested this and was granted it.
    pub(crate) is_followed: bool,
    /// Whether a decoder requested this and was refused.
    pub(crate) is_refused: bool,
    /// Scratch memory shared by the decoders of a thread; nothing in it outlives a call.
    pub(crate) scratch: &'a mut Scratch,
}

impl Context<'_> {
    /// Requests to read the flow past its first transaction. Call it once per flow.
    pub(crate) fn follow(&mut self) -> bool {
        self.is_followed |= self.may_follow;
        self.is_refused |= !self.may_follow;
        self.may_follow
    }
}

/// Decoder state of one flow. It reads the bytes of both directions of a stream, in segments of any
/// length; or datagrams, or as much of each as was captured.
///
/// The results must not depend on how a stream is segmented.
pub(crate) trait Decode {
    /// Creates the state for a new flow.
    fn new() -> Self
    where
        Self: Sized;

    /// Resets the state of another flow. Large fields that need no initialization are left
    /// unchanged: most flows are read for less than that would cost.
    fn clear(&mut self)
    where
        Self: Sized,
    {
        *self = Self::new();
    }

    /// Reads the next bytes of a direction, all of them; or a datagram.
    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress;

    /// Whether there is anything left to read in a stream's direction.
    fn wants(&self, _from: Direction) -> bool {
        true
    }

    /// Number of next bytes in a stream's direction that do not matter.
    fn skips(&self, _from: Direction) -> u32 {
        0
    }

    /// Skips this many of them.
    fn skip(&mut self, _from: Direction, _len: u32) {}

    /// Bytes of the next protocol that `from` has sent already. Called when the decoder of the
    /// other direction has returned [`Progress::ProtocolSwitch`].
    fn early(&self, _from: Direction) -> Early<'_> {
        Early {
            bytes: &[],
            is_cut: false,
        }
    }

    /// Reports that this many bytes of a stream's direction are missing.
    fn gap(&mut self, _from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        Progress::Reject(Reason::Gap)
    }

    /// Ends the flow: what was held back is reported now.
    fn end(&mut self, _out: &mut dyn FieldSink) {}
}

/// Whether bytes match the beginning of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// More bytes are needed.
    Maybe,
    Yes,
}

/// Maximum number of bytes per direction needed to identify the protocol.
pub const FIRST_MAX: usize = 24;

/// A row in [`DECODERS`].
#[derive(Clone, Copy)]
pub struct DecoderRow {
    /// Name, as in `--decode`.
    pub name: &'static str,
    /// Protocols that it recognises.
    pub protocols: &'static [Protocol],
    /// Transports that carry it.
    pub transports: &'static [Transport],
    /// Ports, registered or customary: for a guess without any data. Few decoders need them to
    /// recognise a protocol.
    pub ports: &'static [u16],
    /// Patterns at the beginning of a stream's direction, or of a datagram.
    pub starts: &'static [Pattern],
    /// Decides whether data that match a pattern belong to the protocol; `None`: they always do.
    /// For a stream it is called with at most [`FIRST_MAX`] bytes, and once it returns `No` it must
    /// return `No` for more.
    pub(crate) check: Option<fn(&First<'_>) -> Match>,
}

/// The beginning of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) transport: Transport,
    pub(crate) ports: [u16; 2],
}

impl First<'_> {
    // Called for every datagram: two comparisons, where searching the slice would be a call.
    #[inline]
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports[0] == port || self.ports[1] == port
    }
}

/// Compares the beginning of data with a pattern.
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

/// Scratch memory shared by the decoders of a thread; nothing in it outlives a call.
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
