//! The dialect of Cloudflare's bpftools against the programs that its generator made.

use bpf::cbpf::{Insn, Program};
use bpf::vm_cbpf;

use super::super::parse;
use super::packet::{Random, packet_of};
use super::*;
use crate::expression::{self, Options};

const PROGRAMS: &str = include_str!("../../../../../testdata/filter/bpfgen.tsv");
const VERDICTS: &str = include_str!("../../../../../testdata/filter/bpfgen_verdicts.tsv");

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').collect())
}

/// For packets of one version of IP, as iptables' rules are.
fn ours(text: &str) -> Program {
    let options = Options {
        link_type: if text.starts_with('6') { 229 } else { 228 },
        ..Options::default()
    };
    let made = cloudflare(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    expression::compile(&made, &options).unwrap_or_else(|error| panic!("{made}: {error}"))
}

fn theirs(bytecode: &str) -> Program {
    let insns = bytecode.split(',').skip(1).map(|insn| {
        let numbers: Vec<u32> = insn.split(' ').map(|n| n.parse().unwrap()).collect();
        Insn::new(
            numbers[0] as u16,
            numbers[1] as u8,
            numbers[2] as u8,
            numbers[3],
        )
    });
    Program::new(insns.collect()).unwrap()
}

#[test]
fn verdicts_are_those_of_bpfgen() {
    let mut random = Random(0x5eed_cf0f);
    let mut matching = 0;
    for row in rows(PROGRAMS) {
        let (ours, theirs) = (ours(row[0]), theirs(row[1]));
        let (signature, _) = parse::fields(row[0]).unwrap();
        let mut found = 0;
        for round in 0..4_000 {
            let mut packet = packet_of(&signature, Handshake::Syn, &mut random);
            if round % 5 == 0 {
                // Padding of Ethernet, which some programs read.
                packet.resize(packet.len() + 4, 0);
            }
            for _ in 0..round % 4 {
                random.change(&mut packet);
                packet.resize(packet.len().max(1), 0);
            }
            let verdict = |program| vm_cbpf::run(program, &packet, packet.len() as u32) != 0;
            let expected = verdict(&theirs);
            assert_eq!(verdict(&ours), expected, "{}: {packet:02x?}", row[0]);
            found += u32::from(expected);
        }
        assert!(found > 50 || row[0].contains("mss*"), "{}: {found}", row[0]);
        matching += found;
        let (ours, theirs) = (ours.insns().len(), theirs.insns().len());
        // iptables takes 64.
        assert!(ours <= 64 || theirs > 64, "{}: {ours}", row[0]);
    }
    assert!(matching > 10_000, "{matching}");
}

#[test]
fn the_vectors_have_their_verdicts() {
    let mut count = 0;
    for row in rows(VERDICTS) {
        let bytes = row[1].as_bytes().chunks(2);
        let packet: Vec<u8> = bytes
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect();
        let verdict = vm_cbpf::run(&ours(row[0]), &packet, packet.len() as u32) != 0;
        assert_eq!(verdict, row[2] == "1", "{}: {}", row[0], row[1]);
        count += 1;
    }
    assert!(count > 50, "{count}");
}

#[test]
fn what_bpftools_does_not_know_is_refused() {
    for (text, start, what) in [
        ("*:64:0:*:*,*:mss::0", 0, "each version"),
        ("4:64:11:*:*,*:mss::0", 5, "words of IP options"),
        ("4:64:0:*:*,*:mss,sack::0", 13, "sack is not known"),
        ("4:64:0:1460:*,*:nop::0", 7, "needs mss"),
        ("4:64:0:*:%0,*:mss::0", 9, "multiple of 0"),
        ("4:64:0:*:*,*:mss:ts1-:0", 17, "needs its option"),
    ] {
        let error = cloudflare(text).unwrap_err();
        assert!(error.to_string().contains(what), "{text}: {error}");
        assert_eq!(error.at.start, start, "{text}: {error}");
    }
    // What no packet can have is not refused: bpftools does not look.
    assert!(cloudflare("4:64:0:*:*,*:mss,ts:id+:0").is_ok());
}
