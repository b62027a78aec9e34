//! The guest's file system: an archive that the kernel unpacks into memory.
//!
//! The format is cpio's "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of the
//! kernel); written here, so that a device node needs no privileges and no program.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{quietly, which};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive being built.
pub struct Initramfs {
    bytes: Vec<u8>,
    /// Paths in it, without the leading slash.
    there: BTreeSet<String>,
    inode: u32,
}

impl Initramfs {
    /// Creates an archive with the console, which the kernel opens before anything runs.
    pub fn new() -> Result<Initramfs> {
        let mut archive = Initramfs {
            bytes: Vec::new(),
            there: BTreeSet::new(),
            inode: 0,
        };
        for folder in ["proc", "sys", "dev", "run", "tmp", "root", "out", "lib64"] {
            archive.folder(folder)?;
        }
        archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), b"")?;
        Ok(archive)
    }

    /// Adds an executable file, with the directories above it.
    pub fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        self.parents(path)?;
        self.entry(path, PROGRAM, (0, 0), content)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.parents(path)?;
        self.entry(path, LINK, (0, 0), target.as_bytes())
    }

    /// Adds a file of this machine with the shared libraries it needs, at the same paths as here.
    pub fn program(&mut self, path: &str, file: &Path) -> Result<()> {
        let content = stripped(file).with_context(|| file.display().to_string())?;
        self.file(path, &content)?;
        for library in libraries(file)? {
            let place = library.to_string_lossy();
            let place = place.trim_start_matches('/');
            if !self.there.contains(place) {
                let content = std::fs::read(&library).with_context(|| place.to_owned())?;
                self.file(place, &content)?;
            }
        }
        Ok(())
    }

    /// Writes the archive with its trailer.
    pub fn write(mut self, file: &Path) -> Result<()> {
        self.there.clear();
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        std::fs::write(file, &self.bytes).with_context(|| file.display().to_string())
    }

    fn folder(&mut self, path: &str) -> Result<()> {
        if self.there.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, FOLDER, (0, 0), b"")
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((above, _)) => self.folder(above),
            None => Ok(()),
        }
    }

    /// One entry: thirteen numbers of eight hexadecimal digits, the name, the content, the last two
    /// padded to four bytes.
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        if !self.there.insert(path.to_owned()) {
            bail!("{path} is twice in the guest");
        }
        self.inode += 1;
        let len = u32::try_from(content.len()).with_context(|| format!("{path} is too long"))?;
        let name_len = u32::try_from(path.len() + 1)?;
        let fields = [
            self.inode, mode, 0, 0, 1, 0, len, 0, 0, device.0, device.1, name_len, 0,
        ];
        self.bytes.write_all(b"070701")?;
        for field in fields {
            write!(self.bytes, "{field:08x}")?;
        }
        self.bytes.write_all(path.as_bytes())?;
        self.bytes.push(0);
        self.fill();
        self.bytes.write_all(content)?;
        self.fill();
        Ok(())
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A program without debug information, which is most of it: the guest has to hold it in memory,
/// three times while it boots.
fn stripped(file: &Path) -> Result<Vec<u8>> {
    if let Some(strip) = which("strip") {
        let copy = std::env::temp_dir().join(format!("barewire-strip-{}", std::process::id()));
        let mut command = Command::new(strip);
        command.args(["--strip-debug", "-o"]).arg(&copy).arg(file);
        let content = quietly(&mut command).and_then(|_| Ok(std::fs::read(&copy)?));
        let _ = std::fs::remove_file(&copy);
        // A script is not an object file.
        if let Ok(content) = content {
            return Ok(content);
        }
    }
    Ok(std::fs::read(file)?)
}

/// The shared libraries of a program and its loader, as found by `ldd`.
fn libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let ldd = which("ldd").context("no ldd, which is of libc-bin")?;
    let Ok(text) = quietly(Command::new(ldd).arg(file)) else {
        // "not a dynamic executable"
        return Ok(Vec::new());
    };
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{}: {}", file.display(), line.trim());
    }
    // libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…), or /lib64/ld-linux-x86-64.so.2 (0x…)
    let words = text.lines().flat_map(str::split_whitespace);
    let mut found: Vec<PathBuf> = words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_readable_by_cpio() {
        let mut archive = Initramfs::new().unwrap();
        archive.file("a/b/odd", b"12345").unwrap();
        archive.link("a/link", "b/odd").unwrap();
        archive.program("bin/sh", Path::new("/bin/sh")).unwrap();
        assert!(archive.file("a/b/odd", b"again").is_err());
        let file = std::env::temp_dir().join(format!("barewire-cpio-{}", std::process::id()));
        archive.write(&file).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        // Parsed by the format's own rules: magic, sizes at fixed offsets, both parts padded.
        let number = |at: usize| {
            let digits = std::str::from_utf8(&bytes[at..at + 8]).unwrap();
            usize::from_str_radix(digits, 16).unwrap()
        };
        let (mut at, mut names) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (len, name_len) = (number(at + 54), number(at + 94));
            let name = &bytes[at + 110..at + 110 + name_len - 1];
            names.push(String::from_utf8(name.to_vec()).unwrap());
            let content = (at + 110 + name_len).next_multiple_of(4);
            if names.last().unwrap() == "a/b/odd" {
                assert_eq!(&bytes[content..content + len], b"12345");
            }
            at = (content + len).next_multiple_of(4);
        }
        assert_eq!(names.last().unwrap(), "TRAILER!!!");
        for name in ["a", "a/b", "a/b/odd", "a/link", "bin/sh", "dev/console"] {
            assert!(names.contains(&name.to_owned()), "{name} in {names:?}");
        }
        assert!(
            names.iter().any(|name| name.contains("libc.so")),
            "{names:?}"
        );
    }
}
