//! Suricata, unmodified, behind a cluster that cleans up its traffic, with flow export beside it:
//! the alerts are those of a Suricata that reads the traffic before it was mirrored twice, and the
//! flow records have all packets.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::TempFile;
use lab::process::{Process, barewire};
use lab::skip;
use serde_json::Value;

use crate::cluster_live::unique;
use crate::suricata_queues::{Folder, capture, compare, expected, finish, readers, suricata};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a program of Wireshark.
fn run(program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT);
    finished.unwrap().checked().unwrap();
}

/// The capture with each packet twice, 1 ms apart.
fn doubled() -> TempFile {
    let (later, both) = (TempFile::new(".pcap"), TempFile::new(".pcap"));
    let once = capture();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (once, later_name, both_name) = (text(&once), text(later.path()), text(both.path()));
    run(
        "editcap",
        &["-F", "pcap", "-t", "0.001", &once, &later_name],
    );
    run(
        "mergecap",
        &["-F", "pcap", "-w", &both_name, &once, &later_name],
    );
    both
}

/// Packets and flows of `barewire flows` for a port.
fn flows(port: &str) -> Process {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", port, "--json"]);
    Process::spawn(&mut command).unwrap()
}

/// Packets and bytes in each direction of each flow. (When records end differs: the time of a live
/// input continues after its last packet.)
fn records(process: &mut Process) -> BTreeMap<String, [u64; 4]> {
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let mut flows = BTreeMap::<String, [u64; 4]>::new();
    let lines = finished.stdout.lines();
    let records = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    for record in records.filter(|record| record["type"] == "flow") {
        let key = [
            "src",
            "src_port",
            "dst",
            "dst_port",
            "protocol",
            "icmp_type",
        ];
        let key = key.map(|field| record[field].to_string()).join(" ");
        let back = &record["reverse"];
        let counts = [
            &record["packets"],
            &record["bytes"],
            &back["packets"],
            &back["bytes"],
        ];
        let sums = flows.entry(key).or_default();
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count.as_u64().unwrap();
        }
    }
    flows
}

/// Two processes of Suricata behind a cluster over traffic that was mirrored twice. With the copies
/// removed and flows cut, they have the alerts of one that reads the traffic as it was; an
/// application beside them has the flow records of all packets.
#[test]
fn suricata_has_its_alerts_behind_clean_up_and_flow_export_has_all_packets() {
    lab::require!(
        skip::root(),
        skip::program("mergecap", "wireshark-common"),
        suricata().map(drop)
    );
    let expected = expected();
    let doubled = doubled();
    let all = records(&mut flows(doubled.path().to_str().unwrap()));
    assert!(!all.is_empty());
    let library = Dropin::new().unwrap();
    let name = unique();
    let text = format!(
        "name = {name:?}\ninputs = [{:?}]\n[[application]]\nname = \"ids\"\nqueues = 2\n\
         deduplicate = 10\nshunt = \"8k\"\n[[application]]\nname = \"flows\"\n",
        doubled.path()
    );
    let topology = TempFile::new(".toml");
    std::fs::write(topology.path(), text).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["cluster", "run", "--json"])
        .arg(topology.path());
    let mut cluster = Process::spawn(&mut command).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let mut beside = flows(&format!("ring:{name}/flows"));
    let folders = [Folder::new(), Folder::new()];
    let readers = readers(&name, &folders, &library);
    let totals = cluster.wait(LIMIT).unwrap().checked().unwrap();
    let totals: Value = serde_json::from_str(totals.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(totals["imbalance"], 0);
    let [ids, other] = totals["applications"].as_array().unwrap().as_slice() else {
        panic!("two applications: {totals}");
    };
    for count in ["duplicates", "shunted"] {
        assert_ne!(ids[count], 0, "{count}: {totals}");
        assert_eq!(other[count], 0);
    }
    compare(finish(readers, &folders, &expected), expected);
    assert_eq!(records(&mut beside), all);
}
