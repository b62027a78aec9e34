//! Compiles pcap-filter(7) expressions to classic BPF, without libpcap.
//!
//! The text is split into words (`lex`), parsed and lowered in one pass (a `vlan` shifts what
//! follows it, so order matters), then jumps are threaded and instructions emitted. All keywords of
//! libpcap 1.10 are known; tests of headers on link types without a layout in `links` are refused
//! with [`Error::is_unsupported`](crate::Error::is_unsupported).
//!
//! On a live socket the kernel keeps the outer VLAN tag outside the packet. An expression with
//! `vlan` is then parsed twice, once for packets with their tag outside and once for packets with
//! the tag among their bytes; `block` joins both.

mod arith;
mod atm;
mod block;
mod chain;
mod contradiction;
mod emit;
mod extended;
mod lex;
mod links;
mod lower;
mod names;
mod network;
mod optimize;
mod parse;
mod pf;
mod primitive;
mod protocol;
mod qualified;
mod ranges;
mod ss7;
pub mod steering;
mod tunnel;
mod wlan;

pub use lex::is_keyword;

use bpf::cbpf::{Invalid, Program};

use crate::{Error, Result};
pub use names::{Builtin, Names, Service};
pub(crate) use network::Network;

/// Maximum length of an expression in bytes.
pub const TEXT_LEN_MAX: usize = 65_536;

/// [`Error::what`](crate::Error::what) of an expression that no packet can match: libpcap's text.
pub const REJECTS_ALL: &str = "expression rejects all packets";

/// Options for compiling.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Link type of the packets, as a LINKTYPE number (1 for Ethernet).
    pub link_type: u16,
    /// Return value for a matching packet: the number of bytes to keep.
    pub snaplen: u32,
    /// Interface index, for a program on a live Linux socket, where the kernel provides direction
    /// and interface; `None` for packets from a file.
    pub tap: Option<u32>,
    /// Netmask of the interface's IPv4 address, for `ip broadcast`; 0 if there is none, and then
    /// only 255.255.255.255 and 0.0.0.0 are broadcasts.
    pub netmask: u32,
    /// Whether to thread jumps and share loads.
    pub optimize: bool,
    /// Whether to accept primitives that libpcap does not have: bytes of the payload, ranges of
    /// TTLs, lists of prefixes, TCP options, packets in tunnels. libpcap 1.10 refuses all of them,
    /// so the meaning of expressions in its language does not change; only hosts or ports called
    /// `vxlan` and `gtpu` need their qualifier after `or` and `and`.
    pub extended: bool,
    /// Whether the program may be longer than the kernel's limit, [`bpf::cbpf::INSN_COUNT_MAX`]
    /// instructions: up to [`bpf::cbpf::LONG_INSN_COUNT_MAX`].
    pub long: bool,
    /// Name lookup.
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
            long: false,
            names: &Builtin,
        }
    }
}

impl Options<'_> {
    fn insn_count_max(&self) -> usize {
        match self.long {
            true => bpf::cbpf::LONG_INSN_COUNT_MAX,
            false => bpf::cbpf::INSN_COUNT_MAX,
        }
    }
}

/// Position of a packet's outermost VLAN tag, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    InPacket,
    /// Kept by the kernel, outside the packet's bytes.
    Outside,
}

/// Compiles an expression; an empty one matches every packet.
///
/// # Errors
/// If the expression is invalid or unsupported, or the program would have more than
/// [`bpf::cbpf::INSN_COUNT_MAX`] instructions (the kernel's limit), unless it may be
/// [`long`](Options::long).
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
            return Err(contradiction::error(text, options, parsed.has_live_vlan));
        }
    }
    let emit = |graph: &block::Graph, start| emit::emit(graph, start, options, 0..text.len());
    if let Some(link) = lower::Link::new(options.link_type).filter(|link| link.is_variable()) {
        let words = parsed.bases.clone();
        let blocks = graph.blocks.iter();
        let read: Vec<u32> = blocks
            .flat_map(|b| wlan::reads(&b.test.load, &words))
            .collect();
        if let Some(steps) = link.start(|word| read.contains(&word)) {
            start = graph.add(&steps, start, block::REFUSE);
        }
    }
    let program = emit(&graph, start)?;
    match program.kernel_refusal() {
        // Tests behind a header that an earlier alternative may not have found.
        Some(Invalid::MemoryUnset { .. }) => {
            let start = graph.add(&chain::clear(parsed.bases), start, block::REFUSE);
            emit(&graph, start)
        }
        _ => Ok(program),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_extended;
#[cfg(test)]
mod tests_tunnel;
