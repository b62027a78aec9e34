//! Programs that are measured: their paths, and how many instructions a run takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The workspace's directory.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map_or(".".into(), Path::to_path_buf)
}

/// Builds the baselines that are Rust libraries and returns the directory of their programs, or the
/// reason why it cannot.
pub fn baselines() -> Result<PathBuf> {
    let folder = workspace().join("dev/bench/baselines");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .status()
        .context("run cargo")?;
    if !status.success() {
        bail!("the baselines do not build (libpcap-dev missing?)");
    }
    Ok(folder.join("target/release"))
}

/// The path of an installed program.
pub fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut files = folders.map(|folder| folder.join(name));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is not installed"))
}

/// The barewire binary next to this one.
pub fn barewire() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("barewire");
    if !path.exists() {
        bail!(
            "{} is not built: cargo build --release -p barewire-cli",
            path.display()
        );
    }
    Ok(path)
}

/// Instructions of a program from start to end, by callgrind.
pub fn instructions(program: &Path, args: &[&str]) -> Result<u64> {
    callgrind(program, args, &[])
}

/// Instructions of a program within a function of this name and its callees, by callgrind.
pub fn instructions_in(program: &Path, args: &[&str], function: &str) -> Result<u64> {
    let only = format!("--toggle-collect=*{function}*");
    callgrind(program, args, &[&only])
}

fn callgrind(program: &Path, args: &[&str], options: &[&str]) -> Result<u64> {
    let out = std::env::temp_dir().join(format!("bw-callgrind-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "-q"])
        .args(options)
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(args)
        .output()
        .context("run valgrind (apt-get install valgrind)")?;
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = text.context("callgrind wrote nothing")?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("summary: ").or(l.strip_prefix("totals: ")));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok())
        .context("no total in the output")
}
