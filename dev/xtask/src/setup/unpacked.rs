//! Programs of Debian's [`RELEASE`](crate::lab::apt::RELEASE) that are unpacked below `target` with
//! all their libraries, instead of installed: a version that the machine's release may not have,
//! and servers that the installation would start. Also programs that only Ubuntu has, with
//! libraries of Debian.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Set;
use crate::lab::apt::Apt;
use crate::lab::ubuntu::{self, Deb};

/// A directory of unpacked packages.
struct Unpacked {
    /// Its name below `target`.
    folder: &'static str,
    /// For messages.
    what: &'static str,
    packages: &'static [&'static str],
    /// Beginnings of the names of dependencies that these tests do not need.
    without: &'static [&'static str],
    /// Packages of Ubuntu, without their dependencies.
    ubuntu: &'static [Deb],
}

/// All of them; only tests use them.
const UNPACKED: &[Unpacked] = &[
    Unpacked {
        folder: "suricata",
        what: "Suricata",
        packages: &["suricata"],
        without: &[],
        ubuntu: &[],
    },
    Unpacked {
        folder: "servers",
        what: "servers for scan tests",
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
        ubuntu: &[],
    },
    Unpacked {
        folder: "snort",
        what: "Snort",
        packages: &[
            "libdaq2",
            "libdumbnet1",
            "libluajit-5.1-2",
            "liblzma5",
            "libnetfilter-queue1",
            "libnghttp2-14",
            "libpcre3",
            "libssl3",
            "zlib1g",
        ],
        without: DEPENDENCIES_WITHOUT_LIBRARIES,
        // 22.04.
        ubuntu: &[
            Deb {
                path: "pool/universe/s/snort/\
                       snort-common-libraries_2.9.15.1-6build1_amd64.deb",
                sha256: "0422ae18ded0b4524804769162428d9179ff011ebe19d2187a2539ae7ae08137",
            },
            Deb {
                path: "pool/universe/s/snort/snort_2.9.15.1-6build1_amd64.deb",
                sha256: "d603bb58890fc47d112bcbdf8372f5297098dc80bdde7f5f02e386b93bf09b29",
            },
        ],
    },
    Unpacked {
        folder: "bro",
        what: "Bro (Zeek)",
        packages: &[
            "libgeoip1",
            "libgoogle-perftools4",
            "libpcap0.8",
            "libsqlite3-0",
            "libstdc++6",
            "zlib1g",
        ],
        without: DEPENDENCIES_WITHOUT_LIBRARIES,
        // 18.04.
        ubuntu: &[
            Deb {
                path: "pool/main/o/openssl/libssl1.1_1.1.0g-2ubuntu4_amd64.deb",
                sha256: "82e424d50e144320319414a1964d3a980abde4bc39fc7d8c2885819328cb5cb4",
            },
            Deb {
                path: "pool/universe/b/bro/bro-common_2.5.3-1build1_all.deb",
                sha256: "1aa6808b11b340e892b908c5afceab02dd3ee63138232755340e62d4949857ce",
            },
            Deb {
                path: "pool/universe/b/bro/bro_2.5.3-1build1_amd64.deb",
                sha256: "92461eccae6bc0732e5ecea327a6178d35d8d18b068ebe911585bb597b473c43",
            },
        ],
    },
    Unpacked {
        folder: "ubuntu",
        what: "a kernel and busybox for a guest of Ubuntu",
        packages: &[],
        without: &[],
        // 24.04.
        ubuntu: &[
            Deb {
                path: "pool/main/b/busybox/busybox-static_1.36.1-6ubuntu3_amd64.deb",
                sha256: "9936a597976a42088f977bfb204b84f02615feb42bb732ff1fdb8bef5b5c13f4",
            },
            Deb {
                path: "pool/main/l/linux/\
                       linux-image-unsigned-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
                sha256: "35115ceb5ddc1e73034a73d6b064b9c6d38c534f20279fd7229c510515b931d8",
            },
        ],
    },
];

/// Dependencies of libraries' packages that their programs here do not use.
const DEPENDENCIES_WITHOUT_LIBRARIES: &[&str] = &["debconf=", "libc-gconv-modules-extra="];

/// The file with the [`list`](Unpacked::list) of packages in an unpacked directory.
const LIST: &str = "packages.list";

/// Debian's release that still has libraries of Ubuntu's programs (libdaq2).
const OLDER: &[&str] = &["bookworm"];

impl Unpacked {
    fn path(&self) -> PathBuf {
        crate::run::root().join("target").join(self.folder)
    }

    fn is_of_debian(&self) -> bool {
        self.ubuntu.is_empty()
    }

    /// Names of all packages. The directory has a copy: it is unpacked again when a list changes.
    fn list(&self) -> String {
        let debian = self.packages.iter().map(|name| format!("{name}\n"));
        let without = self.without.iter().map(|start| format!("-{start}\n"));
        let ubuntu = self.ubuntu.iter();
        let ubuntu = ubuntu.map(|deb| format!("{} {}\n", deb.path, deb.sha256));
        debian.chain(without).chain(ubuntu).collect()
    }

    fn is_missing(&self) -> bool {
        let unpacked = fs::read_to_string(self.path().join(LIST));
        !unpacked.is_ok_and(|list| list == self.list())
    }

    fn unpack(&self, apt: &Apt) -> Result<()> {
        let folder = self.path();
        let into = folder.with_extension("new");
        let _ = fs::remove_dir_all(&into);
        if let Err(error) = self.unpack_into(apt, &into) {
            let _ = fs::remove_dir_all(&into);
            return Err(error.context(self.what));
        }
        let _ = fs::remove_dir_all(&folder);
        fs::rename(&into, &folder).with_context(|| folder.display().to_string())
    }

    fn unpack_into(&self, apt: &Apt, into: &Path) -> Result<()> {
        if !self.packages.is_empty() {
            let mut packages = apt.with_libraries(self.packages)?;
            packages.retain(|name| !self.without.iter().any(|start| name.starts_with(start)));
            apt.unpack(&packages, into)?;
        }
        ubuntu::unpack(apt, self.ubuntu, into)?;
        let list = into.join(LIST);
        fs::write(&list, self.list()).with_context(|| list.display().to_string())
    }
}

fn of_sets(sets: &[Set]) -> Vec<&'static Unpacked> {
    let is_used = cfg!(target_arch = "x86_64") && sets.contains(&Set::Test);
    let missing = UNPACKED.iter().filter(|one| is_used && one.is_missing());
    missing.collect()
}

/// What is missing, and where it comes from.
pub fn missing(sets: &[Set]) -> Vec<(&'static str, &'static str)> {
    let origin = |one: &Unpacked| match one.is_of_debian() {
        true => "of trixie, unpacked below target",
        false => "of Ubuntu, unpacked below target",
    };
    let missing = of_sets(sets).into_iter();
    missing.map(|one| (one.what, origin(one))).collect()
}

/// Unpacks what is missing. Without it the tests that need it are skipped.
pub fn unpack(sets: &[Set]) {
    if of_sets(sets).is_empty() {
        return;
    }
    let _lock = match lock() {
        Ok(lock) => lock,
        Err(error) => return skipped(&error),
    };
    // Another setup may have unpacked it meanwhile.
    let missing = of_sets(sets);
    if missing.is_empty() {
        return;
    }
    let names: Vec<_> = missing.iter().map(|one| one.what).collect();
    eprintln!("missing: {}", names.join(", "));
    let (debian, ubuntu): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|one| one.is_of_debian());
    for (group, suites) in [(debian, &[][..]), (ubuntu, OLDER)] {
        if group.is_empty() {
            continue;
        }
        let lists = crate::run::root().join("target/unpacked.apt");
        match Apt::open(&lists, suites) {
            Ok(apt) => {
                let failed = group.iter().filter_map(|one| one.unpack(&apt).err());
                failed.for_each(|error| skipped(&error));
            }
            Err(error) => skipped(&error),
        }
        let _ = fs::remove_dir_all(&lists);
    }
}

fn skipped(error: &anyhow::Error) {
    eprintln!("warning: {error:#}\nwarning: tests that need it will be skipped");
}

/// Held while packages are unpacked: two commands would remove each other's files.
fn lock() -> Result<File> {
    let folder = crate::run::root().join("target");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join("unpacked.lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    file.lock().with_context(|| path.display().to_string())?;
    Ok(file)
}
