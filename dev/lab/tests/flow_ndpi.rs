//! `barewire flows --decode ndpi`: libndpi's names compared with those that its own program prints,
//! and in all exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export::{Folder, LIMIT, run};
use lab::corpus;
use lab::oracle::{TempFile, cache};
use lab::process::{Process, barewire};
use lab::skip::Missing;
use lab::{require, skip};
use serde_json::Value;

/// Both endpoints and the IP protocol, in either direction.
type Ends = (String, String, String);

/// Why a flow has another name, or none in one of the programs.
const DIFFERENCES: &[(&str, &str)] = &[
    // It identifies packets without payload, which decoders do not see.
    ("nDPI__synscan.pcap", "TargusDataspeed"),
    // It also identifies what follows an FTP control connection by packets without payload.
    ("nDPI__ftp.pcap", "FTP_DATA"),
];

fn library() -> Result<(), Missing> {
    match sys::libndpi::version() {
        Ok(_) => Ok(()),
        Err(_) => Err(Missing::Machine("libndpi 4.2 (package libndpi4.2)".into())),
    }
}

fn ends(src: (&str, &str), dst: (&str, &str), protocol: &str) -> Ends {
    let one = |(addr, port): (&str, &str)| format!("{addr} {port}");
    let (a, b) = (one(src), one(dst));
    let (first, second) = if a < b { (a, b) } else { (b, a) };
    (first, second, protocol.to_owned())
}

/// ndpiReader's results, without guesses by port, for flows that it has identified.
fn theirs(file: &Path) -> BTreeMap<Ends, BTreeSet<String>> {
    let mut command = Command::new("ndpiReader");
    command.args(["-d", "-q", "-i"]).arg(file);
    let bytes = cache::answer(&mut command, file, |command| {
        let table = TempFile::new("ndpi.csv");
        command.arg("-C").arg(table.path());
        let finished = Process::spawn(command)?.wait(LIMIT)?;
        assert!(
            finished.success(),
            "{}: {}",
            file.display(),
            finished.stderr
        );
        Ok(Some(std::fs::read(table.path())?))
    });
    let bytes = bytes.unwrap().unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let columns = [
        "src_ip",
        "src_port",
        "dst_ip",
        "dst_port",
        "protocol",
        "ndpi_proto",
    ];
    let at = columns.map(|name| head.iter().position(|of| *of == name).unwrap());
    let mut output = BTreeMap::new();
    for line in lines {
        let values: Vec<&str> = line.split(',').collect();
        let [src, src_port, dst, dst_port, protocol, name] =
            at.map(|at| values.get(at).copied().unwrap_or_default());
        if matches!(protocol, "6" | "17") {
            let key = ends((src, src_port), (dst, dst_port), protocol);
            let names: &mut BTreeSet<String> = output.entry(key).or_default();
            names.insert(name.to_owned());
        }
    }
    output
}

fn ours(file: &Path) -> BTreeMap<Ends, BTreeSet<String>> {
    let mut command = Command::new(barewire().unwrap());
    let whole = ["--idle-timeout", "1h", "--active-timeout", "1h"];
    command
        .args(["flows", "--json", "--decode", "ndpi"])
        .args(whole);
    // A tunnel is identified by its contents: its program inspects some of them.
    command.args(["--level", "inner", "--table-size", "20000"]);
    command.arg(file);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert!(
        finished.success() || corpus::is_damaged(file),
        "{finished:?}"
    );
    let mut output = BTreeMap::new();
    for line in finished.stdout.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["type"] == "summary" {
            let counts = &line["ndpi"];
            let of = |name: &str| counts[name].as_u64().unwrap_or_default();
            let known = of("named") + of("unnamed") + of("no_room");
            assert_eq!(of("flows"), known, "{}: {counts}", file.display());
            continue;
        }
        let text = |name: &str| match &line[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (src, dst) = (text("src"), text("dst"));
        let (src_port, dst_port) = (text("src_port"), text("dst_port"));
        let key = ends((&src, &src_port), (&dst, &dst_port), &text("protocol"));
        let names: &mut BTreeSet<String> = output.entry(key).or_default();
        if let Some(name) = line["application"]["ndpi"].as_str() {
            names.insert(name.to_owned());
        }
    }
    output
}

/// Every flow that ndpiReader identifies has that name here, except for explained differences.
#[test]
fn ndpi_names_equal_those_of_ndpireader() {
    require!(library());
    require!(skip::program("ndpiReader", "libndpi-bin"));
    let corpus = corpus::captures();
    let mut files = corpus.files.clone();
    let name_of = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().into_owned();
    files.retain(|file| name_of(file).starts_with("nDPI__") || name_of(file).starts_with("lab-"));
    let (mut same, mut names, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for file in &files {
        let ours = ours(file);
        for (key, theirs) in theirs(file) {
            // Flows of levels that only one program counts.
            let Some(ours) = ours.get(&key) else { continue };
            if !ours.is_disjoint(&theirs) {
                same += 1;
                names.extend(theirs);
                continue;
            }
            let known = |(of, name): &(&str, &str)| name_of(file) == *of && theirs.contains(*name);
            if !DIFFERENCES.iter().any(known) {
                wrong.push((name_of(file), key, ours.clone(), theirs));
            }
        }
    }
    eprintln!("{same} flows have the same name, of {} names", names.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(same >= corpus.at_least(900, 5), "{same}");
    assert!(names.len() >= corpus.at_least(80, 2), "{names:?}");
}

/// Flows that barewire's decoders identify keep their name, with libndpi's next to it, in every
/// format.
#[test]
fn ndpi_names_are_in_every_export() {
    require!(library());
    require!(skip::program("ipfixDump", "libfixbuf-tools"));
    let folder = Folder::new("ndpi");
    let mix = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures/lab-mix.pcapng");
    let (csv, ipfix) = (folder.0.join("f.csv"), folder.0.join("f.ipfix"));
    let exports = [
        format!("csv:{}", csv.display()),
        format!("ipfix:{}", ipfix.display()),
    ];
    let args = [
        "--decode",
        "all,ndpi",
        "--export",
        &exports[0],
        "--export",
        &exports[1],
    ];
    let run = run(&mix, &args);
    let mut reported: Vec<[String; 3]> = Vec::new();
    for flow in &run.flows {
        let application = &flow["application"];
        let text = |name: &str| application[name].as_str().unwrap_or_default().to_owned();
        reported.push([text("protocol"), text("by"), text("ndpi")]);
    }
    let beside = reported
        .iter()
        .filter(|[_, by, ndpi]| by == "content" && !ndpi.is_empty());
    assert!(beside.count() >= 3, "{reported:?}");
    for [protocol, by, ndpi] in &reported {
        assert!(by != "ndpi" || protocol == ndpi, "{protocol} {ndpi}");
    }
    reported.sort();

    let table = std::fs::read_to_string(&csv).unwrap();
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = ["application", "application_by", "ndpi"]
        .map(|name| head.iter().position(|of| *of == name).expect("a column"));
    // The last column but two precedes all text from packets, and that one ends the line.
    let mut columns: Vec<[String; 3]> = lines
        .map(|line| {
            let values: Vec<&str> = line.split(',').collect();
            let from_end = head.len() - at[2];
            let last = values[values.len() - from_end];
            [values[at[0]].into(), values[at[1]].into(), last.into()]
        })
        .collect();
    columns.sort();
    assert_eq!(columns, reported);

    let mut command = Command::new("ipfixDump");
    command.args(["--rfc5610", "--in"]).arg(&ipfix);
    let dumped = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let dumped = dumped.checked().unwrap().stdout;
    for name in reported.iter().map(|[_, _, ndpi]| ndpi) {
        let lines = dumped
            .lines()
            .filter(|line| line.contains(" ndpiProtocolName "));
        let mut values = lines.filter_map(|line| line.rsplit(") ").next());
        assert!(
            name.is_empty() || values.any(|value| value == name),
            "{name}"
        );
    }
}
