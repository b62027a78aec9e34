//! `barewire flows`: the flows of a port, as they end, as a live view, or as a table at the end.

mod choice;
mod egress;
mod export;
mod json;
mod metrics;
mod origin;
mod page;
mod plain;
mod query;
mod report;
mod service;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use flow::encode::beyond::Beyond;
use flow::top::Order;
use flow::{HashKey, KeyParts, Level, MeterConfig, Octets, OriginParts, Sampling};
use port::{Direction, PortName};
use runtime::flows::{Config, Outlet};
use runtime::{Stop, filter, flows};
use sys::{Error, Result, rights};

use service::Service;

pub use origin::Shared as Origins;
pub use plain::event_text;
pub use report::{duration, ends, protocol_name};

use crate::args::{PortArgs, check_cpus};
use crate::live::{Live, Once};

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
    /// Where packets come from: an interface, afxdp:IFACE, a capture file, - for standard input
    #[arg(value_name = "PORT", required = true)]
    port: Option<String>,
    /// Only packets that this expression selects (man pcap-filter)
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,

    /// Take flags from a file of TOML, whose keys are the long names of flags, and port and
    /// filter; what the command line gives counts. SIGHUP reads it again (docs/flows.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a line of JSON for each flow that ends, and a summary at the end
    #[arg(long)]
    json: bool,
    /// No live view, even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print the picture of the live view once, after --duration or two seconds, and end
    #[arg(long, conflicts_with_all = ["json", "plain"])]
    once: bool,
    /// Flows in the table at the end, and at most in the live view
    #[arg(long, default_value_t = 20, value_name = "N")]
    top: usize,
    /// What makes a flow large
    #[arg(long, value_enum, default_value = "bytes", value_name = "WHAT")]
    sort: Sort,
    /// Write a page of HTML with charts at the end: one file that needs no other
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Select packets in this program and not in the kernel, so that SIGHUP can change the filter.
    /// What it leaves out costs nearly as much as what it takes. Not for afxdp:, whose filter says
    /// what is taken from the host
    #[arg(long, requires = "config", conflicts_with_all = ["count", "egress"])]
    live_filter: bool,
    /// End after so many packets
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    count: Option<u64>,
    /// End after so long: 10, 90s, 5m, 1h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,

    #[command(flatten)]
    flow: FlowArgs,
    #[command(flatten)]
    origin: origin::OriginArgs,
    #[command(flatten)]
    export: export::ExportArgs,
    #[command(flatten)]
    egress: egress::EgressArgs,
    #[command(flatten)]
    port_args: PortArgs,
}

/// What to do with flows that were recorded.
#[derive(clap::Subcommand)]
enum Other {
    /// Ask in SQL over the files of --export parquet:FOLDER
    Query(query::QueryArgs),
}

/// What a flow is and when it ends.
#[derive(clap::Args)]
#[command(next_help_heading = "Flows")]
struct FlowArgs {
    /// A flow that goes on longer than this is told in several records
    #[arg(long, default_value = "300s", value_parser = parse_timeout, value_name = "TIME")]
    active_timeout: Duration,
    /// A flow without a packet for so long has ended: 60s, or by protocol: tcp=120s,udp=15s (also
    /// icmp, other) [default: 30s, ICMP 10s]
    #[arg(long, value_parser = choice::idle, value_delimiter = ',', value_name = "TIME")]
    idle_timeout: Vec<choice::Idle>,
    /// After FIN from both sides, or RST, a TCP connection has ended when there was no packet for
    /// so long, or a SYN comes
    #[arg(long, default_value = "2s", value_parser = parse_timeout, value_name = "TIME")]
    linger: Duration,
    /// Flows at one time for each queue, 192 bytes each and what --fields adds: 100000, 500k, 4M
    /// [default: 1048576; with more than four queues they share four times that]
    #[arg(long, value_parser = parse_table_size, value_name = "N")]
    table_size: Option<u32>,
    /// What is recorded: counters (packets, bytes, times, TCP flags; fastest), standard; and
    /// beyond that packets=N (the first N packets), timing (gaps and lengths), bytes
    /// (histogram and entropy of the payload), full (all of these)
    #[arg(long, value_parser = choice::field, value_delimiter = ',', default_value = "standard",
          value_name = "FIELDS")]
    fields: Vec<choice::Field>,
    /// Read the first packets of flows and tell of their applications: tls, quic, http, dns, ssh,
    /// mail, mqtt, ntp, dhcp, sip, or all; with ndpi the installed libndpi is asked, too
    #[arg(long, value_parser = choice::decoder, value_delimiter = ',', value_name = "NAMES")]
    decode: Vec<choice::Decoder>,
    /// Tell the Community ID of each flow, with this seed or 0; --decode does so anyhow
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true,
          default_missing_value = "0")]
    community_id: Option<u16>,
    /// Parts of the key beside addresses, ports and protocol: interface is that of a capture file
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    key: Vec<KeyPart>,
    /// The two directions of a connection are flows of their own
    #[arg(long)]
    uniflow: bool,
    /// Meter one packet in N: 100 or count:100 (each hundredth), random:100, hash:100 (all packets
    /// between one pair of addresses in a hundred), time:1s/10ms (10 ms of each second)
    #[arg(long, value_parser = choice::sampling, value_name = "HOW")]
    sample: Option<Sampling>,
    /// Tell one record in N, chosen in the same ways
    #[arg(long, value_parser = choice::sampling, value_name = "HOW")]
    sample_records: Option<Sampling>,
    /// Which IP header of a tunnelled packet names its flow; with both it counts in two flows
    #[arg(long, value_enum, default_value = "outer")]
    level: LevelArg,
    /// Which bytes count: the IP datagram, or the whole packet with its link header
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

    /// What is told beyond records.
    fn beyond(&self, origin: OriginParts) -> Beyond {
        let application = !self.decode.is_empty();
        Beyond {
            key: self.key_extra(),
            application,
            community_seed: self.community_id.or(application.then_some(0)),
            origin,
        }
    }

    /// What collectors are told.
    fn told(&self, origin: OriginParts) -> export::Told {
        export::Told {
            has_vlan: self.key.contains(&KeyPart::Vlan),
            has_interface: self.key.contains(&KeyPart::Interface),
            is_layer2: matches!(self.octets, OctetsArg::Packet),
            beyond: self.beyond(origin),
            selectors: [self.sample, self.sample_records].map(Option::unwrap_or_default),
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
On a terminal a live interface is shown as a view (keys: q ends; 1 to 4 or Tab show flows, \
applications, talkers, losses; b p d sort by bytes, packets, duration; / filters; n shows names; \
space holds the picture; arrows scroll). Otherwise a line of rates goes to standard error each \
second, and the largest flows to standard output at the end. The fields of --json are described in \
docs/flows.md.

A plain interface name is a tap: it sees what comes and what the host sends, and takes nothing \
away. afxdp: takes the packets that the filter selects from the host.

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

/// Runs the probe and tells what it found.
pub fn run(args: &Args) -> Result<()> {
    if let Some(Other::Query(args)) = &args.other {
        return query::run(args);
    }
    // The parser has seen to it that there is one.
    let name = args.port.as_deref().unwrap_or_default();
    check_cpus(&args.port_args.cpus)?;
    let ndpi_flow_count = choice::ndpi_flow_count(&args.flow.decode)?;
    let user = match &args.port_args.user {
        Some(name) => Some(rights::User::find(name)?),
        None => None,
    };
    // It may take seconds, for which no port shall wait with packets in it.
    let origins = args.origin.open(args.flow.key_extra().mac)?;
    let mut options = args.port_args.options(Direction::Rx);
    let expression = args.filter.join(" ");
    if args.live_filter {
        service::check_live_filter(name)?;
    } else if !expression.trim().is_empty() {
        options.filter_source = Some(filter::source(&expression));
    }
    let plan = args.egress.plan(name, &mut options)?;
    let port = port::open(name, &options)?;
    let way_out = plan.map(|plan| plan.open(&port)).transpose()?;
    let scheme = PortName::parse(name)?.scheme;
    let is_file = scheme == "file";
    let keep = crate::args::to_read_counters(scheme);
    let mut exporters = args.export.open(&port.control.describe(), &args.told())?;
    let mut metrics = args.export.metrics()?;
    let mut page = args.report.as_deref().map(page::Page::create).transpose()?;
    rights::give_up(user.as_ref(), keep.as_slice())?;
    // Rights are a thread's own: these begin without.
    if let Some(exporters) = &mut exporters {
        exporters.start()?;
    }
    if let Some(metrics) = &mut metrics {
        metrics.start()?;
    }
    let stop = Stop::on_signals()?;
    let description = port.control.describe();
    let mut service = Service::new(
        args.config.as_ref(),
        description,
        args.told(),
        origins.clone(),
        args.live_filter,
    )?;
    let queue_count = port.rx.len();
    let config = Config {
        ndpi_flow_count,
        filter: args.selection(port.control.describe().link_type)?.filter,
        ..args.config(queue_count)
    };
    let description = port.control.describe();
    let memory = report::Memory {
        tables: config.memory_len(queue_count)
            + args.export.memory_len()
            + origins.memory_len()
            + if args.json { json::MEMORY_LEN } else { 0 },
        port: description.memory_len,
    };
    let view = !args.json && !args.plain && !args.once && !is_file && io::stdout().is_terminal();
    let probe = |outlet: &mut dyn Outlet| {
        let mut outlet = page::Gathering {
            inner: outlet,
            page: &mut page,
        };
        let mut outlet = export::Exporting {
            inner: &mut outlet,
            exporters: &mut exporters,
            metrics: &mut metrics,
            service: &mut service,
        };
        outlet.service.ready();
        let mut outlet = origin::Placing {
            inner: &mut outlet,
            origins: origins.clone(),
        };
        let report = flows::run_with(port, way_out, &config, &stop, &mut outlet)?;
        service.stopping();
        let accounts = export::finish(exporters.take(), &report);
        let written = page.take().map(|page| {
            page.finish(&page::Run {
                name,
                settings: &args.settings(),
                report: &report,
                exports: &accounts,
                flow_count: args.top.max(page::FLOW_COUNT),
                order: config.order,
            })
        });
        Ok::<_, Error>((report, accounts, written.unwrap_or(Ok(()))))
    };
    if view && io::stdin().is_terminal() {
        let mut live = Live::start(name, &description, memory.total(), config.order)?;
        live.show_origins(origins.clone());
        let ended = probe(&mut live);
        // The table at the end goes to the terminal as it was before.
        let order = live.order();
        drop(live);
        let (report, accounts, written) = ended?;
        return report::tell(report, args.top, order, &memory, &accounts).and(written);
    }
    plain::start(name, &description, queue_count, &memory);
    if args.once {
        let order = config.order;
        let mut once = Once::new(name, &description, memory.total(), order, args.duration);
        once.show_origins(origins.clone());
        let (report, accounts, written) = probe(&mut once)?;
        once.print().map_err(write_error)?;
        return report::tell(report, 0, order, &memory, &accounts).and(written);
    }
    if args.json {
        let mut outlet = json::Lines::new(io::stdout(), !is_file, args.told().beyond)?;
        let (report, accounts, written) = probe(&mut outlet)?;
        let told = outlet.summary(report, name, &memory, &accounts);
        return told.and(written);
    }
    let mut outlet = plain::Rates::new(name, is_file);
    let ended = probe(&mut outlet);
    outlet.end();
    let (report, accounts, written) = ended?;
    report::tell(report, args.top, config.order, &memory, &accounts).and(written)
}

impl Args {
    /// What collectors are told.
    fn told(&self) -> export::Told {
        self.flow.told(self.origin.files().parts())
    }

    fn config(&self, queue_count: usize) -> Config {
        let mut meter = MeterConfig::new(secret());
        meter.table.flow_count_max = self.flow.table_size.unwrap_or(default_size(queue_count));
        let timeouts = &mut meter.table.timeouts;
        timeouts.active_ns = self.flow.active_timeout.as_nanos() as u64;
        for idle in &self.flow.idle_timeout {
            idle.apply(timeouts);
        }
        timeouts.linger_ns = self.flow.linger.as_nanos() as u64;
        choice::apply_fields(&self.flow.fields, &mut meter);
        let applications = choice::apply_decoders(&self.flow.decode, &mut meter);
        self.egress.apply(&mut meter);
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
            meter,
            pacing: self.port_args.pacing(),
            cpus: self.port_args.cpus.clone(),
            count: self.count,
            duration: self.duration,
            record_sampling: self.flow.sample_records.unwrap_or_default(),
            top_count: match self.report {
                Some(_) => self.top.clamp(page::FLOW_COUNT, TOP_MAX),
                None => self.top.clamp(1, TOP_MAX),
            },
            order: match self.sort {
                Sort::Bytes => Order::Bytes,
                Sort::Packets => Order::Packets,
                Sort::Duration => Order::Duration,
            },
            live_count: if self.json || self.plain { 0 } else { 64 },
            applications,
            ndpi_flow_count: None,
            filter: None,
            series: self.report.is_some(),
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
            true => "each a flow of its own",
            false => "one flow; the side that began is the source",
        };
        settings.push(("directions", directions.into()));
        let octets = match flow.octets {
            OctetsArg::Ip => "the IP datagram, header included",
            OctetsArg::Packet => "the packet from its link header on",
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
                let words = format!("one in {}, figures not scaled up", sampling.interval());
                settings.push((name, words));
            }
        }
        settings
    }
}

/// Flows at one time for each queue, unless told: a card with many queues must not take all memory.
fn default_size(queue_count: usize) -> u32 {
    const ONE: u32 = 1 << 20;
    ONE.min(4 * ONE / queue_count.max(1) as u32)
}

/// Flows in the table at the end, at the most: each costs some 300 bytes while the probe runs.
const TOP_MAX: usize = 100_000;

/// 64 bytes that nobody can guess: the standard library's keyed hash, whose key comes from the
/// system.
fn secret() -> HashKey {
    use std::hash::BuildHasher;
    let random = std::hash::RandomState::new();
    let mut bytes = [0; 64];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&random.hash_one(at).to_le_bytes());
    }
    HashKey::from_bytes(&bytes)
}

/// A number of seconds, or with a unit: `500ms`, `90s`, `5m`, `1h`.
fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("{other:?} is no unit of time (ms, s, m, h)")),
    };
    let seconds = digits.parse::<f64>().unwrap_or(-1.0) * unit;
    match (0.001..=1e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("it is not a time above 0, such as 10, 90s, 5m".into()),
    }
}

fn parse_timeout(text: &str) -> std::result::Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.as_nanos() as u64 > flow::Timeouts::MAX_NS {
        return Err("timeouts go up to an hour".into());
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
        _ => Err("it is not a number of flows from 16 to 268435456".into()),
    }
}

/// Writing results failed.
fn write_error(error: io::Error) -> Error {
    Error::from_io("write the flows", error)
}

/// Why the probe ended early, as the command's own error.
fn ended_early(error: Option<Error>) -> Result<()> {
    match error {
        Some(error) => Err(error),
        None => Ok(()),
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
        assert!(parse_timeout("1h").is_ok() && parse_timeout("3601").is_err());
        assert_eq!(parse_table_size("4M"), Ok(4_000_000));
        assert_eq!(parse_table_size("500k"), Ok(500_000));
        for bad in ["", "k", "0", "15", "1G", "999999999999M"] {
            assert!(parse_table_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_differ() {
        let words = [1, 2, 3, 4, 5, 6];
        assert_ne!(secret().hash(&words), secret().hash(&words));
    }
}
