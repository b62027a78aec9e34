//! Laws: properties that hold for every expression and packet. Tests and fuzz targets call them;
//! they panic if a law is violated. Not part of the public interface.
//!
//! An input consists of one byte for the link type, one byte of flags, the text up to a zero byte,
//! and the packet.

use bpf::cbpf::Program;
use bpf::vm_cbpf::{self, PacketInfo};

use crate::dns::{self, Family, Name, Queries, QuerySet, QueryType};
use crate::expression::{Options, compile};
use crate::p0f::{self, Handshake, Signature, Start, raw_signature};
use crate::{Error, Result};

/// Supported link types, and one that is not supported.
const LINK_TYPES: [u16; 18] = [
    1, 0, 9, 101, 108, 113, 228, 229, 276, 105, 127, 119, 163, 6, 10, 7, 8, 165,
];

/// Maximum packet length: longer packets cover nothing new.
const PACKET_LEN_MAX: usize = 512;

/// Checks any text as an expression: it is refused with a position inside the text, or compiled to
/// a program that gives the same verdict with and without the optimizer, in the interpreter and in
/// every translation. Returns whether it was compiled.
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
    // Only the unoptimized program can be too long.
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

/// Any text as a p0f signature: refused with a place inside the text, or printed so that it reads
/// the same, and compiled to programs with the verdicts of the rules. The expression of the other
/// dialect can be compiled, too. Says whether it was compiled.
///
/// An input is: a byte of flags, the text up to a zero byte, a packet that begins at the IP header.
pub fn signature_input(input: &[u8]) -> bool {
    let Some((flags, text, packet)) = text_and_packet(input) else {
        return false;
    };
    let options = Options {
        link_type: 101,
        ..Options::default()
    };
    if let Some(made) = checked(p0f::cloudflare(&text), &text)
        && let Some(program) = compile_or_check(&made, &options)
    {
        bpf::laws::program_input(&program, packet);
    }
    let Some(signature) = checked(Signature::parse(&text), &text) else {
        return false;
    };
    let printed = signature.to_string();
    assert_eq!(
        Signature::parse(&printed).as_ref(),
        Ok(&signature),
        "{text}"
    );
    let handshake = match flags & 1 {
        0 => Handshake::Syn,
        _ => Handshake::SynAck,
    };
    let exact = p0f::compile(&signature, handshake, Start::Ip);
    let fuzzy = p0f::compile_fuzzy(&signature, handshake, Start::Ip);
    let (Ok(exact), Ok(fuzzy)) = (exact, fuzzy) else {
        return false;
    };
    bpf::laws::program_input(&exact, packet);
    for len in [packet.len(), packet.len() / 2] {
        let cut = &packet[..len];
        let raw = raw_signature(cut).filter(|raw| raw.handshake == handshake);
        let run = |program| vm_cbpf::run(program, cut, packet.len() as u32) != 0;
        let matches = raw
            .as_ref()
            .is_some_and(|raw| p0f::matches(&signature, raw));
        assert_eq!(run(&exact), matches, "{printed}");
        let matches = raw.is_some_and(|raw| p0f::matches_fuzzy(&signature, &raw));
        assert_eq!(run(&fuzzy), matches, "{printed}, fuzzy");
    }
    true
}

/// Any text as a list of DNS names: refused with a place inside the text, or compiled to programs
/// with the verdicts of the rules. Says whether it was compiled.
///
/// An input is: the type of queries or 0 for all, the names up to a zero byte, a packet that
/// begins at the IP header.
pub fn names_input(input: &[u8]) -> bool {
    let Some((kind, text, packet)) = text_and_packet(input) else {
        return false;
    };
    let Some(names) = checked(Name::parse_list(&text), &text) else {
        return false;
    };
    let kind = (kind > 0).then(|| QueryType(kind.into()));
    let types = kind.into_iter().collect();
    let queries = Queries { names, types };
    let Ok(made) = dns::compile(&queries, Family::Both, Start::Ip) else {
        return false;
    };
    bpf::laws::program_input(&made.program, packet);
    let set = QuerySet::new(&queries);
    for len in [packet.len(), packet.len() / 2] {
        let cut = &packet[..len];
        let verdict = vm_cbpf::run(&made.program, cut, packet.len() as u32) != 0;
        assert_eq!(verdict, dns::matches(&queries, cut), "{text:?}");
        assert_eq!(verdict, set.matches(Start::Ip, cut), "{text:?}");
    }
    true
}

/// A byte, the text up to a zero byte, and the packet.
fn text_and_packet(input: &[u8]) -> Option<(u8, String, &[u8])> {
    let (&first, rest) = input.split_first()?;
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let text = String::from_utf8_lossy(parts.next()?).into_owned();
    let packet = parts.next().unwrap_or_default();
    Some((first, text, &packet[..packet.len().min(PACKET_LEN_MAX)]))
}

fn compile_or_check(text: &str, options: &Options) -> Option<Program> {
    checked(compile(text, options), text)
}

/// What was read of a text; an error has its place inside.
fn checked<T>(result: Result<T>, text: &str) -> Option<T> {
    match result {
        Ok(read) => Some(read),
        Err(error) => {
            let Error { at, what, .. } = &error;
            assert!(
                at.start <= at.end && at.end <= text.len(),
                "{text:?}: {error}"
            );
            assert!(!what.is_empty() && !error.mark(text).is_empty());
            None
        }
    }
}

/// The input of [`signature_input`] or [`names_input`].
pub fn text_input_of(first: u8, text: &str, packet: &[u8]) -> Vec<u8> {
    [&[first], text.as_bytes(), &[0], packet].concat()
}

/// Builds the input for an expression, a link type of the table, flags and a packet.
pub fn input_of(text: &str, link_type: u16, flags: u8, packet: &[u8]) -> Vec<u8> {
    let row = LINK_TYPES.iter().position(|known| *known == link_type);
    let mut input = vec![row.unwrap_or(0) as u8, flags];
    input.extend(text.as_bytes());
    input.push(0);
    input.extend(packet);
    input
}
