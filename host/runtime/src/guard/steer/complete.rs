//! Makes packets what a card would have received, before they are returned to the host.
//!
//! Virtual interfaces deliver packets as the sending host has built them: with a checksum that only
//! covers the pseudo header (`CHECKSUM_PARTIAL`), and TCP segments longer than the MTU (GSO). The
//! metadata that states this does not reach AF_XDP. Partial checksums are therefore recognized by
//! their value, and completed; long segments are divided as TCP segmentation offload does.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::checksum::{Sum, checksum};

const ETHERNET_LEN: usize = 14;
const VLAN_LEN: usize = 4;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV6_LEN: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_LEN_MIN: usize = 20;
/// FIN and PSH, which only the last segment has, and CWR, which only the first has (RFC 3168).
const LAST_FLAGS: u8 = 0x01 | 0x08;
const FIRST_FLAGS: u8 = 0x80;

/// Where the headers of a TCP or UDP packet are. The datagram is not a fragment, and complete.
#[derive(Clone, Copy, Debug)]
struct Headers {
    ip: usize,
    is_ipv6: bool,
    transport: usize,
    protocol: u8,
    /// End of the IP packet; Ethernet padding may follow.
    end: usize,
}

impl Headers {
    /// `None` for anything else.
    fn find(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let mut ip = ETHERNET_LEN;
        let mut kind = word(ip - 2)?;
        for _ in 0..2 {
            if VLAN.contains(&kind) {
                ip += VLAN_LEN;
                kind = word(ip - 2)?;
            }
        }
        let (is_ipv6, transport, protocol, len) = match kind {
            IPV4 => {
                let first = *packet.get(ip)?;
                let header_len = usize::from(first & 15) * 4;
                let is_fragment = word(ip + 6)? & 0x3fff != 0;
                if first >> 4 != 4 || header_len < 20 || is_fragment {
                    return None;
                }
                (
                    false,
                    ip + header_len,
                    *packet.get(ip + 9)?,
                    word(ip + 2)?.into(),
                )
            }
            IPV6 => {
                let len = IPV6_LEN + usize::from(word(ip + 4)?);
                (true, ip + IPV6_LEN, *packet.get(ip + 6)?, len)
            }
            _ => return None,
        };
        let end = ip + len;
        let len_min = match protocol {
            TCP => TCP_LEN_MIN,
            UDP => 8,
            _ => return None,
        };
        (transport + len_min <= end && end <= packet.len()).then_some(Self {
            ip,
            is_ipv6,
            transport,
            protocol,
            end,
        })
    }

    fn checksum_at(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }

    /// The sum of the pseudo header, for a transport part of this length.
    fn pseudo(&self, packet: &[u8], len: usize) -> Sum {
        let sum = Sum::new();
        match self.is_ipv6 {
            true => sum
                .add_bytes(&packet[self.ip + 8..self.ip + IPV6_LEN])
                .add_u32(len as u32)
                .add_u32(self.protocol.into()),
            false => sum
                .add_bytes(&packet[self.ip + 12..self.ip + 20])
                .add_u16(self.protocol.into())
                .add_u16(len as u16),
        }
    }

    /// Whether the checksum field has the sum of the pseudo header, as the kernel leaves it for a
    /// card to complete.
    fn is_partial(&self, packet: &[u8]) -> bool {
        let at = self.checksum_at();
        let found = u16::from_be_bytes([packet[at], packet[at + 1]]);
        found == !self.pseudo(packet, self.end - self.transport).finish()
    }

    /// Computes the checksum. A packet with a valid one does not change.
    fn complete(&self, packet: &mut [u8]) {
        let at = self.checksum_at();
        packet[at..at + 2].fill(0);
        let sum = self.pseudo(packet, self.end - self.transport);
        let sum = sum.add_bytes(&packet[self.transport..self.end]).finish();
        // In UDP, 0 means that there is none (RFC 768).
        let sum = match (self.protocol, sum) {
            (UDP, 0) => 0xffff,
            (_, sum) => sum,
        };
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Completes packets of one interface.
#[derive(Debug)]
pub struct Completer {
    /// Longest IP packet.
    mtu: usize,
    /// Whether checksums may be partial.
    completes: bool,
    scratch: Vec<u8>,
}

impl Completer {
    /// `completes`: whether the interface may deliver partial checksums.
    pub fn new(mtu: u32, completes: bool) -> Self {
        Self {
            mtu: mtu as usize,
            completes,
            scratch: Vec::with_capacity(mtu as usize + 64),
        }
    }

    /// Passes the packet to `each`, in as many parts as the MTU needs, with complete checksums.
    /// Stops at the first error.
    ///
    /// # Errors
    /// [`Failed::TooLong`] for a packet that cannot be divided, and those of `each`.
    pub fn pass<E>(
        &mut self,
        packet: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), Failed<E>> {
        // Ethernet with two tags: what is shorter certainly fits.
        let is_long = packet.len() > self.mtu + ETHERNET_LEN;
        if !is_long && !self.completes {
            return each(packet).map_err(Failed::Other);
        }
        let headers = Headers::find(packet);
        if is_long {
            let tags = headers
                .map_or(0, |h| h.ip - ETHERNET_LEN)
                .max(tags_len(packet));
            if packet.len() > self.mtu + ETHERNET_LEN + tags {
                return self.divide(packet, headers, each);
            }
        }
        match headers {
            Some(headers) if self.completes && headers.is_partial(packet) => {
                self.scratch.clear();
                self.scratch.extend_from_slice(packet);
                headers.complete(&mut self.scratch);
                each(&self.scratch).map_err(Failed::Other)
            }
            _ => each(packet).map_err(Failed::Other),
        }
    }

    /// Divides a TCP segment.
    fn divide<E>(
        &mut self,
        packet: &[u8],
        headers: Option<Headers>,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), Failed<E>> {
        let Some(headers) = headers.filter(|h| h.protocol == TCP) else {
            return Err(Failed::TooLong);
        };
        let Headers {
            ip, transport, end, ..
        } = headers;
        let data = transport + usize::from(packet[transport + 12] >> 4) * 4;
        let room = self.mtu.saturating_sub(data.saturating_sub(ip));
        if data < transport + TCP_LEN_MIN || data >= end || room < 8 {
            return Err(Failed::TooLong);
        }
        let sequence = u32::from_be_bytes([0, 1, 2, 3].map(|at| packet[transport + 4 + at]));
        let id = u16::from_be_bytes([packet[ip + 4], packet[ip + 5]]);
        let flags = packet[transport + 13];
        for (number, at) in (data..end).step_by(room).enumerate() {
            let piece = &packet[at..end.min(at + room)];
            let part = &mut self.scratch;
            part.clear();
            part.extend_from_slice(&packet[..data]);
            part.extend_from_slice(piece);
            let len = (part.len() - ip) as u16;
            if headers.is_ipv6 {
                let payload_len = len - IPV6_LEN as u16;
                part[ip + 4..ip + 6].copy_from_slice(&payload_len.to_be_bytes());
            } else {
                part[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes());
                let id = id.wrapping_add(number as u16);
                part[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
                part[ip + 10..ip + 12].fill(0);
                let sum = checksum(&part[ip..transport]);
                part[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            }
            let sequence = sequence.wrapping_add((at - data) as u32);
            part[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            let mut keep = 0xff;
            if at + room < end {
                keep &= !LAST_FLAGS;
            }
            if number != 0 {
                keep &= !FIRST_FLAGS;
            }
            part[transport + 13] = flags & keep;
            let headers = Headers {
                end: part.len(),
                ..headers
            };
            headers.complete(part);
            each(part).map_err(Failed::Other)?;
        }
        Ok(())
    }
}

/// Why a packet was not passed on as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed<E> {
    /// It is longer than the MTU, and not a TCP segment.
    TooLong,
    /// An error of the receiver.
    Other(E),
}

/// Bytes of up to two VLAN tags.
fn tags_len(packet: &[u8]) -> usize {
    let is_tag = |at: usize| {
        let kind = packet.get(at..at + 2);
        kind.is_some_and(|k| VLAN.contains(&u16::from_be_bytes([k[0], k[1]])))
    };
    match (is_tag(12), is_tag(16)) {
        (false, _) => 0,
        (true, false) => VLAN_LEN,
        (true, true) => 2 * VLAN_LEN,
    }
}

/// The source and the destination in the outermost IP header, behind up to two VLAN tags.
pub fn addresses(packet: &[u8]) -> Option<(std::net::IpAddr, std::net::IpAddr)> {
    let ip = ETHERNET_LEN + tags_len(packet);
    let kind = packet.get(ip - 2..ip)?;
    match u16::from_be_bytes([kind[0], kind[1]]) {
        IPV4 => {
            let both = packet.get(ip + 12..ip + 20)?;
            let at = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| both[at + byte]));
            Some((at(0).into(), at(4).into()))
        }
        IPV6 => {
            let both = packet.get(ip + 8..ip + IPV6_LEN)?;
            let (from, to) = both.split_first_chunk::<16>()?;
            let to: &[u8; 16] = to.first_chunk()?;
            Some((Ipv6Addr::from(*from).into(), Ipv6Addr::from(*to).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
