//! Cache of oracle output per file.
//!
//! tshark takes a fifth of a second to start, and tests run it on hundreds of files. Its output
//! depends only on the program, its arguments and the file, so it is stored in
//! `target/oracle-cache` under a hash of these. Another version of the program, another argument or
//! another byte of the file gives another name. `BAREWIRE_ORACLE_CACHE=0` disables the cache. Only
//! output with exit code 0 is stored; programs that look at the network or at a running process
//! must not use it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::skip::which;

/// Variable that disables the cache if set to 0.
pub const CACHE_VAR: &str = "BAREWIRE_ORACLE_CACHE";

/// Maximum size of the cache; beyond it the oldest half is deleted.
const SIZE_MAX: u64 = 512 << 20;

/// Length of the SHA-256 sum that precedes each entry.
const SUM_LEN: usize = 32;

/// Inherited variables that change a program's output.
const INHERITED: [&str; 4] = ["LANG", "LC_ALL", "LC_TIME", "TZ"];

/// As [`Command::output`], for a command whose standard output depends only on its arguments and on
/// `input`, which is among the arguments. A cached result has an empty standard error.
///
/// # Errors
/// If the command cannot be started, or `input` cannot be read.
pub fn output(command: &mut Command, input: &Path) -> Result<Output> {
    let mut failed = None;
    let kept = answer(command, input, |command| {
        command.stdin(Stdio::null());
        let output = command
            .output()
            .with_context(|| format!("cannot run {command:?}"))?;
        if output.status.success() {
            return Ok(Some(output.stdout));
        }
        failed = Some(output);
        Ok(None)
    })?;
    Ok(failed.unwrap_or_else(|| Output {
        status: ExitStatus::from_raw(0),
        stdout: kept.unwrap_or_default(),
        stderr: Vec::new(),
    }))
}

/// The result of `ask` for a command and `input`, or the cached one. `ask` may add arguments that
/// do not affect the result, such as an output file name. `None` is not cached.
///
/// # Errors
/// Errors of `ask`, and if `input` cannot be read.
pub fn answer(
    command: &mut Command,
    input: &Path,
    ask: impl FnOnce(&mut Command) -> Result<Option<Vec<u8>>>,
) -> Result<Option<Vec<u8>>> {
    if std::env::var_os(CACHE_VAR).is_some_and(|value| value == "0") {
        return ask(command);
    }
    static STORE: OnceLock<Store> = OnceLock::new();
    let store = STORE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Store::new(root.join("target/oracle-cache"))
    });
    store.answer(command, input, ask)
}

/// Results stored in a directory.
struct Store {
    folder: PathBuf,
    swept: Once,
}

impl Store {
    fn new(folder: PathBuf) -> Store {
        Store {
            folder,
            swept: Once::new(),
        }
    }

    fn answer(
        &self,
        command: &mut Command,
        input: &Path,
        ask: impl FnOnce(&mut Command) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        let Some(key) = key(command, input)? else {
            return ask(command);
        };
        self.swept.call_once(|| sweep(&self.folder, SIZE_MAX));
        let file = self.folder.join(key);
        if let Some(answer) = read(&file) {
            return Ok(Some(answer));
        }
        let answer = ask(command)?;
        if let Some(answer) = &answer
            && let Err(error) = self.write(&file, answer)
        {
            // The result itself is valid.
            eprintln!("{}: {error}", file.display());
        }
        Ok(answer)
    }

    /// Others see the complete file or none.
    fn write(&self, file: &Path, answer: &[u8]) -> std::io::Result<()> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(&self.folder)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = format!(".{}-{number}", std::process::id());
        let beside = self.folder.join(beside);
        let bytes = [&Sha256::digest(answer)[..], answer].concat();
        let done = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, file));
        if done.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        done
    }
}

/// A stored result, if present and intact.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let answer = bytes.get(SUM_LEN..)?;
    if Sha256::digest(answer)[..] != bytes[..SUM_LEN] {
        return None;
    }
    Some(bytes.split_off(SUM_LEN))
}

/// The name of an entry; `None` if the program is missing.
fn key(command: &Command, input: &Path) -> Result<Option<String>> {
    let Some(program) = which(&command.get_program().to_string_lossy()) else {
        return Ok(None);
    };
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        // Each with its length, so that different lists differ in their bytes.
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(program.as_os_str().as_bytes());
    add(identity(&program)?.as_bytes());
    for arg in command.get_args() {
        // A file written by a test has a different name in every run.
        match arg == input.as_os_str() {
            true => add(b"\0input"),
            false => add(arg.as_bytes()),
        }
    }
    add(b"\0environment");
    for name in INHERITED {
        add(std::env::var_os(name).unwrap_or_default().as_bytes());
    }
    for (name, value) in command.get_envs() {
        add(name.as_bytes());
        add(value.unwrap_or(OsStr::new("\0removed")).as_bytes());
    }
    let bytes = std::fs::read(input).with_context(|| input.display().to_string())?;
    add(&bytes);
    let hash = hash.finalize();
    Ok(Some(
        hash.iter().map(|byte| format!("{byte:02x}")).collect(),
    ))
}

/// Identifies a version of a program: its file, reported version and libraries. Determined once per
/// process.
fn identity(program: &Path) -> Result<String> {
    static KNOWN: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
    let mut known = KNOWN.lock().expect("no holder panics");
    let known = known.get_or_insert_default();
    if let Some(identity) = known.get(program) {
        return Ok(identity.clone());
    }
    let file = std::fs::metadata(program)?;
    let option = match program.file_name() {
        Some(name) if name == "ndpiReader" => "-h",
        _ => "--version",
    };
    let printed = Command::new(program)
        .arg(option)
        .stdin(Stdio::null())
        .output()?;
    let identity = format!(
        "{} {}.{:09} {}",
        file.len(),
        file.mtime(),
        file.mtime_nsec(),
        String::from_utf8_lossy(&printed.stdout)
    );
    known.insert(program.to_owned(), identity.clone());
    Ok(identity)
}

/// Deletes the oldest entries if the cache is too large.
fn sweep(folder: &Path, size_max: u64) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let facts = entry.metadata().ok()?;
            Some((facts.modified().ok()?, facts.len(), entry.path()))
        })
        .collect();
    let mut size: u64 = files.iter().map(|(_, len, _)| len).sum();
    if size <= size_max {
        return;
    }
    files.sort();
    for (_, len, path) in files {
        if size <= size_max / 2 {
            break;
        }
        let _ = std::fs::remove_file(path);
        size -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A temporary directory, deleted on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("barewire-oracles-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn store(&self) -> Store {
            Store::new(self.0.join("cache"))
        }

        fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let file = self.0.join(name);
            std::fs::write(&file, bytes).unwrap();
            file
        }

        fn answers(&self) -> Vec<PathBuf> {
            let entries = std::fs::read_dir(self.0.join("cache")).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn cat(option: &str, file: &Path) -> Command {
        let mut command = Command::new("cat");
        command.arg(option).arg(file);
        command
    }

    /// A result of a store, and whether the program was run for it.
    fn ask(store: &Store, mut command: Command, input: &Path) -> (String, bool) {
        let asked = Cell::new(false);
        let answer = store.answer(&mut command, input, |command| {
            asked.set(true);
            Ok(Some(command.output()?.stdout))
        });
        let answer = answer.unwrap().unwrap();
        (String::from_utf8(answer).unwrap(), asked.get())
    }

    #[test]
    fn a_program_is_run_once_for_the_same_input() {
        let folder = Folder::new("once");
        let store = folder.store();
        let one = folder.file("one", b"text\n");
        assert_eq!(ask(&store, cat("-u", &one), &one), ("text\n".into(), true));
        assert_eq!(ask(&store, cat("-u", &one), &one), ("text\n".into(), false));
        // Another process finds it, regardless of the file's name.
        let same = folder.file("same", b"text\n");
        assert_eq!(
            ask(&folder.store(), cat("-u", &same), &same),
            ("text\n".into(), false)
        );
        // Another argument, environment or byte.
        assert_eq!(ask(&store, cat("-E", &one), &one), ("text$\n".into(), true));
        let mut other = cat("-u", &one);
        other.env("TZ", "UTC");
        assert_eq!(ask(&store, other, &one), ("text\n".into(), true));
        folder.file("one", b"Text\n");
        assert_eq!(ask(&store, cat("-u", &one), &one), ("Text\n".into(), true));
        assert_eq!(folder.answers().len(), 4);
    }

    #[test]
    fn a_damaged_answer_is_computed_again() {
        let folder = Folder::new("damaged");
        let store = folder.store();
        let input = folder.file("input", b"text");
        let expected = |asked| ("text".to_owned(), asked);
        assert_eq!(ask(&store, cat("-u", &input), &input), expected(true));
        let kept = folder.answers().remove(0);
        let whole = std::fs::read(&kept).unwrap();
        let mut turned = whole.clone();
        *turned.last_mut().unwrap() ^= 1;
        for damaged in [
            &turned[..],
            &whole[..whole.len() - 1],
            &whole[..SUM_LEN - 1],
            &[],
        ] {
            std::fs::write(&kept, damaged).unwrap();
            assert_eq!(ask(&store, cat("-u", &input), &input), expected(true));
            assert_eq!(std::fs::read(&kept).unwrap(), whole);
            assert_eq!(ask(&store, cat("-u", &input), &input), expected(false));
        }
    }

    #[test]
    fn a_failure_is_not_kept() {
        let folder = Folder::new("failure");
        let input = folder.file("input", b"text");
        let mut command = Command::new("cat");
        command.arg("/nonexistent").arg(&input);
        for _ in 0..2 {
            let output = output(&mut command, &input).unwrap();
            assert_eq!(output.status.code(), Some(1));
            assert_eq!(output.stdout, b"text");
            assert!(!output.stderr.is_empty());
        }
    }

    #[test]
    fn the_oldest_cache_entries_are_deleted() {
        let folder = Folder::new("sweep");
        for n in 0..10_u64 {
            let file = folder.file(&n.to_string(), &[0; 100]);
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + n);
            std::fs::File::options()
                .append(true)
                .open(file)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        sweep(&folder.0, 1000);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 10);
        sweep(&folder.0, 999);
        let mut left: Vec<_> = std::fs::read_dir(&folder.0)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["6", "7", "8", "9"]);
    }
}
