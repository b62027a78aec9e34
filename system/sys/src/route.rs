//! Default routes in every table of the calling thread's network namespace (rtnetlink(7), `struct
//! rtmsg`).

use crate::Result;
use crate::netlink::{Message, NLM_F_DUMP, Reply, Socket, number_u32};

/// Bytes of `struct rtmsg`.
const INFO_LEN: usize = 12;
/// Bytes of `struct rtnexthop`.
const NEXT_HOP_LEN: usize = 8;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
/// `RTN_UNICAST`: packets are forwarded. Other types refuse them, or deliver them locally.
const UNICAST: u8 = 1;
/// VPNs override a default route by two routes, each to one half of all addresses.
const PREFIX_LEN_MAX: u8 = 1;

/// A route to all addresses, or to one half of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Its table; 254 is the main one, others are chosen by rules.
    pub table: u32,
    /// Indexes of the outgoing interfaces: several for a multipath route, none if the kernel does
    /// not report them (a nexthop object alone).
    pub interfaces: Vec<u32>,
}

/// All default routes, IPv4 and IPv6.
///
/// # Errors
/// If netlink does not answer.
pub fn default_routes() -> Result<Vec<DefaultRoute>> {
    let mut found = Vec::new();
    let mut socket = Socket::route()?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut info = [0; INFO_LEN];
        info[0] = family as u8;
        let ask = Message::new(libc::RTM_GETROUTE, NLM_F_DUMP).raw(&info);
        let replies = socket.request("list the routes", ask)?;
        found.extend(replies.iter().filter_map(parse));
    }
    Ok(found)
}

pub(crate) fn parse(reply: &Reply) -> Option<DefaultRoute> {
    let head = reply.body.first_chunk::<INFO_LEN>()?;
    let (prefix_len, kind) = (head[1], head[7]);
    if reply.kind != libc::RTM_NEWROUTE || prefix_len > PREFIX_LEN_MAX || kind != UNICAST {
        return None;
    }
    let mut route = DefaultRoute {
        table: head[4].into(),
        ..DefaultRoute::default()
    };
    for (kind, value) in reply.attributes(INFO_LEN) {
        match kind {
            RTA_OIF => route.interfaces.push(number_u32(value)),
            RTA_TABLE => route.table = number_u32(value),
            RTA_MULTIPATH => route.interfaces.extend(next_hops(value)),
            _ => {}
        }
    }
    Some(route)
}

/// The interfaces in a run of `struct rtnexthop`, each of which starts with its own length.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    while let Some(head) = bytes.first_chunk::<NEXT_HOP_LEN>() {
        found.push(number_u32(&head[4..8]));
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(rest) = bytes.get(len.max(NEXT_HOP_LEN).next_multiple_of(4)..) else {
            break;
        };
        bytes = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(prefix_len: u8, kind: u8, attributes: &[(u16, Vec<u8>)]) -> Reply {
        let mut body = vec![2, prefix_len, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0];
        for (kind, value) in attributes {
            body.extend((value.len() as u16 + 4).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let kind = libc::RTM_NEWROUTE;
        Reply { kind, body }
    }

    fn oif(index: u32) -> (u16, Vec<u8>) {
        (RTA_OIF, index.to_ne_bytes().to_vec())
    }

    #[test]
    fn routes_to_everywhere_are_found() {
        let interfaces = |reply: Reply| parse(&reply).map(|route| route.interfaces);
        assert_eq!(interfaces(reply(0, UNICAST, &[oif(3)])), Some(vec![3]));
        // One half of the addresses, as 0.0.0.0/1.
        assert_eq!(interfaces(reply(1, UNICAST, &[oif(3)])), Some(vec![3]));
        assert_eq!(interfaces(reply(8, UNICAST, &[oif(3)])), None);
        // "unreachable default"
        assert_eq!(interfaces(reply(0, 7, &[oif(3)])), None);
        // Through a nexthop object that is not reported.
        assert_eq!(interfaces(reply(0, UNICAST, &[])), Some(vec![]));
        // Another table.
        let table = (RTA_TABLE, 1000_u32.to_ne_bytes().to_vec());
        let route = parse(&reply(0, UNICAST, &[oif(3), table])).unwrap();
        assert_eq!(route.table, 1000);
    }

    #[test]
    fn all_ways_of_a_multipath_route_are_found() {
        let hop = |len: u16, index: u32| {
            let mut hop = len.to_ne_bytes().to_vec();
            hop.extend([0, 0]);
            hop.extend(index.to_ne_bytes());
            hop.resize(usize::from(len).max(8), 0);
            hop
        };
        let hops = [hop(16, 3), hop(8, 4), hop(16, 5)].concat();
        let route = parse(&reply(0, UNICAST, &[(RTA_MULTIPATH, hops.clone())])).unwrap();
        assert_eq!(route.interfaces, [3, 4, 5]);
        // Truncated anywhere, and with an invalid length: parsing ends.
        for len in 0..hops.len() {
            assert!(next_hops(&hops[..len]).len() <= 3);
        }
        assert_eq!(next_hops(&[0; 24]).len(), 3);
    }
}
