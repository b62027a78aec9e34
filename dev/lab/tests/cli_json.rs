//! Every JSON object that a command prints has its `type`. The commands are found by their help:
//! one with `--json` that no case runs fails the test.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::cluster_live::unique;
use crate::export::Folder;
use lab::process::barewire;
use lab::{Netns, Veth, corpus, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Commands whose rows are not ours: the columns of the user's query, and rules of a card that only
/// guests have (`guest_isolate.rs`).
const ELSEWHERE: [&str; 2] = ["flows query", "nic isolate"];

fn help(command: &[&str]) -> String {
    let mut program = Command::new(barewire().unwrap());
    let output = program.args(command).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The commands below this one that have `--json`.
fn with_json(command: &[&str], found: &mut BTreeSet<String>) {
    let text = help(command);
    let is_option = |line: &str| {
        line.split_whitespace()
            .next()
            .is_some_and(|word| word == "--json")
    };
    if text.lines().any(is_option) {
        found.insert(command.join(" "));
    }
    let below = text.split("Commands:\n").nth(1).unwrap_or_default();
    let below = below.lines().take_while(|line| !line.is_empty());
    for line in below {
        // Continued descriptions are indented further.
        let Some(name) = line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '))
        else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap_or_default();
        if name != "help" {
            with_json(&[command, &[name]].concat(), found);
        }
    }
}

/// The types of all objects in this output, in order; those of a list are its elements'.
fn types(what: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut take = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str);
        found.push(kind.unwrap_or_else(|| panic!("{what}: {value}")).to_owned());
    };
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value.unwrap_or_else(|error| panic!("{what}: {error}: {text}")) {
            Value::Array(list) => list.iter().for_each(&mut take),
            value => take(&value),
        }
    }
    found
}

/// Runs a command, and returns its name and the types of what it prints.
fn run(ns: &Netns, args: &[&str], expected: &str) {
    let mut process = ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let what = args.join(" ");
    let found = types(&what, &finished.stdout);
    assert!(
        found.iter().any(|kind| kind == expected),
        "{what}: {found:?}"
    );
}

/// A cluster: what its own process prints, and what the others print about it.
fn run_cluster(ns: &Netns, port: &str) {
    let name = unique();
    let plan = [
        "cluster",
        "run",
        "--name",
        &name,
        port,
        "--dry-run",
        "--json",
    ];
    run(ns, &plan, "plan");
    let args = ["cluster", "run", "--name", &name, port, "--json"];
    let mut cluster = ns.spawn(barewire().unwrap(), args).unwrap();
    let ready = format!("open ring:{name}");
    cluster.wait_stderr(&ready, LIMIT).unwrap();
    run(ns, &["cluster", "show", &name, "--json"], "cluster");
    run(ns, &["cluster", "top", &name, "-c", "1", "--json"], "rates");
    run(ns, &["cluster", "drain", &name, "--json"], "cluster");
    let finished = cluster.wait(LIMIT).unwrap().checked().unwrap();
    let found = types("cluster run", &finished.stdout);
    assert_eq!(found.last().map(String::as_str), Some("totals"));
}

#[test]
fn every_json_object_has_its_type() {
    require!(skip::lab());
    let (pair, folder) = (Veth::new().create().unwrap(), Folder::new("json-types"));
    let rules = folder.0.join("rules.toml");
    std::fs::write(
        &rules,
        "[[rule]]\nname = \"a\"\nmatch = \"udp\"\nverdict = \"drop\"\n",
    )
    .unwrap();
    let mix = corpus::own().join("lab-mix.pcapng");
    let out = folder.0.join("out.pcap");
    let (mix, rules) = (mix.to_str().unwrap(), rules.to_str().unwrap());
    let out = out.to_str().unwrap();
    let (left, right) = (pair.left.ifname.as_str(), pair.right.ifname.as_str());
    let target = pair.right.ipv4.to_string();
    let shared = ["--json", "--duration", "2"];
    #[rustfmt::skip]
    let cases: &[(&str, &[&str], &str)] = &[
        ("capture", &["-r", mix, "--json"], "packet"),
        ("capture", &["-r", mix, "--json", "-w", "/dev/null"], "totals"),
        ("send", &[mix, left, "--rate", "max", "--json"], "totals"),
        ("send", &[mix, left, "--dry-run", "--json"], "plan"),
        ("flows", &[mix, "--decode", "all", "--json"], "flow"),
        ("flows", &[mix, "--json"], "summary"),
        ("scan", &[&target, "-p", "1-9", "--wait", "1", "--json"], "answer"),
        ("scan", &[&target, "-p", "1-9", "--dry-run", "--json"], "plan"),
        ("filter compile", &["--json", "udp"], "programs"),
        ("filter compile", &["--json", "--to", "iptables", "udp"], "programs"),
        ("filter test", &[mix, "--json", "udp"], "packet"),
        ("filter test", &[mix, "--json", "--count", "udp"], "totals"),
        ("filter p0f", &[mix, "--json"], "signature"),
        ("filter derive", &[mix, "--json"], "derived"),
        ("devices", &["--json"], "devices"),
        ("doctor", &["--json"], "checks"),
        ("nic list", &["--json"], "cards"),
        ("guard check", &[rules, "--json"], "rules"),
        ("guard", &[&[right, "--drop", "udp"][..], &shared].concat(), "totals"),
        ("forward", &[&[left, out][..], &shared].concat(), "totals"),
    ];
    let mut run_names: BTreeSet<String> = ELSEWHERE.map(str::to_owned).into();
    for (command, args, expected) in cases {
        let words: Vec<&str> = command.split(' ').collect();
        let ns = match *command {
            "guard" => &pair.right.ns,
            _ => &pair.left.ns,
        };
        run(ns, &[&words, *args].concat(), expected);
        run_names.insert((*command).to_owned());
    }
    run_cluster(&pair.left.ns, left);
    for command in ["run", "show", "top", "drain"] {
        run_names.insert(format!("cluster {command}"));
    }
    let mut found = BTreeSet::new();
    with_json(&[], &mut found);
    found.remove("scan merge");
    assert_eq!(found, run_names, "commands with --json");
}
