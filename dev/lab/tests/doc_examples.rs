//! Every command in README.md and docs is run, or listed here with the reason why not.
//!
//! A command is a line of a `console` block after its prompt, or of a `sh` block. They run in a
//! namespace that has the interfaces they name, with files of the names they use.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export::{Folder, LIMIT};
use lab::process::{Process, Signal, barewire};
use lab::{Netns, require, skip};

/// Commands that are not run, by their start, and why.
const NOT_RUN: &[(&str, &str)] = &[
    (
        "cargo ",
        "builds the workspace or starts guests; CI runs these tasks",
    ),
    ("BAREWIRE_", "builds the workspace"),
    (
        "iptables -A ",
        "adds a rule to the host's firewall; nflog_live has such rules in its namespaces",
    ),
    (
        "nft add rule ",
        "adds a rule to a table of the host; nflog_live has such rules in its namespaces",
    ),
    (
        "sysctl ",
        "sets the host's kernel; the tests of guard set it in their namespaces",
    ),
    (
        "barewire nic bind",
        "takes a card from the kernel; the guest suites nic and vfio do",
    ),
    (
        "barewire nic isolate",
        "needs a card with ntuple filters; the guest suite nic isolates without them",
    ),
    (
        "barewire capture afxdp:eth0/3",
        "needs a fourth queue; guest_isolate tests that of a card",
    ),
    (
        "barewire capture vfio:",
        "needs a card behind an IOMMU; the guest suite vfio has one",
    ),
    (
        "barewire capture 'vfio:",
        "needs a card behind an IOMMU; the guest suite vfio has one",
    ),
    (
        "echo ",
        "binds a card of the guest, or speaks to the host of the guest lab",
    ),
    (
        "barewire scan ",
        "needs hosts that answer; scan_live has them",
    ),
    ("perf ", "needs perf and inferno, and a release build"),
    (
        "duckdb -c",
        "needs the results of a scan; scan_tables reads such files",
    ),
    (
        "sqlite3 scan.db",
        "needs the results of a scan; the tests of pure/scan read such statements",
    ),
    (
        "barewire capture ring:",
        "needs a running cluster; cluster_live has one",
    ),
    (
        "barewire flows ring:",
        "needs a running cluster; cluster_live has one",
    ),
    (
        "LD_LIBRARY_PATH=/opt/barewire/lib suricata ",
        "needs a running cluster; suricata_queues has one",
    ),
    (
        "barewire forward vm:",
        "needs a virtual machine; vm_live has one",
    ),
    (
        "barewire forward ring:",
        "needs a running cluster; cluster_back has one",
    ),
    (
        "barewire cluster run --name ips ",
        "needs two free interfaces; cluster_back has them",
    ),
    (
        "barewire cluster run --name span ",
        "needs a second interface or a virtual machine; cluster_back and vm_live have them",
    ),
    (
        "barewire capture vm:",
        "needs a virtual machine; vm_live has one",
    ),
    (
        "barewire send trace.pcap vm:",
        "needs a virtual machine; vm_live has one",
    ),
    ("ssh ", "needs another host, and a desktop"),
    ("mkdir lib", "a folder for libpcap.so; pcap_dropin has one"),
    (
        "cp target/dropin/",
        "copies a library; pcap_dropin and pfring_dropin do",
    ),
    ("ln -s libpcap", "names libpcap.so; pcap_dropin does"),
    (
        "LD_",
        "needs the library's profile built; pcap_dropin runs tcpdump with the library",
    ),
    ("kcat ", "needs a broker; export_kafka has one"),
    (
        "barewire flows eth0 --plain --export json:kafka:",
        "needs a broker; export_kafka has one",
    ),
    (
        "barewire flows eth0 --plain --export 'avro:kafka:",
        "needs brokers with TLS; export_kafka has one without",
    ),
    (
        "barewire flows afxdp:eth0 --plain --export ipfix:tls:",
        "needs a collector with TLS; export_collectors has one",
    ),
    (
        "barewire flows eth0 --asn GeoLite2",
        "needs MaxMind's databases; flow_origins writes its own",
    ),
    (
        "barewire flows --config /etc/barewire/",
        "needs an installed configuration; the test of the Debian package starts it",
    ),
    (
        "install ",
        "installs into the system; the test of the Debian package does",
    ),
    (
        "tshark -r drops.pcapng",
        "needs dropped packets; guard_samples reads such a file by tshark",
    ),
    (
        "sh -e rules.sh",
        "changes iptables; guard_iptables runs printed rules in a namespace",
    ),
    (
        "iptables -t raw",
        "lists the chain that rules.sh creates; guard_iptables reads its counters",
    ),
    (
        "systemctl ",
        "needs systemd as the first process; flow_service verifies the unit",
    ),
];

/// Commands that run until stopped, by their start, and their output once running.
const UNTIL_ENDED: &[(&str, &str)] = &[
    ("barewire capture eth0", "listening on"),
    ("barewire capture nflog:", "listening on"),
    ("barewire flows nfqueue:", "nfqueue"),
    ("barewire flows eth0", "eth0"),
    ("barewire flows afxdp:eth0", "eth0"),
    ("barewire forward", "forwarding"),
    ("barewire cluster run --name", "open ring:"),
    ("barewire guard eth0", "guarding"),
    ("barewire filter p0f eth0", "listening on"),
    ("barewire capture any", "listening on"),
];

/// Paths in examples, and their replacements here.
const INSTEAD: &[(&str, &str)] = &[("/var/lib/flows", "flows")];

/// Captures of the repository under the names used in examples.
const CAPTURES: &[&str] = &["trace.pcap", "web.pcapng"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command, and its position.
struct Example {
    place: String,
    command: String,
}

/// README.md and all documents.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/guides"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found.sort();
    found
}

/// The commands in a text.
fn examples(name: &str, text: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut block = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            block = match block {
                None => Some(kind),
                Some(_) => None,
            };
            continue;
        }
        let command = match block {
            Some("console") => line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")),
            Some("sh") => Some(line),
            _ => None,
        };
        if let Some(command) = command {
            found.push(Example {
                place: format!("{name}:{}", number + 1),
                command: without_comment(command).to_owned(),
            });
        }
    }
    found
}

/// A command without the comment after it.
fn without_comment(line: &str) -> &str {
    let end = line.find(" # ").unwrap_or(line.len());
    line[..end].trim_end()
}

fn all() -> Vec<Example> {
    let mut all = Vec::new();
    for path in documents() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        all.extend(examples(&name, &std::fs::read_to_string(&path).unwrap()));
    }
    all
}

fn reason(command: &str) -> Option<&'static str> {
    let row = NOT_RUN.iter().find(|(start, _)| command.starts_with(start));
    row.map(|(_, reason)| *reason)
}

/// A namespace with the interfaces that examples name, with four queues each and a collector's
/// address on loopback.
fn namespace() -> Netns {
    let ns = Netns::new().unwrap();
    for name in ["eth0", "eth1", "mirror0"] {
        let queues = "numrxqueues 4 numtxqueues 4";
        let pair = format!("link add {name} {queues} type veth peer name {name}p {queues}");
        ns.ip(pair.split(' ')).unwrap();
        for name in [name.to_owned(), format!("{name}p")] {
            ns.ip(["link", "set", &name, "up"]).unwrap();
        }
    }
    ns.ip("address add 192.0.2.1/32 dev lo".split(' ')).unwrap();
    ns
}

/// Creates the files that examples read.
fn files(folder: &Folder) {
    let mix = root().join("testdata/captures/lab-mix.pcapng");
    for name in CAPTURES {
        std::fs::copy(&mix, folder.0.join(name)).unwrap();
    }
    let list = "10.77.0.0\t10.77.255.255\t64512\tZZ\tLAB\n";
    std::fs::write(folder.0.join("ip2asn-combined.tsv"), list).unwrap();
    let vendors = "Registry,Assignment,Organization Name,Organization Address\n\
                   MA-L,00005E,Lab,Here\n";
    std::fs::write(folder.0.join("oui.csv"), vendors).unwrap();
    let rules = "[[rule]]\nmatch = \"udp port 9\"\nverdict = \"drop\"\n";
    std::fs::write(folder.0.join("flood.toml"), rules).unwrap();
    let topology = "name = \"ids\"\ninputs = [\"eth0\"]\n[[application]]\nname = \"all\"\n";
    std::fs::write(folder.0.join("ids.toml"), topology).unwrap();
    let steer = rules.replace("drop", "user");
    std::fs::write(folder.0.join("steer.toml"), steer).unwrap();
    std::fs::write(folder.0.join("names.txt"), "*.example.org\n").unwrap();
    std::fs::write(
        folder.0.join("drop.txt"),
        "203.0.113.0/24 # of the example\n",
    )
    .unwrap();
    let shell = "gzip -c trace.pcap > big.pcap.gz; zstd -q -c trace.pcap > trace.pcap.zst; \
                 \"$0\" capture -r trace.pcap -w flood.pcap tcp; \
                 \"$0\" capture -r trace.pcap -w good.pcap not tcp";
    let mut command = Command::new("sh");
    command.args(["-euc", shell]).arg(barewire().unwrap());
    Process::spawn(command.current_dir(&folder.0))
        .unwrap()
        .wait(LIMIT)
        .unwrap()
        .checked()
        .unwrap();
}

/// A shell that runs the command, with the tests' binary and the setup's Python first in PATH.
fn call(ns: &Netns, folder: &Folder, text: &str) -> Command {
    let program = barewire().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let python = root().join("target/python/bin");
    let first = program.parent().unwrap();
    let text = INSTEAD
        .iter()
        .fold(text.to_owned(), |text, (of, by)| text.replace(of, by));
    let mut command = ns.command("sh");
    command
        .args(["-c", &format!("exec {text}")])
        .current_dir(&folder.0);
    let path = format!("{}:{}:{path}", first.display(), python.display());
    command.env("PATH", path);
    command
}

/// Runs a command to its end, or stops it if it has none; returns its standard output.
fn run(ns: &Netns, folder: &Folder, example: &Example) -> String {
    let text = example.command.as_str();
    let mut process = Process::spawn(&mut call(ns, folder, text)).unwrap();
    let row = UNTIL_ENDED
        .iter()
        .find(|(start, _)| text.starts_with(start) && !text.contains(" --print"));
    let finished = match row {
        None => process.wait(LIMIT),
        Some((_, runs)) => {
            let seen = process.wait_stderr(runs, LIMIT);
            seen.unwrap_or_else(|error| panic!("{}: {text}: {error:#}", example.place));
            process.stop(Signal::SIGINT, LIMIT)
        }
    };
    let finished = finished.unwrap();
    let place = &example.place;
    assert_eq!(
        finished.code(),
        Some(0),
        "{place}: {text}\n{}",
        finished.stderr
    );
    finished.stdout
}

fn is_query(example: &Example) -> bool {
    example.command.starts_with("barewire flows query")
}

#[test]
fn every_documented_command_is_run_or_excused() {
    let all = all();
    assert!(all.len() > 40, "{}", all.len());
    let mut unknown = Vec::new();
    for Example { place, command } in &all {
        let is_ours = command.starts_with("barewire ");
        if !is_ours && reason(command).is_none() {
            unknown.push(format!("{place}: {command}"));
        }
    }
    assert!(
        unknown.is_empty(),
        "neither run nor in NOT_RUN: {unknown:#?}"
    );
    for (start, _) in NOT_RUN {
        let is_used = all.iter().any(|example| example.command.starts_with(start));
        assert!(is_used, "no document has {start:?} any more");
    }
}

#[test]
fn every_example_runs() {
    require!(skip::lab());
    require!(skip::program("gzip", "gzip"));
    require!(skip::program("zstd", "zstd"));
    let (ns, folder) = (namespace(), Folder::new("examples"));
    files(&folder);
    let bind = |port: u16| UdpSocket::bind(("192.0.2.1", port));
    let collectors = ns.run(|| [4739, 2055].map(bind)).unwrap();
    for socket in &collectors {
        assert!(socket.is_ok(), "{socket:?}");
    }
    let mut done = BTreeSet::new();
    for example in all() {
        let is_new = done.insert(example.command.clone());
        if is_new && reason(&example.command).is_none() && !is_query(&example) {
            run(&ns, &folder, &example);
        }
    }
    for file in ["trace.html", "trace.ipfix", "dns.pcap"] {
        let len = std::fs::metadata(folder.0.join(file)).map_or(0, |file| file.len());
        assert!(len > 0, "{file}");
    }
}

/// Queries in the documents, over flows of a fully decoded capture: each returns a row without
/// empty cells.
#[test]
fn every_documented_query_returns_rows() {
    require!(skip::lab());
    let (ns, folder) = (namespace(), Folder::new("queries"));
    files(&folder);
    let record = "barewire flows trace.pcap --decode all --export parquet:flows/";
    let recorded = Process::spawn(&mut call(&ns, &folder, record)).unwrap();
    let mut recorded = recorded;
    recorded.wait(LIMIT).unwrap().checked().unwrap();
    let duckdb = "python3 -c 'import duckdb'";
    let found = Process::spawn(&mut call(&ns, &folder, duckdb))
        .unwrap()
        .wait(LIMIT);
    if !found.unwrap().success() {
        lab::skip!(skip::Missing::Machine("DuckDB (cargo xtask setup)".into()));
    }
    let queries: Vec<Example> = all().into_iter().filter(is_query).collect();
    assert!(queries.len() > 3, "{}", queries.len());
    for example in &queries {
        let text = example
            .command
            .trim_end_matches(" --json")
            .trim_end_matches(" --csv");
        // Unchanged, and in the format that is easily parsed.
        run(&ns, &folder, example);
        let csv = Example {
            place: example.place.clone(),
            command: format!("{text} --csv"),
        };
        let answer = run(&ns, &folder, &csv);
        let is_full = |row: &str| row.split(',').all(|cell| !cell.is_empty());
        let has_answer = answer.lines().skip(1).any(is_full);
        assert!(has_answer, "{}: {text}\n{answer}", example.place);
    }
}

#[test]
fn commands_are_found_in_both_kinds_of_blocks() {
    let text = "# Title\n```console\n# one a    # remark\n$ two 'x#y' \noutput\n```\n\
                $ none\n```sh\nthree\n```\n```text\n$ none\n```\n";
    let found: Vec<String> = examples("x", text).into_iter().map(|e| e.command).collect();
    assert_eq!(found, ["one a", "two 'x#y'", "three"]);
}
