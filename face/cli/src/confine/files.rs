//! Files that commands open while they run: those of the system, and those of each command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sys::landlock::{Access, Rule};

/// Files that any command may read: libraries loaded on demand (`/nix`, `/gnu`: their location in
/// NixOS and Guix), resolver settings, time zones, certificates, the kernel's tables.
const SYSTEM: &[&str] = &[
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/gnu",
    "/etc",
    "/run",
    "/proc",
    "/sys",
    "/var/lib/ca-certificates",
    "/var/lib/sss",
];

/// Environment variable with library directories (ld.so(8)).
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Files and directories that a command needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    rules: Vec<Rule>,
}

impl Files {
    fn add(&mut self, path: &Path, access: Access) {
        let path = match path.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => path.to_owned(),
        };
        let rule = Rule { path, access };
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    /// Adds a file that is reopened: this file, not another of the same name.
    pub fn read(&mut self, file: &Path) {
        self.add(file, Access::Read);
    }

    /// Adds a file that is read by name, even if it was replaced: editors write a new file and
    /// rename it.
    pub fn read_beside(&mut self, file: &Path) {
        for folder in folders_of(file) {
            self.add(&folder, Access::Read);
        }
    }

    /// Adds a directory in which files are created, and which may not exist yet.
    pub fn write_in(&mut self, folder: &Path) {
        self.add(existing(folder), Access::Write);
    }

    /// Adds a file that is written by name, even if it was replaced, and other files in its
    /// directory.
    pub fn write_beside(&mut self, file: &Path) {
        for folder in folders_of(file) {
            self.write_in(&folder);
        }
    }

    /// Adds files whose names are made from a pattern: those below the directory before the first
    /// `%`.
    pub fn write_pattern(&mut self, pattern: &Path) {
        match unformatted(pattern) {
            Some(folder) => self.write_in(folder),
            None => self.write_beside(pattern),
        }
    }

    /// Adds a file that is deleted.
    pub fn delete(&mut self, file: &Path) {
        for folder in folders_of(file) {
            self.add(&folder, Access::Delete);
        }
    }

    /// Rules for these files and those of the system.
    pub(super) fn rules(&self) -> Vec<Rule> {
        let mut all = self.clone();
        for path in SYSTEM {
            all.add(Path::new(path), Access::Read);
        }
        let libraries = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
        for path in std::env::split_paths(&libraries).filter(|path| path.is_absolute()) {
            all.add(&path, Access::Read);
        }
        // Function names, for the output of a panic.
        if let Ok(program) = std::env::current_exe() {
            all.read(&program);
        }
        all.add(Path::new("/dev"), Access::Devices);
        all.rules
    }
}

/// The directory of a file, and that of its target if it is a symbolic link.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    let folder = |path: &Path| path.parent().map(Path::to_owned);
    let mut folders = Vec::from_iter(folder(file));
    if file.is_symlink()
        && let Ok(target) = file.canonicalize()
    {
        folders.extend(folder(&target));
    }
    folders
}

/// The deepest existing directory of a path.
fn existing(folder: &Path) -> &Path {
    let exists = |path: &&Path| path.as_os_str().is_empty() || path.exists();
    folder.ancestors().find(exists).unwrap_or(folder)
}

/// The directory before the first component with a percent sign, if there is one.
fn unformatted(pattern: &Path) -> Option<&Path> {
    let has_format = |name: &OsStr| name.as_bytes().contains(&b'%');
    pattern
        .ancestors()
        .filter(|path| path.file_name().is_some_and(has_format))
        .last()?
        .parent()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &str, access: Access) -> Rule {
        let path = path.into();
        Rule { path, access }
    }

    #[test]
    fn patterns_give_access_below_their_fixed_part() {
        let mut files = Files::default();
        for pattern in ["/tmp/%F/a/%H.pcap", "/tmp/day-%F.pcap", "%s.pcap", "x.pcap"] {
            files.write_pattern(Path::new(pattern));
        }
        let expected = [rule("/tmp", Access::Write), rule(".", Access::Write)];
        assert_eq!(files.rules, expected);
    }

    #[test]
    fn missing_directories_give_access_to_the_existing_parent() {
        let mut files = Files::default();
        files.write_in(Path::new("/tmp/barewire-absent/one/two"));
        files.write_in(Path::new("barewire-absent/one"));
        let expected = [rule("/tmp", Access::Write), rule(".", Access::Write)];
        assert_eq!(files.rules, expected);
    }

    #[test]
    fn a_symbolic_link_adds_its_targets_directory() {
        let folder = std::env::temp_dir().join(format!("barewire-files-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("there")).unwrap();
        std::fs::write(folder.join("there/file"), "").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink("there/file", &link).unwrap();
        let found = folders_of(&link);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], folder);
        assert!(found[1].ends_with("there"), "{found:?}");
    }

    #[test]
    fn system_files_are_read_only() {
        let rules = Files::default().rules();
        assert!(rules.contains(&rule("/usr", Access::Read)));
        assert!(rules.iter().all(|rule| rule.access != Access::Write));
    }
}
