//! Parses destinations as written by users.

mod slip;

use std::path::PathBuf;
use std::time::Duration;

use flow::element::Column;
use flow::encode::csv::Texts;
use sys::{Error, ErrorKind, Result};

use crate::format::{self, FORMATS, Format, Make};
use crate::packing::Packing;
use crate::rotation::Rotation;
use crate::sink::{self, FILE, Names, SinkRow};

/// Address of a destination: host and port, path, or topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host name or address, and a port.
    Host(String, u16),
    /// A file; `-` is standard output.
    Path(PathBuf),
    /// Brokers, separated by commas, and a topic.
    Topic {
        /// `HOST:PORT,…`.
        brokers: String,
        /// Its name.
        topic: String,
    },
}

/// The options after the question mark.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Observation domain or source ID.
    pub domain: u32,
    /// A record per direction.
    pub is_uniflow: bool,
    /// Maximum length of a message in bytes.
    pub mtu: Option<usize>,
    /// Interval at which templates and statistics are repeated.
    pub refresh: Option<Duration>,
    /// Maximum number of flow records per second.
    pub rate: Option<u32>,
    /// Fields in addition to the standard ones.
    pub fields: Vec<Column>,
    /// All fields of the record.
    pub has_all_fields: bool,
    /// The enterprise number of barewire's own elements.
    pub enterprise: Option<u32>,
    /// Maximum number of queued flow records.
    pub queue: Option<usize>,
    /// How long a file's reader, and the end, wait for a stalled destination.
    pub wait: Option<Duration>,
    /// Certificates to trust, own certificate, its key: PEM files.
    pub ca: Option<PathBuf>,
    /// See `ca`.
    pub cert: Option<PathBuf>,
    /// See `ca`.
    pub key: Option<PathBuf>,
    /// The name in the collector's certificate, if it differs from the host.
    pub name: Option<String>,
    /// Rotation of files.
    pub rotation: Rotation,
    /// Directories of Parquet files.
    pub partition: Partition,
    /// Number of records in a row group.
    pub group_len: Option<usize>,
    /// How text from packets is written to CSV.
    pub texts: Texts,
    /// Times in nanoseconds instead of microseconds.
    pub is_nano: bool,
    /// Properties passed to librdkafka, by its names.
    pub properties: Vec<(String, String)>,
}

/// Partitioning of Parquet files into directories, by the UTC start time of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// `date=2026-11-22/hour=01`.
    #[default]
    Hour,
    /// `date=2026-11-22`.
    Day,
    /// All in one directory.
    None,
}

/// A destination.
#[derive(Clone)]
pub struct Target {
    /// The URL as written.
    pub text: String,
    /// The format.
    pub format: &'static Format,
    /// The sink.
    pub sink: &'static SinkRow,
    /// The address.
    pub place: Place,
    /// The options.
    pub options: Options,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:?})", self.text, self.place)
    }
}

/// Options that all destinations have.
const COMMON: &[&str] = &["queue", "wait"];
/// Options of all formats that send messages.
const OF_MESSAGES: &[&str] = &["rate"];

impl Target {
    /// Parses `FORMAT:SCHEME://HOST:PORT?OPTIONS` or `FORMAT:PATH?OPTIONS`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], with the problem and a valid form.
    pub fn parse(text: &str) -> Result<Target> {
        let error =
            |why: String| Error::new(ErrorKind::InvalidInput, format!("export to {text:?}"), why);
        let Some((name, rest)) = text.split_once(':') else {
            let error = error("it does not start with FORMAT:".into());
            return Err(error.with_hint(EXAMPLES));
        };
        let Some(format) = format::find(name) else {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let error = error(format!("unknown format {name:?}"));
            return Err(error.with_hint(format!("use one of {}", names.join(", "))));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.contains("://")
            && let Some((why, hint)) = slip::find(format, rest, query)
        {
            return Err(error(why).with_hint(hint));
        }
        let (scheme, place) = rest.split_once("://").unwrap_or((FILE, rest));
        let row = sink::find(scheme).filter(|row| format.sinks.contains(&row.scheme));
        let Some(row) = row else {
            let error = error(format!("{name} cannot be exported to {scheme:?}"));
            return Err(
                error.with_hint(format!("it can be exported to {}", format.sinks.join(", ")))
            );
        };
        let options = Options::parse(query, format, row).map_err(|(why, hint)| match hint {
            Some(hint) => error(why).with_hint(hint),
            None => error(why),
        })?;
        let place = Place::parse(place, format, row, &options)
            .map_err(|why| error(why).with_hint(EXAMPLES))?;
        Ok(Target {
            text: text.to_owned(),
            format,
            sink: row,
            place,
            options,
        })
    }

    /// Whether its path is a directory that contains its files.
    pub fn is_folder(&self) -> bool {
        matches!(self.place, Place::Path(_)) && matches!(self.format.make, Make::Store(_))
    }

    /// Whether it is a compressed file.
    pub(crate) fn is_packed(&self) -> bool {
        match &self.place {
            Place::Path(path) => Packing::of(path) != Packing::Plain,
            Place::Host(..) | Place::Topic { .. } => false,
        }
    }
}

const EXAMPLES: &str =
    "for example ipfix:udp://192.0.2.1:4739, ipfix:tcp://collector, csv:flows.csv, parquet:flows/";

impl Place {
    fn parse(
        text: &str,
        format: &Format,
        row: &SinkRow,
        options: &Options,
    ) -> std::result::Result<Place, String> {
        match row.names {
            Names::File if text.is_empty() => Err("the path is missing".into()),
            Names::File => {
                let is_pattern =
                    options.rotation.is_some() && matches!(format.make, Make::Messages(_));
                // In a pattern the percent sign starts a field.
                let path = if is_pattern {
                    text.to_owned()
                } else {
                    decode(text)
                };
                Ok(Place::Path(PathBuf::from(path)))
            }
            Names::Topic => topic(text),
            Names::Host => {
                let default = match row.is_encrypted {
                    true => format.port_encrypted,
                    false => format.port,
                };
                let (host, port) = host_and_port(text, default)?;
                Ok(Place::Host(host, port))
            }
        }
    }
}

/// An error in the options, and a hint.
type Wrong = (String, Option<String>);

impl Options {
    /// Parses `KEY=VALUE&KEY=VALUE`; a format and a sink determine which keys are valid.
    fn parse(query: &str, format: &Format, row: &SinkRow) -> std::result::Result<Options, Wrong> {
        let mut options = Options::default();
        let of_messages = match format.make {
            Make::Messages(_) => OF_MESSAGES,
            Make::Store(_) => &[],
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if row.passes_options && ![COMMON, of_messages].concat().contains(&key) {
                // The library knows its properties.
                options.properties.push((key.to_owned(), decode(value)));
                continue;
            }
            let known = [COMMON, of_messages, format.options, row.options];
            if !known.iter().any(|of| of.contains(&key)) {
                let why = format!(
                    "unknown option {key:?} for {} over {}",
                    format.name, row.scheme
                );
                let hint = format!("its options are {}", known.concat().join(", "));
                return Err((why, Some(hint)));
            }
            options
                .set(key, &decode(value))
                .map_err(|why| (format!("{key}={value}: {why}"), None))?;
        }
        if options.cert.is_some() != options.key.is_some() {
            let why = "cert= and key= must be given together";
            return Err((why.into(), None));
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        let path = || match value {
            "" => Err("the path is missing".to_owned()),
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
            "wait" => self.wait = Some(interval(value)?),
            "queue" => self.queue = Some(number(value, 1, 1 << 24)? as usize),
            "enterprise" => self.enterprise = Some(number(value, 1, u32::MAX)?),
            "fields" => self.fields = fields(value)?,
            "ca" => self.ca = path()?,
            "cert" => self.cert = path()?,
            "key" => self.key = path()?,
            "name" => self.name = Some(value.to_owned()),
            "rotate" => self.rotation.interval = Some(interval(value)?),
            "size" => self.rotation.len_max = Some(size(value)?),
            "rows" => self.group_len = Some(number(value, 1000, 1 << 22)? as usize),
            "columns" => {
                self.has_all_fields = match value {
                    "standard" => false,
                    "all" => true,
                    _ => return Err("expected standard or all".into()),
                }
            }
            "text" => {
                self.texts = match value {
                    "safe" => Texts::Safe,
                    "raw" => Texts::Raw,
                    _ => return Err("expected safe or raw".into()),
                }
            }
            "times" => {
                self.is_nano = match value {
                    "us" => false,
                    "ns" => true,
                    _ => return Err("expected us or ns".into()),
                }
            }
            "partition" => {
                self.partition = match value {
                    "hour" => Partition::Hour,
                    "day" => Partition::Day,
                    "none" => Partition::None,
                    _ => return Err("expected hour, day or none".into()),
                }
            }
            // The rows name only options handled here; a test checks that.
            other => return Err(format!("unknown value {other:?}")),
        }
        Ok(())
    }
}

/// Parses names of elements; `all` stands for those of [`Column::all`].
fn fields(value: &str) -> std::result::Result<Vec<Column>, String> {
    if value == "all" {
        return Ok(Column::all().collect());
    }
    let names = value.split(',').filter(|name| !name.is_empty());
    names
        .map(|name| {
            Column::find(name)
                .ok_or_else(|| format!("unknown information element {name:?}; see docs/export.md"))
        })
        .collect()
}

fn number(value: &str, least: u32, most: u32) -> std::result::Result<u32, String> {
    match value.parse::<u32>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from {least} to {most}")),
    }
}

/// Parses a time of at least a second: `90`, `90s`, `5m`, `1h`, `1d`.
fn interval(value: &str) -> std::result::Result<Duration, String> {
    let wrong = || "expected a time from 1s to 31d, such as 90s, 5m, 1h".to_owned();
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let seconds = seconds.filter(|seconds| (1..=31 * 86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses a number of bytes, with `k`, `M` and `G` for 10^3, 10^6, 10^9.
fn size(value: &str) -> std::result::Result<u64, String> {
    let wrong = || "expected a size from 1k to 1000G, such as 100M".to_owned();
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (1_000..=1_000_000_000_000).contains(bytes));
    bytes.ok_or_else(wrong)
}

fn flag(value: &str) -> std::result::Result<bool, String> {
    match value {
        "" | "1" | "yes" | "true" => Ok(true),
        "0" | "no" | "false" => Ok(false),
        _ => Err("expected yes or no".into()),
    }
}

/// Parses `BROKER,…/TOPIC`; the default port of brokers is 9092.
fn topic(text: &str) -> std::result::Result<Place, String> {
    let (hosts, topic) = text.split_once('/').unwrap_or((text, ""));
    if topic.is_empty() || topic.contains('/') {
        return Err("expected BROKER:PORT/TOPIC".into());
    }
    let mut brokers = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = host_and_port(host, 9092)?;
        let name = if name.contains(':') {
            format!("[{name}]")
        } else {
            name
        };
        brokers.push(format!("{name}:{port}"));
    }
    Ok(Place::Topic {
        brokers: brokers.join(","),
        topic: decode(topic),
    })
}

fn host_and_port(text: &str, port: u16) -> std::result::Result<(String, u16), String> {
    let text = text.trim_end_matches('/');
    let (host, after) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("an IPv6 address ends with ]")?,
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("write IPv6 addresses in brackets: [2001:db8::1]:4739".into());
            }
            Some((host, _)) => (host, &text[host.len()..]),
            None => (text, ""),
        },
    };
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    if host.contains('/') || after.contains('/') {
        return Err("expected HOST:PORT without a slash".into());
    }
    let port = match after.strip_prefix(':') {
        Some(digits) => number(digits, 1, 65_535).map_err(|why| format!("port: {why}"))? as u16,
        None if !after.is_empty() => return Err(format!("unexpected {after:?} after the host")),
        None if port == 0 => return Err("the port is missing".into()),
        None => port,
    };
    Ok((host.to_owned(), port))
}

/// Decodes percent-encoding (RFC 3986 §2.1).
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
    fn urls_are_parsed_as_documented() {
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
        let target = Target::parse("csv:f-%d%20.csv.gz?rotate=5m&size=2M").unwrap();
        assert_eq!(target.place, Place::Path("f-%d%20.csv.gz".into()));
        assert_eq!(target.options.rotation.len_max, Some(2_000_000));
        assert_eq!(
            target.options.rotation.interval,
            Some(Duration::from_secs(300))
        );
        assert!(target.is_packed());
        let target = Target::parse("avro:kafka://a,[::1]:99/flows?acks=all&queue=512").unwrap();
        let (brokers, topic) = ("a:9092,[::1]:99".to_owned(), "flows".to_owned());
        assert_eq!(target.place, Place::Topic { brokers, topic });
        assert_eq!(target.options.properties, [("acks".into(), "all".into())]);
        assert_eq!(target.options.queue, Some(512));
        let target = Target::parse("parquet:a%20b?rotate=1h&rows=5000&times=ns").unwrap();
        assert_eq!(target.place, Place::Path("a b".into()));
    }

    #[test]
    fn errors_are_reported() {
        for (text, words) in [
            ("flows.csv", "does not start with FORMAT:"),
            ("xml:flows", "unknown format \"xml\""),
            ("netflow5:tcp://h:1", "cannot be exported to \"tcp\""),
            ("csv:", "path is missing"),
            ("ipfix:udp://", "host is missing"),
            ("json:udp://h", "port is missing"),
            ("ipfix:udp://h:0", "expected a number from 1 to 65535"),
            ("ipfix:udp://2001:db8::1:9", "in brackets"),
            ("ipfix:udp://[2001:db8::1", "ends with ]"),
            ("ipfix:udp://h?colour=red", "unknown option \"colour\""),
            ("ipfix:udp://h?mtu=100", "from 512"),
            ("ipfix:udp://h?fields=colour", "unknown information element"),
            ("ipfix:tls://h?cert=a.pem", "given together"),
            ("netflow5:udp://h?uniflow", "unknown option \"uniflow\""),
            ("csv:f-%n.csv?rotate=1w", "expected a time"),
            ("csv:f-%n.csv?size=1", "expected a size"),
            ("csv:tcp://h:1?rotate=1h", "unknown option \"rotate\""),
            ("json:kafka://h:9092", "BROKER:PORT/TOPIC"),
            ("json:kafka:///flows", "host is missing"),
            ("csv:kafka://h/flows", "cannot be exported to \"kafka\""),
            ("parquet:d?rate=5", "unknown option \"rate\""),
            ("csv:f?text=bold", "expected safe or raw"),
            ("csv:f?columns=some", "expected standard or all"),
            ("parquet:d?partition=year", "expected hour, day or none"),
            ("parquet:udp://h:1", "cannot be exported to \"udp\""),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn every_option_of_a_row_is_handled() {
        let rows = SINKS.iter().map(|row| row.options);
        for name in rows.chain(FORMATS.iter().map(|f| f.options)).flatten() {
            let value = match *name {
                "fields" => "ipVersion",
                "uniflow" => "1",
                "partition" => "day",
                "times" => "ns",
                "text" => "raw",
                "columns" => "all",
                _ => "1000",
            };
            assert_eq!(Options::default().set(name, value), Ok(()), "{name}");
        }
        for format in FORMATS {
            for scheme in format.sinks {
                assert!(sink::find(scheme).is_some(), "{scheme}");
            }
        }
    }
}
