//! The Prometheus metrics of a running probe, and the Grafana dashboard in `dist/grafana`, which
//! uses only these.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT};
use lab::process::{Process, barewire};
use serde_json::Value;

/// Labels that Prometheus adds.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A page of a running probe, which reads a capture from a pipe that stays open.
fn page() -> String {
    let folder = Folder::new("metrics");
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "-", "--decode", "all", "--table-size", "16"]);
    command.args(["--metrics", "127.0.0.1:0", "--plain", "--export"]);
    command.arg(format!("json:{}", folder.0.join("flows.json").display()));
    let mut probe = Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap();
    let mut pipe = probe.take_stdin().unwrap();
    let capture = root().join("testdata/captures/lab-mix.pcapng");
    pipe.write_all(&std::fs::read(capture).unwrap()).unwrap();
    pipe.flush().unwrap();
    probe.wait_stderr("/metrics", LIMIT).unwrap();
    let output = probe.stderr();
    let (_, rest) = output.split_once("metrics at http://").expect(&output);
    let address = rest.split('/').next().unwrap();
    let until = Instant::now() + LIMIT;
    let page = loop {
        let page = fetch(address).unwrap_or_default();
        // The table is too small for all flows, so there are records before the input ends.
        if page.contains("{application=\"dns\"") {
            break page;
        }
        assert!(Instant::now() < until, "no application in {page}");
        std::thread::sleep(Duration::from_millis(50));
    };
    drop(pipe);
    probe.wait(LIMIT).unwrap().checked().unwrap();
    page
}

fn fetch(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    Some(page)
}

/// Names of the metric families served, and the labels of their values.
fn served(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut families = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            families.insert(name.to_owned(), BTreeSet::new());
            continue;
        }
        let (name, rest) = line.split_once(['{', ' ']).unwrap_or((line, ""));
        if let Some(labels) = families.get_mut(name) {
            let pairs = rest.split("\",").filter_map(|pair| pair.split_once("=\""));
            labels.extend(pairs.map(|(label, _)| label.to_owned()));
        }
    }
    families
}

/// Words of a PromQL expression, without strings.
fn words(expr: &str) -> Vec<&str> {
    let outside = expr.split('"').step_by(2);
    outside
        .flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Labels that an expression groups by or selects, and those in its legend.
fn labels(expr: &str, legend: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for open in ["by (", "on (", "group_left (", "without ("] {
        for rest in expr.split(open).skip(1) {
            found.extend(
                words(rest.split(')').next().unwrap())
                    .iter()
                    .map(ToString::to_string),
            );
        }
    }
    for rest in expr.split('{').skip(1) {
        let selected = words(rest.split('}').next().unwrap());
        found.extend(selected.iter().map(ToString::to_string));
    }
    for rest in legend.split("{{").skip(1) {
        found.insert(rest.split("}}").next().unwrap().to_owned());
    }
    found
}

/// Expressions with their legends.
fn expressions(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            if let Some(expr) = members.get("expr").and_then(Value::as_str) {
                let legend = members["legendFormat"].as_str().unwrap_or_default();
                found.push((expr.to_owned(), legend.to_owned()));
            }
            members
                .values()
                .for_each(|member| expressions(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_uses_metrics_that_the_probe_serves() {
    let page = page();
    let families = served(&page);
    let file = root().join("dist/grafana/barewire.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut all = Vec::new();
    expressions(&dashboard, &mut all);
    assert!(all.len() > 20, "{}", all.len());
    let mut asked = BTreeSet::new();
    for (expr, legend) in &all {
        let names = words(expr)
            .into_iter()
            .filter(|word| word.starts_with("barewire_"));
        let names: Vec<&str> = names.collect();
        assert!(!names.is_empty(), "{expr}");
        let mut known: BTreeSet<String> = OF_PROMETHEUS.map(str::to_owned).into();
        for name in names {
            let labels = families.get(name);
            let labels = labels.unwrap_or_else(|| panic!("{name} is not served: {expr}"));
            known.extend(labels.iter().cloned());
            asked.insert(name.to_owned());
        }
        for label in labels(expr, legend) {
            assert!(
                known.contains(&label),
                "no label {label}: {expr} ({legend})"
            );
        }
    }
    let unused: Vec<_> = families
        .keys()
        .filter(|name| !asked.contains(*name))
        .collect();
    assert!(
        unused.is_empty(),
        "served, and not in the dashboard: {unused:?}"
    );
    for list in dashboard["templating"]["list"].as_array().unwrap() {
        let query = list["definition"].as_str().unwrap_or_default();
        for name in words(query)
            .into_iter()
            .filter(|word| word.starts_with("barewire_"))
        {
            assert!(families.contains_key(name), "{query}");
        }
    }
}

#[test]
fn build_information_and_applications_are_among_the_figures() {
    let page = page();
    let version = env!("CARGO_PKG_VERSION");
    let info = format!("barewire_build_info{{version=\"{version}\",");
    let line = page
        .lines()
        .find(|line| line.starts_with(&info))
        .expect(&page);
    assert!(line.ends_with("} 1"), "{line}");
    let of_dns = "barewire_application_packets_total{application=\"dns\",by=\"content\"} ";
    let line = page
        .lines()
        .find(|line| line.starts_with(of_dns))
        .expect(&page);
    assert_ne!(line.strip_prefix(of_dns), Some("0"));
    // Everything on the page is documented, under its own name or after a common prefix.
    let document = std::fs::read_to_string(root().join("docs/export.md")).unwrap();
    for name in served(&page).keys() {
        let short = name.rsplitn(3, '_').collect::<Vec<_>>();
        let short = format!("…_{}_{}", short[1], short[0]);
        let own = format!("`{name}`");
        let is_there = document.contains(&own) || document.contains(&short);
        assert!(is_there, "docs/export.md has no {name}");
    }
}
