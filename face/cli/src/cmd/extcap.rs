//! `barewire extcap`: interfaces for Wireshark (extcap(4)). Wireshark queries interfaces, link
//! types and settings, one program run each, and then requests a capture into a named pipe, until
//! it closes the pipe or sends SIGTERM.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use port::FilterTarget;
use sys::{Error, ErrorKind, Result};

use crate::args::FilterCompiler;
use crate::out;

/// Prefix of interface names that distinguishes them from Wireshark's own.
const PREFIX: &str = "barewire-";

/// The backend of a capture.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backend {
    Afpacket,
    Afxdp,
}

/// Arguments, by extcap's names.
#[derive(clap::Args)]
pub struct Args {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// List the link types of the interface
    #[arg(long)]
    extcap_dlts: bool,
    /// List the settings of a capture
    #[arg(long)]
    extcap_config: bool,
    /// Capture into --fifo
    #[arg(long)]
    capture: bool,
    /// Interface, as --extcap-interfaces lists it
    #[arg(long, value_name = "NAME")]
    extcap_interface: Option<String>,
    /// Named pipe that Wireshark reads
    #[arg(long, value_name = "PIPE")]
    fifo: Option<PathBuf>,
    /// Capture filter (man pcap-filter); without --capture it is only checked
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    extcap_capture_filter: Option<String>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,
    /// Version of Wireshark
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// Capture at most BYTES bytes of each packet; 0 captures whole packets
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    snapshot_length: u32,
    /// How packets are taken: afpacket is a tap, afxdp takes them from the host
    #[arg(long, value_enum, default_value = "afpacket")]
    backend: Backend,
}

/// Answers Wireshark, or captures for it.
pub fn run(args: &Args) -> Result<()> {
    let text = if args.extcap_interfaces {
        interfaces()?
    } else if args.extcap_dlts {
        link_types(args)?
    } else if args.extcap_config {
        CONFIG.to_owned()
    } else if args.capture {
        return capture(args);
    } else if let Some(filter) = &args.extcap_capture_filter {
        // What is printed is the reason for refusing it.
        let target = FilterTarget {
            link_type: 1,
            tap: Some(0),
        };
        match args.filter_compiler.expression(filter).compile(target) {
            Ok(_) => String::new(),
            Err(error) => format!("{}\n", error.why()),
        }
    } else {
        crate::exit::wrong_usage(
            "extcap",
            "this command is for Wireshark; --extcap-interfaces prints the list that Wireshark \
             gets",
        );
    };
    out::print(&out::stdout(1)?, text.into_bytes())
}

const CONFIG: &str = "\
arg {number=0}{call=--snapshot-length}{display=Snapshot length}\
{tooltip=Bytes captured of each packet; 0 captures whole packets}{type=unsigned}{range=0,262144}\
{default=0}
arg {number=1}{call=--backend}{display=Backend}\
{tooltip=How packets are taken from the interface}{type=selector}
value {arg=1}{value=afpacket}{display=tap: the host keeps its packets}{default=true}
value {arg=1}{value=afxdp}{display=AF_XDP: takes the packets from the host}{default=false}
";

fn interfaces() -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=barewire}}\n");
    for interface in nic::interfaces()? {
        let name = &interface.link.name;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "interface {{value={PREFIX}{name}}}{{display={name} through barewire}}"
        );
    }
    Ok(text)
}

/// The interface without the prefix.
fn name(args: &Args) -> Result<&str> {
    let given = args.extcap_interface.as_deref();
    let name = given.and_then(|name| name.strip_prefix(PREFIX));
    name.ok_or_else(|| {
        let what = format!("use extcap interface {:?}", given.unwrap_or(""));
        let why = "it is not one of barewire's interfaces";
        Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("`barewire extcap --extcap-interfaces` lists them")
    })
}

fn link_types(args: &Args) -> Result<String> {
    // Hardware without a link header (`ARPHRD_NONE`, tunnels) gives raw IP.
    let line = match nic::interface(name(args)?)?.link.hardware {
        1 | 772 => "dlt {number=1}{name=EN10MB}{display=Ethernet}\n",
        _ => "dlt {number=101}{name=RAW}{display=Raw IP}\n",
    };
    Ok(line.to_owned())
}

/// Captures as `barewire capture` does with these flags.
fn capture(args: &Args) -> Result<()> {
    let Some(fifo) = &args.fifo else {
        crate::exit::wrong_usage("extcap", "--capture needs --fifo PIPE");
    };
    let scheme = match args.backend {
        Backend::Afpacket => "afpacket",
        Backend::Afxdp => "afxdp",
    };
    let port = format!("{scheme}:{}", name(args)?);
    let snaplen = args.snapshot_length.to_string();
    let mut line = vec!["barewire".into(), "capture".into(), "-U".into()];
    line.extend(["-i", &port, "-s", &snaplen, "--format", "pcapng", "-w"].map(Into::into));
    if args.filter_compiler == FilterCompiler::Libpcap {
        line.insert(2, "--filter-compiler=libpcap".into());
    }
    line.push(fifo.clone().into_os_string());
    if let Some(filter) = args
        .extcap_capture_filter
        .as_ref()
        .filter(|text| !text.is_empty())
    {
        line.extend(["--".into(), filter.into()]);
    }
    // Wireshark shows an extcap's standard error as an error.
    crate::out::be_quiet();
    match crate::Cli::try_parse_from(line) {
        Ok(cli) => super::run(&cli.command),
        Err(error) => crate::exit::usage(&error),
    }
}
