//! Expressions of pcap-filter(7) to classic BPF, without libpcap.
//!
//! The text is split into words (`lex`), parsed and lowered in one pass (a `vlan` moves what
//! follows it, so order matters), then jumps are threaded and instructions written. Keywords of
//! libpcap 1.10 and link types that this compiler does not support are refused by name, with
//! [`Error::is_unsupported`](crate::Error::is_unsupported).
//!
//! On a live socket the kernel keeps the outer VLAN tag outside the packet. An expression with
//! `vlan` is then parsed twice, once for packets with their tag outside and once for packets with
//! the tag among their bytes; `block` joins both.

mod arith;
mod block;
mod emit;
mod extended;
mod lex;
mod lower;
mod names;
mod optimize;
mod parse;
mod primitive;
mod qualified;
mod ranges;

pub use lex::is_keyword;

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
    /// The netmask of the interface's IPv4 address, for `ip broadcast`; 0 where there is none, and
    /// only 255.255.255.255 and 0.0.0.0 are broadcasts.
    pub netmask: u32,
    /// Whether to thread jumps and share loads.
    pub optimize: bool,
    /// Whether primitives that libpcap does not have are known: bytes of the payload, ranges of
    /// TTLs, lists of prefixes, TCP options. Libpcap refuses all of them, so that expressions of
    /// its language mean the same.
    pub extended: bool,
    /// Looks up names.
    pub names: &'a dyn Names,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            link_type: 1,
            snaplen: 262_144,
            tap: None,
            netmask: 0,
            optimize: true,
            extended: false,
            names: &Builtin,
        }
    }
}

/// Where the outermost VLAN tag of a packet is, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    InPacket,
    /// Kept by the kernel, out of the packet's bytes.
    Outside,
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
    let mut graph = block::Graph::new();
    let parsed = parse::parse(text, options, Tag::InPacket)?;
    let mut start = match parsed.has_live_vlan {
        false => graph.add(&parsed.cond, block::TAKE, block::REFUSE),
        true => {
            let outside = parse::parse(text, options, Tag::Outside)?;
            graph.add_both(&outside.cond, &parsed.cond)
        }
    };
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
#[cfg(test)]
mod tests_extended;
