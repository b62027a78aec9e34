//! Link-layer addresses of hosts on a link, resolved by the kernel (rtnetlink(7), `struct ndmsg`;
//! ARP, RFC 826; Neighbor Discovery, RFC 4861).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::Result;
use crate::address::parse;
use crate::netlink::{Message, NLM_F_DUMP, Notice, Reply, Socket, number_u32};

/// Bytes of `struct ndmsg`.
const INFO_LEN: usize = 12;
/// Bytes of `struct rtmsg`.
const ROUTE_LEN: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
/// Group of notifications of neighbours (`RTNLGRP_NEIGH`).
const GROUP: u32 = 3;
const NLM_F_CREATE: u16 = 0x400;
/// `NTF_USE`: resolve the address as if a packet were waiting for it.
const USE: u8 = 1;
/// States with an address that is in use: reachable, stale, delay, probe, noarp, permanent.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const FAILED: u16 = 0x20;

/// The kernel's entry for a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Its link-layer address.
    Known(Vec<u8>),
    /// Resolution failed, or is still in progress.
    Unknown { has_failed: bool },
}

/// The next hop towards `destination` through this interface: the gateway's address, or
/// `destination` itself if it is on the link.
///
/// # Errors
/// If netlink does not answer, or no route leads there.
pub fn next_hop(interface: u32, destination: IpAddr) -> Result<IpAddr> {
    let route = route(Some(interface), destination)?;
    Ok(route.gateway.unwrap_or(destination))
}

/// The route of packets to one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The outgoing interface.
    pub interface: u32,
    /// The gateway; none if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The address that the kernel would send them from.
    pub source: Option<IpAddr>,
}

/// Looks up the route to `destination`, through this interface or, without one, through any.
///
/// # Errors
/// If netlink does not answer, or no route leads there.
pub fn route(interface: Option<u32>, destination: IpAddr) -> Result<Route> {
    let (family, bytes) = family_and_bytes(destination);
    let mut info = [0; ROUTE_LEN];
    info[0] = family;
    info[1] = bytes.len() as u8 * 8;
    let mut ask = Message::new(libc::RTM_GETROUTE, 0)
        .raw(&info)
        .attr(RTA_DST, &bytes);
    if let Some(interface) = interface {
        ask = ask.attr_u32(RTA_OIF, interface);
    }
    let replies = Socket::route()?.request("look up the route", ask)?;
    let mut route = Route {
        gateway: replies.iter().find_map(gateway),
        ..Route::default()
    };
    for (kind, value) in replies.iter().flat_map(|reply| reply.attributes(ROUTE_LEN)) {
        match kind {
            RTA_OIF => route.interface = number_u32(value),
            RTA_PREFSRC => route.source = parse(value),
            _ => {}
        }
    }
    Ok(route)
}

/// The link-layer address of a neighbour on this interface, if the kernel knows it.
///
/// # Errors
/// If netlink does not answer.
pub fn find(interface: u32, address: IpAddr) -> Result<Option<Vec<u8>>> {
    match look_up(&mut Socket::route()?, interface, address)? {
        State::Known(found) => Ok(Some(found)),
        State::Unknown { .. } => Ok(None),
    }
}

/// As [`find`], but makes the kernel send ARP or Neighbor Discovery requests if necessary, and
/// waits up to `timeout` for the answer.
///
/// # Errors
/// If netlink does not answer, or the calling thread may not change neighbours (`CAP_NET_ADMIN`).
pub fn resolve(interface: u32, address: IpAddr, timeout: Duration) -> Result<Option<Vec<u8>>> {
    let mut socket = Socket::route()?;
    if let State::Known(found) = look_up(&mut socket, interface, address)? {
        return Ok(Some(found));
    }
    // Joined before the request, so that the answer is not missed.
    let mut changes = Socket::route()?;
    changes.join(GROUP)?;
    let (family, bytes) = family_and_bytes(address);
    let mut info = [0; INFO_LEN];
    info[0] = family;
    info[4..8].copy_from_slice(&interface.to_ne_bytes());
    info[10] = USE;
    let ask = Message::new(libc::RTM_NEWNEIGH, NLM_F_CREATE)
        .raw(&info)
        .attr(NDA_DST, &bytes);
    socket.request("resolve a neighbour's address", ask)?;

    let until = Instant::now() + timeout;
    loop {
        match look_up(&mut socket, interface, address)? {
            State::Known(found) => return Ok(Some(found)),
            State::Unknown { has_failed: true } => return Ok(None),
            State::Unknown { has_failed: false } => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !changes.wait(left.as_millis() as i32 + 1)? {
            return Ok(None);
        }
        // After any change, or an overrun, the table is read again.
        while let Some(Notice::Message(_)) = changes.notice()? {}
    }
}

fn look_up(socket: &mut Socket, interface: u32, address: IpAddr) -> Result<State> {
    let (family, bytes) = family_and_bytes(address);
    let mut info = [0; INFO_LEN];
    info[0] = family;
    let ask = Message::new(libc::RTM_GETNEIGH, NLM_F_DUMP).raw(&info);
    let replies = socket.request("list the neighbours", ask)?;
    let found = replies.iter().find_map(|reply| {
        let neighbour = Neighbour::parse(reply)?;
        (neighbour.interface == interface && neighbour.address == bytes).then_some(neighbour)
    });
    Ok(found.map_or(State::Unknown { has_failed: false }, Neighbour::state))
}

/// An entry of the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    interface: u32,
    flags: u16,
    /// 4 or 16 bytes.
    pub(crate) address: Vec<u8>,
    /// Empty if it is not known.
    pub(crate) link_address: Vec<u8>,
}

impl Neighbour {
    pub(crate) fn parse(reply: &Reply) -> Option<Self> {
        let head = reply.body.first_chunk::<INFO_LEN>()?;
        if reply.kind != libc::RTM_NEWNEIGH {
            return None;
        }
        let value = |kind| {
            let mut all = reply.attributes(INFO_LEN);
            all.find(|(found, _)| *found == kind)
                .map(|(_, value)| value.to_vec())
        };
        Some(Self {
            interface: u32::from_ne_bytes([head[4], head[5], head[6], head[7]]),
            flags: u16::from_ne_bytes([head[8], head[9]]),
            address: value(NDA_DST)?,
            link_address: value(NDA_LLADDR).unwrap_or_default(),
        })
    }

    fn state(self) -> State {
        match self.flags & VALID != 0 && !self.link_address.is_empty() {
            true => State::Known(self.link_address),
            false => State::Unknown {
                has_failed: self.flags & FAILED != 0,
            },
        }
    }
}

/// The gateway of a route: of the route's family, or of another one (`struct rtvia`, RFC 8950).
pub(crate) fn gateway(reply: &Reply) -> Option<IpAddr> {
    if reply.kind != libc::RTM_NEWROUTE {
        return None;
    }
    let mut all = reply.attributes(ROUTE_LEN);
    all.find_map(|(kind, value)| match kind {
        RTA_GATEWAY => parse(value),
        RTA_VIA => parse(value.get(2..)?),
        _ => None,
    })
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(kind: u16, head: [u8; 12], attributes: &[(u16, &[u8])]) -> Reply {
        let mut body = head.to_vec();
        for (kind, value) in attributes {
            body.extend((value.len() as u16 + 4).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        Reply { kind, body }
    }

    fn neighbour(flags: u16, attributes: &[(u16, &[u8])]) -> Option<Neighbour> {
        let mut head = [0; INFO_LEN];
        head[0] = libc::AF_INET as u8;
        head[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        head[8..10].copy_from_slice(&flags.to_ne_bytes());
        Neighbour::parse(&reply(libc::RTM_NEWNEIGH, head, attributes))
    }

    #[test]
    fn a_neighbour_is_known_when_its_address_is_in_use() {
        let mac = [2, 0, 0, 0, 0, 7];
        let both: &[(u16, &[u8])] = &[(NDA_DST, &[192, 0, 2, 1]), (NDA_LLADDR, &mac)];
        for (flags, is_known, has_failed) in [
            (0x01, false, false),
            (0x02, true, false),
            (0x04, true, false),
            (0x20, false, true),
            (0x40, true, false),
            (0x80, true, false),
        ] {
            let found = neighbour(flags, both).unwrap();
            assert_eq!((found.interface, found.address.len()), (7, 4));
            let want = match is_known {
                true => State::Known(mac.to_vec()),
                false => State::Unknown { has_failed },
            };
            assert_eq!(found.state(), want, "{flags:#x}");
        }
        let without = neighbour(0x02, &both[..1]).unwrap();
        assert_eq!(without.state(), State::Unknown { has_failed: false });
        assert_eq!(neighbour(0x02, &both[1..]), None);
    }

    #[test]
    fn gateways_are_read_in_both_forms() {
        let route = |attributes: &[(u16, &[u8])]| {
            gateway(&reply(libc::RTM_NEWROUTE, [0; ROUTE_LEN], attributes))
        };
        assert_eq!(route(&[]), None);
        let plain: &[u8] = &[192, 0, 2, 9];
        assert_eq!(route(&[(RTA_GATEWAY, plain)]), "192.0.2.9".parse().ok());
        let mut via = vec![10, 0];
        via.extend("fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        assert_eq!(route(&[(RTA_VIA, &via)]), "fe80::1".parse().ok());
        assert_eq!(route(&[(RTA_VIA, &via[..9])]), None);
    }
}
