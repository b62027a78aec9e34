//! `libpcap.so`: programs using it do the same as with the original.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::dropin::{Dropin, original};
use lab::oracle::{TempFile, write_pcap};
use lab::{corpus, skip};

/// Maximum number of files read of the large corpus.
const FILES_MAX: usize = 40;

/// barewire's error for unknown link types; the original's is different.
const NO_SUCH_LINK: [&str; 2] = [
    "is not supported at character",
    "is not supported on this link type",
];

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program twice and compares its output and exit code. False if barewire's compiler does
/// not know the link type.
pub(crate) fn same(dropin: &Dropin, program: &str, args: &[&str]) -> bool {
    let theirs = output(original(program).args(args));
    let ours = output(dropin.command(program).args(args));
    let error = text(&ours.stderr);
    if NO_SUCH_LINK.iter().any(|text| error.contains(text)) {
        return false;
    }
    assert_eq!(error, text(&theirs.stderr), "{program} {args:?}");
    assert_eq!(
        text(&ours.stdout),
        text(&theirs.stdout),
        "{program} {args:?}"
    );
    assert_eq!(ours.status, theirs.status, "{program} {args:?}");
    true
}

/// Captures of the repository, and some of the large corpus.
pub(crate) fn captures() -> Vec<PathBuf> {
    let all = corpus::captures().files;
    let is_plain = |file: &&PathBuf| file.extension().is_none_or(|end| end != "gz");
    let all: Vec<_> = all.iter().filter(is_plain).collect();
    let step = all.len().div_ceil(FILES_MAX).max(1);
    all.into_iter().step_by(step).cloned().collect()
}

pub(crate) fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The symbols that a library exports.
fn symbols(library: &Path) -> BTreeSet<String> {
    let found = output(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    );
    assert!(found.status.success(), "{}", text(&found.stderr));
    let lines = text(&found.stdout);
    let names = lines
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    names.map(str::to_owned).collect()
}

#[test]
fn the_exported_symbols_equal_those_of_the_original() {
    lab::require!(skip::program("nm", "binutils"));
    let system = [
        "/usr/lib/x86_64-linux-gnu/libpcap.so.0.8",
        "/usr/lib/libpcap.so.0.8",
    ];
    let dropin = Dropin::new().unwrap();
    let ours = symbols(&dropin.library());
    assert_eq!(ours.len(), 96);
    for library in system.map(Path::new) {
        if library.exists() {
            assert_eq!(ours, symbols(library));
        }
    }
    let dynamic = output(Command::new("readelf").arg("-d").arg(dropin.library()));
    assert!(
        text(&dynamic.stdout).contains("Library soname: [libpcap.so.0.8]"),
        "{}",
        text(&dynamic.stdout)
    );
}

#[test]
fn tcpdump_prints_captures_as_with_the_original() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let filters = [
        &[][..],
        &["tcp", "or", "udp", "port", "53"],
        &["ip6", "and", "not", "icmp6"],
    ];
    let (mut compared, mut unknown) = (0, 0);
    for file in captures() {
        for filter in filters {
            let args = [&["-nn", "-e", "-v", "-r", name(&file)], filter].concat();
            match same(&dropin, "tcpdump", &args) {
                true => compared += 1,
                false => unknown += 1,
            }
        }
    }
    assert!(compared > 10 * unknown, "{compared} {unknown}");
}

/// An Ethernet packet of `len` bytes with UDP over IPv4 to a port, without checksum.
fn udp(len: usize, port: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let (ip_len, udp_len) = (len as u16 - 14, len as u16 - 34);
    bytes[14..18].copy_from_slice(&[0x45, 0, (ip_len >> 8) as u8, ip_len as u8]);
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    bytes[34..40].copy_from_slice(&[4, 0, 0, port, (udp_len >> 8) as u8, udp_len as u8]);
    bytes
}

/// UDP packets of many lengths to a few ports.
fn packets() -> Vec<Vec<u8>> {
    (0..40u8)
        .map(|number| udp(100 + usize::from(number), number % 4 * 20))
        .collect()
}

#[test]
fn tcpdump_writes_captures_as_with_the_original() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let own = write_pcap(&packets()).unwrap();
    let mut files = captures();
    files.insert(0, own.path().to_owned());
    let (theirs, ours) = (TempFile::new(".theirs.pcap"), TempFile::new(".ours.pcap"));
    let mut written = 0;
    for file in &files {
        for options in [&[][..], &["--nano", "-s", "60"]] {
            let mut first = original("tcpdump");
            let mut second = dropin.command("tcpdump");
            for (command, to) in [(&mut first, &theirs), (&mut second, &ours)] {
                command.args(["-r", name(file), "-w", name(to.path())]);
                output(command.args(options));
            }
            let read = |file: &TempFile| std::fs::read(file.path()).ok();
            assert_eq!(read(&ours), read(&theirs), "{} {options:?}", file.display());
            written += usize::from(read(&ours).is_some());
        }
    }
    assert!(written > 4, "{written}");
}

/// A small file truncated at every length, and with wrong bytes: output and errors are the same.
#[test]
fn damaged_captures_are_refused_as_by_the_original() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let own = write_pcap(&packets()[..2]).unwrap();
    let classic = std::fs::read(own.path()).unwrap();
    let damaged = TempFile::new(".damaged.pcap");
    let check = |bytes: &[u8]| {
        std::fs::write(damaged.path(), bytes).unwrap();
        assert!(same(
            &dropin,
            "tcpdump",
            &["-nn", "-r", name(damaged.path())]
        ));
    };
    for file in [classic, blocks()] {
        for len in (0..60).chain([100, 140, 141, 150, file.len() - 1, file.len()]) {
            check(&file[..len.min(file.len())]);
        }
        for at in 0..file.len().min(72) {
            for value in [0xff, 0x01] {
                let mut changed = file.clone();
                changed[at] ^= value;
                check(&changed);
            }
        }
    }
}

/// A pcapng file: a section, two interfaces of one kind, and a packet in each kind of block.
fn blocks() -> Vec<u8> {
    fn block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
        let len = (body.len().next_multiple_of(4) + 12) as u32;
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&len.to_le_bytes());
        file.extend_from_slice(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend_from_slice(&len.to_le_bytes());
    }
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let mut file = Vec::new();
    block(
        &mut file,
        0x0a0d_0d0a,
        &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]),
    );
    // Ethernet, 65535 bytes, times in nanoseconds.
    block(&mut file, 1, &words(&[1, 65535, 0x0001_0009, 9, 0]));
    let bytes = udp(100, 9);
    let len = bytes.len() as u32;
    let time = 1_700_000_000_123_456_789u64;
    let head = [0, (time >> 32) as u32, time as u32, len, len];
    block(&mut file, 6, &[words(&head), bytes.clone()].concat());
    block(&mut file, 3, &[words(&[len]), bytes.clone()].concat());
    block(&mut file, 1, &words(&[1, 65535]));
    block(&mut file, 2, &[words(&head), bytes].concat());
    file
}

/// Programs equal those of libpcap's compiler where barewire's produces the same; errors are
/// errors.
#[test]
fn tcpdump_prints_programs_as_with_the_original() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let file = write_pcap(&packets()).unwrap();
    let read = ["-r", name(file.path())];
    for expression in ["", "ip", "ip6", "arp", "ether proto 0x88cc", "len > 100"] {
        for option in ["-d", "-dd", "-ddd"] {
            let args = [&read[..], &[option, expression]].concat();
            assert!(same(&dropin, "tcpdump", &args));
        }
    }
    let reject = [&read[..], &["1 = 2"]].concat();
    assert!(same(&dropin, "tcpdump", &reject));
    let wrong = output(dropin.command("tcpdump").args(read).arg("tcp prt 80"));
    assert_eq!(wrong.status.code(), Some(1));
    let error = text(&wrong.stderr);
    assert!(error.contains("can't parse filter expression"), "{error}");
}

#[test]
fn other_programs_read_captures_as_with_the_original() {
    let dropin = Dropin::new().unwrap();
    let file = write_pcap(&packets()).unwrap();
    let file = name(file.path());
    let to = TempFile::new(".cache");
    for (program, package, args) in [
        (
            "ngrep",
            "ngrep",
            &["-q", "-x", "-t", "-I", file, "", "udp"][..],
        ),
        ("tcpslice", "tcpslice", &["-R", file]),
        ("p0f", "p0f", &["-r", file]),
    ] {
        if let Err(missing) = skip::program(program, package) {
            lab::skip::record(
                "other_programs_read_captures_as_with_the_original",
                &missing,
            );
            continue;
        }
        same(&dropin, program, args);
    }
    lab::require!(skip::program("tcpprep", "tcpreplay"));
    // The name of the output file is in that file.
    let written = [original("tcpprep"), dropin.command("tcpprep")].map(|mut command| {
        let output = output(command.args(["-a", "client", "-i", file, "-o", name(to.path())]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        std::fs::read(to.path()).unwrap()
    });
    assert_eq!(written[0], written[1]);
}
