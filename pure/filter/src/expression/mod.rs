//! Expressions of pcap-filter(7) to classic BPF, without libpcap.
//!
//! The text is split into words (`lex`), parsed and lowered in one pass (a `vlan` moves what
//! follows it, so order matters), then jumps are threaded and instructions written. Keywords of
//! libpcap 1.10 that this compiler does not support are refused by name: `protochain`, `gateway`,
//! `geneve`, 802.11, `decnet`, and `vlan` on a live socket; so are link types besides Ethernet, raw
//! IP, PPP and Linux cooked capture.

mod arith;
mod block;
mod emit;
mod lex;
mod lower;
mod names;
mod optimize;
mod parse;
mod primitive;
mod qualified;

use bpf::cbpf::Program;

use crate::{Error, Result};
pub use names::{Builtin, Names, Service};

/// Most bytes of an expression.
pub const TEXT_LEN_MAX: usize = 65_536;

/// For which packets to compile.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The packets' link type, its LINKTYPE number (1 for Ethernet).
    pub link_type: u16,
    /// What the program returns for a packet it takes: bytes to keep.
    pub snaplen: u32,
    /// The index of the interface for a program of a live Linux socket, where the kernel provides
    /// direction and interface; `None` for packets of a file.
    pub tap: Option<u32>,
    /// Whether to thread jumps and share loads.
    pub optimize: bool,
    /// Looks up names.
    pub names: &'a dyn Names,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            link_type: 1,
            snaplen: 262_144,
            tap: None,
            optimize: true,
            names: &Builtin,
        }
    }
}

/// Compiles an expression; an empty one takes every packet.
///
/// # Errors
/// If the expression is invalid or unsupported, or the program would have more than
/// [`bpf::cbpf::INSN_COUNT_MAX`] instructions (the kernel's limit).
pub fn compile(text: &str, options: &Options) -> Result<Program> {
    if text.len() > TEXT_LEN_MAX {
        return Err(
            Error::new(TEXT_LEN_MAX..text.len(), "the expression is too long")
                .expected(format!("at most {TEXT_LEN_MAX} bytes")),
        );
    }
    let cond = parse::parse(text, options)?;
    let mut graph = block::Graph::new();
    let mut start = graph.add(&cond, block::TAKE, block::REFUSE);
    if options.optimize {
        start = optimize::optimize(&mut graph, start);
        if start == block::REFUSE {
            let what = "no packet of this link type can match";
            return Err(Error::new(0..text.len(), what));
        }
    }
    emit::emit(
        &graph,
        start,
        options.snaplen,
        options.optimize,
        0..text.len(),
    )
}

#[cfg(test)]
mod tests;
