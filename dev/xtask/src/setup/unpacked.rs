//! Programs of Debian's [`RELEASE`](apt::RELEASE) that are unpacked below `target` with all their
//! libraries, instead of installed: a version that the machine's release may not have, and servers
//! that the installation would start.

use std::path::PathBuf;

use anyhow::Context;

use super::Set;
use crate::lab::apt::{self, Apt};

/// A directory of unpacked packages.
struct Unpacked {
    /// Its name below `target`.
    folder: &'static str,
    /// For messages.
    what: &'static str,
    /// A file of the last package of the list: present if everything was unpacked.
    file: &'static str,
    packages: &'static [&'static str],
    /// Beginnings of the names of dependencies that these tests do not need.
    without: &'static [&'static str],
}

/// All of them; only tests use them.
const UNPACKED: &[Unpacked] = &[
    Unpacked {
        folder: "suricata",
        what: "Suricata",
        file: "usr/bin/suricata",
        packages: &["suricata"],
        without: &[],
    },
    Unpacked {
        folder: "servers",
        what: "servers for scan tests",
        file: "usr/bin/rtsp-server-perl",
        packages: &[
            // What the servers' own scripts run.
            "dash",
            "coreutils",
            "sed",
            "grep",
            "findutils",
            "diffutils",
            "nginx",
            "openssh-server",
            "postfix",
            "dovecot-imapd",
            "dovecot-pop3d",
            "redis-server",
            "postgresql-17",
            "mariadb-server-core",
            "mosquitto",
            "vsftpd",
            "rtsp-server-perl",
        ],
        // PostgreSQL compiles queries with it.
        without: &["libllvm"],
    },
];

impl Unpacked {
    fn path(&self) -> PathBuf {
        crate::run::root().join("target").join(self.folder)
    }

    fn is_missing(&self) -> bool {
        !self.path().join(self.file).is_file()
    }

    fn unpack(&self, apt: &Apt) -> anyhow::Result<()> {
        let folder = self.path();
        let into = folder.with_extension("new");
        let mut packages = apt.with_libraries(self.packages)?;
        packages.retain(|name| !self.without.iter().any(|start| name.starts_with(start)));
        let _ = std::fs::remove_dir_all(&into);
        apt.unpack(&packages, &into)?;
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::rename(&into, &folder).with_context(|| folder.display().to_string())
    }
}

fn of_sets(sets: &[Set]) -> Vec<&'static Unpacked> {
    let is_used = cfg!(target_arch = "x86_64") && sets.contains(&Set::Test);
    let missing = UNPACKED.iter().filter(|one| is_used && one.is_missing());
    missing.collect()
}

/// What is missing, and where it comes from.
pub fn missing(sets: &[Set]) -> Vec<(&'static str, &'static str)> {
    let of = "of trixie, unpacked below target";
    of_sets(sets).iter().map(|one| (one.what, of)).collect()
}

/// Unpacks what is missing. Without it the tests that need it are skipped.
pub fn unpack(sets: &[Set]) {
    let missing = of_sets(sets);
    if missing.is_empty() {
        return;
    }
    let names: Vec<_> = missing.iter().map(|one| one.what).collect();
    eprintln!("missing: {}", names.join(", "));
    let lists = crate::run::root().join("target/unpacked.apt");
    let unpacked = Apt::open(&lists, apt::RELEASE)
        .and_then(|apt| missing.iter().try_for_each(|one| one.unpack(&apt)));
    let _ = std::fs::remove_dir_all(&lists);
    if let Err(error) = unpacked {
        eprintln!("warning: {error:#}\nwarning: tests that need them will be skipped");
    }
}
