//! `barewire filter`: compiles filters, and reads p0f signatures off packets.

mod signatures;

use std::io::Write as _;
use std::path::PathBuf;

use ::filter::dns::Family;
use ::filter::p0f::Version;
use ::filter::print::{IPTABLES_MAX, bytecode, c_array};
use bpf::cbpf::Program;
use bpf::disasm::{Classic, Extended};
use bpf::translate::{XdpOptions, skb_program, xdp_program};
use runtime::compiler;
use serde_json::json;
use sys::{Error, ErrorKind, Result};

use crate::out::say;

/// Arguments.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What to do.
#[derive(clap::Subcommand)]
enum Action {
    /// Compile an expression or a p0f signature to BPF, without libpcap
    Compile(CompileArgs),
    /// Print the p0f signature of each SYN and SYN+ACK in a capture file
    P0f {
        /// The capture file
        file: PathBuf,
        /// Print a JSON object for each packet
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `compile`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
struct CompileArgs {
    /// The expression (man pcap-filter)
    #[arg(value_name = "EXPR", required_unless_present_any = ["p0f", "dns"])]
    expression: Vec<String>,
    /// Compile this p0f signature of a SYN, such as 4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0
    #[arg(long, value_name = "SIGNATURE", conflicts_with = "expression")]
    p0f: Option<String>,
    /// Compile queries for these DNS names, in any case: example.com, or *.example.com for one
    /// more label; or a file of names behind an @
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with_all = ["expression", "p0f"])]
    dns: Vec<String>,
    /// Only queries of these types, such as A, AAAA or ANY
    #[arg(long, value_name = "TYPE", requires = "dns", value_delimiter = ',')]
    qtype: Vec<String>,
    /// What to print
    #[arg(long, value_enum, default_value = "cbpf")]
    to: Target,
    /// What packets begin with; iptables always sees the IP header
    #[arg(long, value_enum, default_value = "ethernet")]
    link: Link,
    /// Print the classic BPF program as JSON
    #[arg(long, conflicts_with = "to")]
    json: bool,
}

const HELP: &str = "\
Examples:
  barewire filter compile 'tcp port 80'
  barewire filter compile --to iptables --p0f '4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0'
  barewire filter compile --dns example.com '*.example.org' --qtype ANY
  iptables -A INPUT -m bpf --bytecode \"$(barewire filter compile --to iptables tcp)\" -j DROP";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// Classic BPF, as tcpdump -d prints it
    Cbpf,
    /// Classic BPF as a C array, as tcpdump -dd prints it
    Dd,
    /// The --bytecode argument of iptables' bpf match: at most 64 instructions
    Iptables,
    /// eBPF for XDP
    Xdp,
    /// eBPF for sockets and tc
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Link {
    /// An Ethernet header
    Ethernet,
    /// The IP header
    Ip,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Compile(args) => {
            let text = compile(args)?;
            write_out(&text)
        }
        Action::P0f { file, json } => signatures::print(file, *json),
    }
}

/// Writes to standard output at once: these commands end by themselves.
fn write_out(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Error::from_io("write to standard output", error))
}

fn compile(args: &CompileArgs) -> Result<String> {
    let link = match (args.to, args.link) {
        (Target::Iptables, _) | (_, Link::Ip) => 101,
        (_, Link::Ethernet) => 1,
    };
    if !args.dns.is_empty() {
        return dns(args, link);
    }
    let Some(text) = &args.p0f else {
        let program = compiler::expression(&args.expression.join(" "), link)?;
        return printed(&program, args);
    };
    let mut signature = compiler::signature(text)?;
    if args.to != Target::Iptables || signature.version != Version::Any {
        return printed(&compiler::compile_signature(&signature, link)?, args);
    }
    // iptables and ip6tables each see their own packets.
    let quirks = signature.quirks;
    let mut lines = String::new();
    for version in [Version::V4, Version::V6] {
        signature.version = version;
        signature.quirks = quirks;
        signature.quirks = signature.quirks_of(version);
        if version == Version::V6 && signature.ip_options > 0 {
            continue;
        }
        lines += &printed(&compiler::compile_signature(&signature, link)?, args)?;
    }
    say!("Note: the first line is for iptables, the second for ip6tables");
    Ok(lines)
}

fn dns(args: &CompileArgs, link: u16) -> Result<String> {
    if args.to != Target::Iptables {
        return printed(
            &compiler::dns(&args.dns, &args.qtype, Family::Both, link)?,
            args,
        );
    }
    let mut lines = String::new();
    for family in [Family::V4, Family::V6] {
        lines += &printed(&compiler::dns(&args.dns, &args.qtype, family, link)?, args)?;
    }
    say!("Note: the first line is for iptables, the second for ip6tables");
    Ok(lines)
}

fn printed(program: &Program, args: &CompileArgs) -> Result<String> {
    let insns = program.insns();
    if args.json {
        let list: Vec<_> = insns
            .iter()
            .map(|i| json!([i.code, i.jt, i.jf, i.k]))
            .collect();
        let object = json!({ "count": insns.len(), "cbpf": list });
        return Ok(format!("{object}\n"));
    }
    let refused = |why: String| {
        Error::new(
            ErrorKind::Unsupported,
            "compile the filter for this hook",
            why,
        )
    };
    Ok(match args.to {
        Target::Cbpf => Classic(insns).to_string(),
        Target::Dd => c_array(insns),
        Target::Iptables if insns.len() > IPTABLES_MAX => {
            let count = insns.len();
            let why = format!("it has {count} instructions; iptables takes {IPTABLES_MAX}");
            return Err(refused(why).with_hint("`barewire guard` drops packets in the driver"));
        }
        Target::Iptables => bytecode(insns) + "\n",
        Target::Xdp => {
            let options = XdpOptions {
                frags: false,
                indirect_by_helper: false,
                stack_top: 0,
            };
            let made = xdp_program(program, &options).map_err(|e| refused(e.to_string()))?;
            Extended(&made).to_string()
        }
        Target::Socket => {
            let made = skb_program(program).map_err(|e| refused(e.to_string()))?;
            Extended(&made).to_string()
        }
    })
}
