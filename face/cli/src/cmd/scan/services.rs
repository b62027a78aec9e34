//! Ports of a scan, by number or by the name of their service.

use ::scan::PortList;
use runtime::scan::Services;

/// Parses a list of ports with names of services. A name after a letter is the port of that
/// protocol; without a letter that of TCP, or else of UDP or SCTP.
///
/// # Errors
/// What is wrong with it, as a sentence without a full stop.
pub fn parse_ports(text: &str) -> std::result::Result<PortList, String> {
    let mut services = Services::default();
    PortList::parse_with(text, |name, protocol| services.port_of(name, protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_unknown_name() {
        assert_eq!(parse_ports("80,U:53"), PortList::parse("80,U:53"));
        let error = parse_ports("80,U:no-such-service").unwrap_err();
        assert!(error.contains("no-such-service"), "{error}");
    }
}
