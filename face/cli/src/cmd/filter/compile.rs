//! `barewire filter compile`: prints the program of a filter in the requested form.

use bpf::cbpf::Program;
use bpf::disasm::{Classic, Extended};
use bpf::translate::{self, XdpOptions};
use clap::ValueEnum;
use filter::print;
use serde_json::{Value, json};
use sys::{Error, ErrorKind, Result};

use super::{FilterArgs, Link};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// Form of the program
    #[arg(long, value_enum, default_value = "cbpf")]
    to: Form,
    /// The header that packets begin with; iptables: always raw
    #[arg(long, value_enum)]
    link: Option<Link>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Forms of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Classic BPF as text, as tcpdump -d prints it
    Cbpf,
    /// Rows of a C array, as tcpdump -dd prints them
    Dd,
    /// For iptables -m bpf --bytecode: at most 64 instructions; a second program for ip6tables if
    /// the filter covers both IP versions
    Iptables,
    /// eBPF for XDP, as text
    #[value(alias = "ebpf")]
    Xdp,
    /// eBPF for tc, as text
    Tc,
    /// eBPF for sockets, as text
    Socket,
}

/// Prints the program, or the two for iptables.
pub fn run(args: &Args) -> Result<()> {
    let select = args.filter.select()?;
    let programs = if args.to == Form::Iptables {
        if args.link == Some(Link::Ethernet) {
            let why = "packets of iptables' -m bpf start at the IP header";
            let error = Error::new(ErrorKind::InvalidInput, "use --link ethernet", why);
            return Err(error.with_hint("omit --link"));
        }
        select.for_iptables()?
    } else {
        let link = args.link.unwrap_or(Link::Ethernet);
        vec![("", select.compile(link.link_type())?)]
    };
    let mut text = String::new();
    let mut list = Vec::new();
    for (command, program) in &programs {
        let one = form(args.to, program)?;
        if args.json {
            list.push(to_json(command, program, &one));
            continue;
        }
        // One line alone can be used as it is: --bytecode "$(barewire filter compile ...)".
        if programs.len() > 1 {
            text += &format!("# {command}\n");
        }
        text += &one;
    }
    if args.json {
        text = format!("{}\n", json!({ "programs": list }));
    }
    super::print(&text)
}

fn form(to: Form, program: &Program) -> Result<String> {
    let insns = program.insns();
    let extended = |made: std::result::Result<Vec<bpf::ebpf::Insn>, translate::TranslateError>| {
        let refused = |e: translate::TranslateError| {
            Error::new(
                ErrorKind::Unsupported,
                "translate the filter",
                e.to_string(),
            )
        };
        made.map(|insns| Extended(&insns).to_string())
            .map_err(refused)
    };
    match to {
        Form::Cbpf => Ok(Classic(insns).to_string()),
        Form::Dd => Ok(print::c_array(insns)),
        Form::Iptables => Ok(print::bytecode(insns) + "\n"),
        Form::Xdp => {
            let options = XdpOptions {
                frags: false,
                indirect_by_helper: false,
                stack_top: 0,
            };
            extended(translate::xdp_program(program, &options))
        }
        Form::Tc | Form::Socket => extended(translate::skb_program(program)),
    }
}

fn to_json(command: &str, program: &Program, text: &str) -> Value {
    let insns = program.insns();
    let rows: Vec<[u32; 4]> = insns
        .iter()
        .map(|i| [i.code.into(), i.jt.into(), i.jf.into(), i.k])
        .collect();
    let mut one = json!({ "count": insns.len(), "cbpf": rows, "text": text });
    if !command.is_empty() {
        one["command"] = command.into();
    }
    one
}
