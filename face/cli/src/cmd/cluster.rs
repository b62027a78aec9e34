//! `barewire cluster`: receives packets once and hands them to several programs without a copy.

mod cleanup;
mod metrics;
mod picture;
mod show;
mod table;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use export::prometheus::Endpoint;
use port::{Direction, PortName, PortOptions};
use runtime::cluster::{
    self, Application, Balance, Notice, Options, Return, Setup, Status, Topology, Totals, WhenFull,
    WhenGone,
};
use runtime::notify::Manager;
use runtime::{Stop, TotalsRequest};
use sys::create::CreateOptions;
use sys::privileges::User;
use sys::{Error, ErrorKind, Result};

use crate::args::{Attach, Bind, FilterCompiler, Idle, PortArgs, Timestamp, parse_duration};
use crate::confine::{ConfineArgs, Files, Needs};
use crate::inputs::{self, Inputs};
use crate::interface;
use crate::out::{say, warning};
use crate::report::counted;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What to do.
#[derive(clap::Subcommand)]
enum Action {
    /// Receive packets and hand them to the programs that open ring:NAME
    Run(Box<RunArgs>),
    /// Show running clusters: queues, readers, packets delivered and dropped
    Show(ShowArgs),
    /// Show the rates of a running cluster, once a second
    Top(TopArgs),
    /// End a running cluster in order: it receives no more packets, and ends once its readers have
    /// read what is in their queues
    Drain(DrainArgs),
}

/// Arguments of `cluster run`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
struct RunArgs {
    /// Name of the cluster: programs open ring:NAME
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Input ports, and a filter for their packets (man pcap-filter); or a topology file (.toml)
    #[arg(value_name = "INPUT", required = true, allow_negative_numbers = true)]
    words: Vec<String>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,
    /// Queues of the only application: one for each instance of the program (default: 1)
    #[arg(long, value_name = "N", conflicts_with = "app")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: Option<u32>,
    /// An application that sees all packets, and its number of queues, or a port to which they are
    /// sent; repeat for several
    #[arg(long, value_name = "APP[=QUEUES|=PORT]", value_parser = parse_application)]
    app: Vec<Application>,
    /// How packets are distributed over the queues of an application: flow (addresses, ports and
    /// protocol; default), inner (flow in tunnels), addresses, vlan, round-robin
    #[arg(long, value_name = "BALANCE", value_parser = Balance::parse)]
    balance: Option<Balance>,
    /// When a queue is full: drop; block, for at most MS milliseconds, and then drop; or spill to
    /// another queue of the application (default: drop; block for capture files)
    #[arg(long, value_name = "drop|block[=MS]|spill", value_parser = WhenFull::parse)]
    when_full: Option<WhenFull>,
    /// When a queue has no reader: wait for one (default), or rehash: the other queues with readers
    /// get its flows meanwhile
    #[arg(long, value_name = "wait|rehash", value_parser = WhenGone::parse)]
    when_gone: Option<WhenGone>,
    /// Length of each queue in packets (default: 4096)
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ring: Option<u32>,
    /// Put the packets of several inputs in order of time: each waits this long for earlier ones
    #[arg(long, value_name = "MS", value_parser = cluster::parse_merge)]
    merge: Option<Duration>,
    /// Transmit the packets that readers send on this port
    #[arg(long = "return", value_name = "PORT", conflicts_with = "bridge")]
    return_to: Option<String>,
    /// Transmit the packets that readers send on the other of the two inputs: an inline bridge
    #[arg(long)]
    bridge: bool,
    /// User whose programs may attach, in addition to root and the user of this command; repeat for
    /// several
    #[arg(long, value_name = "USER")]
    allow: Vec<String>,
    /// Stop after COUNT packets
    #[arg(short = 'c', long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after TIME (90s, 5m; without a unit: seconds)
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// Check and print the topology; open nothing
    #[arg(long)]
    dry_run: bool,
    /// Print rates every second, and the account at the end, as one JSON object per line
    #[arg(long)]
    json: bool,
    /// Serve the counters as Prometheus metrics at http://ADDRESS/metrics, for example
    /// 127.0.0.1:14742
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    cleanup: cleanup::CleanupArgs,
    #[command(flatten)]
    port: InputArgs,
}

/// How the input ports are opened.
#[derive(clap::Args)]
#[command(next_help_heading = "Port options")]
struct InputArgs {
    /// XDP attach mode (afxdp:)
    #[arg(long, value_enum, default_value = "auto")]
    attach: Attach,
    /// AF_XDP bind mode (afxdp:)
    #[arg(long, value_enum, default_value = "auto")]
    bind: Bind,
    /// Timestamp source
    #[arg(long, value_enum, default_value = "auto")]
    timestamp: Timestamp,
    /// Busy-poll budget: packets the kernel may process per call (afxdp:)
    #[arg(long, value_name = "N")]
    busy_poll: Option<u16>,
    /// What the thread does when there are no packets
    #[arg(long, value_enum, default_value = "gather")]
    idle: Idle,
    /// CPU to pin the thread that moves packets to; ports that send have threads of their own
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Drop privileges to this user once the ports are open; its programs may attach
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    confine: ConfineArgs,
}

/// Arguments of `cluster show`.
#[derive(clap::Args)]
struct ShowArgs {
    /// Names of clusters; without, all that this user may see
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Draw the topology of a cluster to an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster top`.
#[derive(clap::Args)]
struct TopArgs {
    /// Name of the cluster
    #[arg(value_name = "NAME")]
    name: String,
    /// Stop after this many reports
    #[arg(short = 'c', long, value_name = "COUNT")]
    count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster drain`.
#[derive(clap::Args)]
struct DrainArgs {
    /// Name of the cluster
    #[arg(value_name = "NAME")]
    name: String,
    /// How long readers have; what they have not read by then is lost
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "30s")]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Programs read the packets of a cluster by opening ring:NAME (a queue without a reader), \
ring:NAME/3 (queue 3) or ring:NAME/APP (a queue of an application): every command of barewire \
does, and other programs through its libpcap.so. With several applications each packet goes to \
one queue of each, without a copy.

A queue without a reader, or whose reader was killed, keeps up to --ring packets for the next \
one. With capture files, and no --when-full, the cluster waits until all packets were read. Ports \
opened over the cluster's memory (afxdp:, vfio:) are zero-copy; packets of others are copied once. \
Options of the input ports, such as their queues and rings, are in their names: \
afxdp:eth0?queues=4.

A topology file (TOML) has what the options have, and more: filters and policies of each \
application, return paths, and pipelines. docs/cluster.md has all keys:
  name = \"ids\"
  inputs = [\"eth0\"]
  [[application]]
  name = \"web\"
  queues = 4
  filter = \"tcp port 443\"

Examples:
  barewire cluster run --name ids eth0 --queues 4
  barewire cluster run ids.toml --dry-run
  barewire cluster run --name lab afxdp:eth0 eth1 --app ids=4 --app flows --user nobody
  barewire cluster run --name web eth0 --balance addresses tcp port 443
  barewire cluster run --name mirror eth0 --app ids=2 --app flows --deduplicate --shunt ids=1M
  barewire cluster run --name ips afxdp:eth0 afxdp:eth1 --bridge
  barewire forward ring:ips ring:ips/return not port 23
  barewire cluster run --name span eth1 --app ids=2 --app sensor=vm:sensor
  barewire capture ring:ids/0 -w queue0.pcap
  barewire flows ring:lab/flows";

fn parse_application(text: &str) -> std::result::Result<Application, String> {
    let (name, reader) = text.split_once('=').unwrap_or((text, "1"));
    if reader.starts_with(|c: char| c.is_ascii_digit()) || reader.is_empty() {
        let queue_count = reader
            .parse()
            .map_err(|_| format!("{reader:?} is not a number of queues"))?;
        return Ok(Application::new(name, queue_count));
    }
    Ok(Application {
        port: Some(reader.to_owned()),
        ..Application::new(name, 1)
    })
}

/// Length of queues, in packets.
const RING_LEN: u32 = 4096;

impl RunArgs {
    /// The topology file, if the only word is one.
    fn file(&self) -> Option<&Path> {
        let [word] = self.words.as_slice() else {
            return None;
        };
        let path = Path::new(word);
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        is_toml.then_some(path)
    }

    /// Refuses options that a topology file has instead.
    fn check_file(&self, path: &Path) -> Result<()> {
        let options = [
            (self.name.is_some(), "--name", "name"),
            (self.queues.is_some(), "--queues", "queues"),
            (!self.app.is_empty(), "--app", "[[application]]"),
            (self.balance.is_some(), "--balance", "balance"),
            (self.when_full.is_some(), "--when-full", "when_full"),
            (self.when_gone.is_some(), "--when-gone", "when_gone"),
            (self.ring.is_some(), "--ring", "ring"),
            (self.merge.is_some(), "--merge", "merge"),
            (self.return_to.is_some(), "--return", "[[return]]"),
            (self.bridge, "--bridge", "[[return]]"),
            (!self.allow.is_empty(), "--allow", "allow"),
        ];
        let cleanup = self.cleanup.given();
        match options
            .iter()
            .chain(&cleanup)
            .find(|(is_given, ..)| *is_given)
        {
            Some((_, option, key)) => {
                let what = format!("use {}", path.display());
                let why = format!("{option} cannot be used with a topology file");
                let hint = format!("set {key} in the file");
                Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint))
            }
            None => Ok(()),
        }
    }

    /// The topology, from the file or the options.
    fn topology(&self) -> Result<Topology> {
        if let Some(path) = self.file() {
            self.check_file(path)?;
            return cluster::read_topology(path, self.filter_compiler.into());
        }
        let Some(name) = &self.name else {
            let why = "it has no name";
            return Err(Error::new(ErrorKind::InvalidInput, "run a cluster", why)
                .with_hint("--name ids, or the name of a topology file that ends with .toml"));
        };
        let (inputs, filter) = inputs::split(&self.words);
        let mut applications = self.app.clone();
        if applications.is_empty() {
            applications.push(Application::new("all", self.queues.unwrap_or(1)));
        }
        for application in &mut applications {
            application.balance = self.balance.clone().unwrap_or_default();
            application.when_full = self.when_full;
            application.when_gone = self.when_gone.unwrap_or_default();
        }
        self.cleanup.apply(&mut applications)?;
        Ok(Topology {
            name: name.clone(),
            returns: self.returns(inputs)?,
            inputs: inputs.to_vec(),
            filter: self.filter_compiler.expression(filter.join(" ")),
            ring_len: self.ring,
            merge: self.merge,
            allow: self.allow.clone(),
            applications,
        })
    }

    /// The ports that send what readers send.
    fn returns(&self, inputs: &[String]) -> Result<Vec<Return>> {
        let of = |port: &String, from: Option<&String>| Return {
            port: port.clone(),
            from: from.cloned(),
            application: None,
        };
        match (self.bridge, inputs) {
            (false, _) => Ok(self.return_to.iter().map(|port| of(port, None)).collect()),
            (true, [a, b]) => Ok(vec![of(b, Some(a)), of(a, Some(b))]),
            (true, _) => {
                let why = "--bridge connects two inputs";
                Err(Error::new(ErrorKind::InvalidInput, "run a cluster", why)
                    .with_hint("barewire cluster run --name ips afxdp:eth0 afxdp:eth1 --bridge"))
            }
        }
    }

    fn setup(&self, topology: Topology, inputs: &Inputs, user: Option<&User>) -> Result<Setup> {
        let port = &self.port;
        let ports = PortArgs {
            attach: port.attach,
            bind: port.bind,
            timestamp: port.timestamp,
            queues: 0,
            ring: 0,
            busy_poll: port.busy_poll,
            idle: port.idle,
            cpus: Vec::from_iter(port.cpu),
            user: None,
            confine: port.confine,
        };
        let allow = topology.allow.iter().map(|name| User::find(name));
        Ok(Setup {
            name: topology.name,
            inputs: inputs.names().map(str::to_owned).collect(),
            applications: topology.applications,
            ring_len: topology.ring_len.unwrap_or(RING_LEN),
            filter: topology.filter,
            merge: topology.merge,
            returns: topology.returns,
            options: PortOptions {
                batch_max: 256,
                ..ports.options(Direction::Rx)
            },
            allow: allow.collect::<Result<_>>()?,
            user: user.cloned(),
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Run(args) => run_cluster(args),
        Action::Show(args) => show_clusters(args),
        Action::Top(args) => table::top(&args.name, args.count, args.json),
        Action::Drain(args) => drain(args),
    }
}

fn run_cluster(args: &RunArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let request = TotalsRequest::on_signal()?;
    crate::args::check_cpus(args.port.cpu.as_slice())?;
    let user = args.port.user.as_deref().map(User::find).transpose()?;
    let topology = args.topology()?;
    let inputs = Inputs::new(topology.inputs.clone());
    let setup = args.setup(topology, &inputs, user.as_ref())?;
    if args.dry_run {
        setup.check()?;
        setup.filter.check()?;
        return show_planned(&setup.planned(), args.json);
    }
    let manager = Manager::from_environment();
    let sending = setup.sending();
    interface::warn(inputs.names().chain(sending.iter().map(String::as_str)));
    let opened = cluster::open(&setup)?;
    let mut endpoint = args.metrics.map(Endpoint::bind).transpose()?;
    let sending: Vec<&str> = sending.iter().map(String::as_str).collect();
    confine(args, &inputs, &sending, opened.path(), user.as_ref())?;
    let mut show = show::Show::start(args.json, &opened)?;
    if let Some(endpoint) = &mut endpoint {
        let status = opened.status();
        let page = metrics::page(&setup.name, &Totals::default(), &status.queues, &[]);
        endpoint.show(page);
        endpoint.start()?;
        say!("metrics at http://{}/metrics", endpoint.address());
    }
    manager.ready();
    let options = Options {
        count: args.count,
        duration: args.duration,
        pacing: args.port.idle.pacing(),
        cpu: args.port.cpu,
    };
    let outcome = cluster::run(opened, &options, &stop, |notice| match notice {
        Notice::Progress(totals, queues, inputs) => {
            if request.take() {
                show.so_far(totals, queues);
            }
            show.progress(totals, queues, inputs);
            if let Some(endpoint) = &endpoint {
                endpoint.show(metrics::page(&setup.name, totals, queues, inputs));
            }
        }
        Notice::Reader(event) => show.reader(&event),
        Notice::Port(event) => show.event(&event),
    });
    manager.stopping();
    let reported = show.end(&outcome);
    outcome.error.map_or(Ok(()), Err).and(reported)
}

/// Drops the privileges that the running cluster does not need.
fn confine(
    args: &RunArgs,
    inputs: &Inputs,
    sending: &[&str],
    socket: &Path,
    user: Option<&User>,
) -> Result<()> {
    let mut files = Files::default();
    // The socket, at the end.
    files.delete(socket);
    let calls_bpf = inputs.calls_bpf()? || crate::args::calls_bpf(sending)?;
    let names = inputs.names().chain(sending.iter().copied());
    let needs = Needs::files(files, calls_bpf).of_ports(names)?;
    let mut keep = inputs.to_read_counters()?;
    if let several @ [_, _, ..] = inputs.names().collect::<Vec<_>>().as_slice() {
        // One whose device is gone is opened again when that is back.
        keep.extend(crate::args::to_receive(several)?);
    }
    for name in sending {
        keep.extend(PortName::parse(name)?.backend().and_then(|row| row.to_send));
    }
    keep.extend(crate::args::to_read_counters_of(sending)?);
    args.port.confine.drop_privileges(user, &keep, &needs)
}

fn show_clusters(args: &ShowArgs) -> Result<()> {
    let is_all = args.names.is_empty();
    let names = match is_all {
        true => cluster::names(),
        false => args.names.clone(),
    };
    let mut found = Vec::new();
    for name in names {
        match cluster::status(&name) {
            Ok(status) => found.push(status),
            // A socket left by a process that was killed, or of another user.
            Err(error)
                if is_all
                    && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Permission) => {}
            // A cluster that ends answers nobody.
            Err(error) if is_all => warning!("warning: cluster {name}: {error}"),
            Err(error) => return Err(error),
        }
    }
    if found.is_empty() && !args.json {
        let why = "no cluster runs, or none that this user may see";
        return Err(Error::new(ErrorKind::NotFound, "show clusters", why)
            .with_hint("start one: barewire cluster run --name ids eth0 --queues 4"));
    }
    match &args.svg {
        Some(path) => draw(&found, path),
        None => table::print(&found, args.json),
    }
}

/// Longest timeout of `cluster drain`.
const DRAIN_MAX: Duration = Duration::from_secs(86_400);

/// Ends a cluster, and prints its last status.
fn drain(args: &DrainArgs) -> Result<()> {
    if args.timeout > DRAIN_MAX {
        let what = format!("drain cluster {}", args.name);
        return Err(Error::new(
            ErrorKind::InvalidInput,
            what,
            "the timeout is longer than a day",
        ));
    }
    let seconds = args.timeout.as_secs_f64().ceil() as u32;
    let status = cluster::drain(&args.name, seconds)?;
    let waiting: u64 = status.queues.iter().map(|it| it.counts.waiting()).sum();
    table::print(std::slice::from_ref(&status), args.json)?;
    match waiting {
        0 => Ok(()),
        _ => {
            let what = format!("drain cluster {}", args.name);
            let why = format!("{} were not read in time", counted(waiting, "packet"));
            Err(Error::new(ErrorKind::Lost, what, why).with_hint(
                "look for queues without a reader; give slow readers a longer --timeout",
            ))
        }
    }
}

/// Prints a cluster that does not run.
fn show_planned(status: &Status, as_json: bool) -> Result<()> {
    table::print_now(match as_json {
        true => {
            let mut plan = table::status_json(status);
            plan["type"] = "plan".into();
            format!("{plan:#}\n")
        }
        false => picture::tree(status),
    })
}

/// Draws one cluster to a file.
fn draw(found: &[Status], path: &Path) -> Result<()> {
    let what = || format!("draw a topology to {}", path.display());
    let [status] = found else {
        let why = format!("{} clusters run", found.len());
        return Err(Error::new(ErrorKind::InvalidInput, what(), why)
            .with_hint("name one: barewire cluster show ids --svg ids.svg"));
    };
    let file = CreateOptions::BY_UMASK.create(path);
    file.and_then(|mut file| file.write_all(picture::svg(status).as_bytes()))
        .map_err(|error| Error::from_io(what(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_are_parsed() {
        let application = parse_application("ids=4").unwrap();
        assert_eq!(
            (application.name.as_str(), application.queue_count),
            ("ids", 4)
        );
        assert_eq!(parse_application("flows").unwrap().queue_count, 1);
        let mirror = parse_application("mirror=eth1").unwrap();
        assert_eq!(
            (mirror.port.as_deref(), mirror.queue_count),
            (Some("eth1"), 1)
        );
        for text in ["ids=4x", "ids="] {
            assert!(parse_application(text).is_err(), "{text}");
        }
    }
}
