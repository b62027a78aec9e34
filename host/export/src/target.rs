//! Destinations as people write them.

use std::path::PathBuf;
use std::time::Duration;

use flow::element::Column;
use sys::{Error, ErrorKind, Result};

use crate::format::{self, FORMATS, Format};
use crate::sink::{self, FILE, SinkRow};

/// Where a sink leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A name or an address, and a port.
    Host(String, u16),
    /// A file; `-` is standard output.
    Path(PathBuf),
}

/// What can be said behind the question mark.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Observation domain, or source id.
    pub domain: u32,
    /// A record for each direction.
    pub is_uniflow: bool,
    /// Bytes of a message at most.
    pub mtu: Option<usize>,
    /// How often templates and statistics are repeated.
    pub refresh: Option<Duration>,
    /// Flow records a second at most.
    pub rate: Option<u32>,
    /// Elements beside the standard ones.
    pub fields: Vec<Column>,
    /// The enterprise number for elements of our own.
    pub enterprise: Option<u32>,
    /// Flow records that may wait.
    pub queue: Option<usize>,
    /// Certificates to trust, our own, its key: files in PEM.
    pub ca: Option<PathBuf>,
    /// See `ca`.
    pub cert: Option<PathBuf>,
    /// See `ca`.
    pub key: Option<PathBuf>,
    /// The name in the collector's certificate, if not that of the host.
    pub name: Option<String>,
}

/// A destination.
#[derive(Clone)]
pub struct Target {
    /// As it was written.
    pub text: String,
    /// The format.
    pub format: &'static Format,
    /// The sink.
    pub sink: &'static SinkRow,
    /// Where to.
    pub place: Place,
    /// How.
    pub options: Options,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:?})", self.text, self.place)
    }
}

/// Options that every destination has.
const COMMON: &[&str] = &["rate", "queue"];

impl Target {
    /// Reads `FORMAT:SCHEME://HOST:PORT?OPTIONS` or `FORMAT:PATH?OPTIONS`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], with what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Target> {
        let error =
            |why: String| Error::new(ErrorKind::InvalidInput, format!("export to {text:?}"), why);
        let Some((name, rest)) = text.split_once(':') else {
            let error = error("a format and a colon come first".into());
            return Err(error.with_hint(EXAMPLES));
        };
        let Some(format) = format::find(name) else {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let error = error(format!("{name:?} is no format"));
            return Err(error.with_hint(format!("formats are {}", names.join(", "))));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, place) = rest.split_once("://").unwrap_or((FILE, rest));
        let row = sink::find(scheme).filter(|row| format.sinks.contains(&row.scheme));
        let Some(row) = row else {
            let error = error(format!("{name} does not go to {scheme:?}"));
            return Err(error.with_hint(format!("it goes to {}", format.sinks.join(", "))));
        };
        let place = if row.scheme == FILE {
            if place.is_empty() {
                return Err(error("there is no path".into()).with_hint(EXAMPLES));
            }
            Place::Path(PathBuf::from(decode(place)))
        } else {
            let (host, port) = host_and_port(place, default_port(format, row))
                .map_err(|why| error(why).with_hint(EXAMPLES))?;
            Place::Host(host, port)
        };
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = [COMMON, format.options, row.options];
            if !known.iter().any(|of| of.contains(&key)) {
                let error = error(format!("{name} over {scheme} has no option {key:?}"));
                return Err(error.with_hint(format!("it has {}", known.concat().join(", "))));
            }
            options
                .set(key, &decode(value))
                .map_err(|why| error(format!("{key}={value}: {why}")))?;
        }
        if options.cert.is_some() != options.key.is_some() {
            return Err(error("cert= and key= go together".into()));
        }
        Ok(Target {
            text: text.to_owned(),
            format,
            sink: row,
            place,
            options,
        })
    }
}

const EXAMPLES: &str =
    "for example ipfix:udp://192.0.2.1:4739, ipfix:tcp://collector, csv:flows.csv";

/// IPFIX over TLS has a port of its own (RFC 7011 §10.3.4).
fn default_port(format: &Format, row: &SinkRow) -> u16 {
    if format.name == "ipfix" && row.scheme == "tls" {
        return 4740;
    }
    format.port
}

impl Options {
    fn set(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        let path = || match value {
            "" => Err("a path is missing".to_owned()),
            path => Ok(Some(PathBuf::from(path))),
        };
        match key {
            "domain" => self.domain = number(value, 0, u32::MAX)?,
            "uniflow" => self.is_uniflow = flag(value)?,
            "mtu" => self.mtu = Some(number(value, 512, 65_507)? as usize),
            "refresh" => {
                let seconds = number(value.trim_end_matches('s'), 1, 86_400)?;
                self.refresh = Some(Duration::from_secs(seconds.into()));
            }
            "rate" => self.rate = Some(number(value, 1, u32::MAX)?),
            "queue" => self.queue = Some(number(value, 1, 1 << 24)? as usize),
            "enterprise" => self.enterprise = Some(number(value, 1, u32::MAX)?),
            "fields" => self.fields = fields(value)?,
            "ca" => self.ca = path()?,
            "cert" => self.cert = path()?,
            "key" => self.key = path()?,
            "name" => self.name = Some(value.to_owned()),
            // The rows name only what is handled here; a test says so.
            other => return Err(format!("{other:?} is not known")),
        }
        Ok(())
    }
}

fn fields(value: &str) -> std::result::Result<Vec<Column>, String> {
    let names = value.split(',').filter(|name| !name.is_empty());
    names
        .map(|name| {
            Column::find(name).ok_or_else(|| {
                format!("{name:?} is no information element that barewire has; see docs/export.md")
            })
        })
        .collect()
}

fn number(value: &str, least: u32, most: u32) -> std::result::Result<u32, String> {
    match value.parse::<u32>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

fn flag(value: &str) -> std::result::Result<bool, String> {
    match value {
        "" | "1" | "yes" | "true" => Ok(true),
        "0" | "no" | "false" => Ok(false),
        _ => Err("yes or no".into()),
    }
}

fn host_and_port(text: &str, port: u16) -> std::result::Result<(String, u16), String> {
    let text = text.trim_end_matches('/');
    let (host, after) = match text.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .ok_or("an address of IPv6 ends with ]")?,
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an address of IPv6 stands in brackets: [2001:db8::1]:4739".into());
            }
            Some((host, _)) => (host, &text[host.len()..]),
            None => (text, ""),
        },
    };
    if host.is_empty() {
        return Err("there is no host".into());
    }
    let port = match after.strip_prefix(':') {
        Some(digits) => number(digits, 1, 65_535).map_err(|why| format!("port: {why}"))? as u16,
        None if !after.is_empty() => return Err(format!("{after:?} behind the host")),
        None if port == 0 => return Err("there is no port".into()),
        None => port,
    };
    Ok((host.to_owned(), port))
}

/// Percent signs and two digits as the bytes that they stand for (RFC 3986 §2.1).
fn decode(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let digits = match rest {
            [b'%', high, low, ..] => (*high as char)
                .to_digit(16)
                .zip((*low as char).to_digit(16)),
            _ => None,
        };
        match digits {
            Some((high, low)) => {
                out.push((high << 4 | low) as u8);
                rest = &rest[3..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::SINKS;

    #[test]
    fn urls_say_what_is_meant() {
        let target = Target::parse("ipfix:udp://192.0.2.1:2055?domain=7&uniflow&mtu=1200").unwrap();
        assert_eq!(target.place, Place::Host("192.0.2.1".into(), 2055));
        assert_eq!((target.format.name, target.sink.scheme), ("ipfix", "udp"));
        assert_eq!((target.options.domain, target.options.mtu), (7, Some(1200)));
        assert!(target.options.is_uniflow);
        for (text, port) in [
            ("ipfix:tcp://collector", 4739),
            ("ipfix:tls://collector", 4740),
            ("netflow9:udp://[2001:db8::1]", 2055),
            ("ipfix:udp://[2001:db8::1]:9", 9),
            ("json:tcp://h:514", 514),
        ] {
            let target = Target::parse(text).unwrap();
            assert!(
                matches!(target.place, Place::Host(_, p) if p == port),
                "{text}"
            );
        }
        let target = Target::parse("csv:/tmp/a%20b.csv").unwrap();
        assert_eq!(target.place, Place::Path("/tmp/a b.csv".into()));
        let target =
            Target::parse("ipfix:a.ipfix?fields=ipVersion,reverseOctetTotalCount").unwrap();
        assert_eq!(target.options.fields.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, words) in [
            ("flows.csv", "a format and a colon"),
            ("xml:flows", "\"xml\" is no format"),
            ("netflow5:tcp://h:1", "does not go to \"tcp\""),
            ("csv:", "no path"),
            ("ipfix:udp://", "no host"),
            ("json:udp://h", "no port"),
            ("ipfix:udp://h:0", "not a number from 1 to 65535"),
            ("ipfix:udp://2001:db8::1:9", "in brackets"),
            ("ipfix:udp://[2001:db8::1", "ends with ]"),
            ("ipfix:udp://h?colour=red", "no option \"colour\""),
            ("ipfix:udp://h?mtu=100", "from 512"),
            ("ipfix:udp://h?fields=colour", "no information element"),
            ("ipfix:tls://h?cert=a.pem", "go together"),
            ("netflow5:udp://h?uniflow", "no option \"uniflow\""),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn every_option_of_a_row_is_handled() {
        let rows = SINKS.iter().map(|row| row.options);
        for name in rows.chain(FORMATS.iter().map(|f| f.options)).flatten() {
            let value = if *name == "fields" {
                "ipVersion"
            } else {
                "1000"
            };
            let value = if *name == "uniflow" { "1" } else { value };
            assert_eq!(Options::default().set(name, value), Ok(()), "{name}");
        }
        for format in FORMATS {
            for scheme in format.sinks {
                assert!(sink::find(scheme).is_some(), "{scheme}");
            }
        }
    }
}
