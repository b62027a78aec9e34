//! `cargo xtask demo` and `cargo xtask picture`, with the program of the tests: the output fits a
//! screen, and every packet is accounted for.

use std::process::Command;
use std::time::Duration;

use crate::export::Folder;
use lab::process::{Process, barewire, xtask};
use lab::{require, skip};

/// Both take seconds, and longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Maximum number of lines of output.
const LINES_MAX: usize = 60;

/// Runs a task; returns its standard output.
fn run(args: &[&str]) -> String {
    let mut command = Command::new(xtask().unwrap());
    command.args(args).arg("--binary").arg(barewire().unwrap());
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap().stdout
}

#[test]
fn the_demo_has_four_steps_and_an_account() {
    require!(skip::lab());
    let printed = run(&["demo", "--seconds", "2", "--rate", "2kpps"]);
    assert!(printed.lines().count() <= LINES_MAX, "{printed}");
    let steps: Vec<&str> = printed
        .lines()
        .filter(|line| line.get(1..3) == Some("/4"))
        .collect();
    let numbers: Vec<&str> = steps.iter().map(|line| &line[..3]).collect();
    assert_eq!(numbers, ["1/4", "2/4", "3/4", "4/4"], "{printed}");
    assert_eq!(printed.matches("    done in ").count(), 3, "{printed}");
    for part in [
        "\nhttp ",
        "Every packet is accounted for.",
        "named by their content: ",
        "What to try next:",
    ] {
        assert!(printed.contains(part), "{part:?}: {printed}");
    }
}

#[test]
fn the_picture_shows_the_live_view() {
    require!(skip::lab());
    require!(skip::program("setsid", "util-linux"));
    let folder = Folder::new("picture");
    let file = folder.0.join("flows.svg");
    run(&["picture", "--seconds", "3", "--out", file.to_str().unwrap()]);
    let picture = std::fs::read_to_string(file).unwrap();
    for part in ["afxdp:rx0", ">http", "10.77.0."] {
        assert!(picture.contains(part), "{part:?}: {picture}");
    }
}
