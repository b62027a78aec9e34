//! Commands about the machine: `devices`, `doctor`, and those generated from the flags.

use std::process::Command;
use std::time::Duration;

use lab::process::{Process, Signal, barewire};
use lab::{Finished, Netns, Veth, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

fn run(ns: Option<&Netns>, args: &[&str]) -> Finished {
    let program = barewire().unwrap();
    let mut command = match ns {
        Some(ns) => ns.command(program),
        None => Command::new(program),
    };
    Process::spawn(command.args(args))
        .unwrap()
        .wait(LIMIT)
        .unwrap()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {}", finished.stdout))
}

#[test]
fn devices_lists_queues_modes_and_xdp_programs() {
    lab::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let ns = &pair.right.ns;
    let name = pair.right.ifname.as_str();
    let free = json(
        &run(Some(ns), &["devices", name, "--json"])
            .checked()
            .unwrap(),
    );
    let device = &free["interfaces"][0];
    assert_eq!(device["name"], name);
    assert_eq!(device["driver"]["name"], "veth");
    assert_eq!(device["rx_queues"], 2);
    assert_eq!(device["attach_modes"][0], "native copy");
    assert_eq!(device["xdp"], Value::Array(vec![]));

    let mut command = ns.command(barewire().unwrap());
    command.args(["capture", &format!("afxdp:{name}"), "-w", "/dev/null"]);
    let mut holder = Process::spawn(&mut command).unwrap();
    holder.wait_stderr("listening on", LIMIT).unwrap();
    let held = json(
        &run(Some(ns), &["devices", name, "--json"])
            .checked()
            .unwrap(),
    );
    let xdp = &held["interfaces"][0]["xdp"][0];
    assert_eq!(xdp["attach_mode"], "native");
    assert!(xdp["link_id"].is_u64(), "{xdp}");
    assert_eq!(xdp["processes"][0]["pid"], holder.pid());
    let text = run(Some(ns), &["devices", name]).checked().unwrap();
    assert!(text.stdout.contains("held by barewire"), "{}", text.stdout);
    holder
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();

    let after = json(
        &run(Some(ns), &["devices", name, "--json"])
            .checked()
            .unwrap(),
    );
    assert_eq!(after["interfaces"][0]["xdp"], Value::Array(vec![]));
}

#[test]
fn an_unknown_interface_is_an_error_with_a_hint() {
    let finished = run(None, &["devices", "no-such-if"]);
    assert_eq!(finished.code(), Some(1));
    assert!(
        finished.stderr.contains("no-such-if"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("hint: "), "{}", finished.stderr);
    assert!(finished.stdout.is_empty());
}

#[test]
fn every_problem_that_doctor_finds_has_a_hint() {
    let report = json(&run(None, &["doctor", "--json"]).checked().unwrap());
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 8);
    // Hints of `nic bind` refer to these checks.
    for name in ["IOMMU", "VFIO", "huge pages", "seccomp", "Landlock"] {
        assert!(checks.iter().any(|check| check["check"] == name), "{name}");
    }
    for check in checks {
        let state = check["state"].as_str().unwrap();
        assert!(
            ["yes", "partly", "no", "unknown"].contains(&state),
            "{check}"
        );
        if state == "no" || state == "partly" {
            assert!(check["hint"].is_string(), "{check}");
        }
    }
}

#[test]
fn man_pages_and_completions_cover_every_command() {
    let folder = std::env::temp_dir().join(format!("bw-man-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    run(None, &["man", path]).checked().unwrap();
    let bash = run(None, &["completions", "bash"]).checked().unwrap();
    for name in [
        "capture",
        "send",
        "flows",
        "devices",
        "doctor",
        "completions",
        "man",
    ] {
        let page = folder.join(format!("barewire-{name}.1"));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains(".SH OPTIONS"), "{name}");
        assert!(bash.stdout.contains(name), "{name}");
    }
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(run(None, &["--no-such-flag"]).code(), Some(2));
}

#[test]
fn help_command_prints_the_help_of_a_command() {
    for name in ["capture", "send", "flows", "devices", "doctor"] {
        let [asked, flag] = [["help", name], [name, "--help"]].map(|args| run(None, &args));
        assert_eq!(asked.code(), Some(0), "{}", asked.stderr);
        assert_eq!(asked.stdout, flag.stdout, "{name}");
        assert!(flag.stdout.contains("Usage: barewire"), "{}", flag.stdout);
    }
}

#[test]
fn processors_are_checked_before_anything_is_opened() {
    for args in [
        &["capture", "no-such-if", "--cpus", "0,999"][..],
        &["flows", "no-such-if", "--cpus", "999"],
        &["send", "--udp", "no-such-if", "--cpus", "999"],
        // The former name.
        &["send", "--udp", "no-such-if", "--cpu", "999"],
    ] {
        let finished = run(None, args);
        assert_eq!(finished.code(), Some(1), "{args:?}: {}", finished.stderr);
        let text = &finished.stderr;
        assert!(text.contains("CPU 999"), "{args:?}: {text}");
        assert!(text.contains("hint: usable CPUs: "), "{text}");
    }
}

/// An error message that cannot be printed does not change the exit code.
#[test]
fn a_full_standard_error_does_not_change_the_exit_code() {
    for (args, code) in [
        (&["capture", "no-such-if"][..], 1),
        (&["flows", "/no/such/file"], 1),
        (&["nic", "bind", "vfio", "no-such-card"], 1),
        (&["capture", "--no-such-flag"], 2),
        (&["doctor"], 0),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"]);
        command.arg(barewire().unwrap()).args(args);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(code), "{args:?}");
    }
}

#[test]
fn a_missing_queue_is_named() {
    lab::require!(skip::lab());
    let ns = Netns::new().unwrap();
    let finished = run(Some(&ns), &["capture", "afxdp:lo/99"]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    let why = "there is no queue 99: lo has 1 queue, number 0";
    assert!(finished.stderr.contains(why), "{}", finished.stderr);
    assert!(finished.stderr.contains("hint: "), "{}", finished.stderr);
}

/// Nothing is changed: if a card is in no IOMMU group the port reports that first.
#[test]
fn a_card_without_an_iommu_is_refused() {
    let cards = sys::pci::PciFunction::all().unwrap_or_default();
    let card = cards.iter().find(|card| {
        let is_known = card.id().is_ok_and(|id| port::user_mode_card(id).is_some());
        is_known && card.iommu_group().is_none()
    });
    let Some(card) = card else {
        lab::skip!(skip::Missing::Machine(
            "a card that `vfio:` knows, on a machine without an IOMMU".into()
        ));
    };
    let (address, driver) = (card.address().to_string(), card.driver());
    let port = format!("vfio:{address}");
    let reported = run(None, &["capture", &port, "-c", "1", "-w", "/dev/null"]);
    assert_eq!(reported.code(), Some(1), "{}", reported.stderr);
    assert!(
        reported.stderr.contains("it has no IOMMU group"),
        "{}",
        reported.stderr
    );
    let (_, hint) = reported.stderr.split_once("\nhint: ").expect("a hint");
    assert!(
        hint.contains("firmware") && hint.contains("intel_iommu=on"),
        "{hint}"
    );
    // A dry run, because the host may depend on it.
    let reported = run(None, &["nic", "bind", "vfio", &address, "--dry-run"]);
    assert_eq!(reported.code(), Some(1), "{}", reported.stderr);
    assert!(
        reported.stderr.contains("it has no IOMMU group"),
        "{}",
        reported.stderr
    );
    assert_eq!(card.driver(), driver, "its driver is the same");
}
