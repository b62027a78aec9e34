//! `barewire flows`: meters flows; shows them live, as records, or as a table at the end.

mod choice;
mod egress;
mod export;
mod origin_args;
mod plain;
mod query;
mod report;
mod service;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use flow::top::Order;
use flow::{EndReason, Extra, KeyParts, Level, Octets, Record, Sampling};
use port::{Direction, Intake};
use probe::lines::{self, Lines};
use probe::{Finished, Prepared, Probe, Running, View};
use runtime::flows::{Config, Fate, Outlet, Status};
use runtime::output::Output;
use runtime::{Stop, filter, flows};
use sys::Result;
use sys::rights::{self, Capability};

use service::Reloading;

pub use probe::Origins;
pub use probe::text::{duration, ends, protocol_name};

use crate::args::{PortArgs, check_cpus};
use crate::live::{Live, Once};
use crate::out::{self, say};

/// Arguments.
#[derive(clap::Args)]
#[command(
    after_help = HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Packet source: an interface, afxdp:IFACE, a capture file, - for standard input
    #[arg(value_name = "PORT", required = true)]
    port: Option<String>,
    /// Meter only packets that match this expression (man pcap-filter)
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    filter: Vec<String>,

    /// Read options from a TOML file: its keys are the long option names, port and filter. The
    /// command line takes precedence. SIGHUP reloads the file (docs/flows.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object per flow record, and a summary at the end
    #[arg(long)]
    json: bool,
    /// Disable the live view, even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print one snapshot of the live view after --duration or two seconds, and exit
    #[arg(long, conflicts_with_all = ["json", "plain"])]
    once: bool,
    /// Number of flows in the final table, and at most in the live view
    #[arg(long, default_value_t = 20, value_name = "N")]
    top: usize,
    /// Sort flows by this, largest first
    #[arg(long, value_enum, default_value = "bytes", value_name = "WHAT")]
    sort: Sort,
    /// Write a self-contained HTML report with charts at the end
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run the filter in user space, not in the kernel, so that SIGHUP can change it. Rejected
    /// packets then cost nearly as much as metered ones. Not for afxdp:, whose filter selects the
    /// packets to take from the host
    #[arg(long, requires = "config", conflicts_with_all = ["count", "egress"])]
    live_filter: bool,
    /// Stop after N packets
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    count: Option<u64>,
    /// Stop after TIME: 10, 90s, 5m, 1h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,

    #[command(flatten)]
    flow: FlowArgs,
    #[command(flatten)]
    origin: origin_args::OriginArgs,
    #[command(flatten)]
    export: export::ExportArgs,
    #[command(flatten)]
    egress: egress::EgressArgs,
    #[command(flatten)]
    port_args: PortArgs,
}

/// What to do with recorded flows.
#[derive(clap::Subcommand)]
enum Other {
    /// Run an SQL query on the files of --export parquet:FOLDER
    Query(query::QueryArgs),
}

/// What a flow is and when it ends.
#[derive(clap::Args)]
#[command(next_help_heading = "Flows")]
struct FlowArgs {
    /// Active timeout: longer flows are reported in several records; at most 24h
    #[arg(long, default_value = "300s", value_parser = parse_timeout, value_name = "TIME")]
    active_timeout: Duration,
    /// Idle timeout: a flow ends after TIME without a packet: 60s, or by protocol:
    /// tcp=120s,udp=15s (also icmp, other), at most 24h [default: 30s, ICMP 10s]
    #[arg(long, value_parser = choice::idle, value_delimiter = ',', value_name = "TIME")]
    idle_timeout: Vec<choice::Idle>,
    /// End a TCP flow TIME after its last packet once both sides have sent FIN or one has sent
    /// RST, or at the next SYN
    #[arg(long, default_value = "2s", value_parser = parse_timeout, value_name = "TIME")]
    linger: Duration,
    /// Flow table entries per queue, 192 bytes each plus what --fields adds: 100000, 500k, 4M
    /// [default: 1048576; more than four queues share four times that]
    #[arg(long, value_parser = parse_table_size, value_name = "N")]
    table_size: Option<u32>,
    /// Fields to record: counters (packets, bytes, times, TCP flags; fastest), standard; in
    /// addition packets=N (the first N packets), timing (gaps and lengths), bytes (histogram and
    /// entropy of the payload), full (all of these)
    #[arg(long, value_parser = choice::field, value_delimiter = ',', default_value = "standard",
          value_name = "FIELDS")]
    fields: Vec<choice::Field>,
    /// Identify applications from the first packets of each flow: tls, dtls, quic, http, dns, ssh,
    /// mail, mqtt, ntp, dhcp, sip, socks, ssdp, wireguard, or all; ndpi adds the names of the
    /// installed libndpi
    #[arg(long, value_parser = choice::decoder, value_delimiter = ',', value_name = "NAMES")]
    decode: Vec<choice::Decoder>,
    /// Add the Community ID of each flow, with this seed or 0; implied by --decode
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true,
          default_missing_value = "0")]
    community_id: Option<u16>,
    /// Extra flow key fields besides addresses, ports and protocol (interface: that of a pcapng
    /// file)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    key: Vec<KeyPart>,
    /// Meter each direction of a connection as a separate flow
    #[arg(long)]
    uniflow: bool,
    /// Meter one packet in N: 100 or count:100 (every hundredth), random:100, hash:100 (all packets
    /// of one address pair in a hundred), time:1s/10ms (10 ms of each second)
    #[arg(long, value_parser = choice::sampling, value_name = "HOW")]
    sample: Option<Sampling>,
    /// Export one record in N, selected in the same ways as --sample
    #[arg(long, value_parser = choice::sampling, value_name = "HOW")]
    sample_records: Option<Sampling>,
    /// IP header of a tunnelled packet that defines its flow; both counts the packet in two flows
    #[arg(long, value_enum, default_value = "outer")]
    level: LevelArg,
    /// Count the bytes of the IP datagram, or of the whole packet with its link header
    #[arg(long, value_enum, default_value = "ip")]
    octets: OctetsArg,
}

impl FlowArgs {
    /// Parts of the key that are kept beside the records.
    fn key_extra(&self) -> KeyParts {
        KeyParts {
            mac: self.key.contains(&KeyPart::Mac),
            mpls: self.key.contains(&KeyPart::Mpls),
            tunnel: self.key.contains(&KeyPart::Tunnel),
            traffic_class: self.key.contains(&KeyPart::Tos),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    Bytes,
    Packets,
    Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeyPart {
    Vlan,
    Interface,
    Mac,
    Mpls,
    Tunnel,
    Tos,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LevelArg {
    Outer,
    Inner,
    Both,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OctetsArg {
    Ip,
    Packet,
}

const HELP: &str = "\
On a terminal, flows of a live interface are shown in a live view (keys: q quits; 1 to 4 or Tab \
show flows, applications, talkers, losses; b p d sort by bytes, packets, duration; / filters; n \
shows names; space pauses; arrows scroll). Otherwise barewire prints a line of rates per second \
on standard error, and the largest flows on standard output at the end. The fields of --json are \
described in docs/flows.md.

A plain interface name is a tap: it sees received and sent packets, and the host still gets its \
own. afxdp: takes the packets that match the filter from the host.

Examples:
  barewire flows trace.pcap
  barewire flows trace.pcap --json | jq -c 'select(.type==\"flow\" and .bytes > 1000000)'
  barewire flows trace.pcap --decode all --json | jq -c .application
  barewire flows eth0 --duration 60s
  barewire flows eth0 --once | head -20
  barewire flows eth0 --plain --egress ids0 --egress-first 20,64k
  barewire flows trace.pcap --decode all --report flows.html
  barewire flows eth0 --plain --export ipfix:udp://192.0.2.1:4739 --export csv:flows.csv
  barewire flows eth0 --plain --export parquet:flows/
  barewire flows afxdp:eth0 --queues 2 --cpus 2,3 udp port 53";

/// Runs the probe and reports what it metered.
pub fn run(args: &Args) -> Result<()> {
    if let Some(Other::Query(args)) = &args.other {
        return query::run(args);
    }
    // The parser has seen to it that there is one.
    let name = args.port.as_deref().unwrap_or_default();
    check_cpus(&args.port_args.cpus)?;
    let user = match &args.port_args.user {
        Some(name) => Some(rights::User::find(name)?),
        None => None,
    };
    // It may take seconds, for which no port shall wait with packets in it.
    let origins = args.origin.open(args.flow.key_extra().mac)?;
    let owner = user.as_ref().map(|user| (user.uid, user.gid));
    let probe = args.open(name, &origins)?.owner(owner).prepare()?;
    if let Some(address) = probe.metrics_address() {
        say!("metrics at http://{address}/metrics");
    }
    let keep = crate::args::to_read_counters(name)?;
    let mut keep: Vec<Capability> = keep.into_iter().collect();
    if user.is_none() && probe.creates_files() {
        // As root those files may lie in other users' folders: that one right stays.
        keep.push(Capability::DacOverride);
    }
    rights::give_up(user.as_ref(), &keep)?;
    // Rights are a thread's own: these begin without.
    out::start()?;
    let stdout = out::stdout(lines::PIECES_MAX)?;
    let stop = Stop::on_signals()?;
    let link_type = probe.describe().link_type;
    let reload = |path: &PathBuf| Reloading::new(path, args.live_filter, link_type);
    let reload = args.config.as_ref().map(reload).transpose()?;
    Showing {
        args,
        name,
        stop,
        stdout,
        reload,
        origins,
        is_file: probe.describe().intake == Intake::File,
    }
    .run(probe)
}

/// What shows the flows of a probe.
struct Showing<'a> {
    args: &'a Args,
    name: &'a str,
    stop: Stop,
    stdout: Output,
    reload: Option<Reloading>,
    origins: Origins,
    is_file: bool,
}

impl Showing<'_> {
    /// Runs the probe, and shows its flows as was asked for.
    fn run(mut self, probe: Prepared) -> Result<()> {
        let args = self.args;
        let memory = report::Memory {
            tables: probe.memory_len() + if args.json { lines::MEMORY_LEN } else { 0 },
            port: probe.describe().memory_len,
        };
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        if !args.json && !args.plain && !args.once && !self.is_file && is_terminal {
            return self.live(probe, &memory);
        }
        let description = probe.describe();
        plain::start(self.name, description, probe.queue_count(), &memory);
        if args.once {
            return self.once(probe, &memory);
        }
        if args.json {
            let (out, beyond) = (self.stdout.clone(), probe.beyond());
            let mut outlet = Lines::new(out, !self.is_file, &self.stop, beyond);
            let mut with_events = plain::WithEvents {
                name: self.name,
                inner: &mut outlet,
            };
            let done = self.probe(probe, &mut with_events)?;
            let written = outlet.summary(&done, self.name, memory.total());
            if done.report.records_dropped != 0 && written.is_ok() {
                say!(
                    "{} records with {} packets were dropped: the reader of standard output is \
                     too slow",
                    done.report.records_dropped,
                    done.report.packets_in_dropped
                );
            }
            return done.check().and(written);
        }
        let mut outlet = plain::Rates::new(self.name, self.is_file);
        let done = self.probe(probe, &mut outlet);
        outlet.end();
        report::tell(&self.stdout, done?, args.top, args.order(), &memory)
    }

    fn live(&mut self, probe: Prepared, memory: &report::Memory) -> Result<()> {
        let (name, order) = (self.name, self.args.order());
        let mut live = Live::start(&self.stdout, name, probe.describe(), memory.total(), order)?;
        live.show_origins(self.origins.clone());
        let done = self.probe(probe, &mut live);
        // The table at the end goes to the terminal as it was before.
        let order = live.order();
        drop(live);
        report::tell(&self.stdout, done?, self.args.top, order, memory)
    }

    fn once(&mut self, probe: Prepared, memory: &report::Memory) -> Result<()> {
        let (order, duration) = (self.args.order(), self.args.duration);
        let described = probe.describe();
        let mut once = Once::new(self.name, described, memory.total(), order, duration);
        once.show_origins(self.origins.clone());
        let mut with_events = plain::WithEvents {
            name: self.name,
            inner: &mut once,
        };
        let done = self.probe(probe, &mut with_events)?;
        out::print(&self.stdout, once.text().into_bytes())?;
        report::tell(&self.stdout, done, 0, order, memory)
    }

    /// Runs the probe to its end.
    fn probe(&mut self, probe: Prepared, outlet: &mut dyn Outlet) -> Result<Finished> {
        let mut view = Watching {
            outlet,
            stop: &self.stop,
            duration: self.args.duration,
            reload: &mut self.reload,
        };
        let done = probe.run(&self.stop, &mut view)?;
        if !self.is_file {
            out::over();
        }
        if let Ok(Some(path)) = &done.page {
            say!("report: {}", path.display());
        }
        Ok(done)
    }
}

/// An outlet that also answers `SIGHUP`.
struct Watching<'a> {
    outlet: &'a mut dyn Outlet,
    stop: &'a Stop,
    duration: Option<Duration>,
    reload: &'a mut Option<Reloading>,
}

impl View for Watching<'_> {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) -> Result<Fate> {
        self.outlet.ended(record, extra, reason)
    }

    fn pulse(&mut self, status: &Status<'_>, running: &mut Running) -> Result<()> {
        if self.duration.is_some_and(|d| status.elapsed >= d) {
            // From now on readers that take nothing are not waited for.
            self.stop.set();
        }
        if let Some(reload) = self.reload {
            reload.pulse(running, status.switch);
        }
        self.outlet.pulse(status)
    }

    fn origins_read(&mut self, result: Result<()>) {
        match result {
            Ok(()) => say!("reloaded the files of --asn, --geo and --mac-vendors"),
            Err(error) => {
                say!("kept the old files of --asn, --geo and --mac-vendors");
                crate::exit::tell(&error);
            }
        }
    }
}

impl Args {
    /// Opens the port, and says what becomes of its packets.
    fn open(&self, name: &str, origins: &Origins) -> Result<Probe> {
        let ndpi_flow_count = choice::ndpi_flow_count(&self.flow.decode)?;
        let mut options = self.port_args.options(Direction::Rx);
        let expression = self.filter.join(" ");
        if self.live_filter {
            service::check_live_filter(name)?;
        } else if !expression.trim().is_empty() {
            options.filter_source = Some(filter::source(&expression));
        }
        let plan = self.egress.plan(name, &mut options)?;
        let port = port::open(name, &options)?;
        let egress = plan.map(|plan| plan.open(&port)).transpose()?;
        let config = Config {
            ndpi_flow_count,
            filter: self.selection(port.control.describe().link_type)?.filter,
            ..self.config(port.rx.len())
        };
        let (export, files) = (&self.export, self.origin.files());
        Ok(Probe::new(port)
            .config(config)
            .egress(egress)
            .community_id(self.flow.community_id)
            .origins(origins, &files)
            .export_to(export.targets())
            .fan_out(export.fan_out())
            .sampled_before(export.sampling_rate())
            .metrics(export.metrics())
            .page(self.report.clone(), self.settings()))
    }

    fn order(&self) -> Order {
        match self.sort {
            Sort::Bytes => Order::Bytes,
            Sort::Packets => Order::Packets,
            Sort::Duration => Order::Duration,
        }
    }

    fn config(&self, queue_count: usize) -> Config {
        let mut config = Config::new(queue_count);
        let meter = &mut config.meter;
        if let Some(count) = self.flow.table_size {
            meter.table.flow_count_max = count;
        }
        let timeouts = &mut meter.table.timeouts;
        timeouts.active_ns = self.flow.active_timeout.as_nanos() as u64;
        for idle in &self.flow.idle_timeout {
            idle.apply(timeouts);
        }
        timeouts.linger_ns = self.flow.linger.as_nanos() as u64;
        choice::apply_fields(&self.flow.fields, meter);
        let applications = choice::apply_decoders(&self.flow.decode, meter);
        self.egress.apply(meter);
        meter.table.uniflow = self.flow.uniflow;
        meter.sampling = self.flow.sample.unwrap_or_default();
        meter.key_extra = self.flow.key_extra();
        meter.key_vlan = self.flow.key.contains(&KeyPart::Vlan);
        meter.key_interface = self.flow.key.contains(&KeyPart::Interface);
        meter.level = match self.flow.level {
            LevelArg::Outer => Level::Outer,
            LevelArg::Inner => Level::Inner,
            LevelArg::Both => Level::Both,
        };
        meter.octets = match self.flow.octets {
            OctetsArg::Ip => Octets::Ip,
            OctetsArg::Packet => Octets::Packet,
        };
        Config {
            pacing: self.port_args.pacing(),
            cpus: self.port_args.cpus.clone(),
            count: self.count,
            duration: self.duration,
            record_sampling: self.flow.sample_records.unwrap_or_default(),
            top_count: self.top.clamp(1, TOP_MAX),
            order: self.order(),
            live_count: if self.json || self.plain { 0 } else { 64 },
            applications,
            ..config
        }
    }

    /// What is looked at, of packets of this link type: what may change while the probe runs.
    ///
    /// # Errors
    /// As [`filter::compile`].
    fn selection(&self, link_type: u16) -> Result<flows::Selection> {
        let expression = self.filter.join(" ");
        let program = match self.live_filter {
            true => filter::compile(&expression, link_type)?,
            false => None,
        };
        Ok(flows::Selection {
            filter: program.map(Arc::new),
            sampling: self.flow.sample.unwrap_or_default(),
            record_sampling: self.flow.sample_records.unwrap_or_default(),
        })
    }

    /// What makes the numbers what they are, in words.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let flow = &self.flow;
        let mut settings = Vec::new();
        let expression = self.filter.join(" ");
        if !expression.trim().is_empty() {
            settings.push(("filter", expression));
        }
        let mut key = vec!["addresses, ports, protocol".to_owned()];
        let names = flow.key.iter().filter_map(ValueEnum::to_possible_value);
        key.extend(names.map(|value| value.get_name().to_owned()));
        settings.push(("key", key.join(", ")));
        let directions = match flow.uniflow {
            true => "a separate flow each",
            false => "one flow; the initiator is the source",
        };
        settings.push(("directions", directions.into()));
        let octets = match flow.octets {
            OctetsArg::Ip => "the IP datagram, header included",
            OctetsArg::Packet => "the whole packet, link header included",
        };
        settings.push(("bytes", octets.into()));
        let level = match flow.level {
            LevelArg::Outer => "by their outermost IP header",
            LevelArg::Inner => "by their innermost IP header",
            LevelArg::Both => "twice: by their outermost and innermost IP header",
        };
        settings.push(("packets in tunnels", level.into()));
        let ends = format!(
            "active {:?}, after FIN or RST {:?}",
            flow.active_timeout, flow.linger
        );
        settings.push(("timeouts", ends));
        for (name, sampling) in [
            ("packets sampled", flow.sample),
            ("records sampled", flow.sample_records),
        ] {
            if let Some(sampling) = sampling {
                let words = format!("one in {}, counters not scaled up", sampling.interval());
                settings.push((name, words));
            }
        }
        settings
    }
}

/// Flows in the table at the end, at the most: each costs some 300 bytes while the probe runs.
const TOP_MAX: usize = 100_000;

fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit {other:?}: use ms, s, m or h")),
    };
    let seconds = digits.parse::<f64>().unwrap_or(-1.0) * unit;
    match (0.001..=1e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("expected a time above 0, such as 10, 90s, 5m".into()),
    }
}

fn parse_timeout(text: &str) -> std::result::Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.as_nanos() as u64 > flow::Timeouts::MAX_NS {
        return Err("timeouts can be at most 24h".into());
    }
    Ok(duration)
}

/// A number of flows, with `k` or `M` for thousands and millions.
fn parse_table_size(text: &str) -> std::result::Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1_000_000),
            None => (text, 1),
        },
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match number {
        Some(count @ 16..=0x1000_0000) => Ok(count as u32),
        _ => Err("expected a number of flows from 16 to 268435456".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        for (text, ms) in [
            ("10", 10_000),
            ("1.5s", 1500),
            ("250ms", 250),
            ("2m", 120_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for bad in ["", "s", "-1", "1d", "0", "nan", "inf"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_timeout("24h").is_ok() && parse_timeout("86401").is_err());
        assert_eq!(parse_table_size("4M"), Ok(4_000_000));
        assert_eq!(parse_table_size("500k"), Ok(500_000));
        for bad in ["", "k", "0", "15", "1G", "999999999999M"] {
            assert!(parse_table_size(bad).is_err(), "{bad}");
        }
    }
}
