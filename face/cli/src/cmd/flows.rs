//! `barewire flows`: meters flows; shows them live, as records, or as a table at the end.

mod choice;
mod egress;
mod export;
mod files;
mod origin_args;
mod plain;
mod query;
mod report;
mod service;
mod show;
mod units;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use flow::top::Order;
use flow::{KeyParts, Level, Octets, Sampling};
use port::{Direction, FilterTarget, Intake};
use probe::{Probe, lines};
use runtime::filter::Expression;
use runtime::flows::Config;
use runtime::{Stop, TotalsRequest, flows};
use sys::Result;
use sys::privileges::{self, Capability};

use service::Reloading;
use show::Showing;
use units::{parse_duration, parse_table_size, parse_timeout};

pub use probe::Origins;
pub use probe::text::protocol_name;

use crate::args::{FilterCompiler, PortArgs, check_cpus};
use crate::confine::Needs;
use crate::inputs::{self, Inputs};
use crate::interface;
use crate::live;
use crate::out::{self, say, warning};

/// Arguments.
#[derive(clap::Args)]
#[command(
    override_usage = "barewire flows [OPTIONS] PORT... [FILTER]...\n       \
    barewire flows query [OPTIONS] SQL PLACE...",
    after_help = HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Packet source: an interface, afxdp:IFACE, a capture file, - for standard input; several
    /// files are merged in timestamp order
    #[arg(value_name = "PORT", required = true)]
    port: Option<String>,
    /// More ports of the same kind, then an expression: meter only packets that match it (man
    /// pcap-filter)
    #[arg(value_name = "PORT FILTER", allow_negative_numbers = true)]
    filter: Vec<String>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,

    /// Read options from a TOML file: its keys are the long option names, port and filter. The
    /// command line takes precedence. SIGHUP reloads the file (docs/flows.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object per flow record, and a summary at the end
    #[arg(long)]
    json: bool,
    /// Disable the live view, even on a terminal
    #[arg(long)]
    plain: bool,
    /// Print one snapshot of the live view after --duration or two seconds, and exit
    #[arg(long, conflicts_with_all = ["json", "plain"])]
    once: bool,
    /// Number of flows in the final table, and at most in the live view, up to 100000 [default: 20]
    #[arg(long, value_parser = parse_top, value_name = "N")]
    top: Option<usize>,
    /// Sort flows by this, largest first; with rate, the final table sorts by bytes
    #[arg(long, value_enum, default_value = "rate", value_name = "WHAT")]
    sort: Sort,
    /// Write a self-contained HTML report with charts at the end (- is standard output, which then
    /// has no table)
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
    /// Run an SQL query on the files of --export parquet:DIRECTORY
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
    /// Identify applications from the first packets of each flow: all, or some of tls, quic, http,
    /// dns, ssh, mail, mysql and others (docs/applications.md); ndpi adds the names of the
    /// installed libndpi
    #[arg(long, value_parser = choice::decoder, value_delimiter = ',', value_name = "NAMES")]
    decode: Vec<choice::Decoder>,
    /// Add the Community ID of each flow, with this seed or 0; implied by --decode
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true,
          default_missing_value = "0")]
    community_id: Option<u16>,
    /// Flow key fields in addition to addresses, ports and protocol (interface: that of a pcapng
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
    /// Parts of the key that are stored in addition to the records.
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
    Rate,
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
On a terminal, flows of a live interface are shown in a live view (keys: ? lists them; 1 to 5 or \
Tab show flows, applications, talkers, losses, networks; r b p d sort by rate, bytes, packets, \
duration; / filters; arrows and Enter open a flow; n shows names; a the account by queue; space \
pauses; Ctrl-Z suspends; q quits). Colours are off where NO_COLOR is set. Otherwise barewire \
prints a line of rates per second on standard error (not into the journal of systemd), and the \
largest flows on standard output at the end. SIGUSR1 prints the totals so far on standard error. \
The fields of --json are described in docs/flows.md.

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
    args.check_stdout();
    let (inputs, _) = args.words();
    let name = inputs.label();
    check_cpus(&args.port_args.cpus)?;
    let request = TotalsRequest::on_signal()?;
    let user = match &args.port_args.user {
        Some(name) => Some(privileges::User::find(name)?),
        None => None,
    };
    // This may take seconds, during which no open port should collect packets.
    let origins = args.origin.open(args.flow.key_extra().mac)?;
    let warning = interface::warn(inputs.names().chain(args.egress.port()));
    let owner = user.as_ref().map(|user| (user.uid, user.gid));
    let probe = args.open(&inputs, &origins)?.owner(owner);
    let stop = Stop::on_signals()?;
    let Some(readers) = args.wait_for_readers(&stop) else {
        say!("ended before anything was exported: no program reads the pipe");
        return Ok(());
    };
    let probe = probe.prepare()?;
    drop(readers);
    if choice::has_more(&args.flow.fields) {
        for line in args.export.without_fields() {
            warning!("{line}");
        }
    }
    if let Some(address) = probe.metrics_address() {
        say!("metrics at http://{address}/metrics");
    }
    let mut keep = inputs.to_read_counters()?;
    if user.is_none() && probe.creates_files() {
        // As root the files may be in other users' directories: that one capability stays.
        keep.push(Capability::DacOverride);
    }
    let names: Vec<&str> = inputs.names().chain(args.egress.port()).collect();
    let calls_bpf = crate::args::calls_bpf(&names)?;
    let needs = Needs::files(args.files(), calls_bpf).of_ports(names)?;
    args.port_args
        .confine
        .drop_privileges(user.as_ref(), &keep, &needs)?;
    // Privileges are per thread: these threads start without them.
    out::start()?;
    let stdout = out::stdout(lines::PIECES_MAX)?;
    let link_type = probe.describe().link_type;
    let reload = |path: &PathBuf| Reloading::new(path, args, link_type);
    let reload = args.config.as_ref().map(reload).transpose()?;
    Showing {
        args,
        inputs: &inputs,
        name: &name,
        stop,
        request,
        stdout,
        reload,
        origins,
        is_file: probe.describe().intake == Intake::File,
        has_picture: false,
        warning,
    }
    .run(probe)
}

impl Args {
    /// Opens the port, and builds the probe.
    fn open(&self, inputs: &Inputs, origins: &Origins) -> Result<Probe> {
        let ndpi_flow_count = choice::ndpi_flow_count(&self.flow.decode)?;
        let mut options = self.port_args.options(Direction::Rx);
        let expression = self.expression();
        if self.live_filter {
            service::check_live_filter(inputs)?;
        } else if !expression.is_empty() {
            expression.prepare()?;
            options.filter_source = Some(expression.source());
        }
        let plan = self
            .egress
            .plan(inputs, &mut options, self.filter_compiler)?;
        let port = inputs.open(&options)?;
        let egress = plan.map(|plan| plan.open(&port)).transpose()?;
        let is_file = port.control.describe().intake == Intake::File;
        let has_view = self.once || self.is_live_view(is_file);
        let config = Config {
            ndpi_flow_count,
            live_count: if has_view && !is_file {
                live::ROW_COUNT
            } else {
                0
            },
            filter: self.selection(port.control.describe().link_type)?.filter,
            ..self.config(port.rx.len())
        };
        let (export, files) = (&self.export, self.origin.files());
        Ok(Probe::new(port)
            .config(config)
            .egress(egress)
            .community_id(self.flow.community_id)
            .all_fields(choice::has_all(&self.flow.fields))
            .origins(origins, &files)
            .export_to(export.targets())
            .fan_out(export.fan_out())
            .sampled_before(export.sampling_rate())
            .metrics(export.metrics())
            .page(self.report.clone(), self.settings()))
    }

    /// Refuses several outputs on standard output.
    fn check_stdout(&self) {
        let exports = self.export.targets().iter();
        let mut exports = exports.filter(|target| files::is_stdout(target));
        let other = [
            (self.json, "--json"),
            (self.once, "--once"),
            (
                self.top.is_some_and(|count| count != 0),
                "the table of --top",
            ),
            (exports.next().is_some(), "--export FORMAT:-"),
        ];
        let other = other.iter().find(|(is_given, _)| *is_given);
        if let Some((_, other)) = other.filter(|_| self.reports_to_stdout()) {
            crate::exit::wrong_usage(
                "flows",
                &format!("--report - and {other} both write to standard output"),
            );
        }
    }

    fn reports_to_stdout(&self) -> bool {
        self.report.as_deref() == Some(Path::new("-"))
    }

    /// Number of flows in the final table.
    fn table_len(&self) -> usize {
        match self.reports_to_stdout() {
            true => 0,
            false => self.top.unwrap_or(20),
        }
    }

    /// Whether the live view is shown, for a file or another port.
    fn is_live_view(&self, is_file: bool) -> bool {
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        !self.reports_to_stdout()
            && !self.json
            && !self.plain
            && !self.once
            && !is_file
            && is_terminal
    }

    fn order(&self) -> Order {
        match self.sort {
            Sort::Rate => Order::Rate,
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
            top_count: self.table_len().clamp(1, TOP_MAX),
            order: self.order(),
            live_count: 0,
            applications,
            ..config
        }
    }

    /// The ports, and the words of the filter.
    fn words(&self) -> (Inputs, Vec<String>) {
        let words: Vec<String> = self.port.iter().chain(&self.filter).cloned().collect();
        let (ports, filter) = inputs::split(&words);
        (Inputs::new(ports.to_vec()), filter.to_vec())
    }

    fn expression(&self) -> Expression {
        let (_, words) = self.words();
        self.filter_compiler.expression(words.join(" "))
    }

    /// The selection for packets of this link type, which can change while the probe runs.
    ///
    /// # Errors
    /// As [`Expression::compile`].
    fn selection(&self, link_type: u16) -> Result<flows::Selection> {
        let tap = None;
        let program = match self.live_filter {
            true => self.expression().compile(FilterTarget { link_type, tap })?,
            false => None,
        };
        Ok(flows::Selection {
            filter: program.map(Arc::new),
            sampling: self.flow.sample.unwrap_or_default(),
            record_sampling: self.flow.sample_records.unwrap_or_default(),
        })
    }

    /// Settings that influence the figures, in words.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let flow = &self.flow;
        let mut settings = Vec::new();
        let expression = self.words().1.join(" ");
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

/// Maximum number of flows in the final table: each takes some 300 bytes while the probe runs.
const TOP_MAX: usize = 100_000;

fn parse_top(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(count @ 0..=TOP_MAX) => Ok(count),
        Ok(_) => Err(format!(
            "the final table has at most {TOP_MAX} flows; --json and --export write all"
        )),
        Err(error) => Err(error.to_string()),
    }
}
