//! Evaluates received packets: answers are recognized by the cookie alone.

use std::net::IpAddr;

use wire::{Dissection, LayerKind, LinkType, dissect, dissect_inner};

use crate::cookie::{Aim, Cookies};
use crate::plan::Plan;
use crate::probe::Probe;

const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const ACK: u16 = 0x10;

/// What is known of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Something listens.
    Open,
    /// Closed: the host answered with a reset.
    Closed,
    /// Filtered: a router or host reported that the probe was not delivered.
    Filtered,
    /// Not filtered: the host answered, and whether the port is open is not known (ACK probes).
    Unfiltered,
    /// The host exists: it answered a probe that has no port.
    Up,
}

impl State {
    /// The word in reports and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Filtered => "filtered",
            Self::Unfiltered => "unfiltered",
            Self::Up => "up",
        }
    }
}

/// By what it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// SYN and ACK.
    SynAck,
    /// A reset.
    Reset,
    /// A UDP datagram.
    Udp,
    /// An SCTP INIT ACK.
    InitAck,
    /// An SCTP ABORT.
    Abort,
    /// An ICMP echo reply.
    Echo,
    /// An ICMP timestamp reply.
    Timestamp,
    /// An ARP reply.
    Arp,
    /// A Neighbor Advertisement.
    Neighbour,
    /// A packet of the IP protocol that was probed.
    Ip,
    /// An ICMP error that quotes the probe.
    Icmp {
        /// Of ICMP, or of ICMPv6.
        is_ipv6: bool,
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl Evidence {
    /// The word in reports and JSON; nmap's, where nmap has one.
    pub fn word(self) -> &'static str {
        match self {
            Self::SynAck => "syn-ack",
            Self::Reset => "reset",
            Self::Udp => "udp-response",
            Self::InitAck => "init-ack",
            Self::Abort => "abort",
            Self::Echo => "echo-reply",
            Self::Timestamp => "timestamp-reply",
            Self::Arp => "arp-response",
            Self::Neighbour => "nd-response",
            Self::Ip => "proto-response",
            Self::Icmp {
                is_ipv6,
                kind,
                code,
            } => icmp_word(is_ipv6, kind, code),
        }
    }
}

/// RFC 792, RFC 1812 section 5.2.7.1, RFC 4443.
fn icmp_word(is_ipv6: bool, kind: u8, code: u8) -> &'static str {
    match (is_ipv6, kind, code) {
        (false, 3, 0 | 6 | 11) => "net-unreach",
        (false, 3, 1 | 7 | 12) => "host-unreach",
        (false, 3, 2) => "proto-unreach",
        (false, 3, 3) => "port-unreach",
        (false, 3, 9) => "net-prohibited",
        (false, 3, 10) => "host-prohibited",
        (false, 3, 13) => "admin-prohibited",
        (false, 11, _) => "time-exceeded",
        (true, 1, 0) => "no-route",
        (true, 1, 1) => "admin-prohibited",
        (true, 1, 3) => "addr-unreach",
        (true, 1, 4) => "port-unreach",
        (true, 3, _) => "time-exceeded",
        _ => "icmp-error",
    }
}

/// An answer to a probe of this scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The probe's destination.
    pub aim: Aim,
    /// The state of the port.
    pub state: State,
    /// By what.
    pub evidence: Evidence,
    /// TTL or hop limit with which the answer arrived.
    pub ttl: u8,
    /// The sender: the target, or the router that reports an error.
    pub from: IpAddr,
    /// Where in the packet the data of the answer is: what a UDP service said, for one.
    pub payload: (u16, u16),
}

impl Answer {
    /// The data of the answer in its packet; empty if there is none.
    pub fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let (at, len) = (usize::from(self.payload.0), usize::from(self.payload.1));
        packet.get(at..at + len).unwrap_or_default()
    }
}

/// Recognizes answers.
pub struct Judge<'p> {
    plan: &'p Plan,
    cookies: &'p Cookies,
}

impl<'p> Judge<'p> {
    /// Answers to the probes of this plan under these cookies.
    pub fn new(plan: &'p Plan, cookies: &'p Cookies) -> Self {
        Self { plan, cookies }
    }

    /// Evaluates an Ethernet packet; `None` if it is no answer to a probe of this scan.
    ///
    /// Its checksums are not looked at: a packet that comes from this very machine need not have
    /// them yet, and others were checked on the way.
    pub fn judge(&self, packet: &[u8]) -> Option<Answer> {
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        if !self.plan.source().is_own(found.dst_addr()?) {
            return None;
        }
        let from = found.src_addr()?;
        if found.has(LayerKind::Tcp) {
            return self.tcp(from, &found);
        }
        match found.inner_is_quote {
            true => self.quote(from, packet, &found),
            false => None,
        }
    }

    fn tcp(&self, from: IpAddr, found: &Dissection) -> Option<Answer> {
        let (state, evidence) = match found.tcp_flags & (SYN | RST | ACK) {
            flags if flags == SYN | ACK => (State::Open, Evidence::SynAck),
            flags if flags == RST | ACK => (State::Closed, Evidence::Reset),
            _ => return None,
        };
        if !found.has_ports() {
            return None;
        }
        let aim = self.aim(from, found.src_port)?;
        let cookie = self.cookies.of(&aim);
        let is_ours = found.tcp_ack == cookie.seq.wrapping_add(1)
            && found.dst_port == self.plan.source().port(&cookie);
        is_ours.then_some(Answer {
            aim,
            state,
            evidence,
            ttl: found.ttl,
            from,
            payload: (0, 0),
        })
    }

    /// An ICMP error. All of them quote at least the ports and the sequence number (RFC 792).
    fn quote(&self, from: IpAddr, packet: &[u8], found: &Dissection) -> Option<Answer> {
        let mut quoted = Dissection::EMPTY;
        if !dissect_inner(packet, found, &mut quoted) || quoted.ip_protocol != 6 {
            return None;
        }
        if !self.plan.source().is_own(quoted.src_addr()?) || quoted.transport_offset == 0 {
            return None;
        }
        let at = usize::from(quoted.transport_offset);
        let tcp: &[u8; 8] = packet.get(at..at + 8)?.try_into().ok()?;
        let [s0, s1, d0, d1, seq @ ..] = *tcp;
        let aim = self.aim(quoted.dst_addr()?, u16::from_be_bytes([d0, d1]))?;
        let cookie = self.cookies.of(&aim);
        let is_ours = u32::from_be_bytes(seq) == cookie.seq
            && u16::from_be_bytes([s0, s1]) == self.plan.source().port(&cookie);
        is_ours.then_some(Answer {
            aim,
            state: State::Filtered,
            evidence: Evidence::Icmp {
                is_ipv6: found.ip_version == 6,
                kind: found.icmp_type,
                code: found.icmp_code,
            },
            ttl: found.ttl,
            from,
            payload: (0, 0),
        })
    }

    fn aim(&self, addr: IpAddr, port: u16) -> Option<Aim> {
        let probe = Probe::Syn;
        let is_asked =
            self.plan.ports().contains(probe, port) && self.plan.targets().contains(addr);
        is_asked.then_some(Aim { addr, probe, port })
    }
}

#[cfg(test)]
mod tests;
