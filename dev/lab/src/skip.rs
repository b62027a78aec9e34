//! Loud skips: what could not be tested here, why, and whether that is allowed.
//!
//! A test names what it needs ([`require!`](crate::require)); what is missing is printed past
//! libtest's capture as `SKIPPED: TEST: WHAT`, and appended to the file named by
//! `BAREWIRE_SKIPS`, from which `cargo xtask test` prints the total. A skip that this machine
//! cannot excuse is a failure: as root on a kernel that is new enough, a missing kernel feature is
//! a defect of ours or of the test.

use std::fmt;
use std::path::PathBuf;

pub use ::skip::{SKIPS_FILE_VAR, STRICT_VAR, Skipped, name_of};

/// A kernel release as far as features go: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u16, pub u16);

impl Release {
    /// The release of the running kernel, from `/proc/sys/kernel/osrelease`.
    ///
    /// # Panics
    /// If `/proc` does not have it, because then nothing in the lab works.
    pub fn running() -> Release {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("kernel release");
        Release::parse(&text).unwrap_or_else(|| panic!("kernel release {text:?}"))
    }

    fn parse(text: &str) -> Option<Release> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        Some(Release(
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        ))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What a test needs and did not find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The rights of root.
    Root,
    /// A program; with the Debian package that has it.
    Program {
        /// As called.
        name: String,
        /// As in `apt-get install`.
        package: String,
    },
    /// Something the kernel does from some release on.
    Kernel {
        /// The feature, in the kernel's words.
        feature: String,
        /// The first release that has it.
        since: Release,
    },
    /// Something that no release promises: hardware, a build option of the kernel.
    Machine(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Root => write!(f, "needs root"),
            Missing::Program { name, package } => {
                write!(f, "needs the program {name} (apt-get install {package})")
            }
            Missing::Kernel { feature, since } => {
                write!(
                    f,
                    "needs {feature} (Linux {since}; this is {})",
                    Release::running()
                )
            }
            Missing::Machine(what) => write!(f, "needs {what}"),
        }
    }
}

impl Missing {
    /// Why this machine has no excuse for the skip; `None` when it has one.
    fn inexcusable(&self, root: bool, running: Release) -> Option<String> {
        match self {
            Missing::Kernel { feature, since } if root && running >= *since => Some(format!(
                "{feature} is in Linux {since}, this is {running} and we are root: \
                 its absence is a defect, not a reason to skip"
            )),
            Missing::Root if root => Some("we are root".into()),
            _ => None,
        }
    }
}

/// Checks for the rights of root.
///
/// # Errors
/// [`Missing::Root`] without them.
pub fn root() -> Result<(), Missing> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(Missing::Root)
    }
}

/// Checks for a program in `PATH` and the system directories.
///
/// # Errors
/// [`Missing::Program`] when it is not present.
pub fn program(name: &str, package: &str) -> Result<(), Missing> {
    if which(name).is_some() {
        return Ok(());
    }
    Err(Missing::Program {
        name: name.into(),
        package: package.into(),
    })
}

/// Checks for what every test with a namespace needs: root, `ip` and `ethtool`.
///
/// # Errors
/// What is missing first.
pub fn lab() -> Result<(), Missing> {
    root()?;
    program("ip", "iproute2")?;
    program("ethtool", "ethtool")
}

/// The path of a program, looked for in `PATH` and then in the system directories, which a
/// user's `PATH` often lacks.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Records a skip; called by the macros.
///
/// # Panics
/// When this machine does not excuse it, or `BAREWIRE_NO_SKIPS` is set.
pub fn record(test: &str, missing: &Missing) {
    if let Some(why) = missing.inexcusable(root().is_ok(), Release::running()) {
        panic!("{test} must not be skipped: {missing}: {why}");
    }
    ::skip::record(test, missing);
}

/// Skips the test it stands in, loudly: `skip!(missing)` with a [`skip::Missing`](Missing).
#[macro_export]
macro_rules! skip {
    ($missing:expr) => {{
        fn here() {}
        $crate::skip::record($crate::skip::name_of(here), &$missing);
        return $crate::skip::Skipped::skipped();
    }};
}

/// Skips the test it is in unless every requirement is met:
/// `require!(skip::lab(), skip::program("tshark", "tshark"))`.
#[macro_export]
macro_rules! require {
    ($($requirement:expr),+ $(,)?) => {
        $(if let Err(missing) = $requirement { $crate::skip!(missing); })+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_compared() {
        assert_eq!(Release::parse("6.18.44-fc-v595\n"), Some(Release(6, 18)));
        assert_eq!(Release::parse("5.4"), Some(Release(5, 4)));
        assert_eq!(Release::parse("linux"), None);
        assert!(Release(6, 3) < Release(6, 18) && Release(5, 19) < Release(6, 0));
    }

    #[test]
    fn only_machines_with_an_excuse_may_skip() {
        let feature = |since| Missing::Kernel {
            feature: "bpf_link".into(),
            since,
        };
        let running = Release(6, 1);
        assert!(feature(Release(5, 9)).inexcusable(true, running).is_some());
        assert!(feature(Release(6, 1)).inexcusable(true, running).is_some());
        assert!(feature(Release(6, 3)).inexcusable(true, running).is_none());
        assert!(feature(Release(5, 9)).inexcusable(false, running).is_none());
        assert!(Missing::Root.inexcusable(true, running).is_some());
        assert!(Missing::Root.inexcusable(false, running).is_none());
        assert!(
            Missing::Machine("a card".into())
                .inexcusable(true, running)
                .is_none()
        );
    }

    #[test]
    fn requirements_name_program_and_package() {
        assert_eq!(program("sh", "dash"), Ok(()));
        let missing = program("no-such-program", "no-such-package").unwrap_err();
        let text = missing.to_string();
        assert!(text.contains("no-such-program") && text.contains("install no-such-package"));
    }

    #[test]
    fn require_returns_from_the_test() {
        fn plain() {
            require!(Err::<(), _>(Missing::Machine(
                "nothing, this line is a test".into()
            )));
            panic!("the skip must return");
        }
        fn fallible() -> Result<(), String> {
            require!(Err::<(), _>(Missing::Machine(
                "nothing, this line is a test".into()
            )));
            Err("the skip must return".into())
        }
        // Only where the two expected lines cannot be counted as skips.
        if std::env::var_os(SKIPS_FILE_VAR).is_none() && std::env::var_os(STRICT_VAR).is_none() {
            plain();
            fallible().unwrap();
        }
    }
}
