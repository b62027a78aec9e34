//! Output of a scan: answers on standard output, progress and the account on standard error.

mod banner;
mod dry;

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::Duration;

use ::scan::grab::Banner;
use ::scan::report::{Report, safe};
use ::scan::{LinkChange, Note, Protocol, RateChange};
use runtime::output::{Output, Piece, Refused, blocked, is_closed};
use runtime::scan::{self, Found, Notice, Outcome, Scan, Totals};
use serde_json::Value;
use sys::{Error, Result};
use traffic::Rate;
use wire::Timestamp;

pub use dry::dry_run;

use super::parse::FOREVER;
use super::status::{Metrics, Status};
use crate::out::{self, say, warning};
use crate::report::si;

/// Maximum number of answers queued for the reader of standard output.
const ANSWERS_MAX: usize = 4096;

/// Output of one run.
pub struct Show<'m> {
    /// What is printed instead of lines for a terminal.
    report: Option<Report>,
    on_terminal: bool,
    is_drawn: bool,
    stdout: Output,
    status: Status,
    /// Whether the counts are printed as JSON lines, too.
    json: bool,
    metrics: &'m Metrics,
    /// Whether results are also written to files: then the scan continues without a reader.
    has_files: bool,
    /// Whether the reader has closed standard output.
    is_closed: bool,
    /// The rate as asked for, with its unit.
    asked: String,
    unit: &'static str,
}

/// Starts the writer thread, once privileges are dropped.
///
/// # Errors
/// When the thread cannot be started.
pub fn begin(scan: &Scan) -> Result<()> {
    out::start()?;
    say!("{}", plan_line(scan));
    if let Some(warning) = kernel_resets(scan) {
        warning!("{warning}");
    }
    if scan.is_behind_xdp() {
        warning!(
            "warning: another program has an XDP program on {}; if it takes the responses, as \
             another scan on afxdp: does with those to its source ports, they are missing here\n\
             hint: scan with other ports: --source-port FIRST-LAST",
            scan.interface()
        );
    }
    Ok(())
}

/// A warning for banner reads on a port whose packets the kernel also receives.
fn kernel_resets(scan: &Scan) -> Option<String> {
    let (setup, name) = (scan.setup(), scan.port_name());
    if !scan.is_reset_by_kernel() || setup.firewall {
        return None;
    }
    let (first, count) = setup.source_ports;
    let last = first + (count - 1);
    Some(format!(
        "warning: the kernel sees the answers on {name} and resets the connections\n\
         hint: --firewall drops its resets while the scan runs; or scan on afxdp:{interface}; or \
         set the rule by hand: nft add table inet barewire; \
         nft add chain inet barewire out '{{ type filter hook output priority 0; }}'; \
         nft add rule inet barewire out tcp sport {first}-{last} tcp flags rst drop",
        interface = scan.interface()
    ))
}

/// One line that describes the scan.
fn plan_line(scan: &Scan) -> String {
    let (plan, setup) = (scan.plan(), scan.setup());
    let asked = setup.asked_rate();
    let mut rate = si(asked.max, asked.unit);
    if let Some(min) = asked.min {
        rate = format!("{} to {rate}", si(min, asked.unit));
    }
    let mut text = format!(
        "scanning {}{}{} from {}: {}, {rate}",
        counted(plan.addr_count(), "address", "addresses"),
        match setup.ports.as_slice().len() as u128 {
            0 => String::new(),
            count => format!(" and {}", counted(count, "port", "ports")),
        },
        match plan.pairs().len() as u128 {
            0 => String::new(),
            count => format!(", {}", counted(count, "single port", "single ports")),
        },
        scan.interface(),
        counted(plan.probe_count(), "probe", "probes"),
    );
    if setup.wait >= FOREVER {
        text.push_str(", until it is stopped");
    } else if let (Rate::Packets(pps), None) = (setup.rate, asked.min) {
        let seconds = plan.seconds(setup.from, pps) + setup.wait.as_secs_f64();
        let _ = write!(text, ", about {}", span(seconds));
    }
    let _ = write!(text, ", seed {}", setup.seed);
    if setup.from != 0 {
        let _ = write!(
            text,
            "; {} sent before",
            counted(setup.from, "probe", "probes")
        );
    }
    if scan.reserved != 0 {
        let _ = write!(
            text,
            "\n{} skipped: they are reserved (to scan them, name a range within them)",
            counted(scan.reserved, "address is", "addresses are")
        );
    }
    if scan.own_count() != 0 {
        let _ = write!(
            text,
            "\n{} not probed: a host does not see its probes to itself on an interface",
            counted(
                scan.own_count(),
                "address of this host is",
                "addresses of this host are"
            )
        );
    }
    if scan.opted_out != 0 {
        let _ = write!(
            text,
            "\n{} skipped: they are in the opt-out list",
            counted(scan.opted_out, "address is", "addresses are")
        );
    }
    text
}

/// A number with its unit.
pub fn counted(count: u128, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}

/// What the scan waits for once all probes are sent.
fn waiting(wait: Duration) -> String {
    match wait >= FOREVER {
        true => "all probes sent; waiting for responses until the scan is stopped".to_owned(),
        false => {
            let time = span(wait.as_secs_f64());
            format!("all probes sent; waiting {time} for responses")
        }
    }
}

/// A time; scans of large ranges of IPv6 take ages.
pub fn span(seconds: f64) -> String {
    const YEAR: f64 = 365.0 * 86_400.0;
    match seconds / YEAR {
        years if years < 100.0 => crate::short::span((seconds * 1e9) as u64),
        years if years < 1e6 => format!("{years:.0} years"),
        years if years < 1e9 => format!("{:.1} million years", years / 1e6),
        years if years < 1e12 => format!("{:.1} billion years", years / 1e9),
        years => format!("{years:.1e} years"),
    }
}

impl<'m> Show<'m> {
    /// Output on standard output and standard error; with `json`, the counts are printed there,
    /// too.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn start(
        report: Option<Report>,
        scan: &Scan,
        (json, has_files, metrics): (bool, bool, &'m Metrics),
    ) -> Result<Self> {
        let asked = scan.setup().asked_rate();
        Ok(Self {
            asked: si(asked.max, asked.unit),
            unit: asked.unit,
            report,
            on_terminal: io::stderr().is_terminal(),
            is_drawn: false,
            stdout: out::stdout(ANSWERS_MAX)?,
            has_files,
            is_closed: false,
            status: Status::of(scan),
            json,
            metrics,
        })
    }

    /// Shows an event.
    ///
    /// # Errors
    /// When an answer cannot be printed.
    pub fn notice(&mut self, notice: &Notice<'_>) -> Result<()> {
        match *notice {
            Notice::Firewall(table) => firewall(table),
            Notice::Neighbours(found, count) => self.neighbours(found, count),
            Notice::Found(found) => self.found(found)?,
            Notice::Banner(banner, time) => self.banner(banner, time)?,
            Notice::Progress(totals, elapsed) => self.progress(totals, elapsed)?,
            Notice::Rate(change, time) => self.rate(&change, time)?,
            Notice::Link(change, time) => self.link(change, time)?,
            Notice::Waiting(wait) => self.waiting(wait),
        }
        Ok(())
    }

    /// Reports how many neighbours answered.
    fn neighbours(&mut self, found: u64, count: u128) {
        self.clear();
        let count = counted(count, "on-link target", "on-link targets");
        out::words(format!("{found} of {count} answered\n").into_bytes());
    }

    fn found(&mut self, found: &Found) -> Result<()> {
        match &mut self.report {
            Some(report) => report.answer(found),
            None => return self.print(line(text_line(found))),
        }
        self.print_report()
    }

    fn banner(&mut self, banner: &Banner, time: Timestamp) -> Result<()> {
        match &mut self.report {
            Some(report) => report.banner(banner, time),
            None => return self.print(line(banner::text_line(banner))),
        }
        self.print_report()
    }

    fn print_report(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        if let Some(report) = &mut self.report {
            report.take(&mut bytes);
        }
        self.print(bytes)
    }

    fn print(&mut self, bytes: Vec<u8>) -> Result<()> {
        if self.is_closed {
            return Ok(());
        }
        self.clear();
        let piece = Piece {
            bytes,
            records: 1,
            ..Piece::default()
        };
        match self.stdout.give(piece, &out::patience()) {
            Ok(()) => Ok(()),
            Err(Refused::Failed(error)) => {
                let error = Error::from_io("write to standard output", error);
                // The files still get every result.
                self.is_closed = self.has_files && is_closed(&error);
                if self.is_closed { Ok(()) } else { Err(error) }
            }
            Err(_) => Err(blocked("the answers")),
        }
    }

    /// Reports the counts: in the progress line, JSON and metrics.
    fn progress(&mut self, totals: &Totals, elapsed: Duration) -> Result<()> {
        self.status.take(totals, elapsed);
        self.metrics.show(&self.status);
        if self.json {
            self.print(line(self.status.to_json().to_string()))?;
        }
        if !self.on_terminal {
            return Ok(());
        }
        let done = totals.before + u128::from(totals.sent.saturating_sub(totals.resent));
        let part = done as f64 / totals.probes.max(1) as f64 * 100.0;
        out::words(
            format!(
                "\r{part:5.1} %{}  sent {} ({} of {})  open {}  closed {}  filtered {}  \
                 lost {}\x1b[K",
                left(&self.status),
                totals.sent,
                si(self.status.pps, "pps"),
                self.asked,
                totals.open,
                totals.closed,
                totals.filtered,
                totals.lost
            )
            .into_bytes(),
        );
        self.is_drawn = true;
        Ok(())
    }

    /// Reports a change of the rate.
    fn rate(&mut self, change: &RateChange, time: Timestamp) -> Result<()> {
        if let Some(report) = &mut self.report {
            report.note(&Note::Rate(*change), time);
            self.print_report()?;
        }
        self.clear();
        self.status.asked_anew(change.to);
        self.asked = si(self.status.asked().max, self.unit);
        let (from, to) = (si(change.from, self.unit), si(change.to, self.unit));
        let why = change.share.map_or_else(String::new, |share| {
            format!(": {:.0} % of the expected answers arrived", share * 100.0)
        });
        out::words(format!("rate {from} to {to}{why}\n").into_bytes());
        Ok(())
    }

    /// Reports a change of the link.
    fn link(&mut self, change: LinkChange, time: Timestamp) -> Result<()> {
        if let Some(report) = &mut self.report {
            report.note(&Note::Link(change), time);
            self.print_report()?;
        }
        self.clear();
        out::words(match change {
            LinkChange::Down => b"the link is down: waiting until it is up\n".to_vec(),
            LinkChange::Up(lasted) => {
                let lasted = span(lasted.as_secs_f64());
                format!("the link is up again after {lasted}\n").into_bytes()
            }
        });
        Ok(())
    }

    /// Reports that all probes were sent.
    fn waiting(&mut self, wait: Duration) {
        self.clear();
        say!("{}", waiting(wait));
    }

    /// Prints the totals so far.
    pub fn so_far(&mut self) {
        self.clear();
        let (totals, elapsed) = (self.status.totals, self.status.elapsed);
        out::words(account(&totals, (elapsed, &self.asked), elapsed).into_bytes());
    }

    /// Ends the progress line, so that what follows starts on its own line.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            out::words(b"\r\x1b[K".to_vec());
        }
    }

    /// Prints the account.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn end(mut self, outcome: &Outcome) -> Result<()> {
        self.clear();
        let totals = &outcome.totals;
        out::over();
        let mut text = Vec::new();
        if let Some(report) = &mut self.report {
            report.take(&mut text);
            scan::close(report, outcome, &mut text);
        }
        let printed = match out::print(&self.stdout, text) {
            Err(error) if is_closed(&error) => {
                let rest = match self.has_files {
                    true => "; the files are complete".to_owned(),
                    false => format!(": {} of {} probes were sent", totals.sent, totals.probes),
                };
                say!("standard output was closed{rest}");
                if self.has_files { Ok(()) } else { Err(error) }
            }
            printed => printed,
        };
        if totals.maybe_repeated != 0 {
            warning!(
                "warning: {} responses may have been reported before: the table was full",
                totals.maybe_repeated
            );
        }
        let rate = (outcome.sending, self.asked.as_str());
        out::last_words(account(totals, rate, outcome.elapsed).into_bytes());
        printed
    }
}

/// The time that is left, if it is known.
fn left(status: &Status) -> String {
    let left = status.seconds_left().filter(|seconds| *seconds > 0.0);
    left.map_or_else(String::new, |seconds| format!("  {} left", span(seconds)))
}

/// Reports the firewall rule.
fn firewall(table: &str) {
    let text = format!(
        "the kernel's resets from the scan's ports are dropped until the scan ends (nftables table \
         {table})\n"
    );
    out::words(text.into_bytes());
}

fn line(mut text: String) -> Vec<u8> {
    text.push('\n');
    text.into_bytes()
}

fn text_line(found: &Found) -> String {
    let answer = &found.answer;
    let target = &answer.target;
    let port = match target.protocol() {
        Protocol::Icmp => "icmp".to_owned(),
        Protocol::Link => "link".to_owned(),
        protocol => format!("{}/{}", target.port, protocol.word()),
    };
    let mut text = format!(
        "{:<15}  {port:<9}  {:<8}  {}",
        target.addr.to_string(),
        answer.state.word(),
        answer.evidence.word(),
    );
    let _ = match found.mac() {
        Some(mac) => write!(text, ", {mac}"),
        None => write!(text, ", ttl {}", answer.ttl),
    };
    if let Some(vendor) = &found.vendor {
        let _ = write!(text, " ({})", safe(vendor));
    }
    if answer.from != target.addr {
        let _ = write!(text, ", from {}", answer.from);
    }
    if let Some(rtt) = found.rtt {
        let _ = write!(text, ", {:.2} ms", rtt.as_secs_f64() * 1e3);
    }
    text
}

/// A JSON number where it fits, else a string.
pub fn number(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| value.to_string().into(), Value::from)
}

fn account(totals: &Totals, (sending, asked): (Duration, &str), elapsed: Duration) -> String {
    let pps = totals.sent as f64 / sending.as_secs_f64().max(1e-3);
    let mut text = format!(
        "{} of {} probes sent ({}; {asked} asked for), {:.3} s\n",
        totals.sent.saturating_sub(totals.resent),
        totals.probes - totals.before.min(totals.probes),
        si(pps, "pps"),
        elapsed.as_secs_f64()
    );
    if totals.resent != 0 {
        let resent = counted(totals.resent.into(), "probe", "probes");
        let _ = writeln!(text, "  {resent} sent again: the link was down");
    }
    if totals.rate_changes != 0 {
        let changes = counted(totals.rate_changes.into(), "change", "changes");
        let _ = writeln!(text, "  {changes} of the rate");
    }
    let up = match totals.up {
        0 => String::new(),
        up => format!(", {} up", counted(up.into(), "host", "hosts")),
    };
    let unfiltered = match totals.unfiltered {
        0 => String::new(),
        unfiltered => format!(", {unfiltered} unfiltered"),
    };
    let _ = writeln!(
        text,
        "  {} open, {} closed, {} filtered{unfiltered}{up}; {} repeated answers",
        totals.open, totals.closed, totals.filtered, totals.repeated
    );
    let _ = writeln!(
        text,
        "  {} packets received, {} of them unrelated to probes; {} lost",
        totals.received,
        totals.unrelated(),
        totals.lost
    );
    let grabbed = &totals.grabbed;
    if grabbed.connections + grabbed.refused != 0 {
        let _ = writeln!(
            text,
            "  {}, {}; {} silent; {}, {} retransmitted",
            counted(grabbed.connections.into(), "connection", "connections"),
            counted(grabbed.banners.into(), "banner", "banners"),
            grabbed.silent,
            counted(grabbed.segments.into(), "segment sent", "segments sent"),
            grabbed.repeated
        );
    }
    for (count, what) in [
        (
            grabbed.refused.into(),
            "open ports without a connection: too many were open (see --connections)",
        ),
        (totals.failed.into(), "refused by the interface"),
        (
            totals.unreachable,
            "not sent: no neighbour answered for the target",
        ),
        (totals.own, "not sent: the target is this host"),
    ] {
        if count != 0 {
            let _ = writeln!(text, "  {count} {what}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_an_end_has_no_number() {
        assert!(waiting(FOREVER).ends_with("for responses until the scan is stopped"));
        let text = waiting(Duration::from_secs(8));
        assert!(text.contains("waiting 8.0s for responses"), "{text}");
    }

    #[test]
    fn no_time_is_too_long_to_be_printed() {
        const YEAR: f64 = 365.0 * 86_400.0;
        for (seconds, text) in [
            (8.0, "8.0s"),
            (31.0 * YEAR, "31y"),
            (99.4 * YEAR, "99y"),
            (584.0 * YEAR, "584 years"),
            (7.7e6 * YEAR, "7.7 million years"),
            (5.8e9 * YEAR, "5.8 billion years"),
            (1.25e28 * YEAR, "1.2e28 years"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
