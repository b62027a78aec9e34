//! The counts of `barewire scan` while it runs: `--json` and `--metrics`.

use std::time::Duration;

use lab::metrics::scrape;
use lab::oracle::TempFile;
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::export::Folder;

const LIMIT: Duration = Duration::from_secs(60);

/// 1,024 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/22";
/// The scan takes more than two seconds.
const SCAN: [&str; 7] = ["scan", HOSTS, "-p", "81", "--rate", "400", "--wait"];

fn network() -> Pair {
    let pair = Veth::new().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn start(pair: &Pair, args: &[&str]) -> Process {
    let args = [&SCAN, args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text.lines().map(parse).collect()
}

#[test]
fn json_has_the_counts_while_the_scan_runs() {
    require!(skip::lab());
    let pair = network();
    let [printed, file] = ["printed", "file"].map(TempFile::new);
    let [printed, file] = [&printed, &file].map(|file| file.path().to_str().unwrap());
    let mut process = start(&pair, &["1", "--json", "-oD", file]);
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let all = lines(&stdout);
    let status: Vec<&Value> = all.iter().filter(|l| l["type"] == "status").collect();
    // One at least after a second, and one once all probes are sent.
    assert!(status.len() >= 2, "{all:?}");
    let sent = |line: &Value| line["sent"].as_u64().unwrap();
    assert!(status.is_sorted_by_key(|line| sent(line)), "{status:?}");
    let reached = |line: &&&Value| line["rate_reached_pps"].as_f64().unwrap() > 0.0;
    assert!(status.iter().any(|line| reached(&line)), "{status:?}");
    let (last, totals) = (status.last().unwrap(), all.last().unwrap());
    for (name, value) in [
        ("sent", 1024.into()),
        ("probes", 1024.into()),
        ("rate_asked_pps", 400.0.into()),
        ("seconds_left", 0.0.into()),
        ("lost", totals["lost"].clone()),
    ] {
        assert_eq!(last[name], value, "{name}: {last} {totals}");
    }

    let in_file = lines(&std::fs::read_to_string(file).unwrap());
    assert!(in_file.iter().all(|line| line["type"] != "status"));
    std::fs::write(printed, &stdout).unwrap();
    let mut merge = std::process::Command::new(barewire().unwrap());
    merge.args(["scan", "merge", printed]);
    let merged = Process::spawn(&mut merge).unwrap().wait(LIMIT).unwrap();
    let merged = lines(&merged.checked().unwrap().stdout);
    assert_eq!(merged.len(), all.len() - status.len(), "{merged:?}");
    assert_eq!(merged.last().unwrap()["complete"], true);
}

#[test]
fn metrics_follow_the_counts_without_root() {
    require!(skip::lab());
    let pair = network();
    let metrics = ["--metrics", "127.0.0.1:0", "--user", "nobody"];
    let mut process = start(&pair, &[&["forever"], &metrics[..]].concat());
    process.wait_stderr("/metrics", LIMIT).unwrap();
    let page = scrape(&pair.left.ns, &process).unwrap();
    let label = format!("{{interface=\"{}\"}}", pair.left.ifname);
    for line in [
        "# TYPE barewire_scan_sent_total counter\n".to_owned(),
        format!("barewire_scan_probes{label} 1024\n"),
        format!("barewire_scan_rate_asked_pps{label} 400\n"),
    ] {
        assert!(page.contains(&line), "{line}: {page}");
    }
    let sent = format!("barewire_scan_sent_total{label} 1024\n");
    let none = format!("barewire_scan_closed_total{label} 0\n");
    let shows = || {
        (0..3_000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let page = scrape(&pair.left.ns, &process).unwrap();
            page.contains(&sent) && !page.contains(&none)
        })
    };
    assert!(shows(), "{}", scrape(&pair.left.ns, &process).unwrap());
    process.stop(Signal::SIGINT, LIMIT).unwrap();
}

/// At the first rate the scan would take 42 minutes.
#[test]
fn the_rate_follows_a_file_while_the_scan_runs() {
    require!(skip::lab());
    let pair = network();
    let folder = Folder::new("rate");
    let (rate, next) = (folder.file("rate"), folder.file("next"));
    let write = |text: &str| {
        // As editors do.
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, &rate).unwrap();
    };
    write("0.4\n");
    let args = [
        "scan",
        HOSTS,
        "-p",
        "81",
        "--wait",
        "1",
        "--json",
        "--rate-file",
        &rate,
    ];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stdout("\"status\"", LIMIT).unwrap();
    write("3Mbps");
    let warning = "its unit differs from that at the start; the rate stays as it is";
    process.wait_stderr(warning, LIMIT).unwrap();
    write("400pps");
    process.wait_stderr(" pps to 400 pps", LIMIT).unwrap();
    let all = lines(&process.wait(LIMIT).unwrap().checked().unwrap().stdout);
    let changes: Vec<&Value> = all.iter().filter(|line| line["type"] == "rate").collect();
    assert_eq!(changes.len(), 1, "{all:?}");
    assert_eq!(
        (&changes[0]["from_pps"], &changes[0]["to_pps"]),
        (&0.4.into(), &400.into())
    );
    let status = all.iter().rfind(|line| line["type"] == "status").unwrap();
    assert_eq!(status["rate_asked_pps"], 400.0);
    let totals = all.last().unwrap();
    assert_eq!(
        (&totals["sent"], &totals["closed"]),
        (&1024.into(), &1024.into()),
        "{totals}"
    );
}
