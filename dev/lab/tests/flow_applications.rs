//! `barewire flows --decode`: applications beside the records of a capture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::process::{Process, barewire};
use serde_json::Value;

/// Flows and summary of the lab's own capture, with these arguments.
fn flows(args: &[&str]) -> (Vec<Value>, Value) {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures");
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json"]).args(args);
    command.arg(folder.join("lab-mix.pcapng"));
    let finished = Process::spawn(&mut command)
        .unwrap()
        .wait(Duration::from_secs(120))
        .unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let lines = finished.stdout.lines();
    let mut lines: Vec<Value> = lines.map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = lines.pop().expect("a summary");
    (lines, summary)
}

/// How many records have an application of each protocol, by what was seen.
fn seen(flows: &[Value]) -> BTreeMap<&str, usize> {
    let mut seen = BTreeMap::new();
    for flow in flows {
        let application = &flow["application"];
        if application["by"] == "content" {
            let name = application["protocol"].as_str().expect("a name");
            *seen.entry(name).or_insert(0) += 1;
        }
    }
    seen
}

#[test]
fn applications_stand_beside_their_flows() {
    let (flows_with, summary) = flows(&["--decode", "all"]);
    let counts = seen(&flows_with);
    for protocol in ["tls", "http", "dns"] {
        assert!(counts.get(protocol).is_some_and(|n| *n >= 1), "{counts:?}");
    }
    for flow in &flows_with {
        let application = &flow["application"];
        match application["protocol"].as_str() {
            Some("tls") if application["by"] == "content" => {
                let ja4 = application["ja4"].as_str().expect("a fingerprint");
                assert!(ja4.len() == 36 && ja4.starts_with("t1"), "{application}");
                assert!(application["tls_version"].is_string(), "{application}");
            }
            Some("http") if application["by"] == "content" => {
                assert!(application["http_host"].is_string(), "{application}");
                assert!(application["http_status"].is_u64(), "{application}");
            }
            Some("dns") if application["by"] == "content" => {
                assert!(application["dns_name"].is_string(), "{application}");
            }
            _ => {}
        }
    }
    let applications = &summary["applications"];
    let count = |name: &str| applications[name].as_u64().expect("a number");
    let rejected = applications["rejected"].as_object().expect("reasons");
    let rejected: u64 = rejected.values().filter_map(Value::as_u64).sum();
    let known = count("done") + count("unfinished") + rejected;
    assert_eq!(count("flows"), known, "{applications}");
    assert!(count("done") >= 3, "{applications}");

    // Only what was asked for, and nothing unless it was.
    let (only, _) = flows(&["--decode", "dns"]);
    let others = ["tls", "http", "ssh"];
    assert!(seen(&only).contains_key("dns"));
    assert!(others.iter().all(|name| !seen(&only).contains_key(name)));
    let (without, summary) = flows(&[]);
    assert!(without.iter().all(|flow| flow["application"].is_null()));
    assert!(summary["applications"].is_null());
    assert_eq!(without.len(), flows_with.len());
}

#[test]
fn each_record_of_a_long_flow_has_its_application() {
    let (flows_once, _) = flows(&["--decode", "http"]);
    let (flows_often, summary) = flows(&["--decode", "http", "--active-timeout", "1ms"]);
    assert!(flows_often.len() > flows_once.len());
    let count = |flows: &[Value]| seen(flows).get("http").copied().unwrap_or(0);
    assert!(count(&flows_often) > count(&flows_once));
    assert_eq!(summary["imbalance"], 0);
}
