//! `barewire filter p0f`: prints the signatures of SYNs and SYN+ACKs in a capture file or on a live
//! port.

mod print;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use filter::p0f::Database;
use port::{Direction, FilterSource, FilterTarget, Intake, Port, PortName, RxQueue, Target};
use runtime::filter::Expression;
use runtime::{Stop, worker};
use sys::privileges::User;
use sys::{Error, ErrorKind, Result};

use self::print::{Shared, Signatures};
use crate::args::{PortArgs, calls_bpf, check_cpus, parse_duration, to_read_counters};
use crate::confine::{Files, Needs};
use crate::out::{self, say, warning};
use crate::report::counted;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Capture file (- is standard input), or port: an interface, afxdp:eth0
    #[arg(value_name = "FILE|PORT")]
    source: String,
    /// Label signatures from a fingerprint file (Debian's package p0f has /etc/p0f/p0f.fp)
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Stop after COUNT signatures
    #[arg(short = 'c', long, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(value_name = "COUNT")]
    count: Option<u64>,
    /// Stop after TIME: 10, 90s, 5m, 1h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// Print one JSON object per packet
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    port: PortArgs,
}

/// Maximum size of a fingerprint file, in bytes.
const DATABASE_MAX: u64 = 4 << 20;
/// Maximum number of queued pieces of output.
const PIECES_MAX: usize = 64;

/// Unfragmented TCP SYNs and SYN+ACKs. Other packets may match; incomplete headers are refused when
/// the signature is read.
const HANDSHAKES: &str = "tcp[13] & 7 = 2 or (ip6 and ip6[6] = 6 and ip6[53] & 7 = 2)";

/// Prints a line for each SYN and SYN+ACK.
pub fn run(args: &Args) -> Result<()> {
    check_cpus(&args.port.cpus)?;
    let database = match &args.database {
        Some(path) => read_database(path)?,
        None => Database::default(),
    };
    let name = port_name(&args.source);
    let is_file = is_file(&name)?;
    let stop = Stop::on_signals()?;
    let user = args.port.user.as_deref().map(User::find).transpose()?;
    let mut port = args.open(&name, is_file)?;
    let keep: Vec<_> = to_read_counters(&name)?.into_iter().collect();
    let needs = Needs::files(Files::default(), calls_bpf(&[&name])?);
    args.port
        .confine
        .drop_privileges(user.as_ref(), &keep, &needs)?;
    out::start()?;
    let output = out::stdout(PIECES_MAX)?;
    let description = port.control.describe();
    let is_live = description.intake != Intake::File;
    if is_live {
        say!("listening on {}", facts(&name, &port));
    }
    if let Some(duration) = args.duration {
        stop.set_after(duration)?;
    }
    let shared = Shared {
        link_type: description.link_type,
        links: description.interfaces,
        database,
        json: args.json,
        count_max: args.count.unwrap_or(u64::MAX),
        found: AtomicU64::new(0),
        output,
    };
    let ended = args.receive(&mut port, &shared, &stop);
    if is_live {
        out::over();
    }
    let total = port.control.account()?.rx_total();
    let found = shared.found.load(Ordering::Relaxed);
    match is_live {
        true => say!(
            "{found} SYNs and SYN+ACKs, {} lost",
            counted(total.lost(), "packet")
        ),
        false => say!(
            "SYNs and SYN+ACKs: {found} of {}",
            counted(total.seen, "packet")
        ),
    }
    ended
}

/// The port name of the source: a name without a scheme is a file if there is one of that name.
fn port_name(source: &str) -> String {
    let is_port = is_file(source).is_ok_and(|is_file| !is_file);
    match is_port && !std::path::Path::new(source).is_file() {
        true => source.to_owned(),
        false => super::test::file_port(source),
    }
}

/// Whether a port reads a capture file.
fn is_file(name: &str) -> Result<bool> {
    let row = PortName::parse(name)?.backend();
    Ok(row.is_some_and(|row| row.target == Target::File))
}

fn read_database(path: &std::path::Path) -> Result<Database> {
    let (database, unused) = Database::parse(&super::read_text(path, DATABASE_MAX)?);
    for line in unused {
        warning!("line {} is ignored: {}", line.line, line.error);
    }
    if database.is_empty() {
        let what = format!("read {}", path.display());
        let why = "it contains no TCP signatures";
        return Err(Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("use a fingerprint file in p0f's format, such as /etc/p0f/p0f.fp"));
    }
    Ok(database)
}

/// One line on a live port: where it is attached and where the filter runs.
fn facts(name: &str, port: &Port) -> String {
    let description = port.control.describe();
    let mut text = format!("{name} ({})", description.scheme);
    for (what, value) in &description.facts {
        if *what == "filter" {
            text += &format!(", SYNs and SYN+ACKs only, {what}: {value}");
        }
    }
    text
}

/// The filter of a live port: SYNs and SYN+ACKs, on links with VLAN tags also behind up to two
/// tags.
fn handshakes() -> FilterSource {
    FilterSource::new(|target: FilterTarget| {
        let text = match target.link_type {
            1 => format!("{HANDSHAKES} or (vlan and ({HANDSHAKES} or (vlan and ({HANDSHAKES}))))"),
            _ => HANDSHAKES.to_owned(),
        };
        Expression::new(text).compile(target)
    })
}

impl Args {
    fn open(&self, name: &str, is_file: bool) -> Result<Port> {
        let mut options = self.port.options(Direction::Rx);
        options.outgoing = true;
        options.promiscuous = true;
        if !is_file {
            options.filter_source = Some(handshakes());
        }
        let port = port::open(name, &options)?;
        if port.rx.is_empty() {
            let what = format!("read signatures from {name}");
            return Err(Error::new(
                ErrorKind::InvalidInput,
                what,
                "this port cannot receive",
            ));
        }
        Ok(port)
    }

    /// Runs a thread per queue until the input ends, the count is reached or a stop is requested.
    fn receive(&self, port: &mut Port, shared: &Shared, stop: &Stop) -> Result<()> {
        // The end of one queue ends the others.
        let stop = &stop.child();
        let pacing = self.port.pacing();
        let one = |rx: &mut RxQueue| {
            let ended = worker::run(rx, &mut Signatures::new(shared), stop, pacing);
            stop.set();
            ended.map(drop)
        };
        let cpus = &self.port.cpus;
        thread::scope(|scope| {
            let threads: Vec<_> = port
                .rx
                .iter_mut()
                .enumerate()
                .map(|(index, rx)| {
                    let cpu = cpus.get(index).copied();
                    scope.spawn(move || {
                        cpu.map_or(Ok(()), sys::affinity::pin_current_thread)?;
                        one(rx)
                    })
                })
                .collect();
            let panicked = || Error::new(ErrorKind::Gone, "receive", "a thread panicked");
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
                .fold(Ok(()), Result::and)
        })?;
        if port.control.describe().intake == Intake::File {
            return Ok(());
        }
        port.control.stop()?;
        let mut rest = Signatures::new(shared);
        for rx in &mut port.rx {
            worker::drain(rx, &mut rest)?;
        }
        Ok(())
    }
}
