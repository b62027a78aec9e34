//! From a pcap expression to a program, through the system's libpcap.

pub mod select;

use bpf::cbpf::{Insn, Program};
use port::{FilterSource, FilterTarget};
use sys::libpcap::PacketSource;
use sys::{Error, ErrorKind, Result};

/// Most bytes a selected packet may keep: libpcap's MAXIMUM_SNAPLEN.
pub const SNAPLEN_MAX: u32 = 262_144;

/// Compiles an expression (`man pcap-filter`) for packets of a link type (its `LINKTYPE_` number, 1
/// for Ethernet), as a capture file has them. An empty expression is no filter.
///
/// # Errors
/// `InvalidInput` with libpcap's words, `Unsupported` where the machine has no libpcap.
pub fn compile(expression: &str, link_type: u16) -> Result<Option<Program>> {
    let source = PacketSource::File {
        link_type,
        swapped: false,
    };
    compile_for(expression, source)
}

/// As [`compile`], for packets of any source: on an interface `inbound` and `outbound` mean
/// something, in a file its byte order may.
///
/// # Errors
/// As [`compile`].
pub fn compile_for(expression: &str, source: PacketSource) -> Result<Option<Program>> {
    compile_with(expression, source, true)
}

fn compile_with(expression: &str, source: PacketSource, optimize: bool) -> Result<Option<Program>> {
    if expression.trim().is_empty() {
        return Ok(None);
    }
    let insns = sys::libpcap::compile(expression, source, SNAPLEN_MAX, optimize)
        .map_err(|error| with_file_hint(error, expression))?;
    let insns = insns
        .iter()
        .map(|i| Insn::new(i.code, i.jt, i.jf, i.k))
        .collect();
    let program = Program::new(insns).map_err(|e| {
        let what = format!("use the filter \"{expression}\"");
        Error::new(
            ErrorKind::InvalidInput,
            what,
            format!("libpcap returned an invalid program: {e}"),
        )
    })?;
    Ok(Some(program))
}

/// What follows the port is a filter, also where it was meant as a second file.
fn with_file_hint(error: Error, expression: &str) -> Error {
    let is_file = |word: &&str| word.contains(['/', '.']) && std::path::Path::new(word).is_file();
    match expression.split_whitespace().find(is_file) {
        Some(file) => error.with_hint(format!(
            "{file} is a file, and one file is read at a time: `mergecap -w BOTH FILE FILE` joins \
             several"
        )),
        None => error,
    }
}

/// The expression as a port wants it: compiled when the port knows what its packets are.
pub fn source(expression: &str) -> FilterSource {
    source_with(expression, true)
}

/// As [`source`], with or without libpcap's optimizer.
pub fn source_with(expression: &str, optimize: bool) -> FilterSource {
    let expression = expression.to_owned();
    FilterSource::new(move |target: FilterTarget| {
        let link_type = target.link_type;
        let source = match target.tap {
            Some(ifindex) => PacketSource::Tap {
                // Raw IP is the one link type that libpcap's interface calls by another number.
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
        compile_with(&expression, source, optimize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_become_programs() {
        if sys::libpcap::version().is_err() {
            skip::skip!("libpcap is not installed");
        }
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
    fn a_source_compiles_for_what_it_is_asked() {
        if sys::libpcap::version().is_err() {
            skip::skip!("libpcap is not installed");
        }
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
