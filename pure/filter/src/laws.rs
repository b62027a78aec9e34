//! Laws: what must hold for every expression and packet. Called by tests and by fuzz targets; they
//! panic where a law is broken. Not part of the interface.
//!
//! An input is: a byte for the link type, a byte of flags, the text up to a zero byte, the packet.

use bpf::cbpf::Program;
use bpf::vm_cbpf::{self, PacketInfo};

use crate::expression::{Options, compile};

/// Link types that are compiled for, and one that is not supported.
const LINK_TYPES: [u16; 10] = [1, 0, 9, 101, 108, 113, 228, 229, 276, 105];

/// Most bytes of a packet: longer ones show nothing new.
const PACKET_LEN_MAX: usize = 512;

/// Any text as an expression: refused with a place inside the text, or compiled to a program that
/// gives the same verdict with and without the optimizer, by the interpreter and by every
/// translation. Says whether it was compiled.
pub fn expression_input(input: &[u8]) -> bool {
    let Some((&[link, flags], rest)) = input.split_first_chunk::<2>() else {
        return false;
    };
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let packet = parts.next().unwrap_or_default();
    let packet = &packet[..packet.len().min(PACKET_LEN_MAX)];
    let options = Options {
        link_type: LINK_TYPES[usize::from(link) % LINK_TYPES.len()],
        tap: (flags & 1 != 0).then_some(3),
        netmask: if flags & 2 != 0 { 0xffff_ff00 } else { 0 },
        extended: flags & 0x80 != 0,
        ..Options::default()
    };
    let plain = compile_or_check(
        &text,
        &Options {
            optimize: false,
            ..options
        },
    );
    let Some(program) = compile_or_check(&text, &options) else {
        return false;
    };
    bpf::laws::program_input(&program, packet);
    // Only the program that was not optimized can be too long.
    let Some(plain) = plain else { return true };
    for vlan in [None, Some((0x8100, 0x2005))] {
        let info = PacketInfo {
            vlan,
            packet_type: flags >> 2 & 7,
            ifindex: 3,
            ..PacketInfo::UNKNOWN
        };
        for len in [packet.len(), packet.len() / 2] {
            let run = |program: &Program| {
                vm_cbpf::run_with(program, &packet[..len], packet.len() as u32, &info)
            };
            let link_type = options.link_type;
            assert_eq!(
                run(&program),
                run(&plain),
                "{text:?}, link type {link_type}"
            );
        }
    }
    true
}

fn compile_or_check(text: &str, options: &Options) -> Option<Program> {
    match compile(text, options) {
        Ok(program) => Some(program),
        Err(error) => {
            assert!(error.at.start <= error.at.end && error.at.end <= text.len());
            assert!(!error.what.is_empty() && !error.mark(text).is_empty());
            None
        }
    }
}

/// The input for an expression, a link type of the table, flags and a packet.
pub fn input_of(text: &str, link_type: u16, flags: u8, packet: &[u8]) -> Vec<u8> {
    let row = LINK_TYPES.iter().position(|known| *known == link_type);
    let mut input = vec![row.unwrap_or(0) as u8, flags];
    input.extend(text.as_bytes());
    input.push(0);
    input.extend(packet);
    input
}
