//! `barewire scan` with the options of nmap(1) and masscan(8): each option of both manuals is
//! accepted, replaced, or refused by name with a reason; none is an unknown argument. So are the
//! files that `masscan --echo` writes.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::{Finished, barewire};
use lab::{Netns, Pair, Veth, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn pair() -> Pair {
    let pair = Veth::new().create().unwrap();
    let router = pair.right.ipv4.to_string();
    let route = ["route", "add", "198.18.0.0/16", "via", &router];
    pair.left.ns.ip(route).unwrap();
    pair
}

fn scan(ns: &Netns, args: &[&str]) -> Finished {
    let args = [&["scan", "--dry-run"], args].concat();
    let mut process = ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap()
}

/// A manual page as text, without formatting; `None` if it is not installed.
fn manual(page: &str) -> Option<String> {
    let script = format!("MANWIDTH=200 man -P cat {page} | col -bx");
    let output = Command::new("sh").args(["-c", &script]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text.len() > 5_000).then_some(text)
}

/// Options in the headings of a manual page: the words that begin with a dash, up to the text in
/// parentheses of nmap's, or the colon of masscan's.
fn options(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let line = line.trim_start().trim_start_matches('•').trim_start();
        if !line.starts_with('-') {
            continue;
        }
        let heading = line.split(['(', ':']).next().unwrap_or_default();
        for word in heading.split([' ', ',', ';', '=']) {
            let letters = word.trim_start_matches('-');
            let is_option = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            let starts = letters.starts_with(|letter: char| letter.is_ascii_alphanumeric());
            if word.starts_with('-') && starts && letters.bytes().all(is_option) {
                found.insert(word.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_option_of_both_manuals_is_accepted_or_refused_by_name() {
    require!(
        skip::lab(),
        skip::program("man", "man-db"),
        skip::program("col", "bsdextrautils")
    );
    let pair = pair();
    // `-6` is refused, as -T is; the value is the same for all that take one.
    for (page, expected) in [("nmap", 100), ("masscan", 40)] {
        let Some(text) = manual(page) else {
            let what = "the manual pages of nmap and masscan".into();
            lab::skip!(skip::Missing::Machine(what));
        };
        let found = options(&text);
        assert!(found.len() >= expected, "{page}: {found:?}");
        for option in found {
            // The manual's own examples of values.
            if ["-oXscan", "-p1-65535"].contains(&option.as_str()) {
                continue;
            }
            let run = scan(&pair.left.ns, &[&option, "1", "198.18.4.1", "-p80"]);
            let is_known = !run.stderr.contains("unexpected argument")
                && !run.stderr.contains("there is no such scan");
            assert!(is_known, "{page} {option}: {}", run.stderr);
            // It is refused, or the scan runs or says what is wrong.
            let says = |start: &str| run.stderr.contains(start);
            let is_said = run.success() || says("barewire: ") || says("error: ");
            assert!(is_said, "{page} {option}: {run:?}");
            if run.status.code() != Some(0) && run.stderr.contains("not an option") {
                assert!(run.stderr.contains("hint: "), "{option}: {}", run.stderr);
            }
        }
    }
}

#[test]
fn files_that_masscan_writes_are_read() {
    require!(skip::lab(), skip::program("masscan", "masscan"));
    let pair = pair();
    let (left, right) = (&pair.left, &pair.right);
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join("-");
    let (own, router) = (left.ipv4.to_string(), mac(right.mac));
    let base = [
        "198.18.4.0/24",
        "-e",
        &left.ifname,
        "--router-mac",
        &router,
        "--echo",
    ];
    for (more, port_count) in [
        (&["-p80"][..], 1),
        // An echo request, too.
        (&["-p80,U:53,100-200", "--ping"], 104),
        (&["-p80", "--banners", "--open-only", "--wait", "3"], 1),
        (
            &["-p443", "--adapter-ip", &own, "--source-port", "40000"],
            1,
        ),
        (&["-p80", "--exclude", "198.18.4.7", "--retries", "2"], 1),
        (&["-p80", "--http-user-agent", "x/1", "--rate", "1000.5"], 1),
        (&["-p80", "--shard", "1/3", "--seed", "7"], 1),
        (&["-p80", "-oX", "out.xml", "--rotate-dir", "/tmp"], 1),
    ] {
        let args = [&base[..], more].concat();
        let text = left.ns.exec("masscan", args).unwrap();
        let file = TempFile::new(".conf");
        std::fs::write(file.path(), &text).unwrap();
        let conf = file.path().to_str().unwrap();
        let plan = plan(&left.ns, &["-c", conf]);
        let (ports, addrs) = (plan["ports"].as_u64(), plan["addresses"].as_u64());
        assert!(
            ports >= Some(port_count) && addrs >= Some(255),
            "{more:?}\n{text}\n{plan}"
        );
        // With a byte order mark, as Windows' editors save it.
        std::fs::write(file.path(), format!("\u{feff}{text}")).unwrap();
        assert_eq!(
            self::plan(&left.ns, &["-c", conf])["ports"].as_u64(),
            ports,
            "{more:?}"
        );
    }
}

/// The plan of a dry run.
fn plan(ns: &Netns, args: &[&str]) -> Value {
    let run = scan(ns, &[&["--json"], args].concat());
    let run = run.checked().unwrap();
    serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap()
}

/// The number of probes in a dry run.
fn target_count(pair: &Pair, args: &[&str]) -> u64 {
    let plan = plan(&pair.left.ns, &[&["-p80"], args].concat());
    plan["probes"].as_u64().unwrap_or_else(|| panic!("{plan}"))
}

#[test]
fn targets_are_written_as_in_nmap() {
    require!(skip::lab());
    let pair = pair();
    for (args, count) in [
        (&["198.18.4.1,2,7"][..], 3),
        (&["198.18.4-5.1,2,7-9"], 10),
        (&["198.18.4.4 - 198.18.4.6"], 3),
        (&["198.18.4.4", "-", "198.18.4.6"], 3),
        (&["198.18.4.1:http"], 1),
        (&["198.18.4.1:80-90"], 11),
        (&["198.18.4.1:80,90", "198.18.4.9"], 3),
    ] {
        assert_eq!(target_count(&pair, args), count, "{args:?}");
    }
    let file = TempFile::new(".txt");
    std::fs::write(file.path(), "\u{feff}198.18.4.1\r\n198.18.4.2,3\r\n").unwrap();
    let name = file.path().to_str().unwrap();
    assert_eq!(target_count(&pair, &["--target-file", name]), 3);
    let run = scan(&pair.left.ns, &["-p80", "198.18.4.1", "--rate", "max"]);
    assert!(!run.stderr.contains("or max"), "{}", run.stderr);
    let zone = format!("fe80::1%{}", pair.left.ifname);
    let run = scan(&pair.left.ns, &["-p80", &zone, "-e", "lo"]);
    assert!(run.stderr.contains("one interface"), "{}", run.stderr);
}
