//! Arguments with their own small syntax: fields, timeouts, decoders, sampling.

use std::time::Duration;

use flow::{ExtraConfig, MeterConfig, Profile, Sampling, Timeouts};
use inspect::{Decoders, InspectorConfig};

use super::units::{parse_duration, parse_timeout};

/// Default number of packets recorded per flow.
const PACKET_COUNT: u8 = 10;

/// Flows that libndpi inspects at the same time: 11 MiB per queue.
const NDPI_FLOW_COUNT: u32 = 1 << 14;

/// An idle timeout for a protocol or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    protocol: Option<Protocol>,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    Icmp,
    Other,
}

impl Idle {
    /// Sets the timeout.
    pub fn apply(&self, timeouts: &mut Timeouts) {
        let ns = self.time.as_nanos() as u64;
        match self.protocol {
            None => timeouts.set_idle_ns(ns),
            Some(Protocol::Tcp) => timeouts.idle_tcp_ns = ns,
            Some(Protocol::Udp) => timeouts.idle_udp_ns = ns,
            Some(Protocol::Icmp) => timeouts.idle_icmp_ns = ns,
            Some(Protocol::Other) => timeouts.idle_other_ns = ns,
        }
    }
}

/// Parses `30s` or `tcp=120s`.
pub fn idle(text: &str) -> Result<Idle, String> {
    let Some((name, time)) = text.split_once('=') else {
        return Ok(Idle {
            protocol: None,
            time: parse_timeout(text)?,
        });
    };
    let protocol = match name {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "icmp" => Protocol::Icmp,
        "other" => Protocol::Other,
        _ => {
            return Err(format!(
                "unknown protocol {name:?}: use tcp, udp, icmp or other"
            ));
        }
    };
    Ok(Idle {
        protocol: Some(protocol),
        time: parse_timeout(time)?,
    })
}

/// Fields to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Counters,
    Standard,
    Packets(u8),
    Timing,
    Bytes,
    Full,
}

/// Parses one of a list of fields.
pub fn field(text: &str) -> Result<Field, String> {
    let (name, count) = match text.split_once('=') {
        Some((name, count)) => (name, Some(count)),
        None => (text, None),
    };
    match (name, count) {
        ("counters", None) => Ok(Field::Counters),
        ("standard", None) => Ok(Field::Standard),
        ("packets", None) => Ok(Field::Packets(PACKET_COUNT)),
        ("packets", Some(count)) => match count.parse() {
            Ok(count @ 1..) => Ok(Field::Packets(count)),
            _ => Err("packets=N: expected a number from 1 to 255".into()),
        },
        ("timing", None) => Ok(Field::Timing),
        ("bytes", None) => Ok(Field::Bytes),
        ("full", None) => Ok(Field::Full),
        _ => Err(format!(
            "unknown field {text:?}: use counters, standard, packets=N, timing, bytes or full"
        )),
    }
}

/// Whether any field is stored in addition to the record.
pub fn has_more(fields: &[Field]) -> bool {
    let is_record = |field: &Field| matches!(field, Field::Counters | Field::Standard);
    !fields.iter().all(is_record)
}

/// Whether all fields of the record are exported, even where a format omits some by default.
pub fn has_all(fields: &[Field]) -> bool {
    fields.contains(&Field::Full)
}

/// Configures a meter to record them. Extra fields need the standard record.
pub fn apply_fields(fields: &[Field], meter: &mut MeterConfig) {
    meter.table.profile = match fields {
        [Field::Counters] => Profile::Counters,
        _ => Profile::Standard,
    };
    let extra = &mut meter.extra;
    for field in fields {
        match field {
            Field::Counters | Field::Standard => {}
            Field::Packets(count) => extra.packet_count = *count,
            Field::Timing => extra.timing = true,
            Field::Bytes => extra.bytes = true,
            Field::Full => {
                *extra = ExtraConfig {
                    packet_count: extra.packet_count.max(PACKET_COUNT),
                    timing: true,
                    bytes: true,
                    ..*extra
                }
            }
        }
    }
}

/// A decoder of the first packets of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// barewire's own decoders.
    Ours(Decoders),
    /// The system's libndpi.
    Ndpi,
}

/// Parses one of a list of decoders.
pub fn decoder(text: &str) -> Result<Decoder, String> {
    if text == "ndpi" {
        return Ok(Decoder::Ndpi);
    }
    let names = || {
        let rows = inspect::decode::DECODERS.iter();
        rows.map(|row| row.name).collect::<Vec<_>>().join(", ")
    };
    let none = || format!("unknown decoder {text:?}: use {}, all, ndpi", names());
    let ours = Decoders::NONE.with(text).ok_or_else(none)?;
    Ok(Decoder::Ours(ours))
}

/// Configures a meter to pass its first packets to decoders, if there are any.
pub fn apply_decoders(decoders: &[Decoder], meter: &mut MeterConfig) -> Option<InspectorConfig> {
    if decoders.is_empty() {
        return None;
    }
    let config = InspectorConfig {
        decoders: decoders.iter().fold(Decoders::NONE, |sum, one| match one {
            Decoder::Ours(ours) => sum.or(*ours),
            Decoder::Ndpi => sum,
        }),
        ..InspectorConfig::default()
    };
    // Segments are ordered by values that only the standard record has.
    meter.table.profile = Profile::Standard;
    // The inspector has its own bounds, and does not count packets that it skips.
    meter.extra.inspect_count = u8::MAX;
    Some(config)
}

/// How many flows libndpi inspects at once, if it is requested.
///
/// # Errors
/// `Unsupported` if it is missing, or an unsupported release.
pub fn ndpi_flow_count(decoders: &[Decoder]) -> sys::Result<Option<u32>> {
    if !decoders.contains(&Decoder::Ndpi) {
        return Ok(None);
    }
    sys::libndpi::version()?;
    Ok(Some(NDPI_FLOW_COUNT))
}

/// Parses `100`, `count:100`, `random:100`, `hash:100`, `time:1s/10ms`.
pub fn sampling(text: &str) -> Result<Sampling, String> {
    let (how, rate) = text.split_once(':').unwrap_or(("count", text));
    if how == "time" {
        let (every, open) = rate
            .split_once('/')
            .ok_or("time: expected PERIOD/LENGTH, for example time:1s/10ms")?;
        let (every, open) = (parse_duration(every)?, parse_duration(open)?);
        if open > every {
            return Err("the sampled length is longer than the period".into());
        }
        return Ok(Sampling::Time {
            every_ns: every.as_nanos() as u64,
            open_ns: open.as_nanos() as u64,
        });
    }
    let interval = match rate.parse::<u32>() {
        Ok(interval @ 1..) => interval,
        _ => return Err(format!("expected a number above 0, not {rate:?}")),
    };
    match how {
        _ if interval == 1 => Ok(Sampling::All),
        "count" => Ok(Sampling::Count(interval)),
        "random" => Ok(Sampling::Random(interval)),
        "hash" => Ok(Sampling::Hash(interval)),
        _ => Err(format!(
            "unknown method {how:?}: use count, random, hash or time"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_parsed() {
        let second = |seconds| Duration::from_secs(seconds);
        let tcp = Idle {
            protocol: Some(Protocol::Tcp),
            time: second(120),
        };
        assert_eq!(idle("tcp=2m"), Ok(tcp));
        assert_eq!(idle("5").map(|idle| idle.time), Ok(second(5)));
        assert!(idle("tcp=25h").is_err() && idle("gre=1s").is_err());
        assert_eq!(field("packets=30"), Ok(Field::Packets(30)));
        for bad in ["packets=0", "packets=256", "timing=1", "all", ""] {
            assert!(field(bad).is_err(), "{bad}");
        }
        assert_eq!(decoder("ndpi"), Ok(Decoder::Ndpi));
        assert_eq!(decoder("all"), Ok(Decoder::Ours(Decoders::ALL)));
        assert!(decoder("nothing").is_err_and(|why| why.contains("ndpi")));
        let without = ndpi_flow_count(&[Decoder::Ours(Decoders::ALL)]);
        assert!(without.is_ok_and(|count| count.is_none()));
        assert_eq!(sampling("100"), Ok(Sampling::Count(100)));
        assert_eq!(sampling("hash:7"), Ok(Sampling::Hash(7)));
        assert_eq!(sampling("random:1"), Ok(Sampling::All));
        let time = Sampling::Time {
            every_ns: 1_000_000_000,
            open_ns: 10_000_000,
        };
        assert_eq!(sampling("time:1s/10ms"), Ok(time));
        for bad in ["0", "-1", "time:1s", "time:1s/2s", "often:3", ""] {
            assert!(sampling(bad).is_err(), "{bad}");
        }
    }
}
