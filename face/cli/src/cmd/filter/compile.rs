//! `barewire filter compile`: prints the program of a filter in the requested form, or writes an
//! object file.

use std::io::Write;
use std::path::{Path, PathBuf};

use bpf::cbpf::Program;
use bpf::disasm::{Classic, Extended};
use bpf::translate::{self, XdpOptions};
use clap::ValueEnum;
use filter::print;
use runtime::filter::select::Select;
use serde_json::{Value, json};
use sys::create::CreateOptions;
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
    /// The first header of each packet; iptables: always raw
    #[arg(long, value_enum)]
    link: Option<Link>,
    /// Write a program for xdp, tc or socket as an eBPF object file, which ip, tc and libbpf load,
    /// instead of printing it
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    object: Option<PathBuf>,
    /// What the object's program does with packets that match; xdp drops or passes the others
    #[arg(long, value_enum, default_value = "drop", requires = "object")]
    verdict: Verdict,
    /// Support packets in several buffers, as with a large MTU (xdp; Linux 5.18)
    #[arg(long, requires = "object")]
    frags: bool,
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

/// What is done with packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verdict {
    /// Drop them, pass the others
    Drop,
    /// Pass them, drop the others (xdp)
    Pass,
}

/// Actions of XDP (`enum xdp_action`) and of tc (linux/pkt_cls.h).
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const TC_ACT_SHOT: i32 = 2;

/// What XDP programs get without --frags: packets in one buffer, and root loads them.
const XDP: XdpOptions = XdpOptions {
    hook: bpf::translate::DirectHook::Xdp,
    frags: false,
    indirect_by_helper: false,
    stack_top: 0,
};

/// Prints the program, or the two for iptables.
pub fn run(args: &Args) -> Result<()> {
    let select = args.filter.select()?;
    if let Some(path) = &args.object {
        let link = args.link.unwrap_or(Link::Ethernet);
        let program = compiled(&select, args.to, link)?;
        return write_object(path, &object(args, &program)?);
    }
    let programs = if args.to == Form::Iptables {
        if args.link == Some(Link::Ethernet) {
            let why = "packets of iptables' -m bpf start at the IP header";
            let error = Error::new(ErrorKind::InvalidInput, "use --link ethernet", why);
            return Err(error.with_hint("omit --link"));
        }
        select.for_iptables()?
    } else {
        let link = args.link.unwrap_or(Link::Ethernet);
        vec![("", compiled(&select, args.to, link)?)]
    };
    let mut text = String::new();
    let mut list = Vec::new();
    for (command, program) in &programs {
        let one = form(args.to, program)?;
        if args.json {
            list.push(to_json(command, program, &one));
            continue;
        }
        // A single line can be used as it is: --bytecode "$(barewire filter compile ...)".
        if programs.len() > 1 {
            text += &format!("# {command}\n");
        }
        text += &one;
    }
    if args.json {
        text = format!("{}\n", json!({ "type": "programs", "programs": list }));
    }
    super::print(&text)
}

/// Compiles a filter for where the form runs.
fn compiled(select: &Select, to: Form, link: Link) -> Result<Program> {
    match to {
        Form::Tc | Form::Socket => select.compile_for_stack(link.link_type()),
        _ => select.compile(link.link_type()),
    }
}

/// The object file of a program.
fn object(args: &Args, program: &Program) -> Result<Vec<u8>> {
    let refused =
        |what: &str, why, hint| Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint));
    if args.frags && args.to != Form::Xdp {
        let why = "tc and sockets read packets in several buffers as they are";
        return refused("use --frags", why, "omit --frags, or add --to xdp");
    }
    // libbpf sets the flag of such programs by the name of the section.
    let section = if args.frags { "xdp.frags" } else { "xdp" };
    let options = XdpOptions {
        frags: args.frags,
        ..XDP
    };
    let (section, made) = match (args.to, args.verdict) {
        (Form::Xdp, Verdict::Drop) => {
            let made = translate::xdp_verdict(program, &options, XDP_DROP, XDP_PASS);
            (section, made)
        }
        (Form::Xdp, Verdict::Pass) => {
            let made = translate::xdp_verdict(program, &options, XDP_PASS, XDP_DROP);
            (section, made)
        }
        (Form::Tc, Verdict::Drop) => ("tc", translate::skb_verdict(program, TC_ACT_SHOT)),
        (Form::Tc, Verdict::Pass) => {
            let why = "tc passes a packet that is too short for the filter";
            return refused("use --verdict pass for tc", why, "negate the filter");
        }
        (Form::Socket, _) => ("socket", translate::skb_program(program)),
        _ => {
            let why = "object files hold programs for xdp, tc and socket";
            return refused("write an object file", why, "add --to xdp");
        }
    };
    let insns = made.map_err(|e| translated(&e))?;
    Ok(bpf::object::write(section, &insns))
}

fn write_object(path: &Path, bytes: &[u8]) -> Result<()> {
    CreateOptions::BY_UMASK
        .create(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|e| Error::from_io(format!("write {}", path.display()), e))
}

fn translated(error: &translate::TranslateError) -> Error {
    let what = "translate the filter";
    Error::new(ErrorKind::Unsupported, what, error.to_string())
}

fn form(to: Form, program: &Program) -> Result<String> {
    let insns = program.insns();
    let extended = |made: std::result::Result<Vec<bpf::ebpf::Insn>, translate::TranslateError>| {
        made.map(|insns| Extended(&insns).to_string())
            .map_err(|e| translated(&e))
    };
    match to {
        Form::Cbpf => Ok(Classic(insns).to_string()),
        Form::Dd => Ok(print::c_array(insns)),
        Form::Iptables => Ok(print::bytecode(insns) + "\n"),
        Form::Xdp => extended(translate::xdp_program(program, &XDP)),
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
