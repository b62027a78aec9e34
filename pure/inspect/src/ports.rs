//! Customary applications of ports: a guess for flows without content.

use alloc::vec::Vec;

use crate::decode::DECODERS;

/// Transport protocol of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
}

use Transport::{Tcp, Udp};

/// Ports of protocols without a decoder (IANA Service Name and Transport Protocol Port Number
/// Registry, and custom), sorted by port.
const PORTS: &[(u16, Transport, &str)] = &[
    (7, Tcp, "echo"),
    (7, Udp, "echo"),
    (20, Tcp, "ftp-data"),
    (21, Tcp, "ftp"),
    (25, Tcp, "smtp"),
    (43, Tcp, "whois"),
    (49, Tcp, "tacacs"),
    (69, Udp, "tftp"),
    (88, Tcp, "kerberos"),
    (88, Udp, "kerberos"),
    (110, Tcp, "pop3"),
    (111, Tcp, "sunrpc"),
    (111, Udp, "sunrpc"),
    (119, Tcp, "nntp"),
    (135, Tcp, "msrpc"),
    (137, Udp, "nbns"),
    (138, Udp, "nbdgm"),
    (143, Tcp, "imap"),
    (162, Udp, "snmptrap"),
    (179, Tcp, "bgp"),
    (389, Tcp, "ldap"),
    (389, Udp, "cldap"),
    (500, Udp, "isakmp"),
    (502, Tcp, "modbus"),
    (514, Udp, "syslog"),
    (514, Tcp, "syslog"),
    (520, Udp, "rip"),
    (546, Udp, "dhcpv6"),
    (547, Udp, "dhcpv6"),
    (587, Tcp, "smtp"),
    (631, Tcp, "ipp"),
    (646, Tcp, "ldp"),
    (646, Udp, "ldp"),
    (873, Tcp, "rsync"),
    (1194, Udp, "openvpn"),
    (1433, Tcp, "mssql"),
    (1521, Tcp, "oracle"),
    (1701, Udp, "l2tp"),
    (1723, Tcp, "pptp"),
    (1812, Udp, "radius"),
    (1813, Udp, "radius"),
    (2049, Tcp, "nfs"),
    (2049, Udp, "nfs"),
    (2055, Udp, "netflow"),
    (2123, Udp, "gtp-c"),
    (2152, Udp, "gtp-u"),
    (3268, Tcp, "ldap"),
    (3389, Udp, "rdp"),
    (3478, Udp, "stun"),
    (3478, Tcp, "stun"),
    (3702, Udp, "ws-discovery"),
    (4500, Udp, "ipsec-nat-t"),
    (4739, Udp, "ipfix"),
    (4739, Tcp, "ipfix"),
    (4789, Udp, "vxlan"),
    (5222, Tcp, "xmpp"),
    (5349, Tcp, "stuns"),
    (5353, Udp, "mdns"),
    (5355, Udp, "llmnr"),
    (5672, Tcp, "amqp"),
    (5683, Udp, "coap"),
    (6081, Udp, "geneve"),
    (6343, Udp, "sflow"),
    (6667, Tcp, "irc"),
    (9092, Tcp, "kafka"),
    (9418, Tcp, "git"),
    (20000, Tcp, "dnp3"),
    (27017, Tcp, "mongodb"),
    (44818, Tcp, "enip"),
];

fn by_port(transport: Transport, port: u16) -> Option<&'static str> {
    let decoder = DECODERS
        .iter()
        .find(|row| row.transports.contains(&transport) && row.ports.contains(&port));
    if let Some(row) = decoder {
        return Some(row.name);
    }
    let row = PORTS.iter().find(|row| (row.0, row.1) == (port, transport));
    row.map(|row| row.2)
}

/// Guesses the protocol by custom from these ports. The responder's port has precedence.
pub fn guess(transport: Transport, initiator: u16, responder: u16) -> Option<&'static str> {
    guess_port(transport, initiator, responder).map(|(_, name)| name)
}

/// The same, with the port that determined it.
pub fn guess_port(
    transport: Transport,
    initiator: u16,
    responder: u16,
) -> Option<(u16, &'static str)> {
    let of = |port| by_port(transport, port).map(|name| (port, name));
    of(responder).or_else(|| of(initiator))
}

/// All ports used for guesses, sorted. A port of both transports occurs twice.
pub fn known_ports() -> Vec<(u16, Transport, &'static str)> {
    let mut ports: Vec<_> = DECODERS
        .iter()
        .flat_map(|row| row.ports.iter().map(move |port| (row, *port)))
        .flat_map(|(row, port)| row.transports.iter().map(move |over| (port, *over)))
        .chain(PORTS.iter().map(|row| (row.0, row.1)))
        .collect();
    ports.sort_by_key(|(port, over)| (*port, *over as u8));
    ports.dedup();
    let named = ports.into_iter();
    let named = named.filter_map(|(port, over)| Some((port, over, by_port(over, port)?)));
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_responder_has_precedence() {
        assert_eq!(guess(Tcp, 50_000, 443), Some("tls"));
        assert_eq!(guess(Udp, 50_000, 443), Some("quic"));
        assert_eq!(guess(Tcp, 22, 3306), Some("mysql"));
        assert_eq!(guess(Tcp, 22, 60_000), Some("ssh"));
        assert_eq!(guess(Udp, 22, 60_000), None);
        assert_eq!(guess_port(Tcp, 22, 60_000), Some((22, "ssh")));
        let known = known_ports();
        assert!(known.contains(&(443, Tcp, "tls")) && known.contains(&(443, Udp, "quic")));
        assert!(known.is_sorted_by_key(|row| row.0) && known.len() > 60);
        for (at, row) in PORTS.iter().enumerate() {
            let twice = PORTS[..at]
                .iter()
                .any(|other| (other.0, other.1) == (row.0, row.1));
            assert!(!twice, "{} twice", row.0);
        }
    }
}
