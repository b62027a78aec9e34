//! Names of services in lists of ports, as in /etc/services.

use std::path::Path;

use ::scan::{PortList, Protocol};

use crate::inputs;

/// The names of services of this host.
const SERVICES: &str = "/etc/services";
/// Maximum length of that file in bytes.
const LEN_MAX: u64 = 1 << 24;

/// Parses a list of ports with names of services. A name after a letter is the port of that
/// protocol; without a letter that of TCP, or else of UDP or SCTP.
///
/// # Errors
/// What is wrong with it, as a sentence without a full stop.
pub fn parse_ports(text: &str) -> std::result::Result<PortList, String> {
    let mut services = None;
    PortList::parse_with(text, |name, protocol| {
        let services: &mut String = match &mut services {
            Some(services) => services,
            none => none.insert(read()?),
        };
        port_of(services, name, protocol).ok_or_else(|| {
            let kind = protocol.map_or_else(String::new, |protocol| {
                format!("{} ", protocol.word().to_uppercase())
            });
            format!("there is no {kind}service {name:?} in {SERVICES}")
        })
    })
}

fn read() -> std::result::Result<String, String> {
    let bytes = inputs::read_bytes(Path::new(SERVICES), LEN_MAX);
    let bytes = bytes.map_err(|error| format!("{error}; give the number of the port"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The port of a service by one of its names.
fn port_of(services: &str, name: &str, protocol: Option<Protocol>) -> Option<u16> {
    let wanted: &[Protocol] = match &protocol {
        Some(protocol) => std::slice::from_ref(protocol),
        None => &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
    };
    let find = |protocol: &Protocol| {
        services.lines().find_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let (first, place) = (words.next()?, words.next()?);
            let (port, word) = place.split_once('/')?;
            let is_it = word == protocol.word() && (first == name || words.any(|w| w == name));
            is_it.then(|| port.parse().ok()).flatten()
        })
    };
    wanted.iter().find_map(find)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# name port\n\
        domain 53/tcp\n\
        domain\t53/udp # names\n\
        http 80/tcp www # http-old\n\
        broken\n\
        http-alt 8080/tcp webcache\n\
        http-alt 8081/udp\n\
        tftp 69/udp\n\
        diameter 3868/sctp\n\
        big 70000/tcp\n";

    #[test]
    fn names_and_aliases_are_found_by_protocol() {
        for (name, protocol, port) in [
            ("http", None, Some(80)),
            ("www", Some(Protocol::Tcp), Some(80)),
            ("http", Some(Protocol::Udp), None),
            ("http-alt", None, Some(8080)),
            ("http-alt", Some(Protocol::Udp), Some(8081)),
            ("tftp", None, Some(69)),
            ("tftp", Some(Protocol::Tcp), None),
            ("diameter", Some(Protocol::Sctp), Some(3868)),
            ("http-old", None, None),
            ("broken", None, None),
            ("big", None, None),
            ("HTTP", None, None),
        ] {
            assert_eq!(port_of(TEXT, name, protocol), port, "{name} {protocol:?}");
        }
    }

    #[test]
    fn an_error_names_the_unknown_name() {
        assert_eq!(parse_ports("80,U:53"), PortList::parse("80,U:53"));
        let error = parse_ports("80,U:no-such-service").unwrap_err();
        assert!(error.contains("no-such-service"), "{error}");
    }
}
