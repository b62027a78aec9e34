//! Several capture files merged in timestamp order, and several interfaces at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::packet::{Raw, Udp};
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, corpus, require, skip};
use serde_json::Value;

use crate::export::{Folder, flood};

const LIMIT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    Process::spawn(command.args(args))
        .unwrap()
        .wait(LIMIT)
        .unwrap()
}

/// Time, lengths, link type and content of each packet of a file, as read by tshark.
fn packets(file: &Path) -> String {
    let output = Command::new("tshark")
        .args(["-n", "-r", text(file), "-T", "fields"])
        .args(["-o", "frame.generate_md5_hash:TRUE"])
        .args(["-e", "frame.time_epoch", "-e", "frame.cap_len"])
        .args(["-e", "frame.len", "-e", "frame.encap_type"])
        .args(["-e", "frame.md5_hash"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Records of flows, without values that depend on when the program ran.
fn records(args: &[&str]) -> Vec<String> {
    let args = [&["flows", "--json"], args].concat();
    let done = run(&args).checked().unwrap();
    let mut records: Vec<String> = done
        .stdout
        .lines()
        .filter(|line| line.starts_with("{\"type\":\"flow\""))
        .map(str::to_owned)
        .collect();
    records.sort();
    records
}

/// Captures that mergecap does not read, or of which it reads other blocks than packets.
const NOT_MERGED: [&str; 4] = [
    "libpcap__brcm-tag",
    "libpcap__linktype-reserved-field",
    "libtrace__complex",
    "pcapng-test-generator",
];

/// Packets with the same time in a fixed order: mergecap puts those of later files first.
fn sorted_by_time(packets: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = packets.lines().collect();
    let time = |line: &str| line.split('\t').next().map(str::to_owned);
    for same in lines.chunk_by_mut(|a, b| time(a) == time(b)) {
        same.sort_unstable();
    }
    lines
}

/// Every fifth capture of the corpus, in groups: link types, formats and times mixed.
#[test]
fn merged_files_equal_those_of_mergecap() {
    require!(skip::program("mergecap", "wireshark-common"));
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("merge");
    let is_whole = |file: &PathBuf| {
        !NOT_MERGED.iter().any(|name| text(file).contains(name)) && !corpus::is_damaged(file)
    };
    let captures = corpus::captures();
    let files = captures.files.iter().step_by(captures.at_least(5, 1));
    let files: Vec<PathBuf> = files.filter(|file| is_whole(file)).cloned().collect();
    let mut count = 0;
    for group in files.chunks(12) {
        let names: Vec<&str> = group.iter().map(|file| text(file)).collect();
        let (ours, theirs) = (folder.0.join("ours.pcapng"), folder.0.join("theirs.pcapng"));
        let mut args = vec!["capture", "-w", text(&ours)];
        args.extend(names.iter().flat_map(|name| ["-r", name]));
        run(&args).checked().unwrap();
        let mut mergecap = Command::new("mergecap");
        mergecap.args(["-w", text(&theirs)]).args(&names);
        let status = mergecap.stderr(Stdio::null()).status().unwrap();
        assert!(status.success(), "mergecap {names:?}");
        let [ours, theirs] = [packets(&ours), packets(&theirs)];
        assert!(
            sorted_by_time(&ours) == sorted_by_time(&theirs),
            "{names:?}"
        );
        count += 1;
    }
    assert!(count >= captures.at_least(11, 1), "{count} groups");
}

/// A file and its pieces, in any order and however they are named, give the same flows.
#[test]
fn pieces_of_a_file_give_the_same_flows() {
    let folder = Folder::new("parts");
    let (whole, piece) = (folder.0.join("whole.pcap"), folder.0.join("piece.pcapng"));
    std::fs::write(&whole, flood(1_000)).unwrap();
    run(&[
        "capture",
        "-r",
        text(&whole),
        "-w",
        text(&piece),
        "-C",
        "16k",
    ])
    .checked()
    .unwrap();
    let mut pieces: Vec<PathBuf> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| text(path).contains("piece"))
        .collect();
    pieces.sort();
    assert!(pieces.len() >= 3, "{pieces:?}");
    let list = folder.0.join("list");
    let names: Vec<&str> = pieces.iter().map(|path| text(path)).collect();
    std::fs::write(&list, names.join("\n\n") + "\n").unwrap();
    let expected = records(&[text(&whole)]);
    assert_eq!(expected.len(), 1_000);
    let mut backwards = names.clone();
    backwards.reverse();
    assert!(records(&names) == expected);
    assert!(records(&backwards) == expected);
    // With a filter after the names.
    let filter = ["udp", "src", "port", "7"];
    let filtered = [backwards.as_slice(), &filter].concat();
    assert_eq!(records(&filtered).len(), 1);
    // The ways in which capture can name them.
    let printed = |args: &[&str]| {
        let all = [&["capture", "-n", "-tt"], args].concat();
        run(&all).checked().unwrap().stdout
    };
    let whole = printed(&["-r", text(&whole)]);
    assert_eq!(whole.lines().count(), 1_000);
    assert!(printed(&["-V", text(&list)]) == whole);
    assert!(printed(&[&["-r"], names.as_slice()].concat()) == whole);
    assert!(printed(&backwards) == whole);
}

#[test]
fn a_damaged_file_ends_and_the_others_continue() {
    let folder = Folder::new("cut");
    let (good, cut) = (folder.0.join("good.pcap"), folder.0.join("cut.pcap"));
    std::fs::write(&good, flood(100)).unwrap();
    let bytes = flood(50);
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let done = run(&["capture", "-r", text(&good), "-r", text(&cut), "--json"]);
    assert_eq!(done.code(), Some(3), "{}", done.stderr);
    let totals: Value = serde_json::from_str(done.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(totals["captured"], 149, "{totals}");
    assert_eq!(totals["account"]["total"]["imbalance"], 0, "{totals}");
    assert!(done.stderr.contains("cut.pcap"), "{}", done.stderr);
    assert!(done.stderr.contains("after 49 packets"), "{}", done.stderr);
}

#[test]
fn conflicting_options_are_refused() {
    let folder = Folder::new("refused");
    let files = ["a.pcap", "b.pcap", "empty"].map(|name| folder.0.join(name));
    let [a, b, empty] = files.each_ref().map(|path| text(path));
    std::fs::write(a, flood(3)).unwrap();
    std::fs::write(b, flood(3)).unwrap();
    std::fs::write(empty, "\n").unwrap();
    for (args, code, part) in [
        (
            &["capture", "-r", a, "-r", b, "-w", b][..],
            1,
            "is also an input file",
        ),
        (&["capture", a, "memory:x"], 1, "cannot be read together"),
        (&["capture", "-V", empty], 1, "it lists no file"),
        (&["capture", "-V", a, "-r", b], 2, "cannot be used with"),
        (
            &["flows", a, "tcp", b],
            1,
            "all files to read come before the filter",
        ),
        (
            &["flows", a, b, "--egress", "memory:x", "--plain"],
            1,
            "from one port only",
        ),
    ] {
        let done = run(args);
        assert_eq!(done.code(), Some(code), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(part), "{args:?}: {}", done.stderr);
    }
    // No file was truncated.
    assert_eq!(std::fs::read(b).unwrap(), flood(3));
}

/// A second veth pair between the same namespaces.
pub(crate) fn second_pair(pair: &Pair) -> [String; 2] {
    let [left, right] = ["second0", "second1"].map(str::to_owned);
    let name = pair.right.ns.name();
    let args = ["link", "add", &left, "type", "veth", "peer", "name", &right];
    pair.left.ns.ip(args).unwrap();
    pair.left
        .ns
        .ip(["link", "set", &right, "netns", name])
        .unwrap();
    pair.left.ns.ip(["link", "set", &left, "up"]).unwrap();
    pair.right.ns.ip(["link", "set", &right, "up"]).unwrap();
    [left, right]
}

fn send(pair: &Pair, ifname: &str, count: u64) {
    let mut plan = Udp::between(&pair.left, &pair.right);
    plan.destination_mac[5] ^= 0x40;
    let sender = pair.left.ns.run(|| Raw::sender(ifname)).unwrap().unwrap();
    for number in 0..count {
        sender.send(&plan.build(number, 100)).unwrap();
    }
}

/// Sends from both left ends while a program that prints its totals on SIGUSR1 runs at the right,
/// and stops it once it has all packets.
fn while_running(pair: &Pair, args: &[&str], sent: [(&str, u64); 2], words: &str) -> Finished {
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("2 queues", LIMIT).unwrap();
    let mut total = 0;
    for (ifname, count) in sent {
        send(pair, ifname, count);
        total += count;
    }
    let words = format!("{total} {words}");
    while !process.stderr().contains(&words) {
        process.signal(Signal::SIGUSR1).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let done = process.stop(Signal::SIGINT, LIMIT).unwrap();
    done.checked().unwrap()
}

/// Packets delivered, by interface.
fn delivered(totals: &Value) -> BTreeMap<String, u64> {
    let mut delivered = BTreeMap::new();
    for queue in totals["account"]["queues"].as_array().unwrap() {
        let (name, _) = queue["name"].as_str().unwrap().rsplit_once('/').unwrap();
        *delivered.entry(name.to_owned()).or_default() += queue["delivered"].as_u64().unwrap();
        assert_eq!(queue["imbalance"], 0, "{totals}");
    }
    delivered
}

#[test]
fn several_interfaces_are_captured_into_one_file() {
    require!(skip::lab());
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("interfaces");
    let pair = Veth::new().create().unwrap();
    let [left, right] = second_pair(&pair);
    let first = pair.right.ifname.clone();
    let file = folder.0.join("out.pcapng");
    let sent = [(pair.left.ifname.as_str(), 30), (left.as_str(), 12)];
    for second in [right.clone(), format!("afxdp:{right}")] {
        let ports = ["capture", "-i", &first, "-i", &second];
        let rest = ["-w", text(&file), "--json", "udp", "port", "9"];
        let args = [ports.as_slice(), &rest].concat();
        let done = while_running(&pair, &args, sent, "packets captured");
        let totals: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(totals["captured"], 42, "{totals}");
        let expected = BTreeMap::from([(first.clone(), 30), (right.clone(), 12)]);
        assert_eq!(delivered(&totals), expected, "{totals}");
        let mut tshark = Command::new("tshark");
        tshark.args(["-n", "-r", text(&file), "-T", "fields"]);
        let output = tshark.args(["-e", "frame.interface_name"]).output();
        let names = String::from_utf8(output.unwrap().stdout).unwrap();
        let count = |name: &str| names.lines().filter(|line| *line == name).count();
        assert_eq!((count(&first), count(&right)), (30, 12), "{names}");
    }
}

#[test]
fn flows_keep_their_interfaces_apart() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let [left, right] = second_pair(&pair);
    let ports = ["flows", &pair.right.ifname, &right, "--json"];
    let rest = ["--key", "interface", "udp", "port", "9"];
    let sent = [(pair.left.ifname.as_str(), 5), (left.as_str(), 7)];
    let args = [ports.as_slice(), &rest].concat();
    let done = while_running(&pair, &args, sent, "packets");
    let lines = done.stdout.lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let flows = lines.filter(|line| line["type"] == "flow");
    let of = |flow: Value| (flow["interface"].as_u64(), flow["packets"].as_u64());
    let mut found: Vec<_> = flows.map(of).collect();
    found.sort_unstable();
    let expected = [(Some(0), Some(5)), (Some(1), Some(7))];
    assert_eq!(found, expected, "{}", done.stdout);
}

#[test]
fn a_deleted_interface_is_named() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let [left, right] = second_pair(&pair);
    let args = ["capture", &pair.right.ifname, &right];
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    pair.left.ns.ip(["link", "delete", &left]).unwrap();
    let done = process.wait(LIMIT).unwrap();
    assert_eq!(done.code(), Some(4), "{}", done.stderr);
    let words = format!("{right}: the interface has been deleted");
    assert!(done.stderr.contains(&words), "{}", done.stderr);
    // Named twice, each packet would be captured twice.
    let args = ["capture", &pair.right.ifname, &pair.right.ifname];
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    let done = process.wait(LIMIT).unwrap();
    assert!(done.stderr.contains("it is given twice"), "{}", done.stderr);
}
