//! `barewire capture`: prints packets or writes them to files, with tcpdump's flags.

mod compat;
mod lists;
mod postrotate;
mod print;
mod summary;
mod values;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use port::file::{
    BlockCopy, FileFormat, FileNames, FileWriter, Precision, Rotation, WriterOptions,
};
use port::{Direction, Intake, Port};
use runtime::capture::{self, Notice, Options, Printer, Recorder, Way};
use runtime::filter::Expression;
use runtime::{Pacing, Stop, TotalsRequest};
use sys::privileges::{Capability, User};
use sys::seccomp::Keep;
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use self::compat::{CompatArgs, ListArgs};
use self::print::PrintArgs;
use self::summary::{Progress, so_far};
use self::values::{parse_mode, parse_size};
use crate::args::{FilterCompiler, PortArgs, check_cpus, parse_duration};
use crate::confine::{Files, Needs};
use crate::fifo::{self, Reader};
use crate::inputs::{self, Inputs};
use crate::interface;
use crate::out::{self, say};

/// Arguments.
#[derive(clap::Args)]
#[command(
    override_usage = "barewire capture [OPTIONS] PORT... [FILTER]...\n       \
    barewire capture [OPTIONS] -r FILE... [FILTER]..."
)]
#[command(after_help = HELP)]
pub struct Args {
    /// Ports to capture on (an interface, afxdp:eth0, a capture file, - for standard input) unless
    /// given by -i, -r or -V, then a pcap filter expression
    #[arg(value_name = "PORT FILTER", allow_negative_numbers = true)]
    words: Vec<String>,
    /// Capture on this port, or on the interface of this number in the list that -D prints; repeat
    /// for several
    #[arg(short = 'i', long = "interface", value_name = "PORT")]
    #[arg(conflicts_with_all = ["read", "list_file"])]
    interface: Vec<String>,
    /// Read packets from a capture file (pcap or pcapng, plain, gzip or zstd; - is standard input);
    /// repeat to merge several in timestamp order
    #[arg(short = 'r', long = "read", value_name = "FILE")]
    read: Vec<String>,
    /// Read the capture files listed in this file, one per line, merged in timestamp order (- is
    /// standard input)
    #[arg(
        id = "list_file",
        short = 'V',
        value_name = "FILE",
        conflicts_with = "read"
    )]
    listed: Option<PathBuf>,
    /// Read the filter expression from a file
    #[arg(short = 'F', value_name = "FILE")]
    filter_file: Option<PathBuf>,
    /// Stop after COUNT packets
    #[arg(short = 'c', value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    count: Option<u64>,
    /// Stop after TIME: 10, 90s, 5m, 1h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// Capture at most BYTES bytes of each packet; 0 captures whole packets
    #[arg(
        short = 's',
        long = "snapshot-length",
        default_value_t = 0,
        value_name = "BYTES"
    )]
    snaplen: u32,
    /// Capture only packets received (in), only packets sent (out), or both
    #[arg(short = 'Q', long = "direction", value_enum, default_value = "inout")]
    way: WayText,
    /// Disable promiscuous mode
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,
    /// Capture buffer size per queue, in KiB (afpacket:)
    #[arg(short = 'B', long = "buffer-size", value_name = "KIB")]
    buffer_kib: Option<u32>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,
    /// Print totals as a JSON object on standard output; without -w, also one JSON object per
    /// packet
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    write: WriteArgs,
    #[command(flatten)]
    print: PrintArgs,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    compat: CompatArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Writing files.
#[derive(clap::Args)]
#[command(next_help_heading = "Files")]
struct WriteArgs {
    /// Write packets to FILE (- is standard output): pcap if the name ends in .pcap, else pcapng;
    /// a further .gz or .zst compresses
    #[arg(short = 'w', value_name = "FILE")]
    write: Option<PathBuf>,
    /// Rotate the output file after SIZE million bytes, or use a suffix: KiB, MiB, GiB (k, m, g);
    /// compressed bytes if the file is compressed
    #[arg(short = 'C', value_parser = parse_size, value_name = "SIZE", requires = "write")]
    size_max: Option<u64>,
    /// Rotate the output file every SECONDS seconds; FILE may be a strftime format (%F-%H%M%S)
    #[arg(short = 'G', value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    #[arg(requires = "write")]
    period_s: Option<u64>,
    /// Limit the number of files: with -C, and with -C and -G, keep the last COUNT; with -G alone
    /// stop after COUNT
    #[arg(short = 'W', value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    #[arg(requires = "write")]
    count_max: Option<u32>,
    /// Run COMMAND FILE on each file of a set once it is complete, without a shell, at the lowest
    /// priority and with the remaining privileges
    #[arg(short = 'z', value_name = "COMMAND", requires = "write")]
    postrotate: Option<String>,
    /// Flush the output file, or standard output, after each batch of packets
    #[arg(short = 'U', long = "packet-buffered")]
    packet_buffered: bool,
    /// File format, regardless of the file name
    #[arg(long, value_enum, requires = "write")]
    format: Option<FormatText>,
    /// Permissions of new files in octal, minus the umask; 666 applies the umask only
    #[arg(long, value_parser = parse_mode, default_value = "600", value_name = "MODE")]
    file_mode: u32,
    /// Write microsecond timestamps to pcap files, for old readers [default: nanoseconds]
    #[arg(long)]
    micro: bool,
}

/// Maximum length of a filter in a file, in bytes.
const FILTER_LEN_MAX: u64 = 16 << 20;

const HELP: &str = "\
A plain interface name is a tap: the host still gets its packets. afxdp:eth0 takes packets that \
match the filter from the host. `barewire devices` lists the interfaces.

The filter is a pcap expression (`man pcap-filter`). It runs in the XDP program for afxdp:, in the \
kernel for afpacket: and in user space for files; the first line on standard error says where. \
For a file with several link types it is compiled once per link type.

File names: with -C x.pcap, x1.pcap, x2.pcap, ...; with -C and -W 5 x0.pcap to x4.pcap, reused in \
turn; with -G the name is a strftime format filled in with the start of each period, and with -C \
in addition the numbers start again in each. Periods follow packet timestamps, also when reading a \
file.

SIGUSR1 prints the packet counts so far. On exit, they and the per-queue account of seen, \
delivered and lost packets go to standard error. Packets of several queues are merged in timestamp \
order; one that arrives more than 0.1 s late is written out of order and counted.

Memory: a 32 MiB ring per queue (afpacket:, see -B) or the frame pool (afxdp:), 8 MiB per queue \
for packets waiting to be written, 1 MiB for the file, and up to 128 MiB to read a file made with \
zstd --long.

Examples:
  barewire capture eth0 -n udp port 53
  barewire capture eth0 -w web.pcapng tcp port 80 or tcp port 443
  barewire capture eth0 -w 'day-%F-%H.pcapng.zst' -G 3600
  barewire capture -r big.pcap.gz -w dns.pcap port 53";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WayText {
    In,
    Out,
    Inout,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatText {
    Pcap,
    Pcapng,
}

/// Extensions of unsupported compressions: a plain file under such a name would be misleading.
const UNKNOWN_PACKING: [&str; 8] = ["xz", "bz2", "lz4", "lzma", "br", "7z", "zip", "Z"];

fn usage(what: &str) -> ! {
    crate::exit::wrong_usage("capture", what)
}

/// Runs the capture.
pub fn run(args: &Args) -> Result<()> {
    args.check();
    if args.list()? {
        return Ok(());
    }
    check_cpus(&args.port.cpus)?;
    let (inputs, filter) = args.inputs()?;
    let name = inputs.label();
    let stop = Stop::on_signals()?;
    let request = TotalsRequest::on_signal()?;
    let user = args.user().map(User::find).transpose()?;
    interface::warn(inputs.names());
    let port = args.open(&inputs, &filter)?;
    // Packets that arrive meanwhile wait in the port.
    let reader = args.wait_for_reader(&stop);
    let is_live = port.control.describe().intake != Intake::File;
    let copy = args.block_copy(&inputs, &port, !filter.trim().is_empty());
    // With --user, another user creates the files of a set, the first as well as later ones: errors
    // are reported before there is one.
    let is_set = args.write.size_max.is_some() || args.write.period_s.is_some();
    let is_users = is_set && user.is_some();
    let (closed, files) = mpsc::channel();
    let make = || match reader {
        Reader::Absent => Ok(Recorder::Count),
        _ => args.sink(is_live, copy, user.as_ref(), &closed),
    };
    let sink = (!is_users).then(make).transpose()?;
    // Later files of a set may be in a directory that only root can write, or belong to another
    // user: as root, keep that one capability.
    let make_files = (is_set && user.is_none()).then_some(Capability::DacOverride);
    let counters = inputs.to_read_counters()?;
    let keep: Vec<Capability> = make_files.into_iter().chain(counters).collect();
    let needs = args.needs(&inputs, is_set)?;
    let confine = args.port.confine;
    confine.drop_privileges(user.as_ref(), &keep, &needs)?;
    let sink = sink.map_or_else(make, Ok)?;
    let names = names_of(&sink);
    drop(closed);
    out::start()?;
    let command = args.write.postrotate.as_ref();
    let postrotate = command.map(|command| postrotate::start(command.clone(), files));
    let postrotate = postrotate.transpose()?;
    let mut options = args.options(is_live, filter);
    options.copies_blocks = copy != BlockCopy::None;
    follow(reader, &mut options, &stop)?;
    args.print_start(&name, &port, is_live, &options.filter);
    if let Some(duration) = options.duration {
        // Printing at the end is also bounded.
        stop.set_after(duration + Duration::from_millis(200))?;
    }
    let mut progress = Progress::new(args.write.write.is_some() && !args.writes_stdout());
    let outcome = capture::run(port, sink, &options, &stop, |notice| match notice {
        Notice::Progress { totals, account } => {
            if request.take() {
                progress.clear();
                say!("{}", so_far(&totals, is_live.then_some(account)));
            }
            progress.report(&totals, account.rx_total().lost());
        }
        Notice::Event(event) => progress.event(&name, &event),
    });
    progress.clear();
    if let Some(thread) = postrotate
        && !outcome.is_stuck
    {
        // The writer has ended, so there are no more files. A panic there was printed.
        let _ = thread.join();
    }
    if is_live {
        out::over();
    }
    // The error that ended the capture takes precedence over a summary that cannot be written.
    let reported = args.print_end((&inputs, is_live), &outcome, &names);
    outcome.error.map_or(Ok(()), Err).and(reported)
}

/// The names of the files that are written.
fn names_of(sink: &Recorder) -> FileNames {
    match sink {
        Recorder::File(writer) | Recorder::Both(writer, _) => writer.names(),
        Recorder::Text(_) | Recorder::Count => FileNames::default(),
    }
}

/// Ends the capture when the reader of a named pipe leaves.
fn follow(reader: Reader, options: &mut Options, stop: &Stop) -> Result<()> {
    match reader {
        Reader::None => {}
        // Nothing of what arrived meanwhile is captured, and the rest is accounted for.
        Reader::Absent => options.count = Some(0),
        Reader::Present { pipe, waited } => {
            options.duration = options.duration.map(|time| time.saturating_sub(waited));
            fifo::watch(pipe, stop)?;
        }
    }
    Ok(())
}

impl Args {
    /// Checks for conflicts that clap cannot detect.
    fn check(&self) {
        let write = &self.write;
        if let Some(refusal) = self.compat.refusal() {
            usage(refusal);
        }
        if self.count.is_some() && self.print.count.is_some_and(|count| count != 0) {
            usage("-c COUNT and --count=COUNT are the same: give one of them");
        }
        if self.print.counts() && self.write.write.is_some() {
            usage("--count prints a number instead of packets: give it without -w");
        }
        if write.postrotate.is_some() && write.size_max.is_none() && write.period_s.is_none() {
            usage("-z COMMAND needs -C SIZE or -G SECONDS");
        }
        if self.print.print && self.writes_stdout() {
            usage("-w - and --print both write to standard output");
        }
        if write.count_max.is_some() && write.size_max.is_none() && write.period_s.is_none() {
            usage("-W COUNT needs -C SIZE or -G SECONDS");
        }
        let is_set = write.size_max.is_some() || write.period_s.is_some();
        if is_set && self.writes_stdout() {
            usage("-C and -G need a file name: standard output cannot be rotated");
        }
        let ending = write
            .write
            .as_ref()
            .and_then(|path| path.extension()?.to_str());
        if let Some(ending) = ending.filter(|ending| UNKNOWN_PACKING.contains(ending)) {
            usage(&format!(
                "files are not compressed as .{ending}: use .gz or .zst"
            ));
        }
        if self.json && self.writes_stdout() {
            usage("-w - and --json both write to standard output");
        }
    }

    fn writes_stdout(&self) -> bool {
        self.write
            .write
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
    }

    /// The ports and the filter expression.
    fn inputs(&self) -> Result<(Inputs, String)> {
        let (inputs, words) = if let Some(list) = &self.listed {
            (Inputs::listed(list)?, self.words.as_slice())
        } else if !self.interface.is_empty() || !self.read.is_empty() {
            let by_number = |name: &String| lists::by_number(name).unwrap_or_else(|| name.clone());
            let (more, filter) = inputs::more(&self.words);
            let names = self.interface.iter().map(by_number);
            let files = self.read.iter().map(|file| format!("file:{file}"));
            let names = names.chain(files).chain(more.iter().cloned());
            (Inputs::new(names.collect()), filter)
        } else {
            let (ports, filter) = inputs::split(&self.words);
            if ports.is_empty() {
                usage(
                    "give a port, for example eth0, or a file with -r; `barewire devices` lists \
                     the interfaces",
                );
            }
            (Inputs::new(ports.to_vec()), filter)
        };
        if let ([word], Some(0)) = (words, self.print.count)
            && word.parse::<u64>().is_ok()
        {
            usage(&format!(
                "to stop after {word} packets, use -c {word} or --count={word}"
            ));
        }
        Ok((inputs, self.expression(words)?))
    }

    /// The filter expression from these words or the file.
    fn expression(&self, words: &[String]) -> Result<String> {
        Ok(match &self.filter_file {
            None => words.join(" "),
            Some(_) if !words.is_empty() => usage("give -F FILE or a filter expression, not both"),
            Some(path) => {
                let what = || format!("read the filter from {}", path.display());
                runtime::text::read_text(path, FILTER_LEN_MAX, what)?
            }
        })
    }

    /// The user to change to; with tcpdump, -Z root means to stay root.
    fn user(&self) -> Option<&str> {
        let compat = self.compat.user.as_deref().filter(|name| *name != "root");
        self.port.user.as_deref().or(compat)
    }

    /// What the command still needs once everything is open.
    fn needs(&self, inputs: &Inputs, is_set: bool) -> Result<Needs> {
        let mut files = Files::default();
        if let Some(path) = self.write.write.as_ref().filter(|_| is_set) {
            files.write_pattern(path);
        }
        // A command may do anything with the files.
        let exec = self.write.postrotate.is_some();
        let bpf = inputs.calls_bpf()?;
        let needs = Needs {
            files: (!exec).then_some(files),
            calls: Keep { exec, bpf },
        };
        needs.of_ports(inputs.names())
    }

    /// Waits until a program reads the named pipe, if the output is one.
    fn wait_for_reader(&self, stop: &Stop) -> Reader {
        match self.write.write.as_deref() {
            Some(path) if !self.writes_stdout() => fifo::wait(path, stop, self.duration),
            _ => Reader::None,
        }
    }

    /// The port's options.
    fn port_args(&self) -> PortArgs {
        let mut args = self.port.clone();
        if let Some(timestamp) = self.compat.timestamp() {
            args.timestamp = timestamp;
        }
        args
    }

    /// Number of packets to stop after.
    fn count(&self) -> Option<u64> {
        self.count.or(self.print.count.filter(|count| *count != 0))
    }

    /// Whether pcap files and lines have microseconds or nanoseconds, if specified.
    fn precision(&self) -> Option<compat::Precision> {
        match self.compat.precision {
            None if self.write.micro => Some(compat::Precision::Micro),
            None if self.print.nano => Some(compat::Precision::Nano),
            precision => precision,
        }
    }

    fn filter(&self, text: &str) -> Expression {
        let expression = self.filter_compiler.expression(text);
        expression.optimized(!self.compat.no_optimize)
    }

    fn open(&self, inputs: &Inputs, filter: &str) -> Result<Port> {
        let mut options = self.port_args().options(Direction::Rx);
        options.snaplen = self.snaplen;
        options.promiscuous = !self.no_promiscuous;
        options.immediate |= self.compat.immediate;
        options.outgoing = !matches!(self.way, WayText::In);
        options.ring_bytes = self.buffer_kib.map_or(0, |kib| kib as usize * 1024);
        if !filter.trim().is_empty() {
            let filter = self.filter(filter);
            filter.prepare()?;
            options.filter_source = Some(filter.source());
        }
        options.copies_blocks = self.may_copy_blocks(inputs);
        let port = inputs.open(&options)?;
        let name = inputs.label();
        if port.rx.is_empty() {
            let what = format!("capture on {name}");
            let why = "this port cannot receive";
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        if let Some(wanted) = &self.compat.link_type {
            let (wanted, has) = (lists::link_type(wanted)?, port.control.describe().link_type);
            if wanted.0 != has {
                let what = format!("capture on {name} with link type {wanted}");
                let why = format!("its link type is {}", LinkType(has));
                return Err(Error::new(ErrorKind::Unsupported, what, why)
                    .with_hint("omit -y; -L lists the link types of a port"));
            }
        }
        Ok(port)
    }

    fn printer(&self) -> Result<Box<Printer>> {
        let nanoseconds = self.precision() == Some(compat::Precision::Nano);
        self.print.printer(nanoseconds, self.json).map(Box::new)
    }

    fn sink(
        &self,
        is_live: bool,
        copy: BlockCopy,
        user: Option<&User>,
        closed: &Sender<PathBuf>,
    ) -> Result<Recorder> {
        let Some(path) = &self.write.write else {
            if self.print.counts() {
                return Ok(Recorder::Count);
            }
            return self.printer().map(Recorder::Text);
        };
        let mut options = WriterOptions::new(path);
        options.format = self.format(path);
        (options.copy, options.is_live) = (copy, is_live);
        let is_micro = self.precision() == Some(compat::Precision::Micro);
        if let (FileFormat::Pcap(precision), true) = (&mut options.format, is_micro) {
            *precision = Precision::Microseconds;
        }
        options.snaplen = self.snaplen;
        options.rotation = Rotation {
            size_max: self.write.size_max.unwrap_or(0),
            period_s: self.write.period_s.unwrap_or(0),
            count_max: self.write.count_max.unwrap_or(0),
        };
        options.closed = self.write.postrotate.is_some().then(|| closed.clone());
        options.mode = self.write.file_mode;
        options.owner = user.map(|user| (user.uid, user.gid));
        if is_live {
            // The first file is created at the start, with the privileges of the start.
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            options.start_s = now.ok().map(|now| now.as_secs());
        }
        if is_live || user.is_some() {
            FileWriter::check_later(&options)?;
        }
        let writer = Box::new(FileWriter::create(options)?);
        Ok(match self.print.print {
            true => Recorder::Both(writer, self.printer()?),
            false => Recorder::File(writer),
        })
    }

    /// The format of the file to write.
    fn format(&self, path: &Path) -> FileFormat {
        match self.write.format {
            Some(FormatText::Pcap) => FileFormat::Pcap(Precision::Nanoseconds),
            Some(FormatText::Pcapng) => FileFormat::Pcapng,
            None => WriterOptions::new(path).format,
        }
    }

    /// Whether blocks are copied if the input has any: from one file to pcapng.
    fn may_copy_blocks(&self, inputs: &Inputs) -> bool {
        let path = self.write.write.as_ref();
        let is_pcapng = path.is_some_and(|path| self.format(path) == FileFormat::Pcapng);
        is_pcapng && inputs.count() == 1
    }

    /// How the blocks of the opened input are copied.
    fn block_copy(&self, inputs: &Inputs, port: &Port, has_filter: bool) -> BlockCopy {
        let facts = port.control.describe().facts;
        let is_pcapng = facts.contains(&("format", "pcapng".to_owned()));
        let is_all = !has_filter
            && self.count().is_none()
            && self.snaplen == 0
            && matches!(self.way, WayText::Inout)
            && self.write.size_max.is_none()
            && self.write.period_s.is_none();
        match self.may_copy_blocks(inputs) && is_pcapng {
            false => BlockCopy::None,
            true if is_all => BlockCopy::All,
            true => BlockCopy::Some,
        }
    }

    fn options(&self, is_live: bool, filter: String) -> Options {
        let prints = self.write.write.is_none() || self.print.print;
        let to_terminal = prints && io::stdout().is_terminal();
        let is_immediate = self.compat.immediate;
        let packed = self.write.write.as_ref().is_some_and(|path| {
            path.extension()
                .is_some_and(|end| end == "gz" || end == "zst")
        });
        Options {
            count: self.count(),
            duration: self.duration,
            way: match self.way {
                WayText::In => Way::In,
                WayText::Out => Way::Out,
                WayText::Inout => Way::Both,
            },
            unbuffered: self.write.packet_buffered
                || self.print.line_buffered
                || is_immediate
                || to_terminal,
            linger: match (!prints && !self.writes_stdout(), packed) {
                // Each flush ends a frame, which costs size.
                (true, true) => Duration::from_secs(10),
                (true, false) => Duration::from_secs(1),
                (false, _) => Duration::ZERO,
            },
            filter,
            is_live,
            copies_blocks: false,
            pacing: match self.port.pacing() {
                Pacing::Gather if is_immediate => Pacing::Wait,
                pacing => pacing,
            },
            cpus: self.port.cpus.clone(),
        }
    }
}
