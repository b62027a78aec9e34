//! `cargo xtask test dead`: runs the lab's tests with a program that is dead, and fails for each
//! test that passes nevertheless.
//!
//! A comparison with another program can be written so that it compares nothing: a loop that
//! continues at the first failure, a count without a minimum, an exit code that nobody reads. Such
//! a test is green whatever the program does. So `barewire` is replaced by a program that prints
//! nothing and exits with 101, and the two libraries by files that no linker loads. Which tests
//! need them is not a list: a test that asks for one (`lab::process`) and ends with success is a
//! finding, unless it is among [`GREEN`].
//!
//! Each test has its own process, which is ended after a limit: a test that waits for a dead
//! program is not green.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::netns;
use crate::run::{cargo, is_root, root, take_option, target_dir};

/// Tests that ask for a program or library and rightly pass with a dead one, and why.
const GREEN: &[(&str, &str)] = &[(
    "flow_service::the_systemd_units_are_valid",
    "checks the units, for which the program only has to exist",
)];

/// Words of test files that run the program, or load a library.
const WORDS: [&str; 5] = ["barewire()", "libpcap()", "libpfring()", "Dropin", "Inline"];

/// The file that a test writes when it asks for a program (`lab::process`).
const ASKED_VAR: &str = "BAREWIRE_ASKED";

/// Time after which a test is ended, in seconds.
const LIMIT: u64 = 20;

/// Tests at the same time: most of them wait.
const THREADS: usize = 8;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It does not need the program.
    NotAsked,
    Skipped,
    Failed,
    /// It still ran.
    Limit,
    /// It passed with a dead program.
    Green,
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let limit = take_option(&mut args, "--limit")?;
    let limit = limit.map_or(Ok(LIMIT), |text| text.parse());
    let limit = Duration::from_secs(limit.context("--limit takes seconds")?);
    match check(limit, &args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("error: {error:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The same as a step of CI.
pub fn step() -> Result<()> {
    check(Duration::from_secs(LIMIT), &[])
}

/// Checks all tests, or those with one of these words in their names.
fn check(limit: Duration, words: &[String]) -> Result<()> {
    let suite = suite()?;
    let modules = modules(&root().join("dev/lab/tests"))?;
    let mut names = tests(&suite)?;
    names.retain(|name| {
        let module = name.split("::").next().unwrap_or_default();
        let is_named = words.is_empty() || words.iter().any(|word| name.contains(word));
        modules.contains(module) && is_named
    });
    let name = format!("dead-{}", std::process::id());
    let places = Places {
        folder: target_dir()?.join(&name),
        temporary: std::env::temp_dir().join(format!("bw-{name}")),
    };
    let ends = run_all(&suite, &names, &places, limit);
    // Tests that were ended leave their namespaces behind.
    let swept = netns::sweep();
    places.remove();
    let ends = ends?;
    swept?;
    let count = |of: End| ends.values().filter(|end| **end == of).count();
    println!(
        "dead program: {} tests in {} modules; {} failed, {} still ran after {} s, {} skipped, {} \
         do not need it, {} passed",
        ends.len(),
        modules.len(),
        count(End::Failed),
        count(End::Limit),
        limit.as_secs(),
        count(End::Skipped),
        count(End::NotAsked),
        count(End::Green)
    );
    for (name, _) in ends.iter().filter(|(_, end)| **end == End::Limit) {
        println!("  still ran: {name}");
    }
    let is_all = words.is_empty();
    // Without root, most of them are skipped.
    ensure!(
        !is_all || !is_root() || count(End::Failed) > 100,
        "hardly a test ran the program"
    );
    let findings = findings(&ends, if is_all { GREEN } else { &[] });
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// What is wrong with these results.
fn findings(ends: &BTreeMap<String, End>, green: &[(&str, &str)]) -> Vec<String> {
    let is_listed = |name: &str| green.iter().any(|(of, _)| *of == name);
    let passed = ends
        .iter()
        .filter(|(name, end)| **end == End::Green && !is_listed(name))
        .map(|(name, _)| format!("{name} passes with a program that prints nothing and fails"));
    let wrong = green.iter().filter(|(name, _)| {
        let end = ends.get(*name);
        !matches!(end, Some(End::Green | End::Skipped | End::Limit))
    });
    let wrong = wrong.map(|(name, _)| format!("{name} is listed and does not pass"));
    passed.chain(wrong).collect()
}

/// The test binary, built.
fn suite() -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--test", "all", "--no-run"]);
    command.args(["--message-format", "json"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut messages = text.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "all";
        message["executable"]
            .as_str()
            .filter(|_| is_it)
            .map(PathBuf::from)
    });
    messages.next_back().context("cargo named no test binary")
}

/// The names of its tests.
fn tests(suite: &Path) -> Result<Vec<String>> {
    let output = Command::new(suite)
        .args(["--list", "--format", "terse"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Modules that use a word of [`WORDS`], themselves or through other modules. A test of another
/// module does not run the program.
fn modules(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeMap::<String, String>::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).with_context(|| at.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let inside = path.strip_prefix(folder)?.with_extension("");
                let module = inside.iter().next().context("a name")?;
                let module = module.to_string_lossy().into_owned();
                *texts.entry(module).or_default() += &fs::read_to_string(&path)?;
            }
        }
    }
    Ok(users(&texts))
}

/// The modules whose text has one of [`WORDS`], or names a module that has.
fn users(texts: &BTreeMap<String, String>) -> BTreeSet<String> {
    let has_word = |text: &String| WORDS.iter().any(|word| text.contains(word));
    let direct = texts.iter().filter(|(_, text)| has_word(text));
    let mut users: BTreeSet<String> = direct.map(|(name, _)| name.clone()).collect();
    loop {
        let names_one = |text: &String| {
            let names = |user: &String| {
                let paths = [format!("crate::{user}"), format!("\"{user}/")];
                paths.iter().any(|path| text.contains(path))
            };
            users.iter().any(names)
        };
        let more: Vec<_> = texts
            .iter()
            .filter(|(name, text)| !users.contains(*name) && names_one(text))
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return users;
        }
        users.extend(more);
    }
}

/// Directories of this run.
struct Places {
    /// The dead program and libraries, and a directory for each test.
    folder: PathBuf,
    /// The temporary directories of the tests: the path is short, because a test's sockets have
    /// theirs below it, of at most 107 bytes.
    temporary: PathBuf,
}

impl Places {
    fn make(&self) -> Result<()> {
        // Of an earlier process with the same number.
        self.remove();
        for place in [&self.folder, &self.temporary] {
            fs::create_dir(place).with_context(|| place.display().to_string())?;
        }
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_dir_all(&self.temporary);
    }

    /// A temporary directory, in which all users may create files.
    fn temporary(&self, number: usize) -> Result<PathBuf> {
        let own = self.temporary.join(number.to_string());
        fs::create_dir(&own)?;
        fs::set_permissions(&own, Permissions::from_mode(0o1777))?;
        Ok(own)
    }
}

fn run_all(
    suite: &Path,
    names: &[String],
    places: &Places,
    limit: Duration,
) -> Result<BTreeMap<String, End>> {
    places.make()?;
    let folder = &places.folder;
    let program = folder.join("barewire");
    fs::write(&program, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    for library in ["libpcap.so", "libpfring.so"] {
        fs::write(folder.join(library), "")?;
    }
    let (next, ends) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(number) else {
                return Ok(());
            };
            let temporary = places.temporary(number)?;
            let end = run_one(suite, name, folder, &temporary, limit)?;
            let mut ends = ends
                .lock()
                .map_err(|_| anyhow::anyhow!("a thread failed"))?;
            ends.insert(name.clone(), end);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread failed"))?
        })
    })?;
    ends.into_inner()
        .map_err(|_| anyhow::anyhow!("a thread failed"))
}

fn run_one(
    suite: &Path,
    name: &str,
    folder: &Path,
    temporary: &Path,
    limit: Duration,
) -> Result<End> {
    let own = folder.join(name.replace("::", "-"));
    fs::create_dir(&own)?;
    let (asked, skips) = (own.join("asked"), own.join("skips"));
    let output = File::create(own.join("output"))?;
    let mut command = Command::new(suite);
    command
        .args(["--exact", name])
        .current_dir(root().join("dev/lab"))
        .env("BAREWIRE_BIN", folder.join("barewire"))
        .env("BAREWIRE_LIBPCAP", folder.join("libpcap.so"))
        .env("BAREWIRE_LIBPFRING", folder.join("libpfring.so"))
        .env("BAREWIRE_SKIPS", &skips)
        .env(ASKED_VAR, &asked)
        .env("TMPDIR", temporary)
        .env_remove("BAREWIRE_NO_SKIPS")
        .env_remove("BAREWIRE_GUEST")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Its programs end with it.
        .process_group(0);
    let mut child = command.spawn().context("the test binary")?;
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() >= until => break None,
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    end_group(&mut child)?;
    let skips = fs::read_to_string(&skips).unwrap_or_default();
    let is_skipped = skips.lines().any(|line| line.starts_with("SKIPPED: "));
    Ok(match status {
        _ if is_skipped => End::Skipped,
        Some(_) if !asked.exists() => End::NotAsked,
        Some(status) if status.success() => End::Green,
        Some(_) => End::Failed,
        None => End::Limit,
    })
}

/// Ends a test with everything that it has started.
fn end_group(child: &mut Child) -> Result<()> {
    let group = Pid::from_raw(child.id().cast_signed());
    // There may be none left.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_use_the_program_directly_or_through_others() {
        let texts = [
            ("a", "let program = barewire().unwrap();"),
            ("b", "use crate::a::helper;"),
            ("c", "#[path = \"b/inner.rs\"] mod inner;"),
            ("d", "use crate::e::other; // a barewire"),
            ("e", "fn other() {}"),
        ];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let users: Vec<_> = users(&texts.into()).into_iter().collect();
        assert_eq!(users, ["a", "b", "c"]);
    }

    #[test]
    fn green_tests_and_wrong_rows_are_found() {
        let ends = [
            ("m::fails", End::Failed),
            ("m::green", End::Green),
            ("m::listed", End::Green),
            ("m::waits", End::Limit),
            ("m::fixed", End::Failed),
        ];
        let ends = ends.map(|(name, end)| (name.to_owned(), end)).into();
        let listed = [("m::listed", ""), ("m::fixed", ""), ("m::gone", "")];
        let found = findings(&ends, &listed);
        let names: Vec<_> = found
            .iter()
            .filter_map(|text| text.split(' ').next())
            .collect();
        assert_eq!(names, ["m::green", "m::fixed", "m::gone"]);
    }
}
