//! The services that listen on this host, from `/proc/net/tcp` and `tcp6` (Linux
//! `net/ipv4/tcp_ipv4.c`, `get_tcp4_sock`).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// `TCP_LISTEN`, in hexadecimal.
const LISTEN: &str = "0A";

/// Whether all of these services listen on this host.
pub(super) fn listen(services: &[(IpAddr, u16)]) -> bool {
    let tables: Vec<String> = TABLES
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    let listeners: Vec<(IpAddr, u16)> = tables
        .iter()
        .flat_map(|table| table.lines().filter_map(listener))
        .collect();
    services.iter().all(|service| has(&listeners, *service))
}

/// Whether one of the listeners accepts connections to a service. Those on all addresses of IPv6
/// accept connections over IPv4 as well, unless they exclude that, which the table does not show.
fn has(listeners: &[(IpAddr, u16)], (address, port): (IpAddr, u16)) -> bool {
    listeners.iter().any(|(local, local_port)| {
        let is_all = match local {
            IpAddr::V4(local) => local.is_unspecified() && address.is_ipv4(),
            IpAddr::V6(local) => local.is_unspecified(),
        };
        *local_port == port && (is_all || local.to_canonical() == address)
    })
}

/// The address of a row, if it is a listener: `0: 0100007F:1F90 00000000:0000 0A ...`, in which the
/// words of an address are in the byte order of the host.
fn listener(row: &str) -> Option<(IpAddr, u16)> {
    let mut words = row.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    if words.nth(1)? != LISTEN {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address = match address.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()
        }
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_listeners_of_this_host_are_found() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            // A host may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "{address}");
                continue;
            };
            let local = listener.local_addr().unwrap();
            let ip = match local.ip() {
                IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            };
            assert!(listen(&[(ip, local.port())]), "{local}");
            let stream = TcpStream::connect((ip, local.port())).unwrap();
            let other = stream.local_addr().unwrap().port();
            assert!(!listen(&[(ip, local.port()), (ip, other)]), "{local}");
        }
        // One on an address is none on another one.
        let listeners = [("127.0.0.1".parse().unwrap(), 80)];
        assert!(!has(&listeners, ("192.0.2.1".parse().unwrap(), 80)));
        let all = [(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 80)];
        assert!(has(&all, ("192.0.2.1".parse().unwrap(), 80)));
    }
}
