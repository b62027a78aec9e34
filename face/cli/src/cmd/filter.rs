//! `barewire filter`: compiles filters, explains them, tries them on capture files, and derives
//! them from floods.

mod compile;
mod derive;
mod explain;
mod p0f;
mod packet;
mod test;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use runtime::filter::select::Select;
use sys::{Error, ErrorKind, Result};

use crate::args::FilterCompiler;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// What to do.
#[derive(clap::Subcommand)]
enum Verb {
    /// Compile a filter and print the program
    Compile(compile::Args),
    /// Print the program of a filter and what each instruction tests
    Explain(explain::Args),
    /// Print and count the packets of a capture file that a filter selects
    Test(test::Args),
    /// Print the p0f signature of each SYN and SYN+ACK in a capture file or on a live port
    P0f(p0f::Args),
    /// Derive the expression and the p0f signatures that match a flood and none of the good packets
    Derive(derive::Args),
}

const HELP: &str = "\
A filter is an expression (man pcap-filter), a p0f signature of TCP SYNs, or a list of DNS names. \
Expressions also know payload[0:4] = 0x47455420, payload contains \"GET\" within 64, ttl 60-64, \
src net file LIST and tcp option sackok.

Signatures are matched as p0f documents them: quirks that are not listed must be absent, and only \
SYNs match. Names match DNS queries over UDP to port 53, case-insensitively; *.example.com matches \
every name with exactly one more label.

Examples:
  barewire filter compile 'udp port 53 and greater 600'
  barewire filter compile --to iptables --p0f '4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0'
  barewire filter compile --to xdp --object drop.o 'udp dst port 53 and greater 600'
  barewire filter compile --to xdp --dns '*.example.com,example.org' --qtype ANY
  barewire filter test flood.pcap --p0f '4:64:0:0:*,0::ack+:0'
  barewire filter p0f flood.pcap --database /etc/p0f/p0f.fp
  barewire filter p0f eth0 --duration 1m --json
  barewire filter derive flood.pcap --except good.pcap";

/// A filter in one of its forms.
#[derive(clap::Args)]
struct FilterArgs {
    /// Expression (man pcap-filter)
    #[arg(value_name = "EXPR", required_unless_present_any = ["p0f", "dns", "dns_file"])]
    expression: Vec<String>,
    /// Compiler of filter expressions
    #[arg(long, value_enum, default_value = "barewire", value_name = "COMPILER")]
    filter_compiler: FilterCompiler,
    /// p0f signature of SYNs: ver:ittl:olen:mss:wsize,scale:olayout:quirks:pclass
    #[arg(long, value_name = "SIG", conflicts_with = "expression")]
    p0f: Option<String>,
    /// How to read the signature
    #[arg(long, value_enum, default_value = "strict", requires = "p0f")]
    dialect: Dialect,
    /// Also match what p0f calls a fuzzy match: df and id+ absent, id- or ecn, any TTL
    #[arg(long, requires = "p0f")]
    fuzzy: bool,
    /// DNS names, separated by commas; *.example.com matches every name with exactly one more label
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["expression", "p0f"])]
    dns: Option<String>,
    /// Read DNS names from a file, separated by white space or commas; # starts a comment
    #[arg(long, value_name = "FILE", conflicts_with_all = ["expression", "p0f", "dns"])]
    dns_file: Option<PathBuf>,
    /// Only queries of these types: A, AAAA, ANY, TXT, TYPE65, ...
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["expression", "p0f"])]
    qtype: Vec<String>,
}

/// Ways to read a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dialect {
    /// As p0f documents it
    Strict,
    /// With the verdicts of Cloudflare's bpftools
    Cloudflare,
}

/// Maximum size of a list of names, in bytes.
const LIST_MAX: u64 = 64 << 20;

impl FilterArgs {
    fn select(&self) -> Result<Select> {
        if let Some(text) = &self.p0f {
            return match (self.dialect, self.fuzzy) {
                (Dialect::Strict, false) => Select::p0f(text),
                (Dialect::Strict, true) => Select::p0f_fuzzy(text),
                (Dialect::Cloudflare, false) => Select::p0f_cloudflare(text),
                (Dialect::Cloudflare, true) => {
                    let why = "only p0f has fuzzy matches";
                    let what = "use --fuzzy with --dialect cloudflare";
                    let error = Error::new(ErrorKind::InvalidInput, what, why);
                    Err(error.with_hint("omit one of them"))
                }
            };
        }
        if let Some(names) = &self.dns {
            return Select::dns(names, &self.qtype);
        }
        if let Some(path) = &self.dns_file {
            return Select::dns(&read_text(path, LIST_MAX)?, &self.qtype);
        }
        let expression = self.filter_compiler.expression(self.expression.join(" "));
        expression.prepare()?;
        Ok(Select::Expression(expression))
    }
}

/// Reads a text file of bounded size.
fn read_text(path: &Path, len_max: u64) -> Result<String> {
    runtime::text::read_text(path, len_max, || format!("read {}", path.display()))
}

/// The first header of each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    /// An Ethernet header without VLAN tags
    Ethernet,
    /// The IP header
    Raw,
}

impl Link {
    /// The LINKTYPE_ number.
    fn link_type(self) -> u16 {
        match self {
            Link::Ethernet => 1,
            Link::Raw => 101,
        }
    }
}

/// Writes to standard output.
fn print(text: &str) -> Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Error::from_io("write to standard output", e))
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<()> {
    match &args.verb {
        Verb::Compile(args) => compile::run(args),
        Verb::Explain(args) => explain::run(args),
        Verb::Test(args) => test::run(args),
        Verb::P0f(args) => p0f::run(args),
        Verb::Derive(args) => derive::run(args),
    }
}
