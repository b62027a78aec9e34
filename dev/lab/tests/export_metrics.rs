//! The Prometheus metrics of a running probe; the Grafana dashboard in `dist/grafana` and the alert
//! rules in `dist/prometheus`, which use only these.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT};
use lab::process::{Process, barewire};
use lab::{require, skip};
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
    let address = address(&probe);
    // The table is too small for all flows, so there are records before the input ends.
    let page = fetch_until(&address, |page| page.contains("application=\"dns\""));
    drop(pipe);
    probe.wait(LIMIT).unwrap().checked().unwrap();
    page
}

/// The address that the probe has printed.
fn address(probe: &Process) -> String {
    probe.wait_stderr("/metrics", LIMIT).unwrap();
    let output = probe.stderr();
    let (_, rest) = output.split_once("metrics at http://").expect(&output);
    rest.split('/').next().unwrap().to_owned()
}

/// The first page for which this holds.
fn fetch_until(address: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + LIMIT;
    loop {
        let page = fetch(address, "/metrics").unwrap_or_default();
        if is_wanted(&page) {
            return page;
        }
        assert!(Instant::now() < until, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn fetch(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
        .ok()?;
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

/// Whether it is the name of a metric.
fn is_metric(word: &&str) -> bool {
    word.starts_with("barewire_") || word.starts_with("process_")
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
        let names = words(expr).into_iter().filter(is_metric);
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
        .filter(|name| name.starts_with("barewire_") && !asked.contains(*name))
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
    let of_dns = "barewire_application_packets_total{interface=\"-\",application=\"dns\",\
                  by=\"content\"} ";
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

/// Lint rules of Prometheus, of the alert rules and of their unit tests.
#[test]
fn promtool_accepts_the_page_and_the_alert_rules() {
    require!(skip::program("promtool", "prometheus"));
    let page = page();
    let folder = Folder::new("promtool");
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    std::fs::write(folder.file("page"), body).unwrap();
    let rules = root().join("dist/prometheus/barewire.rules.yml");
    let tests = root().join("testdata/prometheus/barewire.test.yml");
    for script in [
        format!("promtool check metrics < {}", folder.file("page")),
        format!("promtool check rules --lint-fatal {}", rules.display()),
        format!("promtool test rules {}", tests.display()),
    ] {
        let mut command = Command::new("sh");
        let mut finished = Process::spawn(command.args(["-c", &script])).unwrap();
        let finished = finished.wait(LIMIT).unwrap();
        let (out, err) = (&finished.stdout, &finished.stderr);
        assert_eq!(finished.code(), Some(0), "{script}: {out}{err}");
    }
    // Every metric of the rules is served, and every alert has a unit test.
    let families = served(&page);
    let text = std::fs::read_to_string(&rules).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    for line in lines.filter(|line| !line.contains("summary:") && !line.contains("description:")) {
        for name in words(line).into_iter().filter(is_metric) {
            assert!(families.contains_key(name), "{name} is not served");
        }
    }
    let tested = std::fs::read_to_string(&tests).unwrap();
    for alert in text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(
            tested.contains(&format!("alertname: {alert}")),
            "{alert} has no unit test"
        );
    }
}

#[test]
fn the_process_and_its_health_are_served() {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "-", "--metrics", "127.0.0.1:0", "--plain"]);
    let mut probe = Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap();
    let mut pipe = probe.take_stdin().unwrap();
    pipe.write_all(&packets(0..1, 123)).unwrap();
    let address = address(&probe);
    let page = fetch_until(&address, |page| page.contains("barewire_packets_total"));
    for name in [
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(page.contains(&format!("\n{name} ")), "{name}: {page}");
    }
    let health = fetch(&address, "/healthz").unwrap();
    assert!(
        health.starts_with("HTTP/1.1 200 OK") && health.ends_with("\r\nok\n"),
        "{health}"
    );
    // All but those of the process and the build name the interface.
    for line in page.lines().filter(|line| line.starts_with("barewire_")) {
        let is_named = line.contains("{interface=\"-\"") || line.starts_with("barewire_build_info");
        assert!(is_named, "{line}");
    }
    drop(pipe);
    probe.wait(LIMIT).unwrap().checked().unwrap();
}

/// A capture of packets of one flow each to two ports, 28 bytes each: without a file header unless
/// the range begins at 0.
fn packets(range: std::ops::Range<u32>, port: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    if range.start == 0 {
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101] {
            bytes.extend(word.to_le_bytes());
        }
    }
    for n in range {
        for port in [port, 9999] {
            let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
            packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0xc3, 0x50]);
            packet.extend(port.to_be_bytes());
            packet.extend([0, 8, 0, 0]);
            let head = [1_700_000_000, n * 1000, 28, 28];
            bytes.extend(head.iter().flat_map(|word: &u32| word.to_le_bytes()));
            bytes.extend(packet);
        }
    }
    bytes
}

/// Two flows that do not end: the counts by application follow them all the same.
#[test]
fn counts_by_application_grow_while_flows_live() {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "-", "--metrics", "127.0.0.1:0", "--plain"]);
    let mut probe = Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap();
    let mut pipe = probe.take_stdin().unwrap();
    pipe.write_all(&packets(0..100, 123)).unwrap();
    pipe.flush().unwrap();
    let address = address(&probe);
    let has = |page: &str, count: u32| {
        let named = [("ntp", "port"), ("unknown", "none")].map(|(name, by)| {
            let labels = format!("{{interface=\"-\",application=\"{name}\",by=\"{by}\"}}");
            let packets = format!("barewire_application_packets_total{labels} {count}\n");
            let bytes = format!("barewire_application_bytes_total{labels} {}\n", 28 * count);
            page.contains(&packets) && page.contains(&bytes)
        });
        named == [true, true]
    };
    for count in [100, 250] {
        if count > 100 {
            pipe.write_all(&packets(100..count, 123)).unwrap();
            pipe.flush().unwrap();
        }
        let page = fetch_until(&address, |page| has(page, count));
        assert!(
            page.contains("barewire_flows_live{interface=\"-\"} 2\n"),
            "{page}"
        );
        let records = "barewire_application_records_total{interface=\"-\",application=\"ntp\"";
        let ended = page.lines().find(|line| line.starts_with(records));
        assert!(ended.is_none_or(|line| line.ends_with(" 0")), "{ended:?}");
    }
    drop(pipe);
    probe.wait(LIMIT).unwrap().checked().unwrap();
}
