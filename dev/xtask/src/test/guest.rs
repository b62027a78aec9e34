//! Runs the suites of the guest lab in parallel to the tests of this machine.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::Sum;
use super::history::Retry;
use crate::lab;
use crate::lab::{SECOND_FAILED, SECOND_PASSED};
use crate::run::{target_dir, which};

/// End of the line of a test that skipped itself because it needs the guest: the message of
/// `lab::guest`.
const NEEDS_GUEST: &str = "the guest lab (cargo xtask lab)";

/// Variable that disables the suites of the guest if set to 0.
const GUEST_VAR: &str = "BAREWIRE_TEST_GUEST";

/// The suites of the guest lab, which run in parallel to the tests of this machine: in a separate
/// process, whose output is printed when both are done.
pub enum Guest {
    Runs {
        child: Child,
        files: [PathBuf; 2],
    },
    /// Disabled by the user: its suites are skipped.
    Off(String),
    /// It could not be started, which is a failure and not a skip.
    Failed(anyhow::Error),
}

impl Guest {
    /// Starts them, unless they are disabled.
    pub fn start() -> Guest {
        if std::env::var_os(GUEST_VAR).is_some_and(|value| value == "0") {
            return Guest::Off(format!("{GUEST_VAR}=0"));
        }
        match Guest::spawn() {
            Ok(guest) => guest,
            Err(error) => Guest::Failed(error),
        }
    }

    fn spawn() -> Result<Guest> {
        let dir = target_dir()?;
        let files = ["output", "sum"].map(|name| {
            let name = format!("guest-{name}-{}", std::process::id());
            dir.join(name)
        });
        // A run that was killed may have left a sum under the same process ID.
        let _ = std::fs::remove_file(&files[1]);
        let output = File::create(&files[0]).context("the file of the guest's output")?;
        // Ends with this process, however that ends; without util-linux it may outlive it.
        let mut command = Command::new(which("setpriv").unwrap_or_else(|| "env".into()));
        if command.get_program() != "env" {
            command.args(["--pdeathsig", "TERM", "--"]);
        }
        let child = command
            // The build of the tests may have replaced the program's file; the link leads to the
            // running one.
            .arg(format!("/proc/{}/exe", std::process::id()))
            .args(["lab", "--usual", "--sum"])
            .arg(&files[1])
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("a file")?)
            .stderr(output)
            .spawn()
            .context("cannot run the guest lab")?;
        println!(
            "lab: the suites of the guest run beside; follow them in {}",
            files[0].display()
        );
        Ok(Guest::Runs { child, files })
    }

    /// Waits for the end of all suites, and prints their output.
    pub fn end(self) -> Result<lab::Sum> {
        let (mut child, files) = match self {
            Guest::Off(why) => return Ok(lab::run_none(&why)),
            Guest::Failed(error) => return Err(error),
            Guest::Runs { child, files } => (child, files),
        };
        let status = child.wait().context("the guest lab")?;
        let output = std::fs::read(&files[0]).context("the output of the guest lab")?;
        println!("\nWhat the guest lab said:");
        std::io::stdout().write_all(&output)?;
        let sum = std::fs::read_to_string(&files[1]);
        for file in &files {
            let _ = std::fs::remove_file(file);
        }
        let sum = sum.with_context(|| format!("it ended with {status} and without a sum"))?;
        lab::Sum::from_json(&sum)
    }
}

/// Adds the results of the guest lab. Tests skipped because they need the guest count with their
/// result there; without a guest they stay skipped.
pub fn in_guest(guest: Result<lab::Sum>, sum: &mut Sum, skips: &mut Vec<String>) -> lab::Sum {
    let guest = match guest {
        Ok(guest) => guest,
        Err(error) => {
            eprintln!("error: guest lab: {error:#}");
            sum.failed += 1;
            return lab::run_none("the guest could not be put together, see above");
        }
    };
    sum.passed += guest.tests.passed;
    sum.failed += guest.tests.failed;
    if guest.tests != Sum::default() {
        let all = skips.len();
        skips.retain(|skip| !skip.ends_with(NEEDS_GUEST));
        sum.passed = sum.passed.saturating_sub((all - skips.len()) as u64);
    }
    skips.extend(guest.skips.iter().cloned());
    guest
}

/// The suite that was run again by this warning of the guest lab.
pub fn retry(warning: &str) -> Option<Retry> {
    let line = warning.lines().next()?.strip_prefix("WARNING: ")?;
    let (name, result) = line.split_once(" failed ")?;
    let has_passed = result == SECOND_PASSED;
    (has_passed || result == SECOND_FAILED).then(|| Retry {
        name: name.to_owned(),
        has_passed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_that_were_run_again_are_recognized() {
        let of = |rest: &str| retry(&format!("WARNING: guest suite afxdp failed {rest}\n  why"));
        let named = |has_passed| {
            let name = "guest suite afxdp".to_owned();
            Some(Retry { name, has_passed })
        };
        assert_eq!(of(SECOND_PASSED), named(true));
        assert_eq!(of(SECOND_FAILED), named(false));
        // It did not boot again.
        assert_eq!(
            retry("WARNING: guest suite afxdp failed\n  first try"),
            None
        );
        assert_eq!(retry("WARNING: the image is old"), None);
    }
}
