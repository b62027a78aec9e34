//! tcpdump's flags: each one of its manual is accepted with tcpdump's meaning, or refused with a
//! replacement.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::{Folder, capture};
use lab::{corpus, skip};

/// The expected handling of a flag.
enum Expected {
    /// It is accepted, with a value if it takes one.
    Taken(&'static [&'static str]),
    /// It is refused, and the error contains these words.
    Refused(&'static str, &'static str),
}

use Expected::{Refused, Taken};

/// Every flag of the manual of tcpdump 4.99, and known ones of later versions.
const FLAGS: &[(&str, Expected)] = &[
    ("-A", Taken(&[])),
    ("-b", Taken(&[])),
    ("-B", Taken(&["4096"])),
    ("--buffer-size", Taken(&["4096"])),
    ("-c", Taken(&["1"])),
    ("--count", Taken(&[])),
    ("-C", Taken(&["1", "-w", "/dev/null"])),
    ("-d", Taken(&[])),
    ("-dd", Taken(&[])),
    ("-ddd", Taken(&[])),
    ("-D", Taken(&[])),
    ("--list-interfaces", Taken(&[])),
    ("-e", Taken(&[])),
    (
        "-E",
        Refused("1@10.0.0.1 des-cbc:secret", "ESP is not decrypted"),
    ),
    ("-f", Taken(&[])),
    ("-F", Taken(&["/dev/null"])),
    ("-g", Taken(&[])),
    ("--ip-oneline", Taken(&[])),
    ("-G", Taken(&["60", "-w", "/dev/null"])),
    ("-h", Taken(&[])),
    ("--help", Taken(&[])),
    ("-H", Refused("", "tcpdump -H")),
    ("-i", Refused("", "cannot be used with")),
    ("--interface", Refused("lo", "cannot be used with")),
    ("-I", Refused("", "set monitor")),
    ("--monitor-mode", Refused("", "set monitor")),
    ("--immediate-mode", Taken(&[])),
    ("-j", Taken(&["host"])),
    ("--time-stamp-type", Taken(&["adapter_unsynced"])),
    ("-J", Taken(&[])),
    ("--list-time-stamp-types", Taken(&[])),
    ("--time-stamp-precision", Taken(&["nano"])),
    ("-K", Taken(&[])),
    ("--dont-verify-checksums", Taken(&[])),
    ("-l", Taken(&[])),
    ("-L", Taken(&[])),
    ("--list-data-link-types", Taken(&[])),
    ("--lengths", Taken(&[])),
    ("-m", Refused("module", "SNMP is not decoded")),
    ("-M", Refused("secret", "not verified")),
    ("--micro", Taken(&[])),
    ("-n", Taken(&[])),
    ("--nano", Taken(&[])),
    ("-N", Taken(&[])),
    ("-#", Taken(&[])),
    ("--number", Taken(&[])),
    ("-O", Taken(&[])),
    ("--no-optimize", Taken(&[])),
    ("-p", Taken(&[])),
    ("--no-promiscuous-mode", Taken(&[])),
    ("--print", Taken(&[])),
    ("--print-sampling", Refused("2", "awk")),
    ("-q", Taken(&[])),
    ("-Q", Taken(&["inout"])),
    ("--direction", Taken(&["inout"])),
    ("-r", Taken(&[])),
    ("-s", Taken(&["96"])),
    ("--snapshot-length", Taken(&["96"])),
    ("-S", Taken(&[])),
    ("--absolute-tcp-sequence-numbers", Taken(&[])),
    ("--skip", Refused("1", "editcap")),
    ("-t", Taken(&[])),
    ("-tt", Taken(&[])),
    ("-ttt", Taken(&[])),
    ("-tttt", Taken(&[])),
    ("-ttttt", Taken(&[])),
    ("-T", Refused("rtp", "tcpdump -T TYPE")),
    ("-u", Taken(&[])),
    ("-U", Taken(&[])),
    ("--packet-buffered", Taken(&[])),
    ("-v", Taken(&[])),
    ("-vv", Taken(&[])),
    ("-vvv", Taken(&[])),
    ("--version", Taken(&[])),
    ("-V", Refused("list", "cannot be used with")),
    ("-w", Taken(&["/dev/null"])),
    ("-W", Taken(&["2", "-C", "1"])),
    ("-x", Taken(&[])),
    ("-xx", Taken(&[])),
    ("-X", Taken(&[])),
    ("-XX", Taken(&[])),
    ("-y", Taken(&["EN10MB"])),
    ("--linktype", Taken(&["EN10MB"])),
    ("-z", Taken(&["true", "-C", "1", "-w", "/dev/null"])),
    ("-Z", Taken(&["root"])),
    ("--relinquish-privileges", Taken(&["root"])),
];

fn sample() -> String {
    let path = corpus::own().join("lab-vlan.pcap");
    path.into_os_string().into_string().unwrap()
}

#[test]
fn every_flag_of_tcpdump_is_accepted_or_refused_with_a_replacement() {
    let file = sample();
    let folder = Folder::new();
    let written = folder.at("written").into_os_string().into_string().unwrap();
    for (flag, fate) in FLAGS {
        let mut args = vec!["-r", &file, *flag];
        match fate {
            Taken(values) => args.extend(*values),
            Refused("", _) => {}
            Refused(value, _) => args.push(value),
        }
        match *flag {
            "-i" => args.push("lo"),
            // A number is appended to the name.
            "-W" => args.extend(["-w", &written]),
            "-r" => args.push(&file),
            _ => {}
        }
        let result = capture(&args);
        let said = &result.stderr;
        assert!(!said.contains("unexpected argument"), "{args:?}: {said}");
        match fate {
            Taken(_) => assert!(result.success(), "{args:?}: {said}"),
            Refused(_, words) => {
                assert!(!result.success(), "{args:?}");
                assert!(said.contains(words), "{args:?}: {said}");
            }
        }
    }
}

#[test]
fn the_table_has_every_flag_of_the_manual() {
    let manual = Path::new("/usr/share/man/man8/tcpdump.8.gz");
    if !manual.is_file() {
        let what = "tcpdump's manual, which minimal systems leave out";
        lab::skip!(skip::Missing::Machine(what.into()));
    }
    let output = Command::new("zcat").arg(manual).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let known: BTreeSet<&str> = FLAGS.iter().map(|(flag, _)| *flag).collect();
    // A flag that starts a paragraph: `.B \-\-number`, `.BI \-c " count"`.
    let (_, options) = text.split_once(".SH OPTIONS").unwrap();
    let flags = options.lines().filter_map(|line| {
        let rest = line.strip_prefix(".BI ").or(line.strip_prefix(".B "))?;
        let flag = rest.split([' ', '=', ',']).next()?;
        flag.starts_with("\\-").then(|| flag.replace("\\-", "-"))
    });
    let flags: BTreeSet<String> = flags.collect();
    assert!(flags.len() > 60, "{flags:?}");
    let missing: Vec<_> = flags
        .iter()
        .filter(|flag| !known.contains(flag.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// What tcpdump prints on standard output.
fn tcpdump(args: &[&str]) -> String {
    let result = Command::new("tcpdump").args(args).output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{args:?}: {said}");
    String::from_utf8(result.stdout).unwrap()
}

#[test]
fn programs_and_counts_equal_those_of_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let file = sample();
    for args in [
        &["-d", "-r", &file, "udp", "port", "53"][..],
        &["-dd", "-r", &file, "udp", "port", "53"],
        &["-ddd", "-r", &file, "udp"],
        &["-d", "-O", "-r", &file, "ip", "and", "ip", "and", "udp"],
        &["-d", "-r", &file],
        &["-d", "udp"],
        &["-d", "-y", "RAW", "udp"],
        &["--count", "-r", &file],
        &["--count", "-r", &file, "arp"],
    ] {
        let by_libpcap = [&["--filter-compiler=libpcap"], args].concat();
        let ours = capture(by_libpcap).checked().unwrap().stdout;
        assert_eq!(ours, tcpdump(args), "{args:?}");
    }
    // If both compilers produce the same program, so does the default.
    for args in [&["-d", "ip"][..], &["-dd", "-r", &file, "arp"]] {
        let ours = capture(args).checked().unwrap().stdout;
        assert_eq!(ours, tcpdump(args), "{args:?}");
    }
    let lines = |args: &[&str]| capture(args).checked().unwrap().stdout.lines().count();
    assert_eq!(lines(&["-r", &file, "--count=3"]), 3);
    let result = capture(["-r", &file, "--count", "3"]);
    assert!(result.stderr.contains("--count=3"), "{}", result.stderr);
    let result = capture(["-r", &file, "-y", "PPP"]);
    assert!(
        result.stderr.contains("its link type is EN10MB"),
        "{}",
        result.stderr
    );
}

#[test]
fn lists_equal_those_of_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"), skip::root());
    for args in [["-L", "-i", "lo"], ["-J", "-i", "lo"]] {
        let ours = capture(args).checked().unwrap().stdout;
        // tcpdump prints them on standard error, as these are no packets.
        let theirs = Command::new("tcpdump").args(args).output().unwrap().stderr;
        assert_eq!(ours, String::from_utf8_lossy(&theirs), "{args:?}");
    }
    let ours = capture(["-D"]).checked().unwrap().stdout;
    let find = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(".lo "))
            .unwrap()
            .to_owned();
        let (number, rest) = line.split_once('.').unwrap();
        (number.to_owned(), rest.to_owned())
    };
    let (number, lo) = find(&ours);
    assert_eq!(lo, find(&tcpdump(&["-D"])).1);
    let by_number = capture(["-L", "-i", &number]).checked().unwrap().stdout;
    assert!(
        by_number.starts_with("Data link types for lo "),
        "{by_number}"
    );
}

#[test]
fn packets_are_printed_while_written() {
    let (folder, file) = (Folder::new(), sample());
    let copy = folder.at("copy.pcap");
    let plain = capture(["-r", &file]).checked().unwrap().stdout;
    let args = ["-r", &file, "--print", "-w", copy.to_str().unwrap()];
    let printed = capture(args).checked().unwrap().stdout;
    assert_eq!(printed, plain);
    let again = capture(["-r", copy.to_str().unwrap()])
        .checked()
        .unwrap()
        .stdout;
    assert_eq!(again, plain);
    let args = ["-r", &file, "--print", "-w", "-"];
    assert!(!capture(args).success());
}

#[test]
fn a_command_runs_on_each_complete_file() {
    lab::require!(skip::root());
    let folder = Folder::new();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open.clone()).unwrap();
    let (script, log) = (folder.at("script"), folder.at("log"));
    let text = format!(
        "#!/bin/sh\necho \"$# $(basename \"$1\") $(id -un) $(nice)\" >> {}\n",
        log.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, open).unwrap();
    let input = lab::oracle::write_pcap(&vec![[7; 1000]; 3000]).unwrap();
    let out = folder.at("out.pcap");
    let run = |command: &str| {
        let input = input.path().to_str().unwrap();
        let args = ["-r", input, "-w", out.to_str().unwrap(), "-C", "1"];
        let more = ["--user", "nobody", "-z", command];
        capture(args.iter().chain(&more)).checked().unwrap()
    };
    run(script.to_str().unwrap());
    // As with tcpdump, not on the last file, which has no successor. Commands run in parallel.
    let expected = ["out.pcap", "out1.pcap", "out2.pcap"];
    let expected = expected.map(|name| format!("1 {name} nobody 19"));
    let text = std::fs::read_to_string(&log).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort();
    assert_eq!(lines, expected);
    // It is not split by a shell.
    let trap = folder.at("trap");
    let said = run(&format!("true; touch {}", trap.display())).stderr;
    assert!(said.contains("No such file or directory"), "{said}");
    assert!(!trap.exists());
}
