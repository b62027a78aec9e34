//! Generates packets from a template.
//!
//! Everything constant is laid out once, and summed once for the checksums. A packet is then a copy
//! of that image, with the varying fields written over zeros and their values added to the sums:
//! equation 3 of RFC 1624 with an old value of 0. The sum over the payload comes from a table by
//! length, so a packet of any size costs the same few additions.

use wire::checksum;

use crate::range::{Range, Walk};
use crate::rng::Rng;
use crate::size::SizeWalk;
use crate::template::{Addresses, L4, Template};
use crate::vlan::TAG_COUNT_MAX;
use crate::{Error, PACKET_LEN_MIN, Result};

const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

/// Maximum length of an IP payload, and of an IPv4 datagram.
const IP_LEN_MAX: usize = 65_535;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
    Icmp,
    Icmp6,
}

impl Transport {
    fn header_len(self) -> usize {
        if self == Self::Tcp { 20 } else { 8 }
    }

    fn protocol(self) -> u8 {
        match self {
            Self::Udp => 17,
            Self::Tcp => 6,
            Self::Icmp => 1,
            Self::Icmp6 => 58,
        }
    }

    /// Offset of the checksum in the header.
    fn checksum_offset(self) -> usize {
        match self {
            Self::Udp => 6,
            Self::Tcp => 16,
            Self::Icmp | Self::Icmp6 => 2,
        }
    }

    /// How many times the checksum includes the length of header and payload: in the pseudo header,
    /// and in UDP's own field.
    fn length_count(self) -> u64 {
        match self {
            Self::Udp => 2,
            Self::Tcp | Self::Icmp6 => 1,
            Self::Icmp => 0,
        }
    }
}

/// Fields that change from packet to packet; constant fields are in the image.
#[derive(Clone, Debug, Default)]
struct Varying {
    dst_mac: Option<Walk>,
    src_mac: Option<Walk>,
    src: Option<Walk>,
    dst: Option<Walk>,
    src_port: Option<Walk>,
    dst_port: Option<Walk>,
}

/// Writes any number of packets of a [`Template`].
#[derive(Clone, Debug)]
pub struct Generator {
    /// The longest packet, with the varying fields zero.
    image: Vec<u8>,
    transport: Transport,
    is_v6: bool,
    ip_at: usize,
    transport_at: usize,
    payload_at: usize,
    /// Sum over the fixed part of the IPv4 header.
    ip_sum: u64,
    /// Sum over the fixed part of pseudo header and transport header.
    transport_sum: u64,
    /// Sums over the first 2n bytes of the payload.
    payload_sums: Vec<u16>,
    varying: Varying,
    sizes: SizeWalk,
    /// Length of the datagram if padding follows it; otherwise the datagram fills the packet.
    datagram_len: Option<usize>,
    packet_len_max: usize,
    next_len: usize,
    rng: Rng,
    count: u64,
}

impl Generator {
    pub(crate) fn new(template: &Template) -> Result<Self> {
        let is_v6 = matches!(template.addresses, Addresses::V6 { .. });
        let transport = match template.l4 {
            L4::Udp(_) => Transport::Udp,
            L4::Tcp(_) => Transport::Tcp,
            L4::Icmp(_) if is_v6 => Transport::Icmp6,
            L4::Icmp(_) => Transport::Icmp,
        };
        if template.tags.len() > TAG_COUNT_MAX {
            return Err(Error::new(format!("more than {TAG_COUNT_MAX} VLAN tags")));
        }
        if ports_of(&template.l4).iter().any(|r| r.max() > 65_535) {
            return Err(Error::new("a port is a number from 0 to 65535"));
        }
        let ip_at = 14 + 4 * template.tags.len();
        let ip_header_len = if is_v6 {
            IPV6_HEADER_LEN
        } else {
            IPV4_HEADER_LEN
        };
        let transport_at = ip_at + ip_header_len;
        let payload_at = transport_at + transport.header_len();
        let shortest = payload_at + template.payload.len();
        let len_min = template.sizes.min().unwrap_or(shortest);
        let len_max = template.sizes.max().unwrap_or(shortest.max(PACKET_LEN_MIN));
        if len_min < payload_at {
            let why = format!("{len_min} bytes are too short: the headers alone are {payload_at}");
            return Err(Error::new(why));
        }
        let limit = if is_v6 { transport_at } else { ip_at } + IP_LEN_MAX;
        if len_max > limit {
            let why = format!("{len_max} bytes are too long: an IP packet ends at {limit}");
            return Err(Error::new(why));
        }
        let mut new = Self {
            image: vec![0; len_max],
            transport,
            is_v6,
            ip_at,
            transport_at,
            payload_at,
            ip_sum: 0,
            transport_sum: 0,
            payload_sums: Vec::new(),
            varying: Varying::default(),
            sizes: SizeWalk::new(
                &template.sizes,
                shortest.max(PACKET_LEN_MIN),
                template.order,
            ),
            datagram_len: template.sizes.max().is_none().then_some(shortest - ip_at),
            packet_len_max: len_max,
            next_len: 0,
            rng: Rng::new(template.seed),
            count: 0,
        };
        new.lay_out(template);
        new.next_len = new.sizes.next(&mut new.rng);
        Ok(new)
    }

    /// Writes everything constant into the image, and sums it.
    fn lay_out(&mut self, template: &Template) {
        let (ip, l4, order) = (self.ip_at, self.transport_at, template.order);
        let vary = |range: &Range, at: usize, len: usize, image: &mut [u8]| match range.single() {
            Some(value) => {
                image[at..at + len].copy_from_slice(&value.to_be_bytes()[16 - len..]);
                None
            }
            None => Some(Walk::new(range.clone(), order)),
        };
        let image = &mut self.image;
        self.varying.dst_mac = vary(&template.dst_mac, 0, 6, image);
        self.varying.src_mac = vary(&template.src_mac, 6, 6, image);
        for (i, tag) in template.tags.iter().enumerate() {
            image[12 + 4 * i..][..2].copy_from_slice(&tag.tpid.to_be_bytes());
            image[14 + 4 * i..][..2].copy_from_slice(&tag.tci.to_be_bytes());
        }
        let ethertype: u16 = if self.is_v6 { 0x86dd } else { 0x0800 };
        image[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
        match &template.addresses {
            Addresses::V4 { src, dst } => {
                image[ip] = 0x45;
                image[ip + 1] = template.traffic_class;
                image[ip + 6] = 0x40; // do not fragment
                image[ip + 8] = template.ttl;
                image[ip + 9] = self.transport.protocol();
                self.varying.src = vary(src, ip + 12, 4, image);
                self.varying.dst = vary(dst, ip + 16, 4, image);
            }
            Addresses::V6 { src, dst } => {
                image[ip] = 0x60 | template.traffic_class >> 4;
                image[ip + 1] = template.traffic_class << 4;
                image[ip + 6] = self.transport.protocol();
                image[ip + 7] = template.ttl;
                self.varying.src = vary(src, ip + 8, 16, image);
                self.varying.dst = vary(dst, ip + 24, 16, image);
            }
        }
        match &template.l4 {
            L4::Udp(udp) => {
                self.varying.src_port = vary(&udp.src_port, l4, 2, image);
                self.varying.dst_port = vary(&udp.dst_port, l4 + 2, 2, image);
            }
            L4::Tcp(tcp) => {
                self.varying.src_port = vary(&tcp.src_port, l4, 2, image);
                self.varying.dst_port = vary(&tcp.dst_port, l4 + 2, 2, image);
                image[l4 + 12] = 5 << 4;
                image[l4 + 13] = tcp.flags;
                image[l4 + 14..l4 + 16].copy_from_slice(&tcp.window.to_be_bytes());
            }
            L4::Icmp(icmp) => {
                image[l4] = if self.is_v6 { 128 } else { 8 };
                image[l4 + 4..l4 + 6].copy_from_slice(&icmp.id.to_be_bytes());
            }
        }
        self.sum(template);
    }

    fn sum(&mut self, template: &Template) {
        let (ip, l4, payload) = (self.ip_at, self.transport_at, self.payload_at);
        if !template.payload.is_empty() {
            let room = &mut self.image[payload..];
            let room = match self.datagram_len {
                Some(_) => &mut room[..template.payload.len()],
                None => room,
            };
            for (to, from) in room.iter_mut().zip(template.payload.iter().cycle()) {
                *to = *from;
            }
        }
        if !self.is_v6 {
            self.ip_sum = sum(&self.image[ip..l4]);
        }
        self.transport_sum = sum(&self.image[l4..payload]);
        if self.transport != Transport::Icmp {
            // The pseudo header: addresses (zero if they vary) and protocol; the length comes
            // later.
            let addresses = if self.is_v6 { ip + 8..l4 } else { ip + 12..l4 };
            self.transport_sum += sum(&self.image[addresses]);
            self.transport_sum += u64::from(self.transport.protocol());
        }
        let mut running = 0;
        self.payload_sums = vec![0];
        let (words, _) = self.image[payload..].as_chunks::<2>();
        self.payload_sums.extend(words.iter().map(|word| {
            running += u64::from(u16::from_be_bytes(*word));
            fold(running)
        }));
    }

    /// Length of the packet that the next [`Generator::write`] writes.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.next_len
    }

    /// Length of the longest packet.
    pub fn packet_len_max(&self) -> usize {
        self.packet_len_max
    }

    /// Packets written so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Writes the next packet to the start of `buffer` and returns its length.
    ///
    /// # Panics
    /// If the buffer is shorter than [`Generator::packet_len`].
    #[inline]
    pub fn write(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.next_len;
        let out = &mut buffer[..len];
        out.copy_from_slice(&self.image[..len]);
        if let Some(walk) = &mut self.varying.dst_mac {
            out[..6].copy_from_slice(&walk.next_narrow(&mut self.rng).to_be_bytes()[2..]);
        }
        if let Some(walk) = &mut self.varying.src_mac {
            out[6..12].copy_from_slice(&walk.next_narrow(&mut self.rng).to_be_bytes()[2..]);
        }
        let datagram_len = self.datagram_len.unwrap_or(len - self.ip_at);
        let addresses = if self.is_v6 {
            self.write_ipv6(out, datagram_len)
        } else {
            self.write_ipv4(out, datagram_len)
        };
        self.write_transport(out, datagram_len, addresses);
        self.count += 1;
        self.next_len = self.sizes.next(&mut self.rng);
        len
    }

    /// Writes the varying IPv4 fields; returns the sum over the varying addresses.
    #[inline]
    fn write_ipv4(&mut self, out: &mut [u8], datagram_len: usize) -> u64 {
        let header: &mut [u8; IPV4_HEADER_LEN] = chunk(out, self.ip_at);
        let mut addresses = 0;
        if let Some(walk) = &mut self.varying.src {
            let addr = walk.next_narrow(&mut self.rng) as u32;
            header[12..16].copy_from_slice(&addr.to_be_bytes());
            addresses += u64::from(addr);
        }
        if let Some(walk) = &mut self.varying.dst {
            let addr = walk.next_narrow(&mut self.rng) as u32;
            header[16..20].copy_from_slice(&addr.to_be_bytes());
            addresses += u64::from(addr);
        }
        // Atomic datagrams may have any identification (RFC 6864 §4.1): a counter helps the reader.
        let id = self.count as u16;
        header[2..4].copy_from_slice(&(datagram_len as u16).to_be_bytes());
        header[4..6].copy_from_slice(&id.to_be_bytes());
        let sum = self.ip_sum + addresses + datagram_len as u64 + u64::from(id);
        header[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
        addresses
    }

    #[inline]
    fn write_ipv6(&mut self, out: &mut [u8], datagram_len: usize) -> u64 {
        let header: &mut [u8; IPV6_HEADER_LEN] = chunk(out, self.ip_at);
        let payload_len = (datagram_len - IPV6_HEADER_LEN) as u16;
        header[4..6].copy_from_slice(&payload_len.to_be_bytes());
        let mut addresses = 0;
        for (walk, at) in [(&mut self.varying.src, 8), (&mut self.varying.dst, 24)] {
            if let Some(walk) = walk {
                let addr = walk.next(&mut self.rng);
                header[at..at + 16].copy_from_slice(&addr.to_be_bytes());
                for half in [(addr >> 64) as u64, addr as u64] {
                    addresses += (half >> 32) + (half & 0xffff_ffff);
                }
            }
        }
        addresses
    }

    #[inline]
    fn write_transport(&mut self, out: &mut [u8], datagram_len: usize, addresses: u64) {
        let at = self.transport_at;
        let len = datagram_len - (at - self.ip_at);
        let payload_len = datagram_len - (self.payload_at - self.ip_at);
        let mut sum = self.transport_sum + len as u64 * self.transport.length_count();
        sum += u64::from(self.payload_sums[payload_len / 2]);
        if payload_len % 2 == 1 {
            sum += u64::from(self.image[self.payload_at + payload_len - 1]) << 8;
        }
        // All transport headers have at least 8 bytes.
        let header: &mut [u8; 8] = chunk(out, at);
        match self.transport {
            Transport::Udp | Transport::Tcp => {
                sum += addresses;
                if let Some(walk) = &mut self.varying.src_port {
                    let port = walk.next_narrow(&mut self.rng) as u16;
                    header[..2].copy_from_slice(&port.to_be_bytes());
                    sum += u64::from(port);
                }
                if let Some(walk) = &mut self.varying.dst_port {
                    let port = walk.next_narrow(&mut self.rng) as u16;
                    header[2..4].copy_from_slice(&port.to_be_bytes());
                    sum += u64::from(port);
                }
                if self.transport == Transport::Udp {
                    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
                } else {
                    let seq = self.rng.next_u64() as u32;
                    header[4..8].copy_from_slice(&seq.to_be_bytes());
                    sum += u64::from(seq);
                }
            }
            Transport::Icmp | Transport::Icmp6 => {
                if self.transport == Transport::Icmp6 {
                    sum += addresses;
                }
                let seq = self.count as u16;
                header[6..8].copy_from_slice(&seq.to_be_bytes());
                sum += u64::from(seq);
            }
        }
        let mut value = !fold(sum);
        if self.transport == Transport::Udp {
            value = checksum::udp(value);
        }
        let at = at + self.transport.checksum_offset();
        out[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

fn ports_of(l4: &L4) -> Vec<&Range> {
    match l4 {
        L4::Udp(udp) => vec![&udp.src_port, &udp.dst_port],
        L4::Tcp(tcp) => vec![&tcp.src_port, &tcp.dst_port],
        L4::Icmp(_) => Vec::new(),
    }
}

/// `N` bytes at `at`, as an array: one bounds check instead of one per access.
#[inline(always)]
fn chunk<const N: usize>(out: &mut [u8], at: usize) -> &mut [u8; N] {
    match out.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        Some(chunk) => chunk,
        None => unreachable!("sizes below the headers are refused"),
    }
}

/// Unfolded sum of the 16-bit words of an even number of bytes.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<2>();
    words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum()
}

/// One's complement sum of the 16-bit parts. 2^16 equals 1 in this arithmetic, so wider numbers may
/// have been added unchanged.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests;
