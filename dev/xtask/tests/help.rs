//! `cargo xtask TASK --help` prints help, and does not build, install or change anything.

use std::process::{Command, Output};

/// Without programs in `PATH`, and with a cargo that fails: a task that does anything else is
/// detected.
fn xtask(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_barewire-xtask"));
    command.args(args).env_clear();
    command.env("PATH", "/nonexistent").env("CARGO", "false");
    command.output().unwrap()
}

#[test]
fn help_of_a_task_does_nothing_else() {
    let help = String::from_utf8(xtask(&["help"]).stdout).unwrap();
    let names: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(names.contains(&"bench") && names.len() > 10, "{names:?}");
    for name in names {
        for args in [&[name, "--help"][..], &[name, "-h"], &[name, "x", "--help"]] {
            let output = xtask(args);
            let text = String::from_utf8_lossy(&output.stdout);
            let usage = format!("Usage: cargo xtask {name}");
            assert!(output.status.success(), "{args:?}: {output:?}");
            assert!(text.starts_with(&usage), "{args:?}: {text}");
            assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
        }
    }
}
