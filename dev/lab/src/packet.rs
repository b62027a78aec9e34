//! Numbered packets, and a plain packet socket to send and receive them.
//!
//! Both are independent of `wire` and `port`, because a test that sends through the code it tests
//! would share its faults. The payload contains the packet's number, and the rest is derived from
//! it, so a receiver can distinguish lost, duplicated, reordered and damaged packets.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::veth::{End, Pair};

/// Start of the payload of every packet built here.
const MAGIC: [u8; 4] = *b"bwlb";

/// Time limit of all waiting in [`pour`]; if packets are lost, tests that count them fail.
const POUR_MAX: Duration = Duration::from_secs(60);

/// Ethernet, IPv4 and UDP headers.
const HEADERS_V4: usize = 14 + 20 + 8;

/// Ethernet, IPv6 and UDP headers.
const HEADERS_V6: usize = 14 + 40 + 8;

/// Length of magic and number.
const STAMP: usize = 4 + 8;

/// The shortest packet with a number: 54 bytes with IPv4, 74 with IPv6, 4 more with a VLAN tag.
/// Ethernet's own minimum without FCS is 60.
pub const LEN_MIN: usize = HEADERS_V4 + STAMP;

/// UDP packets between two fixed addresses; the source port changes with the number.
#[derive(Clone, Debug)]
pub struct Udp {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// IP addresses.
    pub addresses: Addresses,
    /// First source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Number of source ports used in turn, from `source_port` on; at least 1. More flows are
    /// distributed over more queues.
    pub flow_count: u16,
    /// VLAN ID of an 802.1Q tag, if any.
    pub vlan: Option<u16>,
}

/// Source and destination, in this order.
#[derive(Clone, Copy, Debug)]
pub enum Addresses {
    /// Over IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// Over IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Udp {
    /// IPv4 from one end to the other, port 4000 to port 9 (discard), one flow.
    pub fn between(from: &End, to: &End) -> Udp {
        Udp {
            source_mac: from.mac,
            destination_mac: to.mac,
            addresses: Addresses::V4(from.ipv4, to.ipv4),
            source_port: 4000,
            destination_port: 9,
            flow_count: 1,
            vlan: None,
        }
    }

    /// Sets the number of flows.
    pub fn flows(mut self, count: u16) -> Udp {
        self.flow_count = count;
        self
    }

    /// Builds packet `number` with `len` bytes from the Ethernet header on, without FCS. All
    /// checksums are correct.
    ///
    /// # Panics
    /// If `len` is too short for headers and number, or exceeds IP's maximum.
    pub fn build(&self, number: u64, len: usize) -> Vec<u8> {
        let mut packet = Vec::with_capacity(len);
        packet.extend(self.destination_mac);
        packet.extend(self.source_mac);
        if let Some(id) = self.vlan {
            packet.extend(0x8100_u16.to_be_bytes());
            packet.extend(id.to_be_bytes());
        }
        let tag_len = packet.len() - 12;
        let (ether_type, ip_header_len) = match self.addresses {
            Addresses::V4(..) => (0x0800_u16, HEADERS_V4 - 14 - 8),
            Addresses::V6(..) => (0x86dd, HEADERS_V6 - 14 - 8),
        };
        packet.extend(ether_type.to_be_bytes());
        let headers = 14 + tag_len + ip_header_len + 8;
        assert!(
            len >= headers + STAMP,
            "{len} bytes cannot hold {headers} of headers and a number"
        );
        let udp_len = u16::try_from(len - 14 - tag_len - ip_header_len).expect("too long for UDP");

        let mut pseudo = Vec::new();
        match self.addresses {
            Addresses::V4(source, destination) => {
                let total_len = u16::try_from(len - 14 - tag_len).expect("too long for IPv4");
                let start = packet.len();
                packet.extend([0x45, 0]);
                packet.extend(total_len.to_be_bytes());
                // Identification: the low bits of the number, which makes it visible in a dump.
                packet.extend((number as u16).to_be_bytes());
                packet.extend([0x40, 0, 64, 17, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                let checksum = checksum(&packet[start..]).to_be_bytes();
                packet[start + 10..start + 12].copy_from_slice(&checksum);
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
            Addresses::V6(source, destination) => {
                packet.extend([0x60, 0, 0, 0]);
                packet.extend(udp_len.to_be_bytes());
                packet.extend([17, 64]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
        }
        // Both pseudo headers sum to the same: addresses, length, protocol (RFC 8200 §8.1).
        pseudo.extend(udp_len.to_be_bytes());
        pseudo.extend([0, 17]);

        let flow = (number % u64::from(self.flow_count.max(1))) as u16;
        let start = packet.len();
        packet.extend(self.source_port.wrapping_add(flow).to_be_bytes());
        packet.extend(self.destination_port.to_be_bytes());
        packet.extend(udp_len.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(MAGIC);
        packet.extend(number.to_be_bytes());
        let filled = packet.len();
        packet.extend((0..len - filled).map(|index| filler(number, index)));
        pseudo.extend(&packet[start..]);
        // A checksum of zero is sent as all ones: zero means none (RFC 768).
        let checksum = match checksum(&pseudo) {
            0 => 0xffff,
            sum => sum,
        };
        packet[start + 6..start + 8].copy_from_slice(&checksum.to_be_bytes());
        packet
    }
}

/// Why bytes are not an intact packet of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOurs {
    /// Not built here: another packet on the wire.
    Foreign,
    /// Built here, but the payload is not that of this number.
    Damaged(u64),
}

/// The number of a packet built here; checks every byte after the number.
///
/// # Errors
/// If it was not built here, or is damaged.
pub fn number_of(packet: &[u8]) -> Result<u64, NotOurs> {
    let byte = |at: usize| packet.get(at).copied().ok_or(NotOurs::Foreign);
    let mut at = 12;
    if (byte(at)?, byte(at + 1)?) == (0x81, 0) {
        at += 4;
    }
    at += match (byte(at)?, byte(at + 1)?) {
        (0x08, 0) => HEADERS_V4 - 12,
        (0x86, 0xdd) => HEADERS_V6 - 12,
        _ => return Err(NotOurs::Foreign),
    };
    let payload = packet.get(at..).ok_or(NotOurs::Foreign)?;
    let (magic, rest) = payload.split_first_chunk::<4>().ok_or(NotOurs::Foreign)?;
    let (number, rest) = rest.split_first_chunk::<8>().ok_or(NotOurs::Foreign)?;
    if *magic != MAGIC {
        return Err(NotOurs::Foreign);
    }
    let number = u64::from_be_bytes(*number);
    if rest
        .iter()
        .enumerate()
        .all(|(index, byte)| *byte == filler(number, index))
    {
        Ok(number)
    } else {
        Err(NotOurs::Damaged(number))
    }
}

/// Differs between adjacent bytes of a packet and between the same positions of two packets.
fn filler(number: u64, index: usize) -> u8 {
    (number.wrapping_mul(0x9e37_79b9) >> 8) as u8 ^ (index as u8).wrapping_mul(0x3b) ^ 0xa5
}

/// The Internet checksum (RFC 1071) of the slice.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends `count` packets of 60 bytes, in `flow_count` flows, from the left end of a pair to the
/// right. Until the right end has received each batch, up to a minute in all, no more are
/// sent.
///
/// # Panics
/// If they cannot be sent.
pub fn pour(pair: &Pair, flow_count: u16, count: u64) {
    let udp = Udp::between(&pair.left, &pair.right).flows(flow_count);
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.and_then(|sender| sender).expect("a socket");
    let received = || Some(pair.right.counters().ok()?.rx_packets);
    let before = received();
    let until = Instant::now() + POUR_MAX;
    for number in 0..count {
        sender.send(&udp.build(number, 60)).expect("room to send");
        let sent = number + 1;
        // veth queues 256 packets until the peer's program has seen them.
        if !sent.is_multiple_of(128) && sent != count {
            continue;
        }
        let expected = before.map(|before| before + sent);
        while received() < expected && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A packet socket bound to one interface: one system call per packet.
///
/// Open it inside the namespace ([`Netns::run`](crate::Netns::run)); it can be used from anywhere
/// afterwards, because a socket stays in the namespace where it was created.
#[derive(Debug)]
pub struct Raw {
    fd: OwnedFd,
    ifname: String,
}

impl Raw {
    /// Opens a socket that sends, and receives all packets of the interface, of any protocol.
    ///
    /// # Errors
    /// If the interface is not in this namespace, or without permission for packet sockets.
    pub fn open(ifname: &str) -> Result<Raw> {
        Raw::with_protocol(ifname, Some(SockProtocol::EthAll))
    }

    /// Opens a socket that only sends: without a protocol it receives nothing, so nothing is copied
    /// to it.
    ///
    /// # Errors
    /// As [`open`](Raw::open).
    pub fn sender(ifname: &str) -> Result<Raw> {
        Raw::with_protocol(ifname, None)
    }

    fn with_protocol(ifname: &str, protocol: Option<SockProtocol>) -> Result<Raw> {
        let address = link_address(ifname)?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, protocol)?;
        setsockopt(&fd, sockopt::RcvBufForce, &(16 << 20)).context("receive buffer of 16 MiB")?;
        // bind(2) with protocol 0 in the address keeps the protocol of the socket.
        bind(fd.as_raw_fd(), &address).with_context(|| format!("bind to {ifname}"))?;
        Ok(Raw {
            fd,
            ifname: ifname.into(),
        })
    }

    /// Sends one packet, from its Ethernet header on.
    ///
    /// # Errors
    /// ENETDOWN if the link is down, EMSGSIZE above the MTU, ENXIO if the interface was removed.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let sent = send(self.fd.as_raw_fd(), packet, MsgFlags::empty())
            .with_context(|| format!("send {} bytes on {}", packet.len(), self.ifname))?;
        ensure!(
            sent == packet.len(),
            "sent {sent} of {} bytes",
            packet.len()
        );
        Ok(())
    }

    /// Receives the next packet; `None` if there is none within `limit`. Packets sent on the
    /// interface are not included.
    ///
    /// # Errors
    /// ENETDOWN if the link went down in the meantime.
    pub fn receive(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        /// `PACKET_OUTGOING` of `linux/if_packet.h`.
        const OUTGOING: u8 = 4;
        // Zero would mean no limit.
        let limit_us = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX).max(1);
        let limit = TimeVal::microseconds(limit_us);
        setsockopt(&self.fd, sockopt::ReceiveTimeout, &limit)?;
        let mut buffer = vec![0; 65536 + 64];
        loop {
            let (len, from) = match recvfrom::<LinkAddr>(self.fd.as_raw_fd(), &mut buffer) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(error) => bail!("receive on {}: {error}", self.ifname),
            };
            if from.is_some_and(|from| from.as_ref().sll_pkttype == OUTGOING) {
                continue;
            }
            buffer.truncate(len);
            return Ok(Some(buffer));
        }
    }
}

/// The address of packet(7) for an interface of this thread's namespace.
fn link_address(ifname: &str) -> Result<LinkAddr> {
    getifaddrs()
        .context("getifaddrs")?
        .filter(|entry| entry.interface_name == ifname)
        .find_map(|entry| entry.address?.as_link_addr().copied())
        .with_context(|| format!("no interface {ifname} in this namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(addresses: Addresses, vlan: Option<u16>) -> Udp {
        Udp {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            addresses,
            source_port: 65535,
            destination_port: 9,
            flow_count: 3,
            vlan,
        }
    }

    fn plans() -> Vec<(Udp, usize)> {
        let v4 = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let v6 = Addresses::V6(1.into(), 2.into());
        vec![
            (plan(v4, None), 54),
            (plan(v6, None), 74),
            (plan(v4, Some(7)), 58),
            (plan(v6, Some(7)), 78),
        ]
    }

    #[test]
    fn packet_numbers_are_read_back() {
        for (plan, len_min) in plans() {
            for len in [len_min, len_min + 1, 1514, 9014] {
                let packet = plan.build(u64::MAX - 5, len);
                assert_eq!(packet.len(), len);
                assert_eq!(number_of(&packet), Ok(u64::MAX - 5));
            }
        }
    }

    #[test]
    fn damage_and_foreign_packets_are_distinguished() {
        for (plan, len_min) in plans() {
            let packet = plan.build(77, 200);
            for at in len_min..200 {
                let mut damaged = packet.clone();
                damaged[at] ^= 1;
                assert_eq!(number_of(&damaged), Err(NotOurs::Damaged(77)), "byte {at}");
            }
            for len in 0..len_min {
                assert_eq!(
                    number_of(&packet[..len]),
                    Err(NotOurs::Foreign),
                    "{len} bytes"
                );
            }
            // The rest of another packet after this number.
            let mut mixed = packet.clone();
            mixed[len_min..].copy_from_slice(&plan.build(78, 200)[len_min..]);
            assert_eq!(number_of(&mixed), Err(NotOurs::Damaged(77)));
        }
    }

    #[test]
    #[should_panic(expected = "cannot hold")]
    fn too_short_is_refused() {
        plans()[0].0.build(0, 53);
    }

    #[test]
    fn tshark_agrees_with_headers_and_checksums() {
        crate::require!(crate::skip::program("tshark", "tshark"));
        let packets: Vec<_> = plans().iter().map(|(plan, _)| plan.build(4, 123)).collect();
        let file = crate::oracle::write_pcap(&packets).unwrap();
        let fields = [
            "udp.srcport",
            "udp.dstport",
            "udp.checksum.status",
            "ip.checksum.status",
        ];
        let options = [
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ];
        let rows = crate::oracle::tshark::fields(file.path(), &fields, &options).unwrap();
        let good = |ip: &str| ["0", "9", "1", ip].map(str::to_owned).to_vec();
        assert_eq!(rows, [good("1"), good(""), good("1"), good("")]);
    }
}
