//! Everything a contributor runs, behind one door: `cargo xtask TASK`.
//!
//! It uses nothing of the workspace, so that it builds in seconds and still runs when the
//! workspace does not build.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod clean_lab;
mod demo;
mod deny;
mod fixture;
mod fuzz;
mod lab;
mod man;
mod mutants;
mod netns;
mod run;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;

/// One task: a row here is all that is needed for it to be found and to be in the help.
struct Task {
    name: &'static str,
    args: &'static str,
    summary: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

/// All tasks, in the order of the help.
const TASKS: &[Task] = &[
    Task {
        name: "demo",
        args: "[--seconds N] [--rate RATE] [--queues N] [--plain] [--keep]",
        summary: "replay real traffic into a veth pair and show the live flow table on it (root)",
        run: demo::run,
    },
    Task {
        name: "test",
        args: "[ARGS of cargo test]",
        summary: "install what tests need, run them all, and count what was skipped",
        run: test::run,
    },
    Task {
        name: "ci",
        args: "",
        summary: "what CI runs: format, lints, docs, dependencies, a short fuzz, all tests",
        run: ci::run,
    },
    Task {
        name: "lab",
        args: "[SUITE]... | run -- CMD | boots COUNT | --list [--kernel DEBIAN-SUITE] \
               [--accel kvm|tcg] [--limit SECONDS] [--with PROGRAM] [--release] [--keep-console]",
        summary: "run suites, or any command, on emulated cards with real drivers in a guest",
        run: lab::run,
    },
    Task {
        name: "tidy",
        args: "",
        summary: "check the rules of STYLE.md that a program can check",
        run: tidy::run,
    },
    Task {
        name: "deny",
        args: "",
        summary: "check licences, duplicate versions and sources of dependencies by deny.toml",
        run: deny::run,
    },
    Task {
        name: "setup",
        args: "[--check] [demo|test|bench|fixture]...",
        summary: "install the programs that are missing (Debian; all sets unless named)",
        run: setup::run,
    },
    Task {
        name: "bench",
        args: "[ARGS of barewire-bench]",
        summary: "build for speed and run the benchmarks",
        run: bench::run,
    },
    Task {
        name: "fuzz",
        args: "[TARGET]... [--seconds N]",
        summary: "fuzz each target for that long (60 s unless told otherwise; needs nightly)",
        run: fuzz::run,
    },
    Task {
        name: "mutants",
        args: "[CRATE]... [--sample N] [--seed S]",
        summary: "change the code here and there and see whether a test notices (cargo-mutants)",
        run: mutants::run,
    },
    Task {
        name: "man",
        args: "[DIRECTORY]",
        summary: "write the man pages and shell completions (to target/man unless named)",
        run: man::run,
    },
    Task {
        name: "fixture",
        args: "[DIRECTORY]",
        summary: "record testdata/captures anew from real programs in namespaces (root)",
        run: fixture::run,
    },
    Task {
        name: "clean-lab",
        args: "",
        summary: "delete namespaces that killed tests or demos left behind (root)",
        run: clean_lab::run,
    },
];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    if matches!(name.as_str(), "" | "help" | "-h" | "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprintln!("error: there is no task {name:?}\nhint: `cargo xtask help` lists them");
        return ExitCode::from(2);
    };
    match (task.run)(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("Usage: cargo xtask TASK\n\n");
    for Task {
        name,
        args,
        summary,
        ..
    } in TASKS
    {
        let line = format!("{name} {args}");
        text += &format!("  {}\n      {summary}\n", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_in_the_help_and_in_contributing() {
        let contributing = std::fs::read_to_string(run::root().join("CONTRIBUTING.md")).unwrap();
        for task in TASKS {
            assert!(help().contains(task.summary), "{}", task.name);
            let command = format!("cargo xtask {}", task.name);
            assert!(
                contributing.contains(&command),
                "CONTRIBUTING.md does not name `{command}`"
            );
        }
    }
}
