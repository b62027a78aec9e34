//! `barewire forward`: packets from one port to another.

mod show;

use std::time::Duration;

use port::{Direction, PortName};
use runtime::Stop;
use runtime::forward::{self, Notice, Options, Setup};
use sys::Result;
use sys::rights::{self, User};

use crate::args::PortArgs;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Where packets come from: afxdp:eth0, an interface (a tap), a capture file
    #[arg(value_name = "PORT-A")]
    from: String,
    /// Where they go: afxdp:eth1, an interface, a file to write
    #[arg(value_name = "PORT-B")]
    to: String,
    /// Only these packets: a pcap expression (`man pcap-filter`)
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    filter: Vec<String>,
    /// Also from PORT-B to PORT-A
    #[arg(long)]
    both: bool,
    /// End after so many packets, over both directions
    #[arg(short = 'c', long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_parser = parse_seconds, value_name = "SECONDS")]
    duration: Option<Duration>,
    /// Packets taken at a time, at the most
    #[arg(long, default_value_t = 64, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Print the rates of each second, and at the end the account, as a JSON object a line
    #[arg(long)]
    json: bool,
    /// Even on the interface that the machine lives on
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    port: PortArgs,
}

const HELP: &str = "\
afxdp: takes packets from the host; what the filter does not select goes on to the host as \
before. Between two ports that share memory (afxdp: and vfio:) no byte of a packet moves: its \
frame changes hands. Between others packets are copied, and the account says how many.

A plain interface name is a tap: the host keeps its packets and answers them, so a bridge made \
of taps delivers packets twice. Use afxdp: for that.

Each pair of queues is a thread, in each direction. A packet for which the sending side has no \
room in time is dropped and counted as tx_full; from a file, forwarding waits instead. When the \
interfaces are veth, turn checksum and segmentation offload off at their other ends (ethtool -K \
eth0 tx off tso off gso off rxvlan off): a packet that never sees a card is otherwise never \
finished.

Examples:
  barewire forward afxdp:eth0 afxdp:eth1 --both
  barewire forward afxdp:eth0 afxdp:eth1 --both not port 23
  barewire forward eth0 afpacket:mirror0
  barewire forward afxdp:eth0/3 tunnel.pcapng --count 1000 udp port 4789";

fn parse_seconds(value: &str) -> std::result::Result<Duration, String> {
    match value.parse() {
        Ok(number) if (0.001..=1e9).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err("it is not a number of seconds above 0".into()),
    }
}

/// Forwards.
pub fn run(args: &Args) -> Result<()> {
    let stop = Stop::on_signals()?;
    let user = args.port.user.as_deref().map(User::find).transpose()?;
    let mut options = args.port.options(Direction::Rx);
    options.batch_max = args.batch.into();
    let opened = forward::open(&Setup {
        names: [args.from.clone(), args.to.clone()],
        both: args.both,
        filter: args.filter.join(" "),
        options,
        force: args.force,
    })?;
    let to_send = PortName::parse(&args.to)?.backend();
    let to_send = to_send.and_then(|row| row.to_send);
    rights::give_up(user.as_ref(), to_send.as_slice())?;
    let names = [args.from.as_str(), args.to.as_str()];
    let mut show = show::Show::start(names, args.both, args.json, &opened)?;
    let options = Options {
        both: args.both,
        count: args.count,
        duration: args.duration,
        pacing: args.port.pacing(),
        cpus: args.port.cpus.clone(),
    };
    let outcome = forward::run(opened.sides, &options, &stop, |notice| match notice {
        Notice::Progress(flows) => show.progress(flows),
        Notice::Event(index, event) => show.event(index, &event),
        Notice::Failing(index, why) => show.failing(index, &why),
        Notice::Working(index) => show.working(index),
    });
    // What ended it counts more than a summary that nobody reads.
    let told = show.end(&outcome);
    outcome.error.map_or(Ok(()), Err).and(told)
}
