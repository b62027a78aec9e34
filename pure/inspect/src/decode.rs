//! Decoders: one file and one row of [`DECODERS`] each.
//!
//! A *stream* decoder reads the bytes of both directions of a TCP connection, in pieces of any
//! length; a *datagram* decoder is given whole datagrams, or as much of them as was captured. What
//! it keeps between two pieces is its state, whose size is fixed: see [`STREAM_STATE_LEN`].

#[doc(hidden)]
pub use quic::seal as quic_datagram;

use crate::field::{Protocol, Sink};
use crate::ports::Transport;

mod dhcp;
mod dns;
mod http;
pub(crate) mod mail;
mod mqtt;
mod ntp;
mod quic;
mod sip;
mod ssh;
mod tls;

/// Who sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// The side that began the flow, as far as one knows.
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

/// Whence and when a piece came.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Who sent it.
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
    /// No decoder knows the first bytes.
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
    /// It needs at least so many bytes more, of either direction.
    Need(usize),
    /// It gives up. What it told before stays true.
    Reject(Reason),
}

/// A decoder's state of one flow.
pub(crate) trait Decoder {
    /// Takes the next bytes of a direction, all of them.
    fn feed(&mut self, origin: Origin, input: &[u8], out: &mut dyn Sink) -> Progress;

    /// Whether there is anything left to read in a direction.
    fn wants(&self, _from: Direction) -> bool {
        true
    }

    /// So many bytes of a direction are missing.
    fn gap(&mut self, _from: Direction, _len: u32, _out: &mut dyn Sink) -> Progress {
        Progress::Reject(Reason::Gap)
    }
}

/// Whether bytes may be the beginning of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// More bytes will tell.
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
    /// Its ports, registered or customary: for the guess when nothing was seen. Only NTP and DHCP
    /// need them to be recognised.
    pub ports: &'static [u16],
    /// Whether these are the first bytes of a stream ([`FIRST_MAX`] at most), or a datagram.
    pub(crate) first: fn(&First<'_>) -> Match,
    pub(crate) kind: DecoderKind,
}

/// Which state a decoder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecoderKind {
    Tls,
    Quic,
    Http,
    Dns,
    Ssh,
    Mail,
    Mqtt,
    Ntp,
    Dhcp,
    Sip,
}

/// What a flow begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) transport: Transport,
    pub(crate) ports: [u16; 2],
}

impl First<'_> {
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.contains(&port)
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

/// All decoders. The order matters where two say yes at the same byte.
pub const DECODERS: &[DecoderRow] = &[
    DecoderRow {
        name: "tls",
        protocols: &[Protocol::Tls],
        transports: &[Transport::Tcp],
        ports: &[
            443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443, 8883,
        ],
        first: tls::first,
        kind: DecoderKind::Tls,
    },
    DecoderRow {
        name: "quic",
        protocols: &[Protocol::Quic],
        transports: &[Transport::Udp],
        ports: &[443, 784, 853],
        first: quic::first,
        kind: DecoderKind::Quic,
    },
    DecoderRow {
        name: "sip",
        protocols: &[Protocol::Sip],
        transports: &[Transport::Udp, Transport::Tcp],
        ports: &[5060],
        first: sip::first,
        kind: DecoderKind::Sip,
    },
    DecoderRow {
        name: "http",
        protocols: &[Protocol::Http, Protocol::Http2],
        transports: &[Transport::Tcp],
        ports: &[80, 591, 3128, 8000, 8008, 8080, 8888],
        first: http::first,
        kind: DecoderKind::Http,
    },
    DecoderRow {
        name: "ssh",
        protocols: &[Protocol::Ssh],
        transports: &[Transport::Tcp],
        ports: &[22],
        first: ssh::first,
        kind: DecoderKind::Ssh,
    },
    DecoderRow {
        name: "mail",
        protocols: &[
            Protocol::Smtp,
            Protocol::Imap,
            Protocol::Pop3,
            Protocol::Ftp,
        ],
        transports: &[Transport::Tcp],
        ports: &[],
        first: mail::first,
        kind: DecoderKind::Mail,
    },
    DecoderRow {
        name: "mqtt",
        protocols: &[Protocol::Mqtt],
        transports: &[Transport::Tcp],
        ports: &[1883],
        first: mqtt::first,
        kind: DecoderKind::Mqtt,
    },
    DecoderRow {
        name: "ntp",
        protocols: &[Protocol::Ntp],
        transports: &[Transport::Udp],
        ports: &[123],
        first: ntp::first,
        kind: DecoderKind::Ntp,
    },
    DecoderRow {
        name: "dhcp",
        protocols: &[Protocol::Dhcp],
        transports: &[Transport::Udp],
        ports: &[67, 68],
        first: dhcp::first,
        kind: DecoderKind::Dhcp,
    },
    DecoderRow {
        name: "dns",
        protocols: &[Protocol::Dns, Protocol::Mdns, Protocol::Llmnr],
        transports: &[Transport::Udp, Transport::Tcp],
        ports: &[53],
        first: dns::first,
        kind: DecoderKind::Dns,
    },
];

/// The state of a decoder, whichever it is.
#[allow(clippy::large_enum_variant)] // One slot of a slab holds any of them.
pub(crate) enum State {
    None,
    Tls(tls::Tls),
    Quic(quic::Quic),
    Http(http::Http),
    Dns(dns::Stream),
    Ssh(ssh::Ssh),
    Mail(mail::Mail),
    Mqtt(mqtt::Mqtt),
    Sip(sip::Sip),
}

/// Bytes of the state that a stream or QUIC decoder keeps of a flow while it is not done.
pub const STREAM_STATE_LEN: usize = size_of::<State>();

const _: () = assert!(STREAM_STATE_LEN <= 5120);

impl State {
    /// The state of a flow that begins, in a place that may have been another's. What is large and
    /// need not be written is not: most flows are read for less than it would take.
    pub(crate) fn renew(&mut self, kind: DecoderKind) {
        match (kind, &mut *self) {
            (DecoderKind::Tls, State::Tls(tls)) => tls.clear(),
            (DecoderKind::Tls, _) => *self = State::Tls(tls::Tls::new()),
            (DecoderKind::Quic, State::Quic(quic)) => quic.clear(),
            (DecoderKind::Quic, _) => *self = State::Quic(quic::Quic::new()),
            (DecoderKind::Http, State::Http(http)) => http.clear(),
            (DecoderKind::Http, _) => *self = State::Http(http::Http::new()),
            (DecoderKind::Dns, _) => *self = State::Dns(dns::Stream::new()),
            (DecoderKind::Ssh, _) => *self = State::Ssh(ssh::Ssh::new()),
            (DecoderKind::Mail, _) => *self = State::Mail(mail::Mail::new()),
            (DecoderKind::Mqtt, _) => *self = State::Mqtt(mqtt::Mqtt::new()),
            (DecoderKind::Sip, _) => *self = State::Sip(sip::Sip::new()),
            (DecoderKind::Ntp | DecoderKind::Dhcp, _) => *self = State::None,
        }
    }

    fn decoder(&mut self) -> Option<&mut dyn Decoder> {
        Some(match self {
            State::None => return None,
            State::Tls(state) => state,
            State::Quic(_) => return None,
            State::Http(state) => state,
            State::Dns(state) => state,
            State::Ssh(state) => state,
            State::Mail(state) => state,
            State::Mqtt(state) => state,
            State::Sip(state) => state,
        })
    }

    /// Takes the next bytes of a stream.
    pub(crate) fn feed(&mut self, origin: Origin, input: &[u8], out: &mut dyn Sink) -> Progress {
        match self.decoder() {
            Some(decoder) => decoder.feed(origin, input, out),
            None => Progress::Reject(Reason::Unsupported),
        }
    }

    /// Whether more bytes of a direction matter.
    pub(crate) fn wants(&mut self, from: Direction) -> bool {
        self.decoder().is_none_or(|decoder| decoder.wants(from))
    }

    /// So many bytes of a stream are missing.
    pub(crate) fn gap(&mut self, from: Direction, len: u32, out: &mut dyn Sink) -> Progress {
        match self.decoder() {
            Some(decoder) => decoder.gap(from, len, out),
            None => Progress::Reject(Reason::Gap),
        }
    }
}

/// What datagram decoders keep of a flow; in the flow's own slot.
#[derive(Clone)]
pub(crate) struct Small {
    dns: dns::Datagrams,
    ntp: ntp::Ntp,
}

impl Small {
    pub(crate) const NEW: Small = Small {
        dns: dns::Datagrams::NEW,
        ntp: ntp::Ntp::NEW,
    };
}

/// What the decoders of one thread share: nothing of it outlives a packet.
pub(crate) struct Scratch {
    quic: quic::Scratch,
}

impl Scratch {
    pub(crate) const fn new() -> Scratch {
        Scratch {
            quic: quic::Scratch::new(),
        }
    }
}

/// Gives a datagram to the decoder of this kind. `bytes` are what was captured of `len`.
pub(crate) fn datagram(
    kind: DecoderKind,
    small: &mut Small,
    large: Option<&mut State>,
    scratch: &mut Scratch,
    origin: Origin,
    bytes: &[u8],
    out: &mut dyn Sink,
) -> Progress {
    match kind {
        DecoderKind::Dns => small.dns.datagram(origin, bytes, out),
        DecoderKind::Ntp => small.ntp.datagram(bytes, out),
        DecoderKind::Dhcp => dhcp::datagram(bytes, out),
        DecoderKind::Sip => sip::datagram(bytes, out),
        DecoderKind::Quic => match large {
            Some(State::Quic(quic)) => quic.datagram(bytes, &mut scratch.quic, out),
            _ => Progress::Reject(Reason::Unsupported),
        },
        _ => Progress::Reject(Reason::Unsupported),
    }
}
