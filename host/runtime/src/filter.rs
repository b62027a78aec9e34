//! Compiles pcap expressions with barewire's own compiler, or on request with the installed
//! libpcap.

pub mod derive;
pub mod link;
mod names;
pub mod select;
pub mod steering;

use std::net::IpAddr;
use std::sync::Arc;

use ::filter::expression as compiler;
use bpf::cbpf::{Insn, Program};
use port::{FilterSource, FilterTarget};
use sys::libpcap::PacketSource;
use sys::{Error, ErrorKind, Result};

pub use names::HostNames;

/// Maximum bytes a filter keeps of a packet: libpcap's MAXIMUM_SNAPLEN.
pub const SNAPLEN_MAX: u32 = 262_144;

/// A compiler of filter expressions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compiler {
    /// The crate `filter`. Unsupported syntax is an error with a hint.
    #[default]
    Barewire,
    /// The installed libpcap.
    Libpcap,
}

impl Compiler {
    /// The compiler's name.
    pub fn name(self) -> &'static str {
        match self {
            Compiler::Barewire => "barewire",
            Compiler::Libpcap => "libpcap",
        }
    }
}

/// An expression (pcap-filter(7)) and how it is compiled. Clones share resolved names.
#[derive(Clone, Debug)]
pub struct Expression {
    /// The text; blank means no filter.
    pub text: String,
    /// Its compiler.
    pub compiler: Compiler,
    /// Whether the program is optimized.
    pub optimize: bool,
    names: Arc<HostNames>,
}

impl Default for Expression {
    fn default() -> Self {
        Self::new("")
    }
}

impl From<&str> for Expression {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Expression {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl Expression {
    /// Creates an expression for barewire's own compiler.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            compiler: Compiler::default(),
            optimize: true,
            names: Arc::default(),
        }
    }

    /// Selects another compiler.
    pub fn by(self, compiler: Compiler) -> Self {
        Self { compiler, ..self }
    }

    /// Sets whether the program is optimized.
    pub fn optimized(self, optimize: bool) -> Self {
        Self { optimize, ..self }
    }

    /// Whether the text is blank, that is, no filter.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Resolves names and checks that the compiler is available; call it before system calls are
    /// restricted. Errors in the text show only when it is compiled, as they depend on the link
    /// type.
    ///
    /// # Errors
    /// `Unsupported` if libpcap is requested and not installed.
    pub fn prepare(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        match self.compiler {
            Compiler::Libpcap => sys::libpcap::version().map(drop),
            Compiler::Barewire => {
                let options = compiler::Options {
                    tap: Some(0),
                    extended: true,
                    names: &*self.names,
                    ..compiler::Options::default()
                };
                let _ = compiler::compile(&self.text, &options);
                Ok(())
            }
        }
    }

    /// Finds errors in the text before the link type is known: compiles it for Ethernet.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid expression.
    pub fn check(&self) -> Result<()> {
        let ethernet = FilterTarget {
            link_type: 1,
            tap: None,
        };
        match self.compile(ethernet) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => Err(error),
            _ => Ok(()),
        }
    }

    /// Compiles the expression; `None` if it is blank.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid expression, `Unsupported` for syntax that the compiler does
    /// not support, and if libpcap is requested and not installed.
    pub fn compile(&self, target: FilterTarget) -> Result<Option<Program>> {
        match self.is_empty() {
            true => Ok(None),
            false => self.program(target, SNAPLEN_MAX).map(Some),
        }
    }

    /// Compiles the expression, blank or not, to a program that keeps up to `snaplen` bytes of a
    /// packet.
    ///
    /// # Errors
    /// As [`Expression::compile`].
    pub fn program(&self, target: FilterTarget, snaplen: u32) -> Result<Program> {
        let compiled = match self.compiler {
            Compiler::Barewire => self.by_us(target, snaplen),
            Compiler::Libpcap => self.by_libpcap(target, snaplen),
        };
        compiled.map_err(|error| with_file_hint(error, &self.text))
    }

    fn by_us(&self, target: FilterTarget, snaplen: u32) -> Result<Program> {
        let options = compiler::Options {
            link_type: target.link_type,
            snaplen,
            tap: target.tap,
            netmask: target.tap.map_or(0, netmask),
            optimize: self.optimize,
            extended: true,
            long: false,
            names: &*self.names,
        };
        compiler::compile(&self.text, &options)
            .map_err(|error| select::refused("the expression", &self.text, &error))
    }

    fn by_libpcap(&self, target: FilterTarget, snaplen: u32) -> Result<Program> {
        let link_type = target.link_type;
        let source = match target.tap {
            Some(ifindex) => PacketSource::Tap {
                // Raw IP is the only link type with a different number in libpcap's interface.
                link_type: if link_type == 101 {
                    12
                } else {
                    link_type.into()
                },
                ifindex,
            },
            None => PacketSource::File {
                link_type,
                swapped: false,
            },
        };
        let insns = sys::libpcap::compile(&self.text, source, snaplen, self.optimize)?;
        let insns = insns.iter().map(|i| Insn::new(i.code, i.jt, i.jf, i.k));
        Program::new(insns.collect()).map_err(|e| {
            let what = format!("use the filter \"{}\"", self.text);
            let why = format!("libpcap returned an invalid program: {e}");
            Error::new(ErrorKind::InvalidInput, what, why)
        })
    }

    /// The expression as a port's filter, compiled once the link type is known.
    pub fn source(&self) -> FilterSource {
        let expression = self.clone();
        FilterSource::new(move |target: FilterTarget| expression.compile(target))
    }
}

/// The netmask of an interface's first IPv4 address, 0 if it has none.
fn netmask(ifindex: u32) -> u32 {
    let addresses = sys::address::of(ifindex).unwrap_or_default();
    let first = addresses
        .iter()
        .find(|address| matches!(address.addr, IpAddr::V4(_)));
    first.map_or(0, |address| {
        u32::MAX
            .checked_shl(32 - u32::from(address.prefix_len.min(32)))
            .unwrap_or(0)
    })
}

/// Compiles an expression (`man pcap-filter`) with barewire's own compiler, for packets of a link
/// type in a capture file (its `LINKTYPE_` number, 1 for Ethernet). An empty expression is no
/// filter.
///
/// # Errors
/// As [`Expression::compile`].
pub fn compile(expression: &str, link_type: u16) -> Result<Option<Program>> {
    let tap = None;
    Expression::new(expression).compile(FilterTarget { link_type, tap })
}

/// An expression as a port's filter, for barewire's own compiler.
pub fn source(expression: &str) -> FilterSource {
    Expression::new(expression).source()
}

/// Adds a hint if the expression is the name of a file: arguments after the port are a filter.
fn with_file_hint(error: Error, expression: &str) -> Error {
    let is_file = |word: &&str| word.contains(['/', '.']) && std::path::Path::new(word).is_file();
    match expression.split_whitespace().find(is_file) {
        Some(file) => error.with_hint(format!(
            "{file} is a file: all files to read come before the filter"
        )),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_compile_to_programs() {
        let program = compile("udp port 53", 1).unwrap().unwrap();
        let mut packet = [0u8; 60];
        packet[12] = 8;
        (packet[14], packet[23], packet[37]) = (0x45, 17, 53);
        assert_ne!(bpf::vm_cbpf::run(&program, &packet, 60), 0);
        packet[37] = 54;
        assert_eq!(bpf::vm_cbpf::run(&program, &packet, 60), 0);
        assert!(compile("  ", 1).unwrap().is_none());
        let error = compile("udp prt 53", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_filter_source_compiles_for_the_requested_link_type() {
        let inbound = source("inbound");
        let mut target = FilterTarget {
            link_type: 1,
            tap: Some(1),
        };
        assert!(inbound.compile(target).unwrap().is_some());
        target.tap = None;
        assert!(
            inbound.compile(target).is_err(),
            "a file knows no direction"
        );
        let ip = source("ip");
        for tap in [Some(u32::MAX), None] {
            let link_type = 101;
            let program = ip
                .compile(FilterTarget { link_type, tap })
                .unwrap()
                .unwrap();
            assert_ne!(bpf::vm_cbpf::run(&program, &[0x45; 20], 20), 0, "{tap:?}");
            assert_eq!(bpf::vm_cbpf::run(&program, &[0x60; 40], 40), 0, "{tap:?}");
        }
    }
}
