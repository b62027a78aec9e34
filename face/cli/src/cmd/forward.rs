//! `barewire forward`: forwards packets from one port to another.

mod show;

use std::time::Duration;

use port::{Direction, PortName};
use runtime::forward::{self, Notice, Options, Setup};
use runtime::{Stop, TotalsRequest};
use sys::Result;
use sys::privileges::User;

use crate::args::{FilterCompiler, PortArgs, parse_duration};
use crate::confine::{Files, Needs};
use crate::inputs;
use crate::interface;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Input port: afxdp:eth0, an interface (a tap), a capture file
    #[arg(value_name = "PORT-A")]
    from: String,
    /// Output port: afxdp:eth1, an interface, a file to write
    #[arg(value_name = "PORT-B")]
    to: String,
    /// Forward only packets that match this expression (man pcap-filter)
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    filter: Vec<String>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,
    /// Forward in both directions
    #[arg(long)]
    both: bool,
    /// Stop after COUNT packets, both directions together
    #[arg(short = 'c', long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after TIME (90s, 5m; without a unit: seconds)
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// Batch size: packets received at a time, at most
    #[arg(long, default_value_t = 64, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Print rates every second, and the account at the end, as one JSON object per line
    #[arg(long)]
    json: bool,
    /// Forward even on the interface of the default route or of this SSH session
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    port: PortArgs,
}

const HELP: &str = "\
afxdp: takes packets from the host; packets that the filter rejects still go to the host. \
Forwarding between ports that can share a frame pool (afxdp: and vfio:) is zero-copy; between \
other ports packets are copied, and the account says how many.

A plain interface name is a tap: the host also receives and answers the packets, so a bridge of \
two taps delivers packets twice. Use afxdp: instead.

Each pair of queues has a thread, in each direction. A packet is dropped and counted as tx_full \
if the transmit ring has no room for it in time; when reading a file, forwarding waits instead.

Forwarding waits at most 0.1 ms for more packets, and not at all while there is little traffic. \
Scheduling comes on top: --cpus pins a thread to a processor, and --idle spin never sleeps.

With veth interfaces, turn off checksum and segmentation offload at their peers (ethtool -K eth0 \
tx off tso off gso off rxvlan off): there is no card to compute checksums or to segment packets.

Examples:
  barewire forward afxdp:eth0 afxdp:eth1 --both
  barewire forward afxdp:eth0 afxdp:eth1 --both not port 23
  barewire forward eth0 afpacket:mirror0
  barewire forward afxdp:eth0/3 tunnel.pcapng --count 1000 udp port 4789";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let stop = Stop::on_signals()?;
    let request = TotalsRequest::on_signal()?;
    let user = args.port.user.as_deref().map(User::find).transpose()?;
    let mut options = args.port.options(Direction::Rx);
    options.batch_max = args.batch.into();
    let what = format!("forward to {}", args.to);
    inputs::refuse_replacing(&what, &args.to, "barewire forward PORT-A PORT-B")?;
    interface::warn([args.from.as_str(), args.to.as_str()]);
    let opened = forward::open(&Setup {
        names: [args.from.clone(), args.to.clone()],
        both: args.both,
        filter: args.filter_compiler.expression(args.filter.join(" ")),
        options,
        force: args.force,
    })?;
    let to_send = PortName::parse(&args.to)?.backend();
    let to_send = to_send.and_then(|row| row.to_send);
    let names = [args.from.as_str(), args.to.as_str()];
    let to_count = crate::args::to_read_counters_of(&names)?;
    let keep: Vec<_> = to_send.into_iter().chain(to_count).collect();
    let needs = Needs::files(Files::default(), crate::args::calls_bpf(&names)?).of_ports(names)?;
    args.port
        .confine
        .drop_privileges(user.as_ref(), &keep, &needs)?;
    let mut show = show::Show::start(names, args.both, args.json, &opened)?;
    let options = Options {
        both: args.both,
        count: args.count,
        duration: args.duration,
        pacing: args.port.pacing(),
        cpus: args.port.cpus.clone(),
    };
    let outcome = forward::run(opened.sides, &options, &stop, |notice| match notice {
        Notice::Progress(flows) => {
            if request.take() {
                show.so_far(flows);
            }
            show.progress(flows);
        }
        Notice::Event(index, event) => show.event(index, &event),
        Notice::Refused(..) => {}
        Notice::Failing(index, why) => show.failing(index, &why),
        Notice::Working(index) => show.working(index),
    });
    // The error that ended the run takes precedence over a summary that cannot be written.
    let reported = show.end(&outcome);
    outcome.error.map_or(Ok(()), Err).and(reported)
}
