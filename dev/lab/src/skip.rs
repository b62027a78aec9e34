//! Loud skips: what could not be tested here, why, and whether that is allowed.
//!
//! A test states its requirements ([`require!`](crate::require)); a missing one is printed past
//! libtest's capture as `SKIPPED: TEST: WHAT`, and appended to the file named by `BAREWIRE_SKIPS`,
//! from which `cargo xtask test` prints the total. A skip without an excuse on this machine is a
//! failure: as root on a new enough kernel, a missing kernel feature is a bug in barewire or in the
//! test.

use std::fmt;
use std::path::PathBuf;

pub use ::skip::{SKIPS_FILE_VAR, STRICT_VAR, Skipped, name_of};

/// A kernel release: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u16, pub u16);

impl Release {
    /// The release of the running kernel, from `/proc/sys/kernel/osrelease`.
    ///
    /// If `/proc` does not have it, because then nothing in the lab works.
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

/// A requirement that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Root privileges.
    Root,
    /// A program, and the Debian package that contains it.
    Program {
        /// The command.
        name: String,
        /// The package for `apt-get install`.
        package: String,
    },
    /// A kernel feature.
    Kernel {
        /// The feature, in the kernel's terms.
        feature: String,
        /// The first release that has it.
        since: Release,
    },
    /// Something that depends on the machine: hardware, a build option of the kernel.
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
    /// Why this machine has no excuse for the skip; `None` if it has one.
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

/// Checks for root privileges.
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
/// [`Missing::Program`] if it is missing.
pub fn program(name: &str, package: &str) -> Result<(), Missing> {
    if which(name).is_some() {
        return Ok(());
    }
    Err(Missing::Program {
        name: name.into(),
        package: package.into(),
    })
}

/// Checks the requirements of all tests with a namespace: root, `ip` and `ethtool`.
///
/// # Errors
/// The first missing requirement.
pub fn lab() -> Result<(), Missing> {
    root()?;
    program("ip", "iproute2")?;
    program("ethtool", "ethtool")
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

/// Records a skip; called by the macros.
///
/// # Panics
/// If this machine does not excuse it, or `BAREWIRE_NO_SKIPS` is set.
pub fn record(test: &str, missing: &Missing) {
    if let Some(why) = missing.inexcusable(root().is_ok(), Release::running()) {
        panic!("{test} must not be skipped: {missing}: {why}");
    }
    ::skip::record(test, missing);
}

/// Skips the current test loudly: `skip!(missing)` with a [`skip::Missing`](Missing).
#[macro_export]
macro_rules! skip {
    ($missing:expr) => {{
        fn here() {}
        $crate::skip::record($crate::skip::name_of(here), &$missing);
        return $crate::skip::Skipped::skipped();
    }};
}

/// Skips the current test unless every requirement is met: `require!(skip::lab(),
/// skip::program("tshark", "tshark"))`.
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
        // Only if the two expected lines cannot be counted as skips.
        if std::env::var_os(SKIPS_FILE_VAR).is_none() && std::env::var_os(STRICT_VAR).is_none() {
            plain();
            fallible().unwrap();
        }
    }
}
