//! Recognizes a collector that was written as a path: a file of that name would be created, filled,
//! and reported as a success.

use std::net::{IpAddr, Ipv6Addr};

use crate::format::Format;
use crate::sink::{self, FILE, Names, SINKS};

/// Why the part after `FORMAT:`, which has no `SCHEME://`, is no path, and the URLs that were
/// probably meant; `None` if it is a path.
pub(super) fn find(format: &Format, path: &str, query: &str) -> Option<(String, String)> {
    // `/192.0.2.1:4739` and `192.0.2.1,4739` are no more files than `192.0.2.1:4739`.
    let (given, plain) = plain_address(path).unzip();
    let path = plain.as_deref().unwrap_or(path);
    let prefix = scheme_of(path);
    let rest = prefix.map_or(path, |prefix| &path[prefix.len() + 1..]);
    let place = rest.trim_start_matches('/');
    let why = match prefix {
        Some(scheme) if sink::find(scheme).is_some() => format!("{scheme}: is not followed by //"),
        // A number behind the colon is a port.
        Some(scheme) if !is_address(path) => format!("{path:?} starts with the scheme {scheme}:"),
        _ if is_address(path) => format!("{path:?} looks like HOST:PORT, not like a file"),
        _ if path.starts_with("//") => "the scheme before // is missing".into(),
        _ => return None,
    };
    let prefix = prefix.filter(|_| !is_address(path));
    let query = match query {
        "" => String::new(),
        query => format!("?{query}"),
    };
    let name = format.name;
    let mut urls = Vec::new();
    let has_files = format.sinks.contains(&FILE);
    // A topic follows a host, other paths do not.
    let is_path = place.trim_end_matches('/').contains('/') && prefix.is_none();
    if prefix != Some(FILE)
        && !(has_files && is_path)
        && let Some(scheme) = collector_scheme(format, prefix.or(given.flatten()))
    {
        let place = if is_address(path) { path } else { place };
        let place = bracketed(place);
        urls.push(format!("to a collector: {name}:{scheme}://{place}{query}"));
    }
    if has_files {
        let file = match prefix {
            Some(FILE) => rest.to_owned(),
            // `//flows.csv` is more often a file of this directory than one of the root directory.
            None if path.starts_with("//") => match is_path {
                true => format!("/{place}"),
                false => place.to_owned(),
            },
            _ => format!("./{path}"),
        };
        urls.push(format!("to a file: {name}:{file}{query}"));
    }
    Some((why, urls.join("; ")))
}

/// A host and port that are separated in another way, or follow `udp/` or a slash, as `HOST:PORT`;
/// with the scheme, if there is one.
fn plain_address(path: &str) -> Option<(Option<&'static str>, String)> {
    let (mut scheme, mut text) = (None, path);
    for row in SINKS.iter().filter(|row| row.names != Names::File) {
        let behind = path.strip_prefix(row.scheme);
        if let Some(behind) = behind.filter(|behind| behind.starts_with('/')) {
            (scheme, text) = (Some(row.scheme), behind);
        }
    }
    let text = text.trim_start_matches('/');
    let joined = match text.split_once([',', ' ', '#', '/']) {
        Some((host, port)) if host.parse::<IpAddr>().is_ok() => format!("{host}:{port}"),
        _ => text.to_owned(),
    };
    // `//` has its own message.
    let is_one = joined != path && !path.starts_with("//") && is_address(&joined);
    is_one.then_some((scheme, joined))
}

/// The scheme at the start of a path: letters and digits before a colon. One letter, or a name with
/// other characters, may well be part of a file name.
fn scheme_of(path: &str) -> Option<&str> {
    let (scheme, _) = path.split_once(':')?;
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    let is_scheme = scheme.len() > 1
        && scheme.chars().all(is_letter)
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    is_scheme.then_some(scheme)
}

/// The scheme of a URL to a collector: the one given if the format supports it, else its first one.
fn collector_scheme(format: &Format, given: Option<&str>) -> Option<&'static str> {
    let rows = format.sinks.iter().filter_map(|name| sink::find(name));
    let mut rows = rows.filter(|row| row.names != Names::File);
    let given = given.and_then(|name| SINKS.iter().find(|row| row.scheme == name));
    match given {
        Some(row) if format.sinks.contains(&row.scheme) => Some(row.scheme),
        _ => rows.next().map(|row| row.scheme),
    }
}

/// Whether a text is an IP address, `localhost`, or a host with a port.
fn is_address(text: &str) -> bool {
    let text = text.trim_end_matches('/');
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<IpAddr>().is_ok() || text == "localhost" {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_host = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = !host.is_empty() && host.chars().all(is_host);
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_port = port.parse::<u16>().is_ok();
    (is_name || is_bracketed) && is_port
}

/// IPv6 addresses are in brackets.
fn bracketed(place: &str) -> String {
    match place.trim_end_matches('/').parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::format;
    use crate::target::Target;

    #[test]
    fn a_collector_without_a_scheme_is_no_file() {
        for (text, url) in [
            ("ipfix:udp:127.0.0.1:4739", "ipfix:udp://127.0.0.1:4739;"),
            ("ipfix:udp:/127.0.0.1:4739", "ipfix:udp://127.0.0.1:4739;"),
            ("ipfix:tls:h:4740?ca=a", "ipfix:tls://h:4740?ca=a;"),
            ("ipfix:127.0.0.1:4739", "ipfix:udp://127.0.0.1:4739;"),
            ("ipfix:127.0.0.1", "ipfix:udp://127.0.0.1;"),
            ("ipfix:[::1]:4739", "ipfix:udp://[::1]:4739;"),
            ("ipfix:2001:db8::1", "ipfix:udp://[2001:db8::1];"),
            ("ipfix:collector:2055", "ipfix:udp://collector:2055;"),
            ("ipfix:a-b.example:2055", "ipfix:udp://a-b.example:2055;"),
            ("ipfix:localhost", "ipfix:udp://localhost;"),
            ("ipfix://127.0.0.1:2055", "ipfix:udp://127.0.0.1:2055;"),
            ("ipfix:http:h", "ipfix:udp://h;"),
            ("netflow9:127.0.0.1:2055", "netflow9:udp://127.0.0.1:2055"),
            ("netflow5://h:2055", "netflow5:udp://h:2055"),
            (
                "json:kafka:h:9092/t?acks=all",
                "json:kafka://h:9092/t?acks=all;",
            ),
            ("json:tcp:h:514", "json:tcp://h:514;"),
            ("csv://flows.csv", "to a file: csv:flows.csv"),
            ("csv:///tmp/flows.csv", "to a file: csv:/tmp/flows.csv"),
            ("csv:file:/tmp/a.csv", "to a file: csv:/tmp/a.csv"),
            ("parquet://flows/", "to a file: parquet:flows/"),
            ("ipfix:tcp//192.0.2.1:4739", "ipfix:tcp://192.0.2.1:4739;"),
            ("ipfix:udp/192.0.2.1:4739", "ipfix:udp://192.0.2.1:4739;"),
            ("ipfix:/192.0.2.1:4739", "ipfix:udp://192.0.2.1:4739;"),
            ("ipfix:192.0.2.1,4739", "ipfix:udp://192.0.2.1:4739;"),
            ("ipfix:192.0.2.1/4739", "ipfix:udp://192.0.2.1:4739;"),
            ("ipfix:UDP:192.0.2.1:4739", "ipfix:udp://192.0.2.1:4739;"),
            ("ipfix:::1", "ipfix:udp://[::1];"),
            ("ipfix:s3:bucket", "to a file: ipfix:./s3:bucket"),
        ] {
            let error = Target::parse(text).unwrap_err();
            let hint = error.hint().unwrap_or_default();
            assert!(format!("{hint};").contains(url), "{text}: {error}: {hint}");
        }
    }

    #[test]
    fn paths_with_colons_are_paths() {
        for text in [
            "csv:./127.0.0.1:4739",
            "csv:/tmp/h:99",
            "csv:flows-12:30.csv",
            "csv:12:30.csv",
            "csv:f-%H:%M.csv?rotate=1h",
            "csv:c:x.csv",
            "ipfix:10.0.0.1.ipfix",
            "csv:a//b.csv",
            "csv:10.0.0.1/flows.csv",
            "csv:10.0.0.1.csv",
            "csv:udp/flows.csv",
            "csv:file://a.csv",
        ] {
            assert!(Target::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn no_format_takes_a_host_for_a_file() {
        for format in format::FORMATS {
            for place in ["h:99", "//h:99", "udp:h:99", "192.0.2.1", "[::1]:9"] {
                let text = format!("{}:{place}", format.name);
                let error = Target::parse(&text).unwrap_err();
                assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{text}");
            }
        }
    }
}
