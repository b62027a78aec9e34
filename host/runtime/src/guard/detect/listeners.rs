//! The services that listen on this host, from `/proc/net/tcp` and `tcp6` (Linux
//! `net/ipv4/tcp_ipv4.c`, `get_tcp4_sock`).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// Whether sockets on all addresses of IPv6 exclude IPv4 unless they say otherwise (ipv6(7)).
const V6_ONLY: &str = "/proc/sys/net/ipv6/bindv6only";
/// `TCP_LISTEN`, in hexadecimal.
const LISTEN: &str = "0A";

/// Whether all of these services are at addresses of this host, and listen there.
pub(super) fn listen(services: &[(IpAddr, u16)]) -> bool {
    // What is forwarded to other hosts is not answered by listeners of this one.
    let own = sys::address::all().unwrap_or_default();
    let is_own = |address: &IpAddr| own.iter().any(|own| own.addr == *address);
    if !services.iter().all(|(address, _)| is_own(address)) {
        return false;
    }
    let tables = TABLES.iter().filter_map(|path| File::open(path).ok());
    let listeners: Vec<(IpAddr, u16)> = tables
        .flat_map(|table| listeners_of(BufReader::new(table)))
        .collect();
    let has_v4 = fs::read_to_string(V6_ONLY).is_ok_and(|setting| setting.trim() == "0");
    services
        .iter()
        .all(|service| has(&listeners, *service, has_v4))
}

/// The listeners of a table. The kernel lists them before all connections, which may be many and
/// are not read.
fn listeners_of(table: impl BufRead) -> Vec<(IpAddr, u16)> {
    let rows = table.lines().skip(1);
    rows.map_while(|row| listener(&row.ok()?)).collect()
}

/// Whether one of the listeners accepts connections to a service. If `has_v4`, those on all
/// addresses of IPv6 accept connections over IPv4 as well, unless the socket itself excludes that,
/// which the table does not show.
fn has(listeners: &[(IpAddr, u16)], (address, port): (IpAddr, u16), has_v4: bool) -> bool {
    listeners.iter().any(|(local, local_port)| {
        let local = local.to_canonical();
        let is_all = match local {
            IpAddr::V4(local) => local.is_unspecified() && address.is_ipv4(),
            IpAddr::V6(local) => local.is_unspecified() && (has_v4 || address.is_ipv6()),
        };
        *local_port == port && (is_all || local == address)
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
    }

    #[test]
    fn a_listener_is_one_of_its_addresses() {
        let service = |address: &str| -> (IpAddr, u16) { (address.parse().unwrap(), 80) };
        for (local, address, is_one) in [
            ("127.0.0.1", "192.0.2.1", false),
            ("0.0.0.0", "192.0.2.1", true),
            ("0.0.0.0", "2001:db8::1", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("::", "2001:db8::1", true),
        ] {
            let listeners = [service(local)];
            for has_v4 in [false, true] {
                let found = has(&listeners, service(address), has_v4);
                assert_eq!(found, is_one, "{local} {address}");
            }
        }
        let all = [service("::")];
        assert!(has(&all, service("192.0.2.1"), true));
        assert!(!has(&all, service("192.0.2.1"), false));
    }

    #[test]
    fn addresses_of_other_hosts_are_no_services() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!listen(&[("198.51.100.77".parse().unwrap(), port)]));
    }

    #[test]
    fn a_table_is_read_up_to_its_first_connection() {
        let table = "  sl  local_address rem_address   st\n   \
                     0: 00000000:0016 00000000:0000 0A\n   \
                     1: 00000000:0050 00000000:0000 0A\n   \
                     2: 00000000:0016 00000000:1234 01\n   \
                     3: 00000000:0051 00000000:0000 0A\n";
        let ports: Vec<u16> = listeners_of(table.as_bytes())
            .into_iter()
            .map(|(_, port)| port)
            .collect();
        assert_eq!(ports, [22, 80]);
    }
}
