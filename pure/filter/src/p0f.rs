//! TCP signatures of p0f (p0f's README, "TCP signatures"): the characteristics of a host's SYN.
//!
//! ```text
//! 4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0
//! |  | | |    |   |        |            |    payload: 0, + or *
//! |  | | |    |   |        |            quirks, all of them
//! |  | | |    |   |        TCP options in their order
//! |  | | |    |   window scale
//! |  | | |    window: a number, %n, mss*n, mtu*n
//! |  | | maximum segment size
//! |  | bytes of IPv4 options
//! |  initial TTL; n+d is n seen at a distance of d; n- any TTL up to n
//! IP version: 4, 6 or *
//! ```
//!
//! Signatures have the meaning that p0f documents: `*` is either version and the version is
//! compared, quirks that are not listed are absent, `ack+` is any acknowledgment number without the
//! flag. Where the p0f program differs from its documentation (it ignores the version, checks one
//! bit of `ack+` and not the last byte of `opt+`), the documentation applies.

mod cloudflare;
mod compile;
mod database;
mod parse;
mod raw;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

pub use cloudflare::cloudflare;
pub use compile::{Start, compile, compile_fuzzy};
pub use database::{Database, Found, SIGNATURES_MAX, Unused};
pub use raw::{Handshake, RawSignature, matches, matches_fuzzy, raw_signature};

/// Maximum number of hops that a packet may have taken, p0f's `MAX_DIST`.
pub const HOPS_MAX: u8 = 35;
/// Maximum number of options in a layout, p0f's `MAX_TCP_OPT`.
pub const OPTIONS_MAX: usize = 24;
/// Smallest MSS whose multiples are recognized in windows.
pub const MSS_LEAST: u16 = 100;

/// IP version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub enum Version {
    V4,
    V6,
    /// Either version.
    Any,
}

/// TCP window of a signature.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Window {
    /// `*`: any window.
    Any,
    /// This value.
    Exact(u16),
    /// `%n`: a multiple of n.
    Multiple(u16),
    /// `mss*n`: n times the MSS.
    Mss(u16),
    /// `mtu*n`: n times the MTU.
    Mtu(u16),
}

/// A TCP option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TcpOption {
    /// `eol+n`: end of options, and n bytes after it.
    End(u8),
    /// `nop`.
    Nop,
    /// `mss`.
    Mss,
    /// `ws`.
    WindowScale,
    /// `sok`.
    SackPermitted,
    /// `sack`.
    Sack,
    /// `ts`.
    Timestamp,
    /// `?n`: an option of kind n.
    Other(u8),
}

/// Quirks, as a set of bits.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Quirks(u32);

impl Quirks {
    /// Don't fragment.
    pub const DF: Quirks = Quirks(1);
    /// DF with a nonzero identification.
    pub const ID_NONZERO: Quirks = Quirks(1 << 1);
    /// No DF, and an identification of 0.
    pub const ID_ZERO: Quirks = Quirks(1 << 2);
    /// Explicit congestion notification, in the IP or the TCP header.
    pub const ECN: Quirks = Quirks(1 << 3);
    /// The reserved flag of IPv4.
    pub const RESERVED: Quirks = Quirks(1 << 4);
    /// A nonzero IPv6 flow label.
    pub const FLOW: Quirks = Quirks(1 << 5);
    /// Sequence number 0.
    pub const SEQ_ZERO: Quirks = Quirks(1 << 6);
    /// A nonzero acknowledgment number without the ACK flag.
    pub const ACK_NONZERO: Quirks = Quirks(1 << 7);
    /// The ACK flag with an acknowledgment number of 0.
    pub const ACK_ZERO: Quirks = Quirks(1 << 8);
    /// A nonzero urgent pointer without the URG flag.
    pub const URG_POINTER: Quirks = Quirks(1 << 9);
    /// The URG flag.
    pub const URG: Quirks = Quirks(1 << 10);
    /// The PSH flag.
    pub const PUSH: Quirks = Quirks(1 << 11);
    /// The sender's own timestamp is 0.
    pub const TS1_ZERO: Quirks = Quirks(1 << 12);
    /// The peer's timestamp is nonzero in a SYN.
    pub const TS2_NONZERO: Quirks = Quirks(1 << 13);
    /// Nonzero bytes after the end of options.
    pub const OPT_NONZERO: Quirks = Quirks(1 << 14);
    /// A window scale above 14.
    pub const EXCESSIVE_SCALE: Quirks = Quirks(1 << 15);
    /// Malformed options.
    pub const BAD: Quirks = Quirks(1 << 16);
    /// The identification is the low half of sequence number xor timestamp, as in old versions of
    /// Linux. Not in p0f: an extension of Cloudflare's bpftools.
    pub const LINUX: Quirks = Quirks(1 << 17);

    /// Whether the set contains all of `other`.
    pub fn has(self, other: Quirks) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[must_use]
    pub fn with(self, other: Quirks) -> Quirks {
        Quirks(self.0 | other.0)
    }

    /// This set without `other`.
    #[must_use]
    pub fn without(self, other: Quirks) -> Quirks {
        Quirks(self.0 & !other.0)
    }

    fn set(&mut self, other: Quirks, is_set: bool) {
        if is_set {
            self.0 |= other.0;
        }
    }
}

impl fmt::Debug for Quirks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quirks({self})")
    }
}

impl fmt::Display for Quirks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = QUIRKS.iter().filter(|(_, quirk)| self.has(*quirk));
        for (index, (name, _)) in set.enumerate() {
            write!(f, "{}{name}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Names of the quirks, in p0f's order.
#[rustfmt::skip]
const QUIRKS: [(&str, Quirks); 18] = [
    ("df", Quirks::DF), ("id+", Quirks::ID_NONZERO), ("id-", Quirks::ID_ZERO),
    ("ecn", Quirks::ECN), ("0+", Quirks::RESERVED), ("flow", Quirks::FLOW),
    ("seq-", Quirks::SEQ_ZERO), ("ack+", Quirks::ACK_NONZERO), ("ack-", Quirks::ACK_ZERO),
    ("uptr+", Quirks::URG_POINTER), ("urgf+", Quirks::URG), ("pushf+", Quirks::PUSH),
    ("ts1-", Quirks::TS1_ZERO), ("ts2+", Quirks::TS2_NONZERO), ("opt+", Quirks::OPT_NONZERO),
    ("exws", Quirks::EXCESSIVE_SCALE), ("bad", Quirks::BAD), ("linux", Quirks::LINUX),
];

/// Quirks that cannot occur in IPv6.
const ONLY_V4: Quirks = Quirks(
    Quirks::DF.0 | Quirks::ID_NONZERO.0 | Quirks::ID_ZERO.0 | Quirks::RESERVED.0 | Quirks::LINUX.0,
);

/// Payload of a signature.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Payload {
    /// `0`: no payload.
    None,
    /// `+`: a payload.
    Some,
    /// `*`: with or without payload.
    Any,
}

/// A TCP signature.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Signature {
    /// IP version.
    pub version: Version,
    /// Initial TTL of the packet.
    pub ttl: u8,
    /// Whether any TTL up to the initial one matches (`n-`).
    pub any_distance: bool,
    /// Length of the IPv4 options in bytes.
    pub ip_options: u8,
    /// Maximum segment size; 0 without the option.
    pub mss: Option<u16>,
    /// TCP window.
    pub window: Window,
    /// Window scale; 0 without the option.
    pub scale: Option<u8>,
    /// TCP options in order.
    pub layout: Vec<TcpOption>,
    /// Quirks of a packet; all others are absent.
    pub quirks: Quirks,
    /// Payload.
    pub payload: Payload,
}

impl Signature {
    /// The quirks that apply to packets of an IP version.
    pub fn quirks_of(&self, version: Version) -> Quirks {
        match version {
            Version::V4 => self.quirks.without(Quirks::FLOW),
            Version::V6 => self.quirks.without(ONLY_V4),
            Version::Any => self.quirks,
        }
    }

    /// The IP versions that the signature matches.
    pub fn versions(&self) -> &'static [Version] {
        match self.version {
            Version::V4 => &[Version::V4],
            Version::V6 => &[Version::V6],
            Version::Any => &[Version::V4, Version::V6],
        }
    }

    /// The smallest TTL that matches.
    fn least_ttl(&self) -> u8 {
        match self.any_distance {
            true => 0,
            false => self.ttl.saturating_sub(HOPS_MAX),
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::End(padding) => write!(f, "eol+{padding}"),
            TcpOption::Nop => f.write_str("nop"),
            TcpOption::Mss => f.write_str("mss"),
            TcpOption::WindowScale => f.write_str("ws"),
            TcpOption::SackPermitted => f.write_str("sok"),
            TcpOption::Sack => f.write_str("sack"),
            TcpOption::Timestamp => f.write_str("ts"),
            TcpOption::Other(kind) => write!(f, "?{kind}"),
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u32>| value.map_or("*".to_owned(), |value| value.to_string());
        f.write_str(match self.version {
            Version::V4 => "4:",
            Version::V6 => "6:",
            Version::Any => "*:",
        })?;
        let sign = if self.any_distance { "-" } else { "" };
        write!(f, "{}{sign}:{}:", self.ttl, self.ip_options)?;
        write!(f, "{}:", number(self.mss.map(u32::from)))?;
        match self.window {
            Window::Any => f.write_str("*")?,
            Window::Exact(n) => write!(f, "{n}")?,
            Window::Multiple(n) => write!(f, "%{n}")?,
            Window::Mss(n) => write!(f, "mss*{n}")?,
            Window::Mtu(n) => write!(f, "mtu*{n}")?,
        }
        write!(f, ",{}:", number(self.scale.map(u32::from)))?;
        write_layout(f, &self.layout)?;
        let payload = match self.payload {
            Payload::None => "0",
            Payload::Some => "+",
            Payload::Any => "*",
        };
        write!(f, ":{}:{payload}", self.quirks)
    }
}

fn write_layout(f: &mut fmt::Formatter<'_>, layout: &[TcpOption]) -> fmt::Result {
    for (index, option) in layout.iter().enumerate() {
        write!(f, "{}{option}", if index > 0 { "," } else { "" })?;
    }
    Ok(())
}
