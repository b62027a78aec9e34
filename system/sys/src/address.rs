//! Addresses of interfaces (rtnetlink(7), `struct ifaddrmsg`).

use std::net::IpAddr;

use crate::Result;
use crate::netlink::{Message, NLM_F_DUMP, Socket};

/// Bytes of `struct ifaddrmsg`.
const INFO_LEN: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub addr: IpAddr,
    /// Length of its network prefix in bits.
    pub prefix_len: u8,
    /// Whether its scope is the link or narrower (`RT_SCOPE_LINK` and above).
    pub is_local: bool,
}

/// The addresses of an interface, in the kernel's order: the primary ones first.
///
/// # Errors
/// If netlink does not answer.
pub fn of(ifindex: u32) -> Result<Vec<InterfaceAddress>> {
    list(Some(ifindex))
}

/// The addresses of all interfaces.
///
/// # Errors
/// As [`of`].
pub fn all() -> Result<Vec<InterfaceAddress>> {
    list(None)
}

fn list(only: Option<u32>) -> Result<Vec<InterfaceAddress>> {
    let ask = Message::new(libc::RTM_GETADDR, NLM_F_DUMP).raw(&[0; INFO_LEN]);
    let replies = Socket::route()?.request("list the addresses", ask)?;
    let mut found = Vec::new();
    for reply in &replies {
        let Some(head) = reply.body.first_chunk::<INFO_LEN>() else {
            continue;
        };
        let ifindex = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        if only.is_some_and(|only| only != ifindex) {
            continue;
        }
        let mut addr = None;
        for (kind, value) in reply.attributes(INFO_LEN) {
            // On a point-to-point link `IFA_ADDRESS` is the address of the other end, so
            // `IFA_LOCAL` wins.
            if kind == IFA_LOCAL || kind == IFA_ADDRESS && addr.is_none() {
                addr = parse(value).or(addr);
            }
        }
        found.extend(addr.map(|addr| InterfaceAddress {
            addr,
            prefix_len: head[1],
            is_local: head[3] >= libc::RT_SCOPE_LINK,
        }));
    }
    Ok(found)
}

/// An address of 4 or 16 bytes.
pub(crate) fn parse(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_wherever_it_is_up() {
        let link = crate::link::Link::by_name("lo").unwrap();
        let found = of(link.index).unwrap();
        let v4 = found.iter().find(|address| address.addr.is_ipv4());
        // In a namespace the loopback interface may be down; then it has no address.
        if let Some(address) = v4 {
            assert_eq!(address.addr.to_string(), "127.0.0.1");
            assert_eq!(address.prefix_len, 8);
        }
        let all = all().unwrap();
        assert!(found.iter().all(|address| all.contains(address)), "{all:?}");
        assert_eq!(of(u32::MAX).unwrap(), []);
    }
}
