//! Files of `barewire scan`, read back by other programs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::export::Folder;
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
/// 64 hosts behind the right end, which its kernel answers for.
const HOSTS: &str = "198.18.4.0/26";

fn scene() -> Pair {
    let pair = Veth::new().ipv6().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

/// Reads a file by Python's own parser of its format, and prints address, protocol, port and state
/// of each answer.
const READER: &str = r##"
import csv, json, re, sys, xml.etree.ElementTree as xml
path = sys.argv[1]
kind = path.rsplit(".", 1)[1]
rows = []
if kind == "xml":
    root = xml.parse(path).getroot()
    assert root.tag == "nmaprun" and root.find("runstats/finished") is not None
    for host in root.findall("host"):
        for port in host.findall("ports/port"):
            rows.append((host.find("address").get("addr"), port.get("protocol"),
                         port.get("portid"), port.find("state").get("state")))
elif kind == "json":
    for host in json.load(open(path)):
        port = host["ports"][0]
        rows.append((host["ip"], port["proto"], port["port"], port["status"]))
elif kind == "ndjson":
    for line in open(path):
        row = json.loads(line)
        if row["type"] == "answer":
            rows.append((row["address"], row["protocol"], row["port"], row["state"]))
elif kind == "csv":
    for row in csv.DictReader(open(path, newline="")):
        rows.append((row["address"], row["protocol"], row["port"], row["state"]))
elif kind == "list":
    for line in open(path):
        if not line.startswith("#"):
            state, protocol, port, address, time = line.split()
            rows.append((address, protocol, port, state))
elif kind == "gnmap":
    for line in open(path):
        found = re.match(r"Host: (\S+) \(\)\tPorts: (\d+)/(\w+)/(\w+)/([^/]*/){4}$", line)
        if found:
            address, port, state, protocol, _ = found.groups()
            rows.append((address, protocol, port, state))
        else:
            assert line.startswith("#"), line
for row in rows:
    print(*row)
"##;

fn rows(path: &Path) -> Vec<String> {
    let mut command = Command::new("python3");
    command.args(["-c", READER]).arg(path);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", path.display());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn scan(pair: &Pair, args: &[&str]) -> Finished {
    let args = [&["scan", "--wait", "1"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap()
}

/// The answers of files as `scan merge` prints them, and the totals.
fn merge(files: &[String]) -> (Vec<String>, Value) {
    let mut command = Command::new(barewire().unwrap());
    let mut process = Process::spawn(command.args(["scan", "merge"]).args(files)).unwrap();
    let text = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut lines: Vec<Value> = text.lines().map(parse).collect();
    let totals = lines.pop().unwrap();
    let row = |line: Value| {
        let word = |name: &str| line[name].as_str().unwrap().to_owned();
        let (address, protocol, state) = (word("address"), word("protocol"), word("state"));
        format!("{address} {protocol} {} {state}", line["port"])
    };
    (lines.into_iter().map(row).collect(), totals)
}

/// A scan is interrupted twice and resumed, each time into a file of its own.
#[test]
fn files_of_an_interrupted_scan_are_complete_together_only() {
    require!(skip::lab());
    let pair = scene();
    let folder = Folder::new("interrupted");
    let state = folder.file("state");
    let files = ["1", "2", "3"].map(|name| folder.file(&format!("{name}.ndjson")));
    for (file, rate) in files.iter().zip(["4", "4", "5000"]) {
        let args = [
            "scan", HOSTS, "-p", "81,82", "--wait", "1", "--state", &state,
        ];
        let args = [&args[..], &["--rate", rate, "-oD", file]].concat();
        let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
        let (finished, code) = match rate {
            "4" => {
                process.wait_stdout("closed", LIMIT).unwrap();
                (process.stop(Signal::SIGINT, LIMIT).unwrap(), 6)
            }
            _ => (process.wait(LIMIT).unwrap(), 0),
        };
        assert_eq!(finished.code(), Some(code), "{}", finished.stderr);
    }
    let [first, second, third] = files;
    let complete = |files: &[&String]| {
        let files: Vec<String> = files.iter().map(|file| (*file).clone()).collect();
        let (rows, totals) = merge(&files);
        let is_complete = totals["complete"].as_bool().unwrap();
        assert!(!is_complete || rows.len() == 128, "{totals}");
        is_complete
    };
    for part in [&first, &second, &third] {
        assert!(!complete(&[part]), "{part}");
    }
    assert!(!complete(&[&first, &second]) && !complete(&[&first, &third]));
    assert!(!complete(&[&second, &third]));
    assert!(complete(&[&third, &first, &second]));
}

const EXTENSIONS: [&str; 6] = ["xml", "gnmap", "list", "json", "ndjson", "csv"];

/// Checks that the files of all formats have these rows, each once.
fn check(folder: &Folder, prefix: &str, expected: &BTreeSet<String>) {
    for extension in EXTENSIONS {
        let rows = rows(Path::new(&folder.file(&format!("{prefix}.{extension}"))));
        let set: BTreeSet<String> = rows.iter().cloned().collect();
        assert_eq!(&set, expected, "{extension}");
        assert_eq!(rows.len(), set.len(), "{extension}");
    }
}

#[test]
fn all_formats_are_read_by_other_programs() {
    require!(skip::lab());
    require!(skip::program("python3", "python3"));
    require!(skip::program("ndiff", "ndiff"));
    let pair = scene();
    let folder = Folder::new("formats");
    let prefix = folder.file("all");
    let args = [HOSTS, "-p", "81,82", "--rate", "5000", "-oA", &prefix];
    let text = scan(&pair, &args).stdout;
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (port, protocol) = words[1].split_once('/').unwrap();
        format!("{} {protocol} {port} {}", words[0], words[2])
    };
    let expected: BTreeSet<String> = text.lines().map(row).collect();
    assert_eq!(expected.len(), 128);
    check(&folder, "all", &expected);
    let files = ["csv", "json", "ndjson"].map(|extension| format!("{prefix}.{extension}"));
    let (merged, totals) = merge(&files);
    let merged: BTreeSet<String> = merged.into_iter().collect();
    assert_eq!(merged, expected);
    assert_eq!(
        (&totals["repeated"], &totals["closed"]),
        (&256.into(), &128.into())
    );
    assert_eq!(totals["complete"], false, "two have no totals");
    // nmap's own reader.
    let xml = folder.file("all.xml");
    let ndiff = Command::new("ndiff").args([&xml, &xml]).output().unwrap();
    let error = String::from_utf8_lossy(&ndiff.stderr);
    assert_eq!(ndiff.status.code(), Some(0), "{error}");
    // Only what is open: nothing; and standard output as XML.
    let one = folder.file("none.json");
    let args = [HOSTS, "-p", "81", "--rate", "5000", "--open", "-oJ", &one];
    let printed = scan(&pair, &[&args[..], &["-oX", "-"]].concat()).stdout;
    assert_eq!(rows(Path::new(&one)), Vec::<String>::new());
    let copy = folder.file("printed.xml");
    std::fs::write(&copy, &printed).unwrap();
    assert_eq!(rows(Path::new(&copy)), Vec::<String>::new());
    assert!(printed.contains("exit=\"success\""), "{printed}");
}

/// Its configuration, and a list on standard input; the configuration's `ping` is scanned with its
/// ports.
#[test]
fn no_output_is_written_to_a_file_that_the_scan_reads() {
    require!(skip::lab());
    let pair = scene();
    let folder = Folder::new("inputs");
    let (conf, list) = (folder.file("conf"), folder.file("list"));
    let text = "range = 198.18.4.1\nports = 81\nping = true\nwait = 1\n";
    std::fs::write(&conf, text).unwrap();
    std::fs::write(&list, "198.18.4.1\n").unwrap();
    let refused = |finished: Finished, path: &str, text: &str| {
        assert!(!finished.success());
        let stderr = &finished.stderr;
        assert!(stderr.contains("it is also an input file"), "{stderr}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), text);
    };
    let spawn = |command: &mut Command| Process::spawn(command).unwrap().wait(LIMIT).unwrap();
    let mut command = pair.left.ns.command(barewire().unwrap());
    command.args(["scan", "-c", &conf, "-oX", &conf]);
    refused(spawn(&mut command), &conf, text);
    let mut command = pair.left.ns.command("sh");
    let line = "exec \"$0\" scan -iL - -p 81 --wait 1 -oX \"$1\" < \"$1\"";
    let command = command
        .args(["-c", line])
        .arg(barewire().unwrap())
        .arg(&list);
    refused(spawn(command), &list, "198.18.4.1\n");

    let printed = scan(&pair, &["-c", &conf]).stdout;
    assert!(
        printed.contains("81/tcp") && printed.contains("icmp"),
        "{printed}"
    );
    let ndjson = [folder.file("1.ndjson"), folder.file("2.ndjson")];
    for file in &ndjson {
        scan(&pair, &["-c", &conf, "-oD", file]);
    }
    let mut command = pair.left.ns.command(barewire().unwrap());
    command.args(["scan", "merge"]).args(&ndjson);
    let merged = spawn(&mut command).checked().unwrap().stdout;
    let lines: Vec<&str> = merged.lines().collect();
    assert_eq!(lines.len(), 3, "{merged}");
    for part in ["\"runs\":2", "\"repeated\":2", "\"up\":1", "\"closed\":1"] {
        assert!(lines[2].contains(part), "{part}: {}", lines[2]);
    }
}

/// A scan is killed three times and resumed: its files are whole each time and keep their rows, and
/// at the end they have each answer.
#[test]
fn files_of_a_killed_scan_are_whole_and_are_continued() {
    require!(skip::lab());
    require!(skip::program("python3", "python3"));
    let pair = scene();
    let folder = Folder::new("killed");
    let (prefix, state) = (folder.file("all"), folder.file("state"));
    let base = [HOSTS, "-p", "81,82", "--wait", "1", "--state", &state];
    let begin = |rate: &str| {
        let args = [&["scan"], &base[..], &["--rate", rate, "-oA", &prefix]].concat();
        pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
    };
    let whole = |extension: &str| -> BTreeSet<String> {
        let rows = rows(Path::new(&format!("{prefix}.{extension}")));
        rows.into_iter().collect()
    };
    let mut kept = EXTENSIONS.map(|_| BTreeSet::new());
    for _ in 0..3 {
        let (before, from) = (row_counts(&prefix), next(&state));
        let mut process = begin("10");
        let since = std::time::Instant::now();
        loop {
            let now = row_counts(&prefix);
            let has_grown = now
                .iter()
                .zip(before)
                .all(|(now, before)| *now >= before + 3);
            // A state of its own: the next run resumes where this one was.
            if has_grown && next(&state) > from {
                break;
            }
            assert!(process.running().unwrap() && since.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(20));
        }
        process.kill().unwrap();
        let now = EXTENSIONS.map(whole);
        for (now, kept) in now.iter().zip(&kept) {
            assert!(now.is_superset(kept), "{kept:?} {now:?}");
        }
        kept = now;
    }
    assert!((1..128).contains(&next(&state)));
    begin("5000").wait(LIMIT).unwrap().checked().unwrap();
    for (extension, kept) in EXTENSIONS.iter().zip(&kept) {
        let now = whole(extension);
        assert_eq!(now.len(), 128, "{extension}");
        assert!(now.is_superset(kept), "{extension}");
    }
}

/// Number of answers in the file of each format; all ports of the scene are closed.
fn row_counts(prefix: &str) -> [usize; 6] {
    EXTENSIONS.map(|extension| {
        let text = std::fs::read_to_string(format!("{prefix}.{extension}")).unwrap_or_default();
        text.matches("closed").count()
    })
}

/// The first probe that a resumed scan sends.
fn next(state: &str) -> u64 {
    let text = std::fs::read_to_string(state).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("next = "));
    line.map_or(0, |number| number.trim_matches('"').parse().unwrap())
}
