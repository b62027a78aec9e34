//! All tasks of a contributor, in one program: `cargo xtask TASK`.
//!
//! It depends on no crate of the workspace, so that it builds in seconds and works even when the
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
mod package;
mod picture;
mod run;
mod setup;
mod space;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;

/// A task: a row here is enough for it to be found and listed in the help.
struct Task {
    name: &'static str,
    args: &'static str,
    summary: &'static str,
    /// Additional lines in the task's own help.
    more: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

/// All tasks, in the order of the help.
const TASKS: &[Task] = &[
    Task {
        name: "demo",
        args: "[--seconds N] [--rate RATE] [--queues N] [--plain] [--keep] [--binary FILE]",
        summary: "replay real traffic into a veth pair and show the live flow table on it (root)",
        more: "\
--seconds N    how long the traffic runs (10)
--rate RATE    packets a second: 20kpps, 1.5Mpps, 100Mbps (20kpps)
--queues N     queues of the veth pair, a thread each (2)
--plain        one picture of the live view at the end, as without a terminal
--keep         leave the namespaces for a look, and print their names
--binary FILE  take this barewire instead of building one for release",
        run: demo::run,
    },
    Task {
        name: "test",
        args: "[ARGS of cargo test] | dead [--limit SECONDS] [NAME]...",
        summary: "install what tests need, run them all, and count what was skipped",
        more: "\
Arguments go to cargo test: `cargo xtask test -p barewire-wire udp`.
`dead` runs the lab's tests with a program that prints nothing and fails: no test may pass.

BAREWIRE_NO_SKIPS=1        a skipped test is a failure
BAREWIRE_TEST_GUEST=0      without the suites of the guest lab
BAREWIRE_BIN=FILE          test this barewire, not the one that was built",
        run: test::run,
    },
    Task {
        name: "ci",
        args: "",
        summary: "what CI runs: format, lints, docs, dependencies, a short fuzz, all tests",
        more: "",
        run: ci::run,
    },
    Task {
        name: "lab",
        args: "[SUITE]... | run -- CMD | boots COUNT | --list [--kernel DEBIAN-SUITE] \
               [--accel kvm|tcg] [--limit SECONDS] [--with PROGRAM] [--release] [--keep-console]",
        summary: "run suites, or any command, on emulated cards with real drivers in a guest",
        more: "",
        run: lab::run,
    },
    Task {
        name: "tidy",
        args: "",
        summary: "check the rules of STYLE.md that a program can check",
        more: "",
        run: tidy::run,
    },
    Task {
        name: "deny",
        args: "",
        summary: "check licences, duplicate versions and sources of dependencies by deny.toml",
        more: "",
        run: deny::run,
    },
    Task {
        name: "setup",
        args: "[--check] [demo|test|bench|fixture]...",
        summary: "install the programs that are missing (Debian; all sets unless named)",
        more: "\
--check   list what is missing, and install nothing",
        run: setup::run,
    },
    Task {
        name: "bench",
        args: "[ARGS of barewire-bench]",
        summary: "build for speed and run the benchmarks",
        more: "\
Arguments go to barewire-bench: names of scenarios, --list, --quick, --rounds N, --seconds N,
--sizes LIST, --out FOLDER. Building takes minutes. To read all of them:
`cargo run --release -p barewire-bench -- --help`.",
        run: bench::run,
    },
    Task {
        name: "fuzz",
        args: "[TARGET]... [--seconds N] [--long [--seed N]]",
        summary: "fuzz each target for that long (60 s unless given; needs nightly)",
        more: "\
--seconds N  how long each target runs (60; with --long 600)
--long       a nightly run, longer than CI's, with the date as the seed. A target that fails does
             not end the run
--seed N     with --long: repeat the run of a day, such as 20261128",
        run: fuzz::run,
    },
    Task {
        name: "mutants",
        args: "[CRATE]... [--sample N] [--seed S]",
        summary: "change the code here and there and see whether a test notices (cargo-mutants)",
        more: "",
        run: mutants::run,
    },
    Task {
        name: "man",
        args: "[DIRECTORY]",
        summary: "write the man pages and shell completions (to target/man unless named)",
        more: "",
        run: man::run,
    },
    Task {
        name: "package",
        args: "[deb|tarball|image|crates]... [--binary FILE] [--out FOLDER]",
        summary: "make what users install: all kinds unless named (to target/package-out)",
        more: "\
deb            Debian package: program, man pages, completions, unit, configuration
tarball        the same for /usr/local
image          container image: an OCI archive with one layer
crates         the crates as cargo package makes them; checks that the command builds from them
--binary FILE  package this barewire instead of building one for release
--out FOLDER   where the results go

Beside them lie the stripped program and barewire.debug, its debug information.",
        run: package::run,
    },
    Task {
        name: "picture",
        args: "[--binary FILE] [--seconds N] [--out FILE]",
        summary: "make the picture in README.md from the live view as it is (root)",
        more: "\
--binary FILE  take this barewire instead of building one for release
--seconds N    how long the traffic runs before the picture is taken (8)
--out FILE     where the picture goes (docs/pictures/flows.svg)",
        run: picture::run,
    },
    Task {
        name: "fixture",
        args: "[DIRECTORY]",
        summary: "record testdata/captures anew from real programs in namespaces (root)",
        more: "",
        run: fixture::run,
    },
    Task {
        name: "clean-lab",
        args: "",
        summary: "delete namespaces that killed tests or demos left behind (root)",
        more: "",
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
    if asks_for_help(&args) {
        print!("{}", task.help());
        return ExitCode::SUCCESS;
    }
    match (task.run)(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the user requests the help of a task. Arguments after `--` are for another program.
fn asks_for_help(args: &[String]) -> bool {
    let own = args.iter().take_while(|arg| *arg != "--");
    own.into_iter().any(|arg| arg == "--help" || arg == "-h")
}

impl Task {
    fn usage(&self) -> String {
        format!("{} {}", self.name, self.args).trim_end().to_owned()
    }

    /// The help of this task. Help must not build, install or change anything, so it is this text
    /// and not that of the program behind the task.
    fn help(&self) -> String {
        let Task { summary, more, .. } = self;
        let mut text = format!("Usage: cargo xtask {}\n\n{summary}\n", self.usage());
        if !more.is_empty() {
            text += &format!("\n{more}\n");
        }
        text
    }
}

fn help() -> String {
    let mut text = String::from("Usage: cargo xtask TASK\n\n");
    for task in TASKS {
        text += &format!("  {}\n      {}\n", task.usage(), task.summary);
    }
    text + "\n`cargo xtask TASK --help` shows more of a task.\n"
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

    #[test]
    fn help_after_two_dashes_belongs_to_the_other_program() {
        let args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(asks_for_help(&args("wire --help")) && asks_for_help(&args("-h")));
        assert!(!asks_for_help(&args("run -- ls --help")) && !asks_for_help(&[]));
    }
}
