//! Output: the plan, the progress line, the summary.

use std::io::{self, IsTerminal, Write};

use port::PortName;
use runtime::TotalsRequest;
use runtime::send::{Limits, ReplaySummary, Report};
use serde_json::{Value, json};
use sys::{Error, Result};
use traffic::{Generator, Pace, Rate, Template, WIRE_OVERHEAD};
use wire::{Dissection, LinkType, dissect};

use crate::out::{self, say};
use crate::report::{counted, si};

/// Number of packets shown in a dry run.
pub const SAMPLE_COUNT: usize = 5;

/// What would be sent.
pub struct Plan {
    packets: Option<u64>,
    bytes: Option<u64>,
    seconds: Option<f64>,
    pace: Pace,
    too_long: u64,
    not_sendable: u64,
    cut: u64,
    samples: Vec<Vec<u8>>,
}

impl Plan {
    /// The plan for a capture.
    pub fn of_capture(survey: &ReplaySummary, rounds: u64, pace: Pace, limits: &Limits) -> Self {
        let all = (rounds != 0).then(|| survey.packets.saturating_mul(rounds));
        let mean = survey.bytes as f64 / survey.packets.max(1) as f64;
        let mut plan = Self {
            packets: all,
            bytes: None,
            seconds: None,
            pace,
            too_long: survey.too_long,
            not_sendable: survey.not_sendable,
            cut: survey.cut,
            samples: survey.samples.clone(),
        };
        if let Pace::Original { multiplier, .. } = pace
            && rounds != 0
        {
            plan.seconds = Some(survey.duration_ns as f64 / 1e9 / multiplier * rounds as f64);
        }
        plan.limit(limits, mean);
        plan
    }

    /// The plan for a template. Takes the first packets from the generator.
    pub fn of_generator(
        generator: &mut Generator,
        template: &Template,
        pace: Pace,
        limits: &Limits,
    ) -> Self {
        let mean = template
            .sizes
            .mean()
            .unwrap_or(generator.packet_len_max() as f64);
        let samples = (0..SAMPLE_COUNT).map(|_| {
            let mut packet = vec![0; generator.packet_len()];
            generator.write(&mut packet);
            packet
        });
        let mut plan = Self {
            packets: None,
            bytes: None,
            seconds: None,
            pace,
            too_long: 0,
            not_sendable: 0,
            cut: 0,
            samples: samples.collect(),
        };
        plan.limit(limits, mean);
        plan
    }

    /// Applies `--count` and `--duration`, as far as their effect is predictable.
    fn limit(&mut self, limits: &Limits, mean: f64) {
        let known = self.packets;
        self.packets = match (self.packets, limits.packet_count) {
            (Some(all), Some(count)) => Some(all.min(count)),
            (all, count) => all.or(count),
        };
        let pps = match self.pace {
            Pace::Rate {
                rate: Rate::Packets(pps),
                ..
            } => Some(pps),
            Pace::Rate {
                rate: Rate::Bits(bps),
                on_wire,
            } => Some(bps / 8.0 / (mean + if on_wire { WIRE_OVERHEAD as f64 } else { 0.0 })),
            Pace::Max | Pace::Original { .. } => None,
        };
        if let (Some(pps), Some(duration)) = (pps, limits.duration) {
            let by_time = (pps * duration.as_secs_f64()).ceil() as u64;
            self.packets = Some(self.packets.map_or(by_time, |packets| packets.min(by_time)));
        }
        if let (Some(pps), Some(packets)) = (pps, self.packets) {
            self.seconds = Some(packets as f64 / pps);
        } else if let Some(duration) = limits.duration {
            let limit = duration.as_secs_f64();
            self.seconds = Some(self.seconds.map_or(limit, |seconds| seconds.min(limit)));
        }
        // With the original gaps a limit may cut anywhere: the time is then unknown.
        if matches!(self.pace, Pace::Original { .. }) && self.packets != known {
            self.seconds = None;
        }
        self.bytes = self
            .packets
            .map(|packets| (packets as f64 * mean).round() as u64);
    }
}

/// The pace in words.
pub fn pace_words(pace: Pace) -> String {
    match pace {
        Pace::Max => "as fast as possible".into(),
        Pace::Rate {
            rate: Rate::Packets(pps),
            ..
        } => format!("at {}", si(pps, "pps")),
        Pace::Rate {
            rate: Rate::Bits(bps),
            on_wire,
        } => {
            let what = if on_wire { " on the wire" } else { "" };
            format!("at {}{what}", si(bps, "bps"))
        }
        Pace::Original {
            multiplier: 1.0, ..
        } => "at the captured rate".into(),
        Pace::Original { multiplier, .. } => format!("at {multiplier} times the captured rate"),
    }
}

/// Prints the plan. For a damaged capture it covers the part before the damage; the error is
/// returned.
///
/// # Errors
/// The damage, or that the plan cannot be written.
pub fn dry_run(
    from: &str,
    to: &str,
    plan: &Plan,
    as_json: bool,
    damage: Option<Error>,
) -> Result<()> {
    let mut out = Vec::new();
    let written = match as_json {
        true => {
            let mut value = plan_json(from, to, plan);
            value["error"] = damage.as_ref().map(ToString::to_string).into();
            writeln!(out, "{value}")
        }
        false => plan_text(&mut out, from, to, plan),
    };
    let written = written
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(|e| Error::from_io("write the plan", e));
    damage.map_or(Ok(()), Err).and(written)
}

fn plan_text(out: &mut Vec<u8>, from: &str, to: &str, plan: &Plan) -> io::Result<()> {
    write!(out, "would send ")?;
    match plan.packets {
        Some(packets) => write!(out, "{packets} packets")?,
        None => write!(out, "packets until stopped")?,
    }
    if let Some(bytes) = plan.bytes {
        write!(out, ", {bytes} bytes")?;
    }
    writeln!(out, ", {from} to {to}, {}", pace_words(plan.pace))?;
    if let Some(seconds) = plan.seconds {
        writeln!(out, "takes {seconds:.3} s")?;
    }
    left_out(out, plan.too_long, plan.not_sendable, plan.cut)?;
    for sample in &plan.samples {
        writeln!(out, "  {}", describe(sample))?;
    }
    let shown = plan.samples.len() as u64;
    if plan.packets.is_none_or(|packets| packets > shown) && shown != 0 {
        writeln!(out, "  …")?;
    }
    Ok(())
}

fn plan_json(from: &str, to: &str, plan: &Plan) -> Value {
    let samples: Vec<Value> = plan
        .samples
        .iter()
        .map(|sample| {
            let hex: String = sample.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "summary": describe(sample), "bytes": hex })
        })
        .collect();
    json!({
        "type": "plan", "dry_run": true, "from": from, "port": to, "pace": pace_words(plan.pace),
        "packets": plan.packets, "bytes": plan.bytes, "seconds": plan.seconds,
        "too_long": plan.too_long, "not_sendable": plan.not_sendable, "cut": plan.cut,
        "first": samples,
    })
}

/// Describes a packet in one line.
fn describe(packet: &[u8]) -> String {
    let mut d = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut d);
    let mac = |at: usize| {
        let bytes = packet.get(at..at + 6).and_then(|b| b.first_chunk::<6>());
        bytes.map_or_else(String::new, |b| wire::Mac(*b).to_string())
    };
    let mut line = format!("{} bytes  {} > {}", packet.len(), mac(6), mac(0));
    match d.vlan_count {
        0 => {}
        1 => line += &format!("  vlan {}", d.vlan_outer),
        _ => line += &format!("  vlan {}.{}", d.vlan_outer, d.vlan_inner),
    }
    let (Some(src), Some(dst)) = (d.src_addr(), d.dst_addr()) else {
        return line;
    };
    let end = |addr: std::net::IpAddr, port| match d.has_ports() {
        true => std::net::SocketAddr::new(addr, port).to_string(),
        false => addr.to_string(),
    };
    line += &format!("  {} > {}", end(src, d.src_port), end(dst, d.dst_port));
    line += &match d.ip_protocol {
        1 => "  ICMP".to_owned(),
        6 => "  TCP".to_owned(),
        17 => "  UDP".to_owned(),
        58 => "  ICMPv6".to_owned(),
        other => format!("  IP protocol {other}"),
    };
    line
}

fn left_out(out: &mut Vec<u8>, too_long: u64, not_sendable: u64, cut: u64) -> io::Result<()> {
    if too_long != 0 {
        writeln!(
            out,
            "skipped {too_long} packets longer than the interface's MTU allows"
        )?;
    }
    if not_sendable != 0 {
        writeln!(
            out,
            "skipped {not_sendable} packets that cannot be sent on Ethernet"
        )?;
    }
    if cut != 0 {
        writeln!(
            out,
            "{cut} packets are truncated: the capture was made with a snapshot length"
        )?;
    }
    Ok(())
}

/// Prints a line per second on a terminal.
pub struct Progress {
    on_terminal: bool,
    drawn: bool,
    last: Report,
    request: TotalsRequest,
}

impl Progress {
    /// Prints the start line on a terminal.
    pub fn start(port: &str, pace: Pace, request: TotalsRequest) -> Self {
        let on_terminal = io::stderr().is_terminal();
        if on_terminal {
            say!(
                "sending on {port} {}; press Ctrl-C to stop",
                pace_words(pace)
            );
        }
        Self {
            on_terminal,
            drawn: false,
            last: Report::default(),
            request,
        }
    }

    /// Redraws the line, and handles a request for totals.
    pub fn report(&mut self, report: &Report) {
        if self.request.take() {
            self.end();
            self.drawn = false;
            say!("{}", so_far(report));
        }
        if !self.on_terminal {
            return;
        }
        let seconds = (report.elapsed_ns - self.last.elapsed_ns).max(1) as f64 / 1e9;
        let pps = (report.packets - self.last.packets) as f64 / seconds;
        let bps = (report.bytes - self.last.bytes) as f64 * 8.0 / seconds;
        let mut line = format!(
            "{:6.0} s  {:>12}  {:>12}  {} packets",
            report.elapsed_ns as f64 / 1e9,
            si(pps, "pps"),
            si(bps, "bps"),
            report.packets
        );
        if report.failed != 0 {
            line += &format!(", {} failed", report.failed);
        }
        // Erases the rest of a longer previous line (ECMA-48 EL).
        out::words(format!("\r{line}\x1b[K").into_bytes());
        self.drawn = true;
        self.last = *report;
    }

    /// Ends the line.
    pub fn end(&self) {
        if self.drawn {
            say!("");
        }
    }
}

/// The totals so far, in one line.
fn so_far(report: &Report) -> String {
    format!(
        "{}, {} sent in {:.3} s: {}, {}; {} failed",
        counted(report.packets, "packet"),
        counted(report.bytes, "byte"),
        report.elapsed_ns as f64 / 1e9,
        si(report.pps(), "pps"),
        si(report.bps(), "bps"),
        report.failed
    )
}

/// Prints the totals: JSON to standard output, text to standard error.
pub fn summary(report: &Report, port: &str, as_json: bool) -> Result<()> {
    let mut text = Vec::new();
    out::over();
    if as_json {
        let line = json!({
            "type": "totals",
            "port": port, "packets": report.packets, "bytes": report.bytes, "failed": report.failed,
            "seconds": report.elapsed_ns as f64 / 1e9, "pps": report.pps(), "bps": report.bps(),
            "rounds": report.rounds, "too_long": report.too_long,
            "not_sendable": report.not_sendable, "cut": report.cut,
            "slipped_seconds": report.slipped_ns as f64 / 1e9, "ended": report.ended.word(),
        });
        if report.slipped_ns != 0 {
            say!("the requested rate was not reached\nhint: {}", faster(port));
        }
        return out::print(&out::stdout(1)?, format!("{line}\n").into_bytes());
    }
    let written = summary_text(&mut text, report, port);
    out::last_words(text);
    written.map_err(|e| Error::from_io("write the summary", e))
}

fn summary_text(out: &mut Vec<u8>, report: &Report, port: &str) -> io::Result<()> {
    writeln!(
        out,
        "sent {}, {} on {port} in {:.3} s: {}, {}; {} failed",
        counted(report.packets, "packet"),
        counted(report.bytes, "byte"),
        report.elapsed_ns as f64 / 1e9,
        si(report.pps(), "pps"),
        si(report.bps(), "bps"),
        report.failed
    )?;
    if report.rounds > 1 {
        writeln!(out, "{} rounds through the capture", report.rounds)?;
    }
    left_out(out, report.too_long, report.not_sendable, report.cut)?;
    if report.slipped_ns != 0 {
        let seconds = report.slipped_ns as f64 / 1e9;
        writeln!(
            out,
            "fell behind by {seconds:.3} s: the requested rate was not reached"
        )?;
        writeln!(out, "hint: {}", faster(port))?;
    }
    Ok(())
}

/// A hint if the rate was not reached.
fn faster(port: &str) -> String {
    let max = "--rate max shows the highest rate possible here";
    let row = PortName::parse(port).ok().and_then(|name| name.backend());
    match row.map_or("", |row| row.faster) {
        "" => max.to_owned(),
        faster => format!("{faster}; {max}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn survey() -> ReplaySummary {
        ReplaySummary {
            packets: 100,
            bytes: 10_000,
            duration_ns: 4_000_000_000,
            ..ReplaySummary::default()
        }
    }

    fn rate(text: &str) -> Pace {
        Pace::Rate {
            rate: Rate::parse(text).unwrap(),
            on_wire: false,
        }
    }

    #[test]
    fn plans_predict_count_and_time() {
        let original = Pace::Original {
            multiplier: 2.0,
            gap_max_ns: u64::MAX,
        };
        let none = Limits::default();
        let plan = Plan::of_capture(&survey(), 3, original, &none);
        assert_eq!(
            (plan.packets, plan.bytes, plan.seconds),
            (Some(300), Some(30_000), Some(6.0))
        );
        let plan = Plan::of_capture(&survey(), 0, rate("50pps"), &none);
        assert_eq!((plan.packets, plan.seconds), (None, None));
        let limits = Limits {
            packet_count: Some(70),
            duration: Some(Duration::from_secs(1)),
        };
        let plan = Plan::of_capture(&survey(), 1, rate("50pps"), &limits);
        assert_eq!((plan.packets, plan.seconds), (Some(50), Some(1.0)));
        // 100 bytes per packet: 800 bits.
        let plan = Plan::of_capture(&survey(), 1, rate("8kbps"), &none);
        assert_eq!(plan.seconds, Some(10.0));
    }

    #[test]
    fn summaries_report_skipped_items() {
        let report = Report {
            packets: 10,
            elapsed_ns: 2_000_000_000,
            span_ns: 2_000_000_000,
            too_long: 3,
            slipped_ns: 500_000_000,
            ..Report::default()
        };
        let mut out = Vec::new();
        summary_text(&mut out, &report, "memory:").unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "10 packets",
            "5 pps",
            "skipped 3",
            "behind by 0.500 s",
            "hint: --rate max",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
