//! `barewire scan`: finds open ports and hosts without keeping state per probe.

mod checks;
mod hello;
mod merge;
mod output;
mod parse;
mod rate;
mod services;
mod show;
mod status;

use std::cell::RefCell;
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::scan::grab::Identity;
use ::scan::{
    Given, Payloads, PlannedProbe, PortList, Ports, Probe, Protocol, RangeList, Shard,
    read_payloads,
};
use runtime::origin_table::Vendors;
use runtime::scan::{
    self, Notice, Outputs, RateControl, Saved, Setup, SourceAddr, StateFile, TargetList,
};
use runtime::{Stop, TotalsRequest};
use sys::privileges::User;
use sys::{Error, ErrorKind, Result};
use traffic::Rate;
use wire::Mac;

use crate::args::{calls_bpf, parse_duration, to_read_counters};
use crate::confine::{ConfineArgs, Needs};
use crate::inputs;
use crate::interface;
use hello::HelloArg;
use output::OutputArgs;
use parse::{
    OptionsText, PayloadArg, Seed, parse_identity, parse_mac, parse_rate, parse_seed,
    parse_source_ports, parse_wait,
};
use rate::RateFile;
use services::parse_ports;
use show::Show;
use status::{Metrics, Status};

/// Arguments.
#[derive(clap::Args)]
#[command(
    override_usage = "barewire scan [OPTIONS] TARGET...\n       \
    barewire scan merge FILE...",
    after_help = HELP,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// What to scan: addresses, prefixes (192.0.2.0/24), ranges (192.0.2.1-192.0.2.9), names, and
    /// single ports (192.0.2.7:443, [2001:db8::1]:53/udp)
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Ports: 80,https,8000-8100; - for all; U: begins UDP ports, T: TCP, S: SCTP, P: IP
    /// protocols; names are those of /etc/services
    #[arg(long, short = 'p', value_parser = parse_ports, value_name = "PORTS")]
    ports: Option<PortList>,
    /// Exclude these ports, of -p and --top-ports; without a letter, of every protocol
    #[arg(long, value_parser = parse_ports, value_name = "PORTS")]
    exclude_ports: Option<PortList>,
    /// Scan the first N TCP ports by importance, too; UDP ports with --probe udp
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    top_ports: Option<u16>,
    /// What is sent: syn, udp, ack, fin, xmas, null, sctp-init, protocol (ports are numbers of IP
    /// protocols), and without ports echo, timestamp, arp [default: syn, and udp to the ports of
    /// U:]
    #[arg(long, value_parser = Probe::parse, value_delimiter = ',', value_name = "PROBES")]
    probe: Vec<Probe>,
    /// Add the vendors of MAC addresses (--probe arp), from IEEE's oui.csv or Wireshark's manuf
    #[arg(long, value_name = "FILE")]
    mac_vendors: Vec<PathBuf>,
    /// Send the bytes of a file to UDP ports (53,5353=FILE)
    #[arg(long, value_parser = PayloadArg::parse, value_name = "PORTS=FILE")]
    payload: Vec<PayloadArg>,
    /// Read payloads of UDP ports from a file: a capture (by destination port), or nmap-payloads
    #[arg(long, visible_alias = "nmap-payloads", visible_alias = "pcap-payloads")]
    #[arg(value_name = "FILE")]
    payload_file: Vec<PathBuf>,
    /// Read more targets from a file (- is standard input): on lines of their own or with commas,
    /// # comments
    #[arg(long, visible_alias = "include-file", value_name = "FILE")]
    target_file: Vec<PathBuf>,
    /// Scan N public IPv4 addresses, chosen at random by the seed, too (-iR N)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    random_targets: Option<u64>,
    /// Read options from a masscan configuration file; of options that can be given once, those of
    /// the command line count
    #[arg(long, short = 'c', value_name = "FILE")]
    conf: Vec<PathBuf>,
    /// Exclude these addresses; a name stands for all its addresses
    #[arg(long, value_name = "TARGETS")]
    exclude: Vec<String>,
    /// Exclude the addresses in a file; an invalid line is an error
    #[arg(long, visible_alias = "excludefile", value_name = "FILE")]
    exclude_file: Vec<PathBuf>,
    /// Exclude the addresses in this file, too: those whose owners do not want to be scanned
    /// [default: /etc/barewire/opt-out.txt if it exists, which is read in any case]
    #[arg(long, value_name = "FILE")]
    opt_out: Vec<PathBuf>,

    /// Probes per second (100, 250kpps), or bits per second (3Mbps)
    #[arg(long, visible_alias = "max-rate", value_parser = parse_rate)]
    #[arg(default_value = "100", value_name = "RATE")]
    rate: Rate,
    /// Read the rate from this file instead of --rate, and again every second while the scan runs
    #[arg(long, value_name = "FILE", conflicts_with = "min_rate")]
    rate_file: Option<PathBuf>,
    /// Adapt the rate to the answers, from this rate up to --rate: it falls if fewer probes are
    /// answered than before
    #[arg(long, value_parser = parse_rate, value_name = "RATE")]
    min_rate: Option<Rate>,
    /// Probe each target N more times, at least a second apart
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    #[arg(value_name = "N")]
    retries: u32,
    /// Wait TIME for answers to the last probes (8s, 500ms; without a unit: seconds; 0; forever)
    #[arg(long, default_value = "8", value_parser = parse_wait, value_name = "TIME")]
    wait: Duration,
    /// Scan one of N parts: 1/4 is the first of four; all parts need the same --seed
    #[arg(long, default_value = "1/1", value_parser = Shard::parse, value_name = "I/N")]
    shard: Shard,
    /// Seed for the order of probes [default: random]
    #[arg(long, value_parser = parse_seed, value_name = "N")]
    seed: Option<Seed>,
    /// Save the state in this file, or resume the scan saved there
    #[arg(long, visible_alias = "resume", value_name = "FILE")]
    state: Option<PathBuf>,

    /// Port to scan from: an interface, or afxdp:eth0 and so on [default: that of the route]
    #[arg(long, short = 'e', visible_alias = "adapter", value_name = "PORT")]
    interface: Option<String>,
    /// Send on N queues of the port, each with its own thread [default: one for every 500 kpps of
    /// --rate, up to the number of cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    queues: Option<u32>,
    /// Source address [default: the interface's]; for vfio: with the prefix of the link, such as
    /// 192.0.2.7/24; one IPv4 and one IPv6 address at most
    #[arg(long, visible_alias = "adapter-ip", value_name = "ADDRESS[/PREFIX]")]
    source_ip: Vec<SourceAddr>,
    /// Source port, or range of ports
    #[arg(long, visible_alias = "adapter-port", value_parser = parse_source_ports)]
    #[arg(default_value = "61000-65095", value_name = "PORTS")]
    source_port: (u16, u16),
    /// Router for targets that are not on the link [default: that of the routing table]; one IPv4
    /// and one IPv6 address at most
    #[arg(long, visible_alias = "gateway", value_name = "ADDRESS")]
    router_ip: Vec<IpAddr>,
    /// Send all probes to this MAC address [default: resolved by ARP or Neighbor Discovery]
    #[arg(long, value_parser = parse_mac, value_name = "MAC")]
    router_mac: Option<Mac>,
    /// TCP options of probes
    #[arg(long, value_enum, default_value = "minimal")]
    tcp_options: OptionsText,
    /// TTL or hop limit of probes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..))]
    #[arg(value_name = "N")]
    ttl: u8,

    /// Connect to open ports and print what the service sends; AF_XDP takes the responses from the
    /// host, so that the kernel does not reset the connections
    #[arg(long)]
    banners: bool,
    /// Use the plain interface for --banners, and drop the kernel's resets of the connections by a
    /// firewall rule that the kernel deletes when the scan ends (nftables, Linux 5.12)
    #[arg(long, requires = "banners")]
    firewall: bool,
    /// Say this first to TCP ports (8000-8100=tls): what is said to a service (tls, http, ssh, ldap
    /// and so on), or the bytes of a file
    #[arg(long, requires = "banners", value_parser = HelloArg::parse)]
    #[arg(value_name = "PORTS=NAME|FILE")]
    hello: Vec<HelloArg>,
    /// Close a connection after TIME
    #[arg(long, default_value = "10", value_parser = parse_duration, value_name = "TIME")]
    banner_timeout: Duration,
    /// Maximum number of open connections; each takes 7 KiB, and with TLS
    /// up to 64 KiB more
    #[arg(long, default_value_t = 4096, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// User agent in HTTP and RTSP requests
    #[arg(long, visible_alias = "http-user-agent", value_parser = parse_identity)]
    #[arg(default_value = Identity::USER_AGENT, value_name = "TEXT")]
    user_agent: String,
    /// Whom to contact about the scan, a mail address or a URL: in the user agent, HTTP's From, and
    /// the identification of SSH
    #[arg(long, value_parser = parse_identity, value_name = "TEXT")]
    contact: Option<String>,
    /// Write all packets that the scan sends, and those it receives that could be responses, to a
    /// capture file: pcap or pcapng by its name, compressed if it ends in .gz or .zst
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Serve the counters as Prometheus metrics at http://ADDRESS/metrics, for example
    /// 127.0.0.1:14741
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Send a large scan without asking: probes left, times the rate in packets per second, above
    /// 1e12 (a /8 at 60 kpps). Without a terminal to ask on, it is needed for such scans
    #[arg(long)]
    yes: bool,
    /// Drop privileges to this user once the port is open
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    confine: ConfineArgs,
}

/// What to do with results.
#[derive(clap::Subcommand)]
enum Other {
    /// Print the results of several scans, such as shards, as one: each response once
    Merge(merge::MergeArgs),
}

/// The opt-out list of this host, always read if it exists.
const OPT_OUT: &str = "/etc/barewire/opt-out.txt";
/// Maximum length of a list of targets in bytes.
const LIST_LEN_MAX: u64 = 1 << 30;
/// Maximum length of a payload in bytes; a scan refuses shorter ones, too.
const PAYLOAD_LEN_MAX: u64 = 1 << 16;

const HELP: &str = "\
Nothing is remembered of a probe: an answer is recognized by numbers that only this run can \
have chosen. What does not answer a probe of this run is never reported. Each port is reported \
once: open (SYN and ACK; an answer by UDP), closed (RST; UDP: the host reports that nobody \
listens), or filtered (an ICMP error that quotes the probe). A host that answers an echo request \
is up. Ports that are not listed did not answer.

UDP probes carry a request of the usual service of their port (DNS, NTP, SNMP, SIP, QUIC and so \
on), and nothing to other ports.

Private, multicast and other reserved addresses are skipped in larger ranges: to scan them, name \
a range within them. Addresses in /etc/barewire/opt-out.txt are never scanned. Without --rate, \
100 packets a second are sent.

Each of the --retries goes to every target, a second after the previous probe or as soon as the \
rate allows: small scans wait for it.

Examples:
  barewire scan 192.0.2.0/24 -p 80,443
  barewire scan 192.0.2.0/24 -p 1-1024 --rate 10kpps --open --json
  barewire scan --target-file net.txt --exclude-file quiet.txt -p 22 --shard 1/3 --seed 7
  barewire scan 192.0.2.0/24 -p 80,443,U:53,123,161
  barewire scan 192.0.2.0/24 -p ssh,https,U:domain
  barewire scan 192.0.2.0/24 --probe echo
  barewire scan host.example --top-ports 100
  barewire scan 192.0.2.0/24 -p 80 -oX scan.xml -oJ scan.json
  barewire scan 192.0.2.0/24 -p 22 -e vfio:0000:01:00.0 --source-ip 192.0.2.7/24
  barewire scan 198.51.100.0/24 -p 80 --dry-run
  barewire scan merge shard1.ndjson shard2.ndjson";

/// Runs the scan.
pub fn run(args: &Args) -> Result<()> {
    if let Some(Other::Merge(args)) = &args.other {
        return merge::run(&args.files);
    }
    let user = args.user.as_deref().map(User::find).transpose()?;
    let saved = match &args.state {
        Some(path) => Saved::read(path)?,
        None => None,
    };
    let scan = scan::prepare(args.setup(saved)?)?;
    if let (Some(saved), Some(path)) = (saved, &args.state) {
        checks::same(&scan, &saved, path)?;
    }
    if args.dry_run {
        return show::dry_run(&scan, args.output.json);
    }
    interface::warn([scan.port_name().as_str()]);
    // A signal at the question ends the process.
    checks::confirm(&scan, args.yes)?;
    let stop = Stop::on_signals()?;
    let request = TotalsRequest::on_signal()?;
    let chosen = args.output.chosen(&scan, saved.is_some())?;
    let metrics = Metrics::bind(args.metrics, scan.interface())?;
    let mut show = Show::start(
        chosen.stdout(),
        &scan,
        (args.output.json, chosen.has_files(), &metrics),
    )?;
    let keep: Vec<_> = to_read_counters(&scan.port_name())?.into_iter().collect();
    let mut files = chosen.needed();
    let mut rate_file = args.rate_file.as_deref().and_then(|path| {
        files.read_beside(path);
        RateFile::new(path, scan.setup())
    });
    let needs = Needs::files(files, calls_bpf(&[&scan.port_name()])?);
    let outputs = RefCell::new(Outputs::default());
    let drop_privileges = || {
        *outputs.borrow_mut() = chosen.open(args.inputs().chain(args.pcap.as_deref()))?;
        args.confine
            .drop_privileges(user.as_ref(), &keep, &needs)
            .and_then(|()| show::begin(&scan))
            .and_then(|()| metrics.start(&Status::of(&scan)))
    };
    let path = args.state.as_deref();
    let state = path.map(|path| StateFile::open(path, &scan)).transpose()?;
    let pcap = args.pcap.as_deref();
    let recording = pcap.map(|path| output::recording(path, &scan, user.as_ref()));
    let files = (state, recording.transpose()?);
    let outcome = scan::run(&scan, random()?, &stop, files, drop_privileges, |notice| {
        if request.take() {
            show.so_far();
        }
        if let (Notice::Progress(..), Some(file)) = (&notice, &mut rate_file) {
            file.follow();
        }
        if args.output.is_hidden(&notice) {
            return Ok(());
        }
        let noted = outputs.borrow_mut().note(&notice);
        noted.and(show.notice(&notice))
    })?;
    let written = outputs.into_inner().end(&outcome);
    let reported = show.end(&outcome).and(written);
    let ended = checks::ended(&outcome, path);
    let error = outcome.error.map_or(Ok(()), Err);
    match error.and(reported) {
        // Who closes standard output has read enough, and may not know that the scan ended early.
        Err(error) if error.os_code() != Some(checks::EPIPE) => Err(error),
        _ => ended,
    }
}

impl Args {
    /// The files that it reads, and its state, and where its standard output goes.
    fn inputs(&self) -> impl Iterator<Item = &Path> {
        let files = self.target_file.iter().chain(&self.exclude_file);
        let files = files.chain(&self.opt_out);
        let payloads = self.payload.iter().map(|payload| &payload.path);
        let files = files.chain(&self.state).chain(&self.conf);
        let files = files.chain(payloads).chain(&self.payload_file);
        let files = files.chain(&self.mac_vendors).chain(&self.rate_file);
        let files = files.chain(self.hello.iter().filter_map(HelloArg::path));
        let is_stdin = |path: &&Path| *path == Path::new("-");
        let files = files.map(PathBuf::as_path);
        files
            .map(move |path| {
                if is_stdin(&path) {
                    Path::new("/dev/stdin")
                } else {
                    path
                }
            })
            .chain([Path::new("/dev/stdout")])
    }

    /// The lowest rate, in the unit of `--rate`.
    fn rate_min(&self) -> Result<Option<f64>> {
        let what = "use --min-rate";
        let min = match (self.min_rate, self.rate) {
            (None, _) => return Ok(None),
            (Some(Rate::Packets(min)), Rate::Packets(max))
            | (Some(Rate::Bits(min)), Rate::Bits(max)) => (min <= max).then_some(min),
            _ => {
                let why = "it has another unit than --rate";
                return Err(refused(what, why.into()).with_hint("give both in pps, or both in bps"));
            }
        };
        if min.is_none() {
            let why = "it is above --rate, the highest rate".to_owned();
            return Err(refused(what, why).with_hint("for example --min-rate 100 --rate 10kpps"));
        }
        if self.retries != 0 {
            let why = "second probes of targets that answered change the share of answers";
            return Err(refused(what, why.into())
                .with_hint("scan without --retries, or at a constant --rate"));
        }
        Ok(min)
    }

    /// The ports of `-p`, and those of `--top-ports`.
    fn port_list(&self) -> Result<PortList> {
        let mut list = self.ports.clone().unwrap_or_default();
        let Some(count) = self.top_ports else {
            return Ok(list);
        };
        let has = |protocol| self.probe.iter().any(|probe| probe.protocol() == protocol);
        let (tcp, udp) = (
            self.probe.is_empty() || has(Protocol::Tcp),
            has(Protocol::Udp),
        );
        for (protocol, is_scanned) in [(Protocol::Tcp, tcp), (Protocol::Udp, udp)] {
            if is_scanned {
                list.add_top(protocol, count);
            }
        }
        match tcp || udp {
            true => Ok(list),
            false => Err(refused(
                "use --top-ports",
                "there is neither TCP nor UDP to scan".into(),
            )),
        }
    }

    fn vendors(&self) -> Result<Arc<Vendors>> {
        let mut vendors = Vendors::default();
        for path in &self.mac_vendors {
            let added = vendors.add(&inputs::read_bytes(path, LIST_LEN_MAX)?);
            let what = || format!("read MAC vendors from {}", path.display());
            added.map_err(|why| refused(&what(), why))?;
        }
        Ok(Arc::new(vendors))
    }

    /// The built-in payloads and those of files.
    fn payloads(&self) -> Result<Payloads> {
        let mut given = Vec::new();
        for PayloadArg { ports, path } in &self.payload {
            let (ports, bytes) = (ports.clone(), inputs::read_bytes(path, PAYLOAD_LEN_MAX)?);
            given.push(Given { ports, bytes });
        }
        for path in &self.payload_file {
            let found = read_payloads(&inputs::read_bytes(path, LIST_LEN_MAX)?);
            let what = || format!("read payloads from {}", path.display());
            given.extend(found.map_err(|why| refused(&what(), why))?);
        }
        let payloads = Payloads::built_in().with(given);
        payloads.map_err(|why| refused("scan", why))
    }

    /// The ports of all targets, and the probes of single ones.
    fn ports(&self, include: &TargetList) -> Result<(Ports, Vec<PlannedProbe>)> {
        let list = self.port_list()?;
        let payloads = self.payloads()?;
        let pairs = Ports::of_pairs(&include.pairs, &self.probe, &payloads);
        let pairs = pairs.map_err(|why| refused("scan", why))?;
        let is_alone = include.ranges.is_empty() && self.random_targets.is_none();
        if is_alone && list.is_empty() {
            return Ok((Ports::none(payloads), pairs));
        }
        let ports = Ports::new(&list, &self.probe, payloads);
        let ports = ports.map_err(|why| {
            let hint = "give ports: -p 80,443,8000-8100, --top-ports 100, or -p - for all";
            let error = refused("scan", why);
            if list.is_empty() {
                error.with_hint(hint)
            } else {
                error
            }
        })?;
        let ports = match &self.exclude_ports {
            Some(list) => {
                let left = ports.without(list);
                left.map_err(|why| refused("use --exclude-ports", why))?
            }
            None => ports,
        };
        Ok((ports, pairs))
    }

    /// The port of `-e`, or the interface of link-local targets.
    fn port_of(&self, zone: Option<String>) -> Result<Option<String>> {
        let (Some(port), Some(zone)) = (&self.interface, &zone) else {
            return Ok(self.interface.clone().or(zone));
        };
        let interface = port.split_once(':').map_or(port.as_str(), |(_, rest)| rest);
        let interface = interface.split(['/', '?']).next().unwrap_or_default();
        if interface != zone {
            let why = format!("a target is on {zone}, and -e is {port}");
            return Err(refused("scan", why).with_hint("a scan has one interface"));
        }
        Ok(Some(port.clone()))
    }

    /// The addresses of the opt-out lists.
    fn opt_out(&self) -> Result<RangeList> {
        let mut list = TargetList::excluded();
        // One that cannot be looked for must not be ignored.
        let is_there = !matches!(Path::new(OPT_OUT).try_exists(), Ok(false));
        let default = is_there.then_some(Path::new(OPT_OUT));
        for path in self.opt_out.iter().map(PathBuf::as_path).chain(default) {
            read(path, &mut list)?;
        }
        Ok(list.ranges)
    }

    fn setup(&self, saved: Option<Saved>) -> Result<Setup> {
        let mut include = TargetList::default();
        for text in parse::join_ranges(&self.targets) {
            let added = include.add_line(&text);
            added.map_err(|why| refused("scan", why))?;
        }
        for file in &self.target_file {
            read(file, &mut include)?;
        }
        if include.is_empty() && self.random_targets.is_none() {
            return Err(refused("scan", "no target is given".into())
                .with_hint("give addresses, prefixes or ranges, or --target-file FILE"));
        }
        let mut exclude = TargetList::excluded();
        for text in &self.exclude {
            let added = exclude.add_line(text);
            added.map_err(|why| refused("use --exclude", why))?;
        }
        for file in &self.exclude_file {
            read(file, &mut exclude)?;
        }
        let source_addrs: Vec<IpAddr> = self.source_ip.iter().map(|source| source.addr).collect();
        checks::one_of_a_family("use the source addresses", &source_addrs)?;
        checks::one_of_a_family("use the routers", &self.router_ip)?;
        let seed = checks::seed(self.seed, saved, self.shard)?;
        let (ports, pairs) = self.ports(&include)?;
        let read = self.rate_file.as_deref().map(rate::read);
        let rate = read.transpose()?.unwrap_or(self.rate);
        Ok(Setup {
            random_count: self.random_targets.unwrap_or(0),
            pairs,
            include: include.ranges,
            exclude: exclude.ranges,
            opt_out: self.opt_out()?,
            ports,
            port: self.port_of(include.zone)?,
            source_addrs: self.source_ip.clone(),
            source_ports: self.source_port,
            routers: self.router_ip.clone(),
            router_mac: self.router_mac,
            rate,
            rate_min: self.rate_min()?,
            control: self.rate_file.is_some().then(|| RateControl::new(rate)),
            attempts: self.retries + 1,
            shard: self.shard,
            seed,
            block: saved.map(|saved| saved.block),
            from: saved.map_or(0, |saved| saved.next),
            wait: self.wait,
            options: self.tcp_options.into(),
            ttl: self.ttl,
            grab: self.grab(include.names)?,
            firewall: self.firewall,
            queues: self.queues,
            vendors: self.vendors()?,
        })
    }
}

fn refused(what: &str, why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what, why)
}

/// Reads the targets of a file.
fn read(path: &Path, out: &mut TargetList) -> Result<()> {
    let mut number = 0;
    inputs::read_lines(path, LIST_LEN_MAX, |line| {
        number += 1;
        let what = || format!("read line {number} of {}", path.display());
        out.add_line(line).map_err(|why| refused(&what(), why))
    })
}

/// Unpredictable bytes (random(4)).
fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Error::from_io("read random numbers from /dev/urandom", error))?;
    Ok(bytes)
}
