//! Paths of the repository, and how tasks start programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the repository this xtask was built from.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root)
}

/// A command with the cargo that runs this program, at the root of the repository.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// A command with the compiler that cargo would use.
pub fn rustc() -> Command {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The target directory of this build; honours `CARGO_TARGET_DIR` and `build.target-dir`.
pub fn target_dir() -> Result<PathBuf> {
    // target/debug/barewire-xtask
    let own = std::env::current_exe().context("path of xtask")?;
    let dir = own
        .ancestors()
        .nth(2)
        .context("xtask is not in a build directory")?;
    Ok(dir.to_owned())
}

/// Runs a command with inherited streams, after printing it; failure is an error.
pub fn visibly(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", shown(command));
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command silently; returns its standard output on success, all output in the error
/// otherwise.
pub fn quietly(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed ({})\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The path of a program, looked up in `PATH` and then in the system directories, which a user's
/// `PATH` often lacks.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Whether this process has root privileges.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Refuses to continue without root privileges.
pub fn need_root(task: &str) -> Result<()> {
    if !is_root() {
        bail!(
            "cargo xtask {task} makes network namespaces and needs root\n\
             hint: sudo --preserve-env=PATH,HOME cargo xtask {task}"
        );
    }
    Ok(())
}

/// Removes an option with its value from the arguments: `--seconds 5` or `--seconds=5`.
pub fn take_option(args: &mut Vec<String>, name: &str) -> Result<Option<String>> {
    let prefix = format!("{name}=");
    let Some(at) = args
        .iter()
        .position(|arg| arg == name || arg.starts_with(&prefix))
    else {
        return Ok(None);
    };
    let arg = args.remove(at);
    if let Some(value) = arg.strip_prefix(&prefix) {
        return Ok(Some(value.to_owned()));
    }
    if at == args.len() {
        bail!("{name} needs a value");
    }
    Ok(Some(args.remove(at)))
}

/// Removes a flag from the arguments; returns whether it was there.
pub fn take_flag(args: &mut Vec<String>, name: &str) -> bool {
    let before = args.len();
    args.retain(|arg| arg != name);
    args.len() < before
}

/// Refuses unused arguments.
pub fn no_more(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        bail!("unknown argument {arg:?}\nhint: `cargo xtask help` lists them");
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy();
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    std::iter::once(name)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_in_both_forms() {
        let args = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let mut both = args("a --seconds 5 b --rate=1kpps --keep");
        assert_eq!(
            take_option(&mut both, "--seconds").unwrap().as_deref(),
            Some("5")
        );
        assert_eq!(
            take_option(&mut both, "--rate").unwrap().as_deref(),
            Some("1kpps")
        );
        assert_eq!(take_option(&mut both, "--other").unwrap(), None);
        assert!(take_flag(&mut both, "--keep") && !take_flag(&mut both, "--keep"));
        assert_eq!(both, ["a", "b"]);
        assert!(no_more(&both).is_err() && no_more(&[]).is_ok());
        assert!(take_option(&mut args("--seconds"), "--seconds").is_err());
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("STYLE.md").is_file());
    }

    #[test]
    fn failures_include_the_output() {
        let error = quietly(Command::new("sh").args(["-c", "echo why >&2; exit 4"])).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("why") && error.contains('4'), "{error}");
    }
}
