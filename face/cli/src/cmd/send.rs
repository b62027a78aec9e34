//! `barewire send`: replays a capture, or sends packets made from a template.

mod show;
mod template;

use std::path::Path;
use std::time::Duration;

use port::{Direction, Port, PortEvent, PortName, PortOptions};
use runtime::send::{Generated, Limits, Replay, ReplayOptions, Report, Source, Target};
use runtime::{Stop, TotalsRequest};
use sys::{Error, ErrorKind, Result, privileges};
use traffic::{AddrMap, Pace, Pacer, PortMap, Range, Rate, Rewriter, Tag};

use crate::args::{check_cpus, parse_duration};
use crate::confine::{ConfineArgs, Files, Needs};
use crate::inputs;
use crate::out;
use crate::report::{event_level, event_line};
use show::Progress;
use template::TemplateArgs;

/// Default rate of generated packets: enough to see, too low to do harm.
const DEFAULT_RATE: Rate = Rate::Packets(1000.0);

/// Arguments.
#[derive(clap::Args)]
#[command(override_usage = "barewire send [OPTIONS] FILE PORT\n       \
    barewire send [OPTIONS] --udp|--tcp-syn|--tcp FLAGS|--icmp PORT")]
#[command(after_help = HELP)]
pub struct Args {
    /// Capture file to replay (not with --udp, --tcp-syn, --tcp, --icmp), then the port to send
    /// on: an interface, xdplive:eth0, afpacket:eth0 and so on
    #[arg(value_name = "FILE PORT", num_args = 1..=2, required = true, hide_long_help = false)]
    names: Vec<String>,

    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    rewrite: RewriteArgs,
    #[command(flatten)]
    template: TemplateArgs,

    /// Send even on the interface of the default route or of this SSH session
    #[arg(long)]
    force: bool,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Drop privileges to this user once the port and the file are open
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    confine: ConfineArgs,
    /// Pin the sending thread to this CPU
    #[arg(long = "cpus", alias = "cpu", value_name = "N")]
    cpu: Option<usize>,
}

const HELP: &str = "\
Packet lengths and bit rates count the Ethernet header and VLAN tags but not the frame check \
sequence (FCS, 4 bytes), as capture files do. With --wire, bit rates also count FCS, preamble and \
inter-frame gap (24 bytes), and padding to 60 bytes.

Ranges: 10.0.0.0/24 (all 256 addresses), 10.0.0.1-10.0.0.9, 1024-65535, and comma-separated \
lists. Each packet takes the next value of every range, or a random one with --random. Sizes: 60, \
60-1514, 60,590,1514, 60*7,590*4,1514 (with weights), imix (7 of 60, 4 of 590, 1 of 1514: 64, 594 \
and 1518 with the FCS).

For a plain interface name, packets are sent through afpacket:. With --rate max, barewire picks \
the fastest way that works: xdplive: if the interface takes XDP frames, afxdp: if that would not \
be zero-copy. tcpdump on the same interface does not see packets sent through these two.

Examples:
  barewire send trace.pcap eth1
  barewire send trace.pcap eth1 --multiplier 10 --map 10.0.0.0/8=192.168.0.0/16
  barewire send --udp --dst 192.0.2.7 --dport 53 --rate 1.2Mpps --duration 10 eth1
  barewire send --tcp-syn --src 10.0.0.0/8 --dst 192.0.2.7 --random --rate 3Gbps eth1";

/// When to send packets, and when to stop.
#[derive(clap::Args)]
#[command(next_help_heading = "Rate and duration")]
struct PaceArgs {
    /// Packets or bits per second (1.2Mpps, 250kpps, 3Gbps), or max
    #[arg(long, value_parser = parse_pace, value_name = "RATE")]
    rate: Option<PaceText>,
    /// Packets per second, as a number
    #[arg(long, conflicts_with = "rate", value_parser = parse_pps, value_name = "N")]
    pps: Option<Rate>,
    /// Count FCS, preamble and inter-frame gap in bit rates
    #[arg(long)]
    wire: bool,
    /// Replay X times as fast as captured
    #[arg(long, short = 'x', value_parser = parse_multiplier, value_name = "X")]
    #[arg(conflicts_with_all = ["rate", "pps"])]
    multiplier: Option<f64>,
    /// Shorten gaps in the capture to at most TIME
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    #[arg(conflicts_with_all = ["rate", "pps"])]
    gap_max: Option<Duration>,
    /// Replay the capture N times; 0 repeats until stopped
    #[arg(long = "loop", default_value_t = 1, value_name = "N")]
    rounds: u64,
    /// Stop after N packets
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    count: Option<u64>,
    /// Stop after TIME (90s, 5m; without a unit: seconds)
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
}

/// Changes to captured packets; MAC addresses, tags and TTL also apply to generated ones.
#[derive(clap::Args)]
#[command(next_help_heading = "Addresses, tags, TTL")]
struct RewriteArgs {
    /// Source MAC address, or a range for generated packets [default for those: the interface's]
    #[arg(long, value_parser = parse_macs, value_name = "MAC")]
    src_mac: Option<Range>,
    /// Destination MAC address, or a range for generated packets [default for those: that of --dst
    /// or of the gateway to it, resolved by ARP or Neighbor Discovery]
    #[arg(long, value_parser = parse_macs, value_name = "MAC")]
    dst_mac: Option<Range>,
    /// Add VLAN tags, outer first: 100, or 200,100, or 0x88a8:200@5,100 (TPID:ID@PRIORITY)
    #[arg(long, value_parser = parse_tags, value_name = "TAGS")]
    vlan: Option<Tags>,
    /// Set the TTL or hop limit [default for generated packets: 64]
    #[arg(long, value_name = "N")]
    ttl: Option<u8>,
    /// Remove all VLAN tags from captured packets
    #[arg(long)]
    strip_vlan: bool,
    /// Map source and destination addresses of captured packets, for example
    /// 10.0.0.0/8=192.168.0.0/16; may be repeated
    #[arg(long, value_parser = parse_map, value_name = "FROM=TO")]
    map: Vec<AddrMap>,
    /// Map source and destination ports of captured packets, for example 80=8080 or
    /// 1000-1999=5000; may be repeated
    #[arg(long, value_parser = parse_port_map, value_name = "FROM=TO")]
    map_port: Vec<PortMap>,
    /// Recompute all checksums of captured packets (captures made on the sending host often lack
    /// them because of checksum offload)
    #[arg(long)]
    fix_checksums: bool,
}

#[derive(Clone, Debug)]
struct Tags(Vec<Tag>);

#[derive(Clone, Copy, Debug)]
enum PaceText {
    Max,
    Rate(Rate),
}

/// Converts an error of `traffic` for clap: the hint gets its own line.
fn text(error: traffic::Error) -> String {
    match error.hint {
        Some(hint) => format!("{}\nhint: {hint}", error.why),
        None => error.why,
    }
}

fn parse_pace(value: &str) -> std::result::Result<PaceText, String> {
    match value {
        "max" => Ok(PaceText::Max),
        _ => Rate::parse(value).map(PaceText::Rate).map_err(|error| {
            let why = error.why;
            format!("{why}\nhint: write for example 1.2Mpps, 250kpps, 3Gbps or max")
        }),
    }
}

fn parse_pps(value: &str) -> std::result::Result<Rate, String> {
    let number = value.parse().map_err(|_| "expected a number".to_owned())?;
    Rate::packets(number).map_err(text)
}

fn parse_multiplier(value: &str) -> std::result::Result<f64, String> {
    let number = value.parse().unwrap_or(0.0);
    match (1e-6..=1e9).contains(&number) {
        true => Ok(number),
        false => Err("expected a number from 0.000001 to 1000000000\n\
            hint: use --rate max for no gaps at all"
            .into()),
    }
}

fn parse_macs(value: &str) -> std::result::Result<Range, String> {
    Range::macs(value).map_err(text)
}

fn parse_tags(value: &str) -> std::result::Result<Tags, String> {
    Tag::parse_stack(value).map(Tags).map_err(text)
}

fn parse_map(value: &str) -> std::result::Result<AddrMap, String> {
    AddrMap::parse(value).map_err(text)
}

fn parse_port_map(value: &str) -> std::result::Result<PortMap, String> {
    PortMap::parse(value).map_err(text)
}

fn usage(what: &str) -> ! {
    crate::exit::wrong_usage("send", what)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    // Before a capture is read ahead, so that requests are handled during that time, too.
    TotalsRequest::on_signal()?;
    check_cpus(args.cpu.as_slice())?;
    let (file, name) = match (args.names.as_slice(), args.template.is_given()) {
        ([file, name], false) => (Some(file.as_str()), name),
        ([name], true) => (None, name),
        ([_], false) => usage(
            "give a capture to replay and a port, or --udp, --tcp-syn, --tcp or --icmp and a port",
        ),
        _ => usage("give a capture, or one of --udp, --tcp-syn, --tcp and --icmp, not both"),
    };
    args.check(file.is_some());
    if let Some(file) = file {
        inputs::check_capture(file, name)?;
    }
    inputs::refuse_replacing(&format!("send on {name}"), name, "barewire send FILE PORT")?;
    let destination = Destination::find(name, args)?;
    match file {
        Some(file) => replay(args, file, &destination),
        None => generate(args, &destination),
    }
}

/// The destination of packets.
struct Destination {
    /// Names of ports to try, the best first; the last one must work.
    ports: Vec<String>,
    /// The interface, if there is one.
    target: Option<Target>,
}

impl Destination {
    fn find(name: &str, args: &Args) -> Result<Self> {
        let parsed = PortName::parse(name)?;
        let row = parsed.backend();
        let is_interface = row.is_some_and(|row| row.target == port::Target::Interface);
        if !is_interface {
            return Ok(Self {
                ports: vec![name.to_owned()],
                target: None,
            });
        }
        let target = runtime::send::target(&parsed.target)?;
        if let Some(host_dependency) = target
            .host_dependency
            .as_ref()
            .filter(|_| !args.force && !args.dry_run)
        {
            let why = format!(
                "{host_dependency}: the packets would reach the network that this host depends on, \
                 and could saturate it"
            );
            let what = format!("send on {}", parsed.target);
            return Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(
                "use a test interface, or --force to send anyway; \
                 --dry-run shows what would be sent",
            ));
        }
        let is_plain = !name.contains(':');
        let ports = match is_plain && args.is_max() {
            true => target
                .fastest()
                .iter()
                .map(|scheme| format!("{scheme}:{name}"))
                .collect(),
            false => vec![name.to_owned()],
        };
        Ok(Self {
            ports,
            target: Some(target),
        })
    }

    /// Maximum packet length, without a VLAN tag; 0 is unlimited.
    fn packet_len_max(&self) -> usize {
        let target = self.target.as_ref();
        target.map_or(0, |target| target.packet_len_max)
    }

    /// Opens the first port that can be opened and sends packets of `longest` bytes (0: up to the
    /// interface's maximum). If none works, the error is that of the last.
    fn open(&self, longest: usize) -> Result<Port> {
        let options = PortOptions {
            direction: Direction::Tx,
            queue_count: 1,
            ..PortOptions::default()
        };
        let mut refused = None;
        for name in &self.ports {
            let opened = port::open(name, &options).and_then(|port| {
                let wanted = match (longest, self.ports.len()) {
                    // There is another one to fall back on.
                    (0, 2..) => self.packet_len_max(),
                    (longest, _) => longest,
                };
                check_port(port, name, wanted)
            });
            match opened {
                Ok(port) => return Ok(port),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused
            .unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "send", "no port is given")))
    }
}

/// Checks that packets of this length can be sent on a port.
fn check_port(mut port: Port, name: &str, len: usize) -> Result<Port> {
    let refuse = |why: String| Error::new(ErrorKind::InvalidInput, format!("send on {name}"), why);
    if port.tx.is_empty() {
        let hint = "use an interface; `barewire devices` lists them";
        return Err(refuse("this port cannot send".into()).with_hint(hint));
    }
    let max = port.capabilities.packet_len_max as usize;
    if max != 0 && len > max {
        let why = format!("it sends packets of at most {max} bytes, not {len}");
        return Err(refuse(why).with_hint("afpacket: sends packets up to the MTU"));
    }
    port.name = name.to_owned();
    Ok(port)
}

impl Args {
    fn is_max(&self) -> bool {
        matches!(self.pace.rate, Some(PaceText::Max))
    }

    /// Refuses options that do not apply to what is sent.
    fn check(&self, replay: bool) {
        let (rewrite, pace) = (&self.rewrite, &self.pace);
        if replay {
            for (range, name) in [
                (&rewrite.src_mac, "--src-mac"),
                (&rewrite.dst_mac, "--dst-mac"),
            ] {
                if range.as_ref().is_some_and(|range| range.single().is_none()) {
                    usage(&format!(
                        "{name} takes one address for captured packets, not a range"
                    ));
                }
            }
            if let Some(option) = self.template.first_option() {
                usage(&format!("{option} is for generated packets only"));
            }
            return;
        }
        let only_replay = [
            (rewrite.strip_vlan, "--strip-vlan"),
            (!rewrite.map.is_empty(), "--map"),
            (!rewrite.map_port.is_empty(), "--map-port"),
            (rewrite.fix_checksums, "--fix-checksums"),
            (pace.multiplier.is_some(), "--multiplier"),
            (pace.gap_max.is_some(), "--gap-max"),
            (pace.rounds != 1, "--loop"),
        ];
        if let Some((_, option)) = only_replay.iter().find(|row| row.0) {
            usage(&format!(
                "{option} is for captured packets, and no capture is given"
            ));
        }
    }

    fn pace(&self, replay: bool) -> Pace {
        let on_wire = self.pace.wire;
        match (self.pace.rate, self.pace.pps) {
            (Some(PaceText::Max), _) => Pace::Max,
            (Some(PaceText::Rate(rate)), _) | (None, Some(rate)) => Pace::Rate { rate, on_wire },
            (None, None) if replay => Pace::Original {
                multiplier: self.pace.multiplier.unwrap_or(1.0),
                gap_max_ns: self
                    .pace
                    .gap_max
                    .map_or(u64::MAX, |gap| gap.as_nanos() as u64),
            },
            (None, None) => Pace::Rate {
                rate: DEFAULT_RATE,
                on_wire,
            },
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            packet_count: self.pace.count,
            duration: self.pace.duration,
        }
    }

    fn rewriter(&self) -> Rewriter {
        let rewrite = &self.rewrite;
        let mac = |range: &Option<Range>| {
            let bits = range.as_ref()?.single()?;
            let bytes = bits.to_be_bytes();
            bytes.last_chunk().map(|mac| wire::Mac(*mac))
        };
        Rewriter {
            src_mac: mac(&rewrite.src_mac),
            dst_mac: mac(&rewrite.dst_mac),
            strip_tags: rewrite.strip_vlan,
            push_tags: rewrite
                .vlan
                .as_ref()
                .map_or_else(Vec::new, |tags| tags.0.clone()),
            addr_maps: rewrite.map.clone(),
            port_maps: rewrite.map_port.clone(),
            ttl: rewrite.ttl,
            fix_checksums: rewrite.fix_checksums,
        }
    }
}

fn replay(args: &Args, file: &str, destination: &Destination) -> Result<()> {
    let mut options = ReplayOptions {
        rewriter: args.rewriter(),
        round_count: args.pace.rounds,
        packet_len_max: destination.packet_len_max(),
        ..ReplayOptions::default()
    };
    let pace = args.pace(true);
    if args.dry_run {
        let stop = Stop::on_signals()?;
        let (survey, damage) = runtime::send::survey(file, &options, show::SAMPLE_COUNT, &stop)?;
        let plan = show::Plan::of_capture(&survey, args.pace.rounds, pace, &args.limits());
        return show::dry_run(file, &destination.ports[0], &plan, args.json, damage);
    }
    let port = destination.open(0)?;
    // Here, too, a VLAN tag is not counted.
    let port_max = (port.capabilities.packet_len_max as usize).saturating_sub(4);
    if port_max != 0 && (options.packet_len_max == 0 || port_max < options.packet_len_max) {
        options.packet_len_max = port_max;
    }
    let opened = Replay::open(file, &options)?;
    drop_privileges(args, &port.name, Some(file))?;
    let mut source = opened.start()?;
    let report = transmit(args, port, &mut source, pace)?;
    finish(&report, destination, options.packet_len_max)
}

fn generate(args: &Args, destination: &Destination) -> Result<()> {
    let target = destination.target.as_ref();
    let template = args
        .template
        .template(&args.rewrite, target, args.dry_run)?;
    let mut generator = template.build().map_err(|e| {
        let error = Error::new(ErrorKind::InvalidInput, "make packets", e.why);
        match e.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    })?;
    let max = destination.packet_len_max();
    // The kernel allows for one 802.1Q tag above the MTU, not for others.
    let tagged = template.tags.first().is_some_and(|tag| tag.tpid == 0x8100);
    let tag_len = if tagged { 4 } else { 0 };
    if max != 0 && generator.packet_len_max() > max + tag_len {
        let why = format!(
            "the longest would have {} bytes, and the interface's MTU allows {}",
            generator.packet_len_max(),
            max + tag_len
        );
        let mtu = generator.packet_len_max() - 14 - tag_len;
        let name = destination.target.as_ref().map_or("NAME", |t| &t.link.name);
        return Err(
            Error::new(ErrorKind::InvalidInput, "make packets", why).with_hint(format!(
                "use a smaller --size, or raise the MTU: ip link set {name} mtu {mtu}"
            )),
        );
    }
    let pace = args.pace(false);
    if args.dry_run {
        let plan = show::Plan::of_generator(&mut generator, &template, pace, &args.limits());
        return show::dry_run("generated", &destination.ports[0], &plan, args.json, None);
    }
    let port = destination.open(generator.packet_len_max())?;
    drop_privileges(args, &port.name, None)?;
    let report = transmit(args, port, &mut Generated::new(generator), pace)?;
    finish(&report, destination, max)
}

/// Drops privileges; `file` is the capture that is sent.
fn drop_privileges(args: &Args, port: &str, file: Option<&str>) -> Result<()> {
    let user = args
        .user
        .as_deref()
        .map(privileges::User::find)
        .transpose()?;
    let mut files = Files::default();
    let mut keep = Vec::new();
    let calls_bpf = crate::args::calls_bpf(&[port])?;
    // Another user has only its own permissions.
    if user.is_none() && calls_bpf {
        keep.extend(privileges::to_read_maps());
    }
    // The first round reads the file that is already open.
    if let Some(file) = file.filter(|_| args.pace.rounds != 1) {
        files.read(Path::new(&PortName::parse(file)?.target));
        keep.extend(
            user.is_none()
                .then_some(privileges::Capability::DacReadSearch),
        );
    }
    let needs = Needs::files(files, calls_bpf).of_ports([port])?;
    args.confine.drop_privileges(user.as_ref(), &keep, &needs)?;
    out::start()
}

fn transmit<S: Source>(args: &Args, mut port: Port, source: &mut S, pace: Pace) -> Result<Report> {
    let stop = Stop::on_signals()?;
    if let Some(cpu) = args.cpu {
        sys::affinity::pin_current_thread(cpu)?;
    }
    let mut progress = Progress::start(&port.name, pace, TotalsRequest::on_signal()?);
    await_receiver(&mut port, &stop)?;
    let mut pacer = Pacer::new(pace);
    let (report, result) = runtime::send::send(
        &mut port.tx[0],
        source,
        &mut pacer,
        &args.limits(),
        &stop,
        &mut |report| progress.report(report),
    );
    progress.end();
    show::summary(&report, &port.name, args.json)?;
    result.map(|()| report)
}

/// Waits until a port that says so has a receiver: a virtual machine whose driver is ready.
fn await_receiver(port: &mut Port, stop: &Stop) -> Result<()> {
    let mut is_awaited = false;
    loop {
        while let Some(event) = port.control.event() {
            match event {
                PortEvent::Waiting(_) => is_awaited = true,
                PortEvent::LinkUp => is_awaited = false,
                _ => {}
            }
            out::line(event_level(&event), event_line(&port.name, &event));
        }
        if !is_awaited || stop.is_set() {
            return Ok(());
        }
        port.tx[0].wait(false, Duration::from_millis(100))?;
    }
}

/// Unsent packets are an error, reported once at the end.
fn finish(report: &Report, destination: &Destination, len_max: usize) -> Result<()> {
    let fail = |why: String, hint: String| {
        let error = Error::new(ErrorKind::InvalidInput, "send all packets", why);
        Err(error.with_hint(hint))
    };
    if report.too_long != 0 {
        let why = format!("{} were longer than {len_max} bytes", report.too_long);
        if len_max < destination.packet_len_max() {
            return fail(why, "afpacket: sends packets up to the MTU".into());
        }
        let name = destination.target.as_ref().map_or("NAME", |t| &t.link.name);
        return fail(why, format!("raise the MTU: ip link set {name} mtu 9000"));
    }
    if report.failed != 0 {
        let why = format!("{} were refused by the interface", report.failed);
        return fail(
            why,
            "check that it is up and that its peer receives packets".into(),
        );
    }
    if report.not_sendable != 0 {
        let why = format!(
            "{} have no Ethernet header and are not IP",
            report.not_sendable
        );
        return fail(
            why,
            "barewire adds Ethernet headers to IP packets only".into(),
        );
    }
    Ok(())
}
