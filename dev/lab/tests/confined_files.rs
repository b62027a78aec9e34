//! Access to files is restricted once everything is open.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::capture::{Folder, LIMIT};
use lab::packet::pour;
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

/// The hint of a refused command.
const HINT: &str = "--no-landlock";

/// Whether this kernel has Landlock.
macro_rules! require_landlock {
    () => {
        require!(skip::lab());
        if let Err(error) = sys::landlock::abi() {
            lab::skip!(skip::Missing::Machine(format!("Landlock: {error}")));
        }
    };
}

/// Replaces a folder by a link to `target`, atomically: a program finds one or the other.
fn lead_away(folder: &Path, target: &Path) {
    let link = folder.with_extension("moved");
    symlink(target, &link).unwrap();
    renameat2(
        AT_FDCWD,
        folder,
        AT_FDCWD,
        &link,
        RenameFlags::RENAME_EXCHANGE,
    )
    .unwrap();
}

fn wait_for(what: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if what() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not happen");
}

/// A capture to a set of files, whose directory is replaced by a link to another one.
fn capture_led_away(pair: &Pair, more: &[&str]) -> (Process, Folder) {
    let folder = Folder::new();
    let [set, outside] = ["set", "outside"].map(|name| folder.at(name));
    fs::create_dir(&set).unwrap();
    fs::create_dir(&outside).unwrap();
    let file = set.join("x.pcap");
    let path = file.to_str().unwrap();
    let args = ["capture", &pair.right.ifname, "-w", path, "-C", "1k", "-U"];
    let process = pair
        .right
        .ns
        .spawn(barewire().unwrap(), [&args, more].concat())
        .unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    pour(pair, 1, 100);
    wait_for(|| set.join("x3.pcap").exists());
    lead_away(&set, &outside);
    pour(pair, 1, 100);
    (process, folder)
}

#[test]
fn a_set_of_files_stays_in_its_directory() {
    require_landlock!();
    let pair = Veth::new().create().unwrap();
    let (mut process, folder) = capture_led_away(&pair, &[]);
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    for words in ["set/x", "Permission denied", HINT] {
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
    }
    assert_eq!(fs::read_dir(folder.at("outside")).unwrap().count(), 0);
    let (mut process, folder) = capture_led_away(&pair, &["--no-landlock"]);
    wait_for(|| fs::read_dir(folder.at("outside")).unwrap().count() > 1);
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    finished.checked().unwrap();
}

#[test]
fn guard_reloads_rules_from_the_same_directory_only() {
    require_landlock!();
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new();
    for name in ["rules", "lists", "outside"] {
        fs::create_dir(folder.at(name)).unwrap();
    }
    let [rules, list] = ["rules/a.toml", "lists/a"].map(|name| folder.at(name));
    let text = format!("[[rule]]\nsources = {list:?}\nverdict = \"drop\"\n");
    fs::write(&list, "192.0.2.0/24\n").unwrap();
    fs::write(&rules, &text).unwrap();
    fs::write(folder.at("outside/a.toml"), &text).unwrap();
    let path = rules.to_str().unwrap();
    for (more, is_confined) in [(&[][..], true), (&["--no-landlock"], false)] {
        let args = ["guard", &pair.right.ifname, "--rules", path];
        let mut process = pair
            .right
            .ns
            .spawn(barewire().unwrap(), [&args, more].concat())
            .unwrap();
        process.wait_stderr("guarding", LIMIT).unwrap();
        // As editors save files: a new file is renamed.
        fs::write(folder.at("rules/new"), text.repeat(2)).unwrap();
        fs::rename(folder.at("rules/new"), &rules).unwrap();
        process.signal(Signal::SIGHUP).unwrap();
        process.wait_stderr("reloaded: 2 rules", LIMIT).unwrap();
        lead_away(&folder.at("rules"), &folder.at("outside"));
        process.signal(Signal::SIGHUP).unwrap();
        if is_confined {
            process.wait_stderr("Permission denied", LIMIT).unwrap();
            process.wait_stderr(HINT, LIMIT).unwrap();
        } else {
            process.wait_stderr("reloaded: 1 rule", LIMIT).unwrap();
        }
        fs::remove_file(folder.at("rules")).unwrap();
        fs::rename(folder.at("rules.moved"), folder.at("rules")).unwrap();
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        finished.checked().unwrap();
    }
}

#[test]
fn a_reload_adds_no_export_in_another_directory() {
    require_landlock!();
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new();
    for name in ["here", "there"] {
        fs::create_dir(folder.at(name)).unwrap();
    }
    let config = folder.at("here/flows.toml");
    let write = |names: &[&str]| {
        let export = |name: &&str| format!("csv:{}", folder.at(name).display());
        let exports: Vec<String> = names.iter().map(export).collect();
        let port = &pair.right.ifname;
        fs::write(
            &config,
            format!("port = {port:?}\nplain = true\nexport = {exports:?}\n"),
        )
        .unwrap();
    };
    write(&["here/a.csv"]);
    let args = ["flows", "--config", config.to_str().unwrap()];
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr(&pair.right.ifname, LIMIT).unwrap();
    write(&["here/a.csv", "there/b.csv"]);
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("nothing was changed", LIMIT).unwrap();
    process.wait_stderr(HINT, LIMIT).unwrap();
    write(&["here/a.csv", "here/b.csv"]);
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("b.csv: export started", LIMIT).unwrap();
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    finished.checked().unwrap();
    assert_eq!(fs::read_dir(folder.at("there")).unwrap().count(), 0);
}
