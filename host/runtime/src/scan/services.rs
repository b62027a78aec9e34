//! Names of services, as in /etc/services.

use std::fs::File;
use std::io::Read as _;

use ::scan::Protocol;

/// The names of services of this host.
const SERVICES: &str = "/etc/services";
/// Maximum length of that file in bytes.
const LEN_MAX: u64 = 1 << 24;

/// The services of this host, read when the first name is looked up.
#[derive(Clone, Debug, Default)]
pub struct Services(Option<String>);

impl Services {
    /// The port of a service, by its name or an alias. Without a protocol, TCP's comes before UDP's
    /// and SCTP's.
    ///
    /// # Errors
    /// If there is no such service, as a sentence without a full stop.
    pub fn port_of(&mut self, name: &str, protocol: Option<Protocol>) -> Result<u16, String> {
        let services = match &mut self.0 {
            Some(services) => services,
            none => none.insert(read()?),
        };
        port_of(services, name, protocol).ok_or_else(|| {
            let kind = protocol.map_or_else(String::new, |protocol| {
                format!("{} ", protocol.word().to_uppercase())
            });
            format!("there is no {kind}service {name:?} in {SERVICES}")
        })
    }
}

fn read() -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(SERVICES);
    let read = file.and_then(|file| file.take(LEN_MAX).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {SERVICES}: {error}; give the number of the port"))?;
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
}
