//! Hints match the problem: that for a missing file does not mention interfaces.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use crate::export::{Folder, flood};
use lab::process::{Process, barewire};
use lab::{Finished, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    Process::spawn(command.args(args))
        .unwrap()
        .wait(LIMIT)
        .unwrap()
}

/// The only hint that a command gives.
fn hint(finished: &Finished) -> String {
    let text = &finished.stderr;
    let mut hints = text.lines().filter_map(|line| line.strip_prefix("hint: "));
    let hint = hints.next().unwrap_or_else(|| panic!("no hint: {text}"));
    assert_eq!(hints.next(), None, "{text}");
    hint.to_owned()
}

#[test]
fn hints_point_to_the_problem() {
    let folder = Folder::new("hints");
    let at = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (input, config) = (at("input.pcap"), at("flows.toml"));
    std::fs::write(&input, flood(3)).unwrap();
    std::fs::write(&config, "port = \"lo\"\nexport = [\"xml:flows\"]\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let (packed, missing) = (at("out.xz"), at("missing"));
    for (args, part) in [
        (&["flows", &input, "--asn", &missing][..], "check the path"),
        (&["flows", "--config", &missing], "check the path"),
        (&["capture", "-r", &input, "-F", &missing], "check the path"),
        (&["capture", "-r", &missing], "check the path"),
        (
            &["flows", &input, "--metrics", &metrics],
            "choose another port",
        ),
        (
            &["capture", "-r", &input, "udp", &input],
            "all files to read come before the filter",
        ),
        (
            &["nic", "bind", "vfio", "no-such-card"],
            "`barewire nic list`",
        ),
        (&["nic", "bind"], "see `barewire nic bind --help`"),
        (&["flows", "query"], "see `barewire flows query --help`"),
        (
            &["capture", "lo", "-C", "none", "-w", "x"],
            "see `barewire capture --help`",
        ),
        (
            &["flows", &input, "--export", "xml:flows"],
            "use one of ipfix",
        ),
        (&["flows", "--config", &config], "use one of ipfix"),
        (
            &["capture", "-r", &input, "-w", &packed],
            "see `barewire capture --help`",
        ),
    ] {
        let finished = run(args);
        assert_ne!(finished.code(), Some(0), "{args:?}");
        let hint = hint(&finished);
        assert!(hint.contains(part), "{args:?}: {hint}");
        assert!(!hint.contains("barewire devices"), "{args:?}: {hint}");
    }
    let refused = run(&["capture", "-r", &input, "-w", &packed]).stderr;
    assert!(refused.contains("not compressed as .xz"), "{refused}");
    assert!(!folder.0.join("out.xz").exists());
    // A directory with that name is not an interface either.
    let mut command = Command::new(barewire().unwrap());
    command
        .current_dir(&folder.0)
        .args(["capture", "missing-if"]);
    std::fs::create_dir(at("missing-if")).unwrap();
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert!(
        hint(&finished).contains("./missing-if"),
        "{}",
        finished.stderr
    );
}

#[test]
fn fields_that_a_format_lacks_are_named() {
    let folder = Folder::new("fields");
    let input = folder.0.join("input.pcap");
    std::fs::write(&input, flood(3)).unwrap();
    let input = input.to_str().unwrap();
    for (format, fields, is_selected) in [
        ("csv", "full", false),
        ("eve", "timing", true),
        ("json", "full", false),
        ("csv", "standard", false),
    ] {
        let url = format!("{format}:{}/out", folder.path());
        let done = run(&["flows", input, "--fields", fields, "--export", &url]);
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let words = "cannot hold the fields of --fields";
        assert_eq!(done.stderr.contains(words), is_selected, "{}", done.stderr);
    }
}

#[test]
fn without_sys_the_hint_is_about_sys() {
    require!(skip::lab(), skip::program("unshare", "util-linux"));
    let mut command = Command::new("unshare");
    let script = "umount -l /sys && exec \"$0\" capture afxdp:lo -c 1 --duration 1";
    command.args([
        "-m",
        "-n",
        "sh",
        "-c",
        &format!("ip link set lo up; {script}"),
    ]);
    command.arg(barewire().unwrap());
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert_eq!(hint(&finished), "is /sys mounted?");
}
