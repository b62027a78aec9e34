//! `barewire guard` when its interface is deleted: it ends with the code for a device that went
//! away, and the counts up to then.

use std::time::Duration;

use lab::oracle::TempFile;
use lab::packet::pour;
use lab::process::barewire;
use lab::{Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);

fn ends_with_4(args: &[&str]) {
    let pair = Veth::new().create().unwrap();
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let mut process = pair.right.ns.spawn(barewire().unwrap(), &args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    pour(&pair, 1, 100);
    pair.right.delete().unwrap();
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(4), "{args:?}: {}", finished.stderr);
    let stderr = &finished.stderr;
    assert!(
        stderr.contains("the interface was deleted"),
        "{args:?}: {stderr}"
    );
    let last = finished.stdout.lines().last().unwrap_or_default();
    let totals: Value = serde_json::from_str(last).unwrap();
    assert_eq!(totals["type"], "totals", "{args:?}: {totals}");
    assert!(totals["seen"].as_u64() >= Some(100), "{args:?}: {totals}");
}

#[test]
fn a_guard_whose_interface_is_deleted_ends_with_code_4() {
    require!(skip::lab());
    let samples = TempFile::new(".pcapng");
    let file = samples.path().to_str().unwrap();
    for args in [
        &["--mode", "native", "--drop", "udp"][..],
        &["--mode", "generic", "--drop", "udp"],
        &["--hook", "tc", "--drop", "udp"],
        &["--detect", "install"],
        &["--drop", "udp", "--sample-drops", file],
        &["--steer", "udp", "--give-back", "live"],
    ] {
        ends_with_4(args);
    }
}
