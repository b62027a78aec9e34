//! `barewire capture` from files: the output equals the input, other programs can read it, and
//! errors are reported.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::capture::{
    self, Folder, LIMIT, Row, command, count_with_capinfos, parse_pcap, read_with_tcpdump,
};
use lab::oracle::write_pcap;
use lab::process::Process;
use lab::{corpus, skip};

/// `count` UDP packets of different lengths, one per millisecond from second 1,700,000,000 on.
fn sample(count: u32) -> lab::oracle::TempFile {
    let packet = |number: u32| {
        let len = 60 + (number as usize * 97) % 1400;
        let mut packet = vec![number as u8; len];
        packet[12..15].copy_from_slice(&[8, 0, 0x45]);
        packet[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        packet[20..24].copy_from_slice(&[0, 0, 64, 17]);
        packet[34..38].copy_from_slice(&[0, 53, 0, (number % 4) as u8]);
        packet
    };
    write_pcap(&(0..count).map(packet).collect::<Vec<_>>()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn captures_are_unchanged_by_either_format() {
    lab::require!(
        skip::program("tcpdump", "tcpdump"),
        skip::program("capinfos", "wireshark-common")
    );
    let folder = Folder::new();
    let (mut compared, mut refused) = (0, Vec::new());
    // Every third: all are read by the test of the file backend; this one starts four programs for
    // each.
    let corpus = corpus::captures();
    let all = corpus.files.iter().step_by(corpus.at_least(3, 1));
    for (index, path) in all.enumerate() {
        let Some(theirs) = read_with_tcpdump(path) else {
            continue;
        };
        // What was written is read again by barewire and by tcpdump. Formats take turns, or this
        // would take minutes.
        let end = ["pcapng", "pcap", "pcapng.zst", "pcap.gz"][index % 4];
        let file = folder.at(&format!("{index}.{end}"));
        let result = capture::capture(["-r", text(path), "-w", text(&file)]);
        if !result.success() {
            refused.push((path.clone(), result.stderr));
            continue;
        }
        let name = path.display();
        let plain = match end {
            "pcapng.zst" => unpack(&file, "zstd"),
            "pcap.gz" => unpack(&file, "gzip"),
            _ => file.clone(),
        };
        let ours = read_with_tcpdump(&plain).unwrap_or_else(|| panic!("{name} as {end}"));
        assert_eq!(ours.len(), theirs.len(), "{name} as {end}");
        let longer = |(ours, theirs): (&Row, &Row)| {
            // libpcap truncates a packet longer than the file's own limit when it reads the
            // original; barewire does not.
            let wire_len = theirs.2.max(ours.1.len() as u32);
            ours.0 == theirs.0 && ours.1.starts_with(&theirs.1) && ours.2 == wire_len
        };
        assert!(ours.iter().zip(&theirs).all(longer), "{name} as {end}");
        if index % 20 == 0 {
            assert_eq!(
                count_with_capinfos(&file),
                theirs.len() as u64,
                "{name} as {end}"
            );
        }
        compared += 1;
    }
    assert!(compared >= corpus.at_least(200, 4), "only {compared}");
    assert!(refused.is_empty(), "{refused:?}");
}

/// Decompresses a file next to itself.
fn unpack(path: &Path, program: &str) -> std::path::PathBuf {
    let plain = path.with_extension("");
    let output = Command::new(program)
        .args(["-dc"])
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::write(&plain, output.stdout).unwrap();
    plain
}

#[test]
fn sets_of_files_are_named_and_filled_as_by_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let input = sample(6000);
    for args in [
        &["-C", "1"][..],
        &["-C", "1", "-W", "3"],
        &["-C", "1", "-W", "12"],
        &["-C", "1", "-W", "1"],
    ] {
        let (ours, theirs) = (Folder::new(), Folder::new());
        let file = ours.at("x.pcap");
        let first = ["-r", text(input.path()), "-w", text(&file), "--micro"];
        capture::capture(first.iter().chain(args))
            .checked()
            .unwrap();
        let output = Command::new("tcpdump")
            .args([
                "-Z",
                "root",
                "-r",
                text(input.path()),
                "-w",
                text(&theirs.at("x.pcap")),
            ])
            .args(args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // The number stands before the extension, so that the file is recognized.
        let as_ours = |name: &String| format!("x{}.pcap", &name["x.pcap".len()..]);
        let names = theirs.names();
        let mut expected: Vec<String> = names.iter().map(as_ours).collect();
        expected.sort();
        assert_eq!(ours.names(), expected, "{args:?}");
        for name in names {
            let (ours, theirs) = (ours.at(&as_ours(&name)), theirs.at(&name));
            let same = read_with_tcpdump(&ours) == read_with_tcpdump(&theirs);
            assert!(same, "{args:?}: {name}");
            let lens = [&ours, &theirs].map(|path| path.metadata().unwrap().len());
            assert_eq!(lens[0], lens[1], "{args:?}: {name}");
        }
    }
}

#[test]
fn sizes_with_a_suffix_are_powers_of_two() {
    let input = sample(3000);
    let folder = Folder::new();
    let file = folder.at("x.pcap");
    let args = ["-r", text(input.path()), "-w", text(&file), "-C", "700k"];
    capture::capture(args).checked().unwrap();
    let lens: Vec<u64> = folder
        .names()
        .iter()
        .map(|name| folder.at(name).metadata().unwrap().len())
        .collect();
    assert_eq!(folder.names(), ["x.pcap", "x1.pcap", "x2.pcap", "x3.pcap"]);
    // The packet that crosses the limit is the file's last.
    let limit = 700 * 1024;
    assert!(
        lens[..3]
            .iter()
            .all(|len| (limit..limit + 1500).contains(len)),
        "{lens:?}"
    );
}

#[test]
fn sets_by_time_use_packet_timestamps() {
    let input = sample(4500);
    let folder = Folder::new();
    let file = folder.at("%s.pcap");
    let args = ["-r", text(input.path()), "-w", text(&file), "-G", "2"];
    let result = capture::capture(args).checked().unwrap();
    assert!(
        result.stderr.contains("4500 packets written to 3 files"),
        "{}",
        result.stderr
    );
    let names = ["1700000000.pcap", "1700000002.pcap", "1700000004.pcap"];
    assert_eq!(folder.names(), names);
    let counts = names.map(|name| read_with_tcpdump(&folder.at(name)).unwrap().len());
    assert_eq!(counts, [2000, 2000, 500]);

    let folder = Folder::new();
    let file = folder.at("%s.pcapng");
    let args = [
        "-r",
        text(input.path()),
        "-w",
        text(&file),
        "-G",
        "1",
        "-W",
        "2",
    ];
    let result = capture::capture(args).checked().unwrap();
    assert_eq!(folder.names(), ["1700000000.pcapng", "1700000001.pcapng"]);
    assert!(
        result.stderr.contains("2000 packets captured"),
        "{}",
        result.stderr
    );
}

#[test]
fn standard_input_and_output_work_as_files() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let input = sample(3000);
    let wanted = read_with_tcpdump(input.path()).unwrap();
    for (pack, format) in [("cat", "pcap"), ("gzip -c", "pcapng"), ("zstd -qc", "pcap")] {
        let barewire = lab::process::barewire().unwrap();
        let script = format!(
            "set -e; {pack} < {} | {} capture -r - -w - --format {format} 2>/dev/null \
             | tcpdump -Z root --time-stamp-precision=nano -r - -w - 2>/dev/null",
            text(input.path()),
            barewire.display()
        );
        let output = Command::new("bash")
            .args(["-o", "pipefail", "-c", &script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{pack}");
        assert!(parse_pcap(&output.stdout) == wanted, "{pack}, {format}");
    }
    // Redirected standard input is a file like any other.
    let mut child = command(["-r", "-", "--count-only"]);
    child.stdin(File::open(input.path()).unwrap());
    let result = Process::spawn_with_stdin(&mut child)
        .unwrap()
        .wait(LIMIT)
        .unwrap();
    assert!(
        result
            .checked()
            .unwrap()
            .stderr
            .contains("3000 packets captured")
    );
}

#[test]
fn a_reader_that_closes_the_pipe_ends_the_capture_quietly() {
    let input = sample(20_000);
    let barewire = lab::process::barewire().unwrap();
    for args in ["", "--json", "-w -", "-w - --format pcap"] {
        let script = format!(
            "{{ {} capture -r {} {args}; echo code $? >&2; }} | head -c 300 | wc -c",
            barewire.display(),
            text(input.path())
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(out.trim(), "300", "{args}");
        assert!(err.contains("code 0"), "{args}: {err}");
        assert!(
            !err.contains("barewire:") && !err.contains("panicked"),
            "{args}: {err}"
        );
    }
}

#[test]
fn lines_are_printed_as_requested() {
    let input = sample(3);
    let run = |args: &[&str]| {
        let mut all = vec!["-r", text(input.path())];
        all.extend(args);
        let mut child = command(all);
        child.env("TZ", "UTC");
        let result = Process::spawn(&mut child).unwrap().wait(LIMIT).unwrap();
        result.checked().unwrap().stdout
    };
    let line = run(&["-c1", "-n"]);
    assert!(
        line.starts_with("22:13:20.000000 IP 0.0.0.0.53 > 0.0.0.0.0: "),
        "{line}"
    );
    assert!(run(&["-t", "-c1"]).starts_with("IP 0.0.0.0"));
    assert!(run(&["-tt", "-c1"]).starts_with("1700000000.000000 IP"));
    assert!(run(&["-tt", "--nano"]).contains("\n1700000000.001000000 IP"));
    assert!(run(&["-ttt"]).contains("\n00:00:00.001000 IP"));
    assert!(run(&["-tttt", "-c1"]).starts_with("2023-11-14 22:13:20.000000 IP"));
    assert!(run(&["-ttttt"]).contains("\n00:00:00.002000 IP"));
    assert!(run(&["-#", "-t"]).starts_with("    1  IP"));
    assert_eq!(
        run(&["-q", "-t", "-c1"]),
        "IP 0.0.0.0.53 > 0.0.0.0.0: UDP, length 18\n"
    );
    let link = run(&["-e", "-t", "-c1"]);
    assert!(link.starts_with("00:00:00:00:00:00 > 00:00:00:00:00:00, ethertype IPv4 (0x0800), "));
    assert!(run(&["-v", "-t", "-c1"]).starts_with(
        "IP (tos 0x0, ttl 64, id 0, offset 0, flags [none], proto UDP (17), length 46) "
    ));
    assert_eq!(run(&["-x", "-t", "-c1"]).lines().count(), 1 + 3);
    assert_eq!(run(&["-xx", "-t", "-c1"]).lines().count(), 1 + 4);
    let wanted = "\t0x0000:  4500 002e 0000 0000 4011 0000 0000 0000  E.......@.......";
    assert!(
        run(&["-X", "-c1"]).contains(wanted),
        "{}",
        run(&["-X", "-c1"])
    );
    assert_eq!(run(&["--count-only"]), "3 packets\n");
    assert_eq!(run(&["udp", "dst", "port", "1"]).lines().count(), 1);
    assert_eq!(
        run(&["-Q", "out"]),
        "",
        "nothing in a pcap file is known to be outgoing"
    );
}

#[test]
fn totals_are_printed_as_json() {
    let input = sample(100);
    let folder = Folder::new();
    let file = folder.at("x.pcapng");
    let args = [
        "-r",
        text(input.path()),
        "-w",
        text(&file),
        "--json",
        "udp",
        "dst",
        "port",
        "1",
    ];
    let result = capture::capture(args).checked().unwrap();
    let value: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(value["type"], "totals");
    assert_eq!(value["scheme"], "file");
    assert_eq!(value["captured"], 25);
    assert_eq!(value["lost"], 0);
    assert_eq!(value["written"]["packets"], 25);
    assert_eq!(value["written"]["files"], 1);
    assert_eq!(value["written"]["bytes"], file.metadata().unwrap().len());
    assert_eq!(value["account"]["total"]["seen"], 100);
    assert_eq!(value["account"]["total"]["dropped"]["filter"], 75);
    assert_eq!(value["account"]["total"]["imbalance"], 0);
    assert_eq!(value["first_time"], "2023-11-14T22:13:20.001000000Z");
    assert_eq!(value["link_type"], 1);
    assert!(value["error"].is_null());

    let result = capture::capture(["-r", text(input.path()), "--json", "-c", "3"]);
    let lines: Vec<serde_json::Value> = result
        .checked()
        .unwrap()
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[1]["type"], "packet");
    assert_eq!(lines[1]["number"], 2);
    assert_eq!(lines[1]["time_ns"], 1_700_000_000_001_000_000u64);
    assert_eq!(lines[1]["dst_port"], 1);
    assert_eq!(lines[3]["type"], "totals");
    assert_eq!(lines[3]["captured"], 3);
}

#[test]
fn filters_select_as_tcpdump_does_for_each_link_type() {
    lab::require!(corpus::large(), skip::program("tshark", "tshark"));
    // Interfaces of different link types in one file, which libpcap refuses to read.
    let folder = Folder::new();
    let data = corpus::large().unwrap().join("pcap");
    let (ethernet, raw) = (
        "PcapPlusPlus__one_tcp_stream.pcap",
        "PcapPlusPlus__raw_ip.pcap",
    );
    let both = folder.at("both.pcapng");
    let merged = Command::new("mergecap")
        .args(["-F", "pcapng", "-w", text(&both)])
        .args([data.join(ethernet), data.join(raw)])
        .output()
        .unwrap();
    assert!(
        merged.status.success(),
        "{}",
        String::from_utf8_lossy(&merged.stderr)
    );
    assert!(
        read_with_tcpdump(&both).is_none(),
        "tcpdump reads it: choose other files"
    );
    let count = |path: &Path, filter: &str| {
        let result = capture::capture(["-r", text(path), "--count-only", "--json", filter]);
        let value: serde_json::Value =
            serde_json::from_str(&result.checked().unwrap().stdout).unwrap();
        value["captured"].as_u64().unwrap()
    };
    let lines = |path: &Path, filter: &str| {
        lab::oracle::tcpdump::lines(path, &[], filter)
            .unwrap()
            .len() as u64
    };
    for filter in ["tcp", "ip", "less 100", "tcp[tcpflags] & tcp-syn != 0"] {
        let parts = [ethernet, raw].map(|name| lines(&data.join(name), filter));
        assert!(parts.iter().any(|&part| part != 0), "{filter}");
        assert_eq!(count(&both, filter), parts.iter().sum::<u64>(), "{filter}");
    }
    // Packets of a link type for which the filter is invalid are rejected and counted.
    let result = capture::capture(["-r", text(&both), "--count-only", "ether multicast"]);
    assert_eq!(result.code(), Some(0), "{}", result.stderr);
    assert!(
        result.stderr.contains("not supported on link type RAW"),
        "{}",
        result.stderr
    );
    // pcap cannot hold two of them.
    let result = capture::capture(["-r", text(&both), "-w", text(&folder.at("x.pcap"))]);
    assert_eq!(result.code(), Some(1));
    assert!(
        result
            .stderr
            .contains("hint: use a name that ends in .pcapng"),
        "{}",
        result.stderr
    );
    let copy = folder.at("copy.pcapng");
    capture::capture(["-r", text(&both), "-w", text(&copy)])
        .checked()
        .unwrap();
    let fields = |path: &Path| {
        lab::oracle::tshark::fields(
            path,
            &["frame.time_epoch", "frame.len", "frame.encap_type"],
            &[],
        )
        .unwrap()
    };
    assert_eq!(fields(&copy), fields(&both));
}

#[test]
fn usage_errors_and_bad_input_give_one_clear_message() {
    let folder = Folder::new();
    let input = sample(3);
    let input = text(input.path());
    std::fs::write(folder.at("empty.pcap"), b"").unwrap();
    std::fs::write(folder.at("text.pcap"), b"this is no capture at all").unwrap();
    std::fs::write(folder.at("x.pcap.xz"), b"\xfd7zXZ\0\0\0").unwrap();
    let (empty, plain, xz) = (
        folder.at("empty.pcap"),
        folder.at("text.pcap"),
        folder.at("x.pcap.xz"),
    );
    let copy = folder.at("copy.pcap");
    std::fs::copy(input, &copy).unwrap();
    for (args, code, part) in [
        (&["nosuchinterface0"][..], 1, "nosuchinterface0"),
        (&["-r", "/no/such/file.pcap"], 1, "/no/such/file.pcap"),
        (&["-r", text(&empty)], 1, "empty"),
        (&["-r", text(&plain)], 1, "not a pcap or pcapng file"),
        (&["-r", text(&xz)], 1, "xz"),
        (&["-r", text(folder.path())], 1, "directory"),
        (&["-r", input, "udp prot 53"], 1, "unexpected \"prot\""),
        (
            &["-r", input, "-w", "/no/such/folder/x.pcap"],
            1,
            "mkdir -p",
        ),
        (&["-r", input, "-w", "/proc/x.pcap"], 1, "/proc/x.pcap"),
        (
            &["-r", text(&copy), "-w", text(&copy)],
            1,
            "is also an input file",
        ),
        (&["-r", input, "--user", "nosuchuser"], 1, "nosuchuser"),
        (&["warp:x"], 1, "warp"),
        (&["afxdp:nosuchinterface0"], 1, "nosuchinterface0"),
        (&[], 2, "give a port"),
        (&["-r", input, "--colour"], 2, "--colour"),
        (&["-r", input, "-c", "0"], 2, "0"),
        (&["-r", input, "-W", "3", "-w", "x"], 2, "-W COUNT needs"),
        (&["-r", input, "-C", "3"], 2, "-w"),
        (&["-r", input, "-C", "3", "-w", "-"], 2, "standard output"),
        (&["-r", input, "--json", "-w", "-"], 2, "--json"),
        (&["-r", input, "-C", "3parsecs", "-w", "x"], 2, "parsecs"),
        (
            &["-r", input, "-F", "/no/such/filter"],
            1,
            "/no/such/filter",
        ),
    ] {
        let result = capture::capture(args);
        let error = &result.stderr;
        assert_eq!(result.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: {error}");
        assert!(
            !error.contains("panicked") && !error.contains("backtrace"),
            "{args:?}: {error}"
        );
        assert_eq!(result.stdout, "", "{args:?}");
        let messages = error.matches("barewire: ").count();
        assert!(code != 1 || messages == 1, "{args:?}: {error}");
    }
    assert_eq!(parse_count(&copy), 3, "a refused target stays as it was");
}

fn parse_count(path: &Path) -> usize {
    read_with_tcpdump(path).unwrap().len()
}

#[test]
fn a_filter_is_read_from_a_file() {
    let input = sample(8);
    let folder = Folder::new();
    let filter = folder.at("filter");
    File::create(&filter)
        .unwrap()
        .write_all(b"udp and\n dst port 2\n")
        .unwrap();
    let args = ["-r", text(input.path()), "-F", text(&filter), "-n"];
    let result = capture::capture(args).checked().unwrap();
    assert_eq!(result.stdout.lines().count(), 2);
    let mut child = command(args.iter().chain(&["udp"]));
    let result = Process::spawn(child.stdin(Stdio::null()))
        .unwrap()
        .wait(LIMIT)
        .unwrap();
    assert_eq!(result.code(), Some(2));
}
