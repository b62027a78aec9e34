//! Extracts the signature of a packet and matches it against a given one, rule by rule as p0f does.
//! The compiler is tested against this.

use std::fmt;

use super::{
    MSS_LEAST, OPTIONS_MAX, Payload, Quirks, Signature, TcpOption, Version, Window, write_layout,
};

/// Packet of a handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handshake {
    /// The SYN of the client.
    Syn,
    /// The SYN+ACK of the server.
    SynAck,
}

/// Fields of a packet that signatures match.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub struct RawSignature {
    pub handshake: Handshake,
    /// Never [`Version::Any`].
    pub version: Version,
    pub ttl: u8,
    pub ip_options: u8,
    /// 0 without the option.
    pub mss: u16,
    pub window: u16,
    /// 0 without the option.
    pub scale: u8,
    pub layout: Vec<TcpOption>,
    /// All quirks except [`Quirks::LINUX`], which depends on the signature.
    pub quirks: Quirks,
    pub has_payload: bool,
    /// The sender's timestamp, if present and nonzero.
    has_ts1: bool,
    /// Length of all headers in bytes.
    headers: u16,
    /// Whether the identification is the low half of sequence number xor timestamp.
    is_linux: bool,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The fields of the IP header that a signature needs.
struct Ip {
    version: Version,
    len: usize,
    /// Number of bytes after the header.
    rest: usize,
    ttl: u8,
    quirks: Quirks,
    id: u16,
}

fn ipv4(packet: &[u8]) -> Option<Ip> {
    let len = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    let flags = u16_at(packet, 6)?;
    let is_fragment = flags & 0x3fff != 0;
    if len < 20 || total < len || is_fragment || *packet.get(9)? != 6 {
        return None;
    }
    let id = u16_at(packet, 4)?;
    let df = flags & 0x4000 != 0;
    let mut quirks = Quirks::default();
    quirks.set(Quirks::ECN, packet[1] & 3 != 0);
    quirks.set(Quirks::RESERVED, flags & 0x8000 != 0);
    quirks.set(Quirks::DF, df);
    quirks.set(Quirks::ID_NONZERO, df && id != 0);
    quirks.set(Quirks::ID_ZERO, !df && id == 0);
    Some(Ip {
        version: Version::V4,
        len,
        rest: total - len,
        ttl: packet[8],
        quirks,
        id,
    })
}

fn ipv6(packet: &[u8]) -> Option<Ip> {
    let first = u32_at(packet, 0)?;
    if *packet.get(6)? != 6 {
        return None;
    }
    let mut quirks = Quirks::default();
    quirks.set(Quirks::ECN, first >> 20 & 3 != 0);
    quirks.set(Quirks::FLOW, first & 0xf_ffff != 0);
    Some(Ip {
        version: Version::V6,
        len: 40,
        rest: u16_at(packet, 4)?.into(),
        ttl: *packet.get(7)?,
        quirks,
        id: 0,
    })
}

/// Extracts the signature of a packet that begins with its IP header; `None` unless it is a SYN or
/// SYN+ACK with complete headers. The payload may be truncated.
pub fn raw_signature(packet: &[u8]) -> Option<RawSignature> {
    let ip = match packet.first()? >> 4 {
        4 => ipv4(packet)?,
        6 => ipv6(packet)?,
        _ => return None,
    };
    let tcp = packet.get(ip.len..)?;
    let flags = u16_at(tcp, 12)?;
    let len = usize::from(flags >> 12) * 4;
    let options = tcp.get(20..len)?;
    let bit = |bit: u16| flags & bit != 0;
    if len > ip.rest || !bit(0x02) || bit(0x01) || bit(0x04) {
        return None;
    }
    let handshake = match bit(0x10) {
        true => Handshake::SynAck,
        false => Handshake::Syn,
    };
    let (seq, ack) = (u32_at(tcp, 4)?, u32_at(tcp, 8)?);
    let mut quirks = ip.quirks;
    quirks.set(Quirks::ECN, flags & 0x01c0 != 0);
    quirks.set(Quirks::SEQ_ZERO, seq == 0);
    quirks.set(Quirks::ACK_NONZERO, !bit(0x10) && ack != 0);
    quirks.set(Quirks::ACK_ZERO, bit(0x10) && ack == 0);
    quirks.set(Quirks::URG, bit(0x20));
    quirks.set(Quirks::URG_POINTER, !bit(0x20) && u16_at(tcp, 18)? != 0);
    quirks.set(Quirks::PUSH, bit(0x08));
    let mut raw = RawSignature {
        handshake,
        version: ip.version,
        ttl: ip.ttl,
        ip_options: (ip.len - if ip.version == Version::V4 { 20 } else { 40 }) as u8,
        mss: 0,
        window: u16_at(tcp, 14)?,
        scale: 0,
        layout: Vec::new(),
        quirks,
        has_payload: ip.rest > len,
        has_ts1: false,
        headers: (ip.len + len) as u16,
        is_linux: false,
    };
    let ts1 = raw.read_options(options);
    raw.is_linux = ip.version == Version::V4
        && ts1.is_some_and(|ts1| u32::from(ip.id) == (seq ^ ts1) & 0xffff);
    Some(raw)
}

impl RawSignature {
    /// Reads options as p0f does; returns the sender's timestamp, if any.
    fn read_options(&mut self, options: &[u8]) -> Option<u32> {
        let mut ts1 = None;
        let mut at = 0;
        while let Some(&kind) = options.get(at) {
            if self.layout.len() == OPTIONS_MAX {
                self.quirks.set(Quirks::BAD, true);
                break;
            }
            let left = &options[at + 1..];
            let (option, len) = match kind {
                0 => {
                    self.quirks
                        .set(Quirks::OPT_NONZERO, left.iter().any(|byte| *byte != 0));
                    self.layout.push(TcpOption::End(left.len() as u8));
                    break;
                }
                1 => (TcpOption::Nop, 1),
                2 => (TcpOption::Mss, 4),
                3 => (TcpOption::WindowScale, 3),
                4 => (TcpOption::SackPermitted, 2),
                5 => (TcpOption::Sack, left.first().copied().unwrap_or(0)),
                8 => (TcpOption::Timestamp, 10),
                kind => (TcpOption::Other(kind), left.first().copied().unwrap_or(0)),
            };
            let least = match option {
                TcpOption::Sack => 10..=34,
                TcpOption::Other(_) => 2..=40,
                _ => 1..=10,
            };
            self.layout.push(option);
            let value = options.get(at..at + usize::from(len));
            let Some(value) = value.filter(|_| least.contains(&len)) else {
                self.quirks.set(Quirks::BAD, true);
                break;
            };
            // Where the kind has a fixed length, the length in the packet does not matter.
            let wrong = kind != 1 && value.get(1) != Some(&len);
            self.quirks.set(Quirks::BAD, wrong);
            if let Some(read) = self.read_option(option, value) {
                ts1 = Some(read);
            }
            at += usize::from(len);
        }
        ts1
    }

    fn read_option(&mut self, option: TcpOption, value: &[u8]) -> Option<u32> {
        match option {
            TcpOption::Mss => self.mss = u16_at(value, 2)?,
            TcpOption::WindowScale => {
                self.scale = *value.get(2)?;
                self.quirks.set(Quirks::EXCESSIVE_SCALE, self.scale > 14);
            }
            TcpOption::Timestamp => {
                let (ts1, ts2) = (u32_at(value, 2)?, u32_at(value, 6)?);
                self.has_ts1 = ts1 != 0;
                self.quirks.set(Quirks::TS1_ZERO, ts1 == 0);
                let is_syn = self.handshake == Handshake::Syn;
                self.quirks.set(Quirks::TS2_NONZERO, is_syn && ts2 != 0);
                return Some(ts1);
            }
            _ => {}
        }
        None
    }

    /// The divisor of the window and its multiple: p0f's search in p0f's order.
    pub(crate) fn multiple(&self) -> Option<Window> {
        let (window, mss) = (u32::from(self.window), u32::from(self.mss));
        if window == 0 || self.mss < MSS_LEAST {
            return None;
        }
        let is_v6 = self.version == Version::V6;
        let (always, v6, ts) = (true, is_v6, self.has_ts1);
        let divisors = [
            (always, mss, false),
            (ts, mss - 12, false),
            (always, 1460, false),
            (always, 1448, false),
            (v6, 1440, false),
            (v6, 1428, false),
            (always, mss + 40, true),
            (always, mss + u32::from(self.headers), true),
            (v6, mss + 60, true),
            (always, 1500, true),
        ];
        let first = divisors
            .into_iter()
            .find(|(applies, divisor, _)| *applies && window.is_multiple_of(*divisor));
        first.map(|(_, divisor, is_mtu)| {
            let times = (window / divisor) as u16;
            if is_mtu {
                Window::Mtu(times)
            } else {
                Window::Mss(times)
            }
        })
    }

    /// The probable initial TTL of the packet.
    pub fn initial_ttl(&self) -> u8 {
        match self.ttl {
            0..=32 => 32,
            33..=64 => 64,
            65..=128 => 128,
            _ => 255,
        }
    }
}

impl fmt::Display for RawSignature {
    /// Formats it as p0f prints `raw_sig`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version == Version::V6 { 6 } else { 4 };
        let hops = self.initial_ttl() - self.ttl;
        // Too many hops to be plausible.
        match hops > super::HOPS_MAX {
            true => write!(f, "{version}:{}+?:", self.ttl)?,
            false => write!(f, "{version}:{}+{hops}:", self.ttl)?,
        }
        write!(f, "{}:", self.ip_options)?;
        write!(f, "{}:", self.mss)?;
        match self.multiple() {
            Some(Window::Mss(times)) => write!(f, "mss*{times}")?,
            Some(Window::Mtu(times)) => write!(f, "mtu*{times}")?,
            _ => write!(f, "{}", self.window)?,
        }
        write!(f, ",{}:", self.scale)?;
        write_layout(f, &self.layout)?;
        let payload = if self.has_payload { '+' } else { '0' };
        write!(f, ":{}:{payload}", self.quirks)
    }
}

/// Whether a packet matches the signature.
pub fn matches(signature: &Signature, raw: &RawSignature) -> bool {
    let quirks = signature.quirks_of(raw.version).without(Quirks::LINUX);
    matches_but_for(signature, raw) && ttl_matches(signature, raw) && quirks == raw.quirks
}

/// Whether a packet matches the signature fuzzily, as in p0f: `df` and `id+` may be absent, `id-`
/// and `ecn` may be present, and the TTL may have any value.
pub fn matches_fuzzy(signature: &Signature, raw: &RawSignature) -> bool {
    let quirks = signature.quirks_of(raw.version).without(Quirks::LINUX);
    let absent = quirks.without(raw.quirks);
    let added = raw.quirks.without(quirks);
    matches_but_for(signature, raw)
        && (!signature.any_distance || ttl_matches(signature, raw))
        && Quirks::DF.with(Quirks::ID_NONZERO).has(absent)
        && Quirks::ID_ZERO.with(Quirks::ECN).has(added)
}

fn ttl_matches(signature: &Signature, raw: &RawSignature) -> bool {
    raw.ttl <= signature.ttl
        && (signature.any_distance || signature.ttl - raw.ttl <= super::HOPS_MAX)
}

/// Whether everything except the TTL and the quirks matches.
fn matches_but_for(signature: &Signature, raw: &RawSignature) -> bool {
    let version = match signature.version {
        Version::Any => true,
        version => version == raw.version,
    };
    let quirks = signature.quirks_of(raw.version);
    let linux = !quirks.has(Quirks::LINUX) || raw.is_linux;
    let window = match signature.window {
        Window::Any => true,
        Window::Exact(window) => raw.window == window,
        Window::Multiple(of) => of != 0 && raw.window.is_multiple_of(of),
        multiple => raw.multiple() == Some(multiple),
    };
    let payload = match signature.payload {
        Payload::None => !raw.has_payload,
        Payload::Some => raw.has_payload,
        Payload::Any => true,
    };
    version
        && signature.ip_options == raw.ip_options
        && signature.mss.is_none_or(|mss| mss == raw.mss)
        && signature.scale.is_none_or(|scale| scale == raw.scale)
        && signature.layout == raw.layout
        && linux
        && window
        && payload
}
