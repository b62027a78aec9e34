//! `barewire guard`: metrics, the SSH session it runs in, and rule files read without root.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use lab::metrics::scrape;
use lab::oracle::TempFile;
use lab::packet::pour;
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};

use crate::guard_flood::{guard, stop};

const LIMIT: Duration = Duration::from_secs(60);
const FLOOD: &str = "udp dst port 9";

#[test]
fn metrics_follow_the_counters_without_root() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = [
        "--drop",
        FLOOD,
        "--metrics",
        "127.0.0.1:0",
        "--user",
        "nobody",
    ];
    let process = guard(&pair, &args);
    process.wait_stderr("/metrics", LIMIT).unwrap();
    let page = scrape(&pair.right.ns, &process).unwrap();
    assert!(
        page.contains("# TYPE barewire_guard_packets_total counter"),
        "{page}"
    );
    pour(&pair, 4, 500);
    let line = format!(
        "barewire_guard_rule_dropped_packets_total{{interface=\"{}\",rule=\"{FLOOD}\"}} 500\n",
        pair.right.ifname
    );
    let shows = || {
        (0..3_000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            scrape(&pair.right.ns, &process).unwrap().contains(&line)
        })
    };
    assert!(
        shows(),
        "{line}: {}",
        scrape(&pair.right.ns, &process).unwrap()
    );
    stop(process);
}

/// Runs a guard as if from an SSH session to the right end; returns its output.
fn from_ssh(pair: &Pair, args: &[&str]) -> Process {
    let mut command = pair.right.ns.command(barewire().unwrap());
    let (client, server) = (pair.left.ipv4, pair.right.ipv4);
    command.env("SSH_CONNECTION", format!("{client} 50000 {server} 22"));
    command.args(["guard", &pair.right.ifname]).args(args);
    Process::spawn(&mut command).unwrap()
}

#[test]
fn rules_that_cut_the_ssh_session_are_refused() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let client = pair.left.ipv4.to_string();
    for args in [&["--drop", "tcp"][..], &["--deny", &client]] {
        let finished = from_ssh(&pair, args).wait(LIMIT).unwrap();
        assert!(!finished.success(), "{args:?}");
        assert!(
            finished.stderr.contains("this SSH session"),
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains("--force"), "{}", finished.stderr);
        assert_eq!(pair.right.xdp().unwrap(), None);
    }
    for args in [
        &["--drop", "tcp", "--force"][..],
        &["--drop", "tcp", "--dry-run"],
        &["--drop", "tcp", "--allow", &client],
        &["--drop", "udp"],
    ] {
        let mut process = from_ssh(&pair, args);
        process.wait_stderr("guarding", LIMIT).unwrap();
        process
            .stop(Signal::SIGINT, LIMIT)
            .unwrap()
            .checked()
            .unwrap();
    }
}

#[test]
fn a_reload_that_cuts_the_ssh_session_keeps_the_old_rules() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let rule = |text: &str| {
        let text = format!("[[rule]]\nmatch = \"{text}\"\nverdict = \"drop\"\n");
        std::fs::write(file.path(), text).unwrap();
    };
    rule(FLOOD);
    let mut process = from_ssh(&pair, &["--rules", file.path().to_str().unwrap()]);
    process.wait_stderr("guarding", LIMIT).unwrap();
    rule("ip");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("this SSH session", LIMIT).unwrap();
    process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
}

#[test]
fn the_user_reloads_readable_files_and_is_warned_about_others() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let rule = format!("[[rule]]\nmatch = \"{FLOOD}\"\nverdict = \"drop\"\n");
    std::fs::write(file.path(), &rule).unwrap();
    let mode = |mode| std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode));
    mode(0o644).unwrap();
    let args = ["--rules", file.path().to_str().unwrap(), "--user", "nobody"];
    let process = guard(&pair, &args);
    std::fs::write(file.path(), format!("{rule}{}", rule.replace('9', "10"))).unwrap();
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded: 2 rules", LIMIT).unwrap();
    pour(&pair, 1, 100);
    assert_eq!(stop(process)["dropped"], 100);
    mode(0o600).unwrap();
    let process = guard(&pair, &args);
    process
        .wait_stderr("will not reload the rules as user nobody", LIMIT)
        .unwrap();
    process.signal(Signal::SIGHUP).unwrap();
    process
        .wait_stderr("the old rules stay in force", LIMIT)
        .unwrap();
    pour(&pair, 1, 100);
    assert_eq!(stop(process)["dropped"], 100);
}
