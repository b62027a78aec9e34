//! `barewire capture`: prints packets or writes them to files, with tcpdump's flags.

use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{ArgAction, ValueEnum};
use port::file::{FileFormat, FileWriter, Precision, Rotation, WriterOptions, Written};
use port::{Direction, Intake, Port, PortEvent, PortName};
use runtime::Stop;
use runtime::capture::{
    self, Dump, Notice, Options, Outcome, Printer, Sink, Style, TimeStyle, Totals, Way,
};
use serde_json::{Value, json};
use sys::rights::{self, Capability, User};
use sys::{Error, ErrorKind, Result};
use wire::{LinkType, Timestamp};

use crate::args::{PortArgs, check_cpus};
use crate::out::{self, say};
use crate::report::{account_json, bytes, si, write_account, write_damage};

/// Arguments.
#[derive(clap::Args)]
#[command(
    override_usage = "barewire capture [OPTIONS] PORT [FILTER]...\n       \
    barewire capture [OPTIONS] -r FILE [FILTER]..."
)]
#[command(after_help = HELP)]
pub struct Args {
    /// Port to capture on (an interface, afxdp:eth0, a capture file, - for standard input) unless
    /// given by -i or -r, then a pcap filter expression
    #[arg(value_name = "PORT FILTER", allow_negative_numbers = true)]
    words: Vec<String>,
    /// Capture on this port
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "PORT",
        conflicts_with = "read"
    )]
    interface: Option<String>,
    /// Read packets from a capture file (pcap or pcapng, plain, gzip or zstd; - is standard input)
    #[arg(short = 'r', long = "read", value_name = "FILE")]
    read: Option<String>,
    /// Read the filter expression from a file
    #[arg(short = 'F', value_name = "FILE")]
    filter_file: Option<PathBuf>,
    /// Stop after COUNT packets
    #[arg(short = 'c', value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    count: Option<u64>,
    /// Stop after SECONDS seconds
    #[arg(long, value_parser = parse_seconds, value_name = "SECONDS")]
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
    /// Print totals as a JSON object on standard output; without -w, also one JSON object per
    /// packet
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    write: WriteArgs,
    #[command(flatten)]
    print: PrintArgs,
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
    /// Rotate the output file after SIZE million bytes, or use a suffix: KiB, MiB, GiB (k, m, g)
    #[arg(short = 'C', value_parser = parse_size, value_name = "SIZE", requires = "write")]
    size_max: Option<u64>,
    /// Rotate the output file every SECONDS seconds; FILE may be a strftime format (%F-%H%M%S)
    #[arg(short = 'G', value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    #[arg(requires = "write")]
    period_s: Option<u64>,
    /// Limit the number of files: with -C overwrite the oldest, with -G stop after COUNT files
    #[arg(short = 'W', value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    #[arg(requires = "write")]
    count_max: Option<u32>,
    /// Flush the output file after each batch of packets
    #[arg(short = 'U', long = "packet-buffered")]
    packet_buffered: bool,
    /// File format, regardless of the file name
    #[arg(long, value_enum, requires = "write")]
    format: Option<FormatText>,
    /// Write microsecond timestamps to pcap files, for old readers [default: nanoseconds]
    #[arg(long)]
    micro: bool,
}

/// Printing packets.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
struct PrintArgs {
    /// Count packets instead of printing them
    #[arg(long, conflicts_with = "write")]
    count_only: bool,
    /// Ignored: names are never resolved
    #[arg(short = 'n', action = ArgAction::Count)]
    no_names: u8,
    /// Print a packet number at the beginning of each line
    #[arg(short = '#', long = "number")]
    number: bool,
    /// Quick output: addresses, ports and lengths only
    #[arg(short = 'q')]
    quick: bool,
    /// Verbose output: adds fields of the IP header
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// Print the link-level header
    #[arg(short = 'e')]
    link: bool,
    /// Timestamp format: -t none, -tt seconds since 1970, -ttt since the previous packet, -tttt
    /// date and time, -ttttt since the first packet
    #[arg(short = 't', action = ArgAction::Count)]
    time: u8,
    /// Print timestamps with nanoseconds
    #[arg(long)]
    nano: bool,
    /// Print packet data in hex; -xx includes the link-level header
    #[arg(short = 'x', action = ArgAction::Count)]
    hex: u8,
    /// Print packet data in hex and ASCII; -XX includes the link-level header
    #[arg(short = 'X', action = ArgAction::Count)]
    hex_text: u8,
    /// Print packet data in ASCII
    #[arg(short = 'A')]
    text: bool,
    /// Flush standard output after each batch of lines
    #[arg(short = 'l')]
    line_buffered: bool,
}

const HELP: &str = "\
A plain interface name is a tap: the host still gets its packets. afxdp:eth0 takes packets that \
match the filter from the host. `barewire devices` lists the interfaces.

The filter is a pcap expression (`man pcap-filter`). It runs in the kernel for afpacket: and in \
user space for files. For a file with several link types it is compiled once per link type.

File names: with -C x, x1, x2, ...; with -C and -W 5 x0 to x4, reused in turn; with -G the name is \
a strftime format filled in with the start of each period. Periods follow packet timestamps, also \
when reading a file.

On exit, the packet counts and the per-queue account of seen, delivered and lost packets go to \
standard error. Packets of several queues are merged in timestamp order; one that arrives more \
than 0.1 s late is written out of order and counted.

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

fn parse_seconds(value: &str) -> std::result::Result<Duration, String> {
    match value.parse() {
        Ok(number) if (0.001..=1e9).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err("expected a number of seconds above 0".into()),
    }
}

/// A size as tcpdump takes it: millions of bytes, or with a suffix powers of two.
fn parse_size(value: &str) -> std::result::Result<u64, String> {
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let suffix = &value[digits.len()..].to_ascii_lowercase();
    let unit = match suffix.as_str() {
        "" => 1_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit {suffix:?}: use k, m, g, KiB, MiB, GiB, kB, MB or GB"
            ));
        }
    };
    let size = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    size.filter(|&size| size != 0)
        .ok_or_else(|| "expected a size above 0".to_owned())
}

fn usage(what: &str) -> ! {
    crate::exit::wrong_usage("capture", what)
}

/// Captures.
pub fn run(args: &Args) -> Result<()> {
    args.check();
    check_cpus(&args.port.cpus)?;
    let (name, filter) = args.names()?;
    let stop = Stop::on_signals()?;
    let user = args.port.user.as_deref().map(User::find).transpose()?;
    let port = args.open(&name, &filter)?;
    let is_live = port.control.describe().intake != Intake::File;
    // Another user makes the files of a set, the first like those after it: it is refused before
    // there is one.
    let is_set = args.write.size_max.is_some() || args.write.period_s.is_some();
    let is_users = is_set && user.is_some();
    let make = || args.sink(&name, is_live, user.as_ref());
    let sink = (!is_users).then(make).transpose()?;
    if is_live || user.is_some() {
        // Later files of a set may be in a directory that only root can write: as root, keep that
        // one capability.
        let files = user.is_none().then_some(Capability::DacOverride);
        let counters = crate::args::to_read_counters(&name)?;
        let keep: Vec<Capability> = files.into_iter().chain(counters).collect();
        rights::give_up(user.as_ref(), &keep)?;
    }
    let sink = sink.map_or_else(make, Ok)?;
    out::start()?;
    args.tell_start(&name, &port, is_live, &filter);
    let options = args.options(is_live, filter);
    let mut progress = Progress::new(args.write.write.is_some() && !args.writes_stdout());
    let outcome = capture::run(port, sink, &options, &stop, |notice| match notice {
        Notice::Progress { totals, account } => progress.tell(&totals, account.rx_total().lost()),
        Notice::Event(event) => progress.event(&name, &event),
    });
    progress.clear();
    if is_live {
        out::over();
    }
    // What ended the capture counts more than a summary that nobody reads.
    let told = args.tell_end(&name, is_live, &outcome);
    outcome.error.map_or(Ok(()), Err).and(told)
}

impl Args {
    /// What makes no sense together and clap cannot tell.
    fn check(&self) {
        let write = &self.write;
        if write.count_max.is_some() && write.size_max.is_none() && write.period_s.is_none() {
            usage("-W COUNT needs -C SIZE or -G SECONDS");
        }
        let is_set = write.size_max.is_some() || write.period_s.is_some();
        if is_set && self.writes_stdout() {
            usage("-C and -G need a file name: standard output cannot be rotated");
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

    /// The port's name and the filter expression.
    fn names(&self) -> Result<(String, String)> {
        let mut words = self.words.iter();
        let name = match (&self.interface, &self.read) {
            (Some(name), _) => name.clone(),
            (None, Some(file)) => format!("file:{file}"),
            (None, None) => match words.next() {
                Some(name) => name.clone(),
                None => usage(
                    "give a port, for example eth0, or a file with -r; `barewire devices` lists \
                     the interfaces",
                ),
            },
        };
        let words: Vec<&str> = words.map(String::as_str).collect();
        let filter = match &self.filter_file {
            None => words.join(" "),
            Some(_) if !words.is_empty() => usage("give -F FILE or a filter expression, not both"),
            Some(path) => {
                let what = || format!("read the filter from {}", path.display());
                std::fs::read_to_string(path).map_err(|e| Error::from_io(what(), e))?
            }
        };
        Ok((name, filter))
    }

    fn open(&self, name: &str, filter: &str) -> Result<Port> {
        let mut options = self.port.options(Direction::Rx);
        options.snaplen = self.snaplen;
        options.promiscuous = !self.no_promiscuous;
        options.outgoing = !matches!(self.way, WayText::In);
        options.ring_bytes = self.buffer_kib.map_or(0, |kib| kib as usize * 1024);
        if !filter.trim().is_empty() {
            // A bad expression is reported before anything is opened.
            runtime::filter::compile(filter, 1).or_else(|error| match error.kind() {
                ErrorKind::Unsupported => Err(error),
                _ => Ok(None),
            })?;
            options.filter_source = Some(runtime::filter::source(filter));
        }
        let port = port::open(name, &options)?;
        if port.rx.is_empty() {
            let what = format!("capture on {name}");
            let why = "this port cannot receive";
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        Ok(port)
    }

    fn sink(&self, name: &str, is_live: bool, user: Option<&User>) -> Result<Sink> {
        let Some(path) = &self.write.write else {
            if self.print.count_only {
                return Ok(Sink::Count);
            }
            return Ok(Sink::Text(Box::new(Printer::new(self.style()))));
        };
        if !is_live {
            refuse_itself(name, path)?;
        }
        let mut options = WriterOptions::new(path);
        match self.write.format {
            Some(FormatText::Pcap) => options.format = FileFormat::Pcap(Precision::Nanoseconds),
            Some(FormatText::Pcapng) => options.format = FileFormat::Pcapng,
            None => {}
        }
        if let (FileFormat::Pcap(precision), true) = (&mut options.format, self.write.micro) {
            *precision = Precision::Microseconds;
        }
        options.snaplen = self.snaplen;
        options.rotation = Rotation {
            size_max: self.write.size_max.unwrap_or(0),
            period_s: self.write.period_s.unwrap_or(0),
            count_max: self.write.count_max.unwrap_or(0),
        };
        options.owner = user.map(|user| (user.uid, user.gid));
        if is_live {
            // The first file is there from the start, and made with the rights of the start.
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            options.start_s = now.ok().map(|now| now.as_secs());
        }
        if is_live || user.is_some() {
            FileWriter::check_later(&options)?;
        }
        FileWriter::create(options).map(|writer| Sink::File(Box::new(writer)))
    }

    fn style(&self) -> Style {
        let print = &self.print;
        Style {
            time: match print.time {
                0 => TimeStyle::Clock,
                1 => TimeStyle::None,
                2 => TimeStyle::Epoch,
                3 => TimeStyle::Delta,
                4 => TimeStyle::Date,
                _ => TimeStyle::SinceFirst,
            },
            nanoseconds: print.nano,
            number: print.number,
            link: print.link,
            quick: print.quick,
            verbose: print.verbose > 0,
            dump: match (print.hex, print.hex_text, print.text) {
                (_, 1.., _) => Dump::HexText,
                (1.., ..) => Dump::Hex,
                (.., true) => Dump::Text,
                _ => Dump::None,
            },
            dump_link: print.hex > 1 || print.hex_text > 1,
            json: self.json,
        }
    }

    fn options(&self, is_live: bool, filter: String) -> Options {
        let to_terminal = self.write.write.is_none() && io::stdout().is_terminal();
        let packed = self.write.write.as_ref().is_some_and(|path| {
            path.extension()
                .is_some_and(|end| end == "gz" || end == "zst")
        });
        Options {
            count: self.count,
            duration: self.duration,
            way: match self.way {
                WayText::In => Way::In,
                WayText::Out => Way::Out,
                WayText::Inout => Way::Both,
            },
            unbuffered: self.write.packet_buffered || self.print.line_buffered || to_terminal,
            linger: match (self.write.write.is_some() && !self.writes_stdout(), packed) {
                // Each flush ends a frame, which costs size.
                (true, true) => Duration::from_secs(10),
                (true, false) => Duration::from_secs(1),
                (false, _) => Duration::ZERO,
            },
            filter,
            is_live,
            pacing: self.port.pacing(),
            cpus: self.port.cpus.clone(),
        }
    }

    /// Prints what is captured, as tcpdump does, so that scripts can wait for that line.
    fn tell_start(&self, name: &str, port: &Port, is_live: bool, filter: &str) {
        let text = port.control.describe();
        let target = if text.target.is_empty() {
            name
        } else {
            &text.target
        };
        let (verb, target) = match is_live {
            true => ("listening on", target),
            false if target == "-" => ("reading from", "standard input"),
            false => ("reading from file", target),
        };
        // The least of what the user, the file and the port limit; 0 is no limit.
        let of_file = text
            .facts
            .iter()
            .find(|(fact, _)| *fact == "snapshot length");
        let limits = [
            self.snaplen,
            of_file.and_then(|(_, len)| len.parse().ok()).unwrap_or(0),
            port.capabilities.packet_len_max,
        ];
        let limits = limits.into_iter().filter(|limit| *limit != 0);
        let snaplen = limits.min().unwrap_or(wire::file::MAX_PACKET_LEN);
        let mut line = format!(
            "{verb} {target} ({}), link-type {}, snapshot length {snaplen} bytes",
            text.scheme,
            LinkType(text.link_type)
        );
        if port.rx.len() > 1 {
            line.push_str(&format!(", {} queues", port.rx.len()));
        }
        for key in ["attach mode", "bind mode", "time"] {
            if let Some((_, value)) = text.facts.iter().find(|(fact, _)| *fact == key) {
                line.push_str(&format!(", {key}: {value}"));
            }
        }
        if !filter.trim().is_empty()
            && let Some((_, place)) = text.facts.iter().find(|(fact, _)| *fact == "filter")
        {
            line.push_str(&format!(", filter {place}"));
        }
        say!("{line}");
    }

    /// The totals.
    fn tell_end(&self, name: &str, is_live: bool, outcome: &Outcome) -> Result<()> {
        let mut text = Vec::new();
        let totals = &outcome.totals;
        let rx = outcome.account.rx_total();
        let rejected = rx.dropped[port::DropReason::Filter as usize];
        // A Vec takes everything.
        let _ = writeln!(text, "{} packets captured", totals.packets);
        if is_live {
            let _ = writeln!(
                text,
                "{} packets received by filter",
                rx.seen.saturating_sub(rejected)
            );
            let _ = writeln!(text, "{} packets dropped by kernel", rx.lost());
        } else if rejected != 0 {
            let _ = writeln!(text, "{rejected} packets rejected by filter");
        }
        if totals.other_way != 0 {
            let _ = writeln!(text, "{} packets of the other direction", totals.other_way);
        }
        if is_live && totals.surplus != 0 {
            let after = match outcome.error {
                None => "the last one to capture",
                Some(_) => "the failure",
            };
            let _ = writeln!(text, "{} packets received after {after}", totals.surplus);
        }
        if totals.unwritten != 0 {
            let _ = writeln!(text, "{} packets lost at the output", totals.unwritten);
        }
        if totals.late != 0 {
            let count = totals.late;
            let _ = writeln!(
                text,
                "{count} packets written out of order: they arrived too late to be merged"
            );
        }
        if let Some(Written {
            packets,
            bytes: len,
            files,
        }) = outcome.written
        {
            let path = self
                .write
                .write
                .as_ref()
                .map_or_else(String::new, |p| p.display().to_string());
            let _ = match files {
                1 => writeln!(text, "{packets} packets written to {path} ({})", bytes(len)),
                _ => writeln!(
                    text,
                    "{packets} packets written to {files} files ({})",
                    bytes(len)
                ),
            };
        }
        let _ = match is_live {
            true => write_account(&mut text, &outcome.account),
            false => write_damage(&mut text, &rx),
        };
        out::last_words(text);
        // A call that has not come back holds standard output where packets go there.
        if self.json && !(outcome.is_stuck && self.write.write.is_none()) {
            let line = format!("{}\n", self.json(name, outcome));
            out::print(&out::stdout(1)?, line.into_bytes())?;
        }
        Ok(())
    }

    fn json(&self, name: &str, outcome: &Outcome) -> Value {
        let Outcome {
            totals,
            account,
            description,
            ..
        } = outcome;
        let time = |ns: Option<u64>| ns.map(|ns| Timestamp(ns).to_string());
        let facts: serde_json::Map<String, Value> = description
            .facts
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone().into()))
            .collect();
        json!({
            "type": "totals",
            "port": name,
            "scheme": description.scheme,
            "target": description.target,
            "link_type": description.link_type,
            "interfaces": description.interfaces.iter()
                .map(|(link, name)| json!({ "link_type": link, "name": name }))
                .collect::<Vec<_>>(),
            "facts": facts,
            "captured": totals.packets,
            "captured_bytes": totals.bytes,
            "other_way": totals.other_way,
            "surplus": totals.surplus,
            "unwritten": totals.unwritten,
            "late": totals.late,
            "lost": account.rx_total().lost(),
            "first_time": time(totals.first_ns),
            "last_time": time(totals.last_ns),
            "written": outcome.written.map(|written| json!({
                "packets": written.packets, "bytes": written.bytes, "files": written.files,
            })),
            "account": account_json(account),
            "error": outcome.error.as_ref().map(ToString::to_string),
        })
    }
}

/// A file cannot be read and written at once: writing empties it.
fn refuse_itself(name: &str, path: &std::path::Path) -> Result<()> {
    let parsed = PortName::parse(name)?;
    let identity = |path: &std::path::Path| {
        let data = std::fs::metadata(path).ok()?;
        data.is_file().then(|| (data.dev(), data.ino()))
    };
    let source = identity(std::path::Path::new(&parsed.target));
    if source.is_some() && source == identity(path) {
        let what = format!("write {}", path.display());
        let why = "it is also the input file, and would be truncated first";
        return Err(Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("write to another file and rename it afterwards"));
    }
    Ok(())
}

/// Progress line on the terminal while a file is written.
struct Progress {
    is_on: bool,
    packets: u64,
    at: Instant,
    shown: bool,
}

impl Progress {
    fn new(wanted: bool) -> Self {
        Self {
            is_on: wanted && io::stderr().is_terminal(),
            packets: 0,
            at: Instant::now(),
            shown: false,
        }
    }

    fn tell(&mut self, totals: &Totals, lost: u64) {
        if !self.is_on {
            return;
        }
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        let rate = (totals.packets - self.packets) as f64 / seconds;
        (self.packets, self.at) = (totals.packets, Instant::now());
        // Back to the start of the line, and clear what was there.
        let line = format!(
            "\r\x1b[K{} packets, {}, {}, {lost} lost",
            totals.packets,
            bytes(totals.bytes),
            si(rate, "pps")
        );
        out::words(line.into_bytes());
        self.shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            say!("");
        }
    }

    fn event(&mut self, name: &str, event: &PortEvent) {
        self.clear();
        say!("{name}: {event}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_tcpdumps() {
        assert_eq!(parse_size("1"), Ok(1_000_000));
        assert_eq!(parse_size("2k"), Ok(2048));
        assert_eq!(parse_size("3MiB"), Ok(3 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("5MB"), Ok(5_000_000));
        for bad in [
            "",
            "0",
            "k",
            "-1",
            "1x",
            "99999999999999999999",
            "18446744073709551615g",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "x", "nan", "inf"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
