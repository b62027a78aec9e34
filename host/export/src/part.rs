//! A file that is hidden until it is complete: written under another name, and linked to its own at
//! the end.
//!
//! While it is written it is named `.NAME.part`, in its final directory: readers of directories
//! skip hidden names, and so do patterns such as `*.parquet`. If the process is killed, the
//! incomplete file stays behind under that name; all others are complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sys::create::CreateOptions;

/// Maximum number of names tried for one file.
const NAMES_MAX: u32 = 10_000;

/// A file being written.
pub(crate) struct Part {
    file: File,
    hidden: PathBuf,
    path: PathBuf,
    /// Bytes of whole messages.
    len: u64,
    is_done: bool,
}

impl Part {
    /// Creates the file that will be named `path`, and missing directories.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path) -> io::Result<Part> {
        let name = path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file")
        })?;
        let folder = folder_of(path);
        fs::create_dir_all(folder)?;
        // An existing part belongs to another process, or was left behind: it is not touched either
        // way.
        for at in 0..NAMES_MAX {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            if at != 0 {
                hidden.push(format!(".{at}"));
            }
            hidden.push(".part");
            let hidden = folder.join(hidden);
            match CreateOptions::BY_UMASK.create_new(&hidden) {
                Ok(file) => {
                    return Ok(Part {
                        file,
                        hidden,
                        path: path.to_owned(),
                        len: 0,
                        is_done: false,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Bytes written.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends all of `bytes`, or nothing.
    ///
    /// # Errors
    /// If they could not be written; what was written is removed again.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            self.file.set_len(self.len)?;
            self.file.seek(SeekFrom::Start(self.len))?;
            return Err(error);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file to disk and gives it its name; if that exists, one with a number: nothing is
    /// ever overwritten. Returns the name.
    ///
    /// # Errors
    /// If that failed; then the file is deleted.
    pub fn complete(mut self) -> io::Result<PathBuf> {
        self.file.sync_data()?;
        for at in 0..NAMES_MAX {
            let path = numbered(&self.path, at);
            // Unlike a rename, a link does not replace an existing file.
            match fs::hard_link(&self.hidden, &path) {
                // Dropping it removes the hidden name.
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // The file system does not support links.
                Err(_) if path.symlink_metadata().is_ok() => continue,
                Err(_) => {
                    fs::rename(&self.hidden, &path)?;
                    self.is_done = true;
                }
            }
            // Sync the name, too, if possible: the file exists either way.
            let _ = File::open(folder_of(&path)).and_then(|folder| folder.sync_data());
            return Ok(path);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(&self.hidden);
        }
    }
}

/// The directory of a file; of a bare name the current one.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Turns `flows.csv.gz` into `flows-2.csv.gz`.
fn numbered(path: &Path, at: u32) -> PathBuf {
    let Some(name) = path.file_name().filter(|_| at != 0) else {
        return path.to_owned();
    };
    let name = name.to_string_lossy();
    // A leading dot belongs to the name.
    let dot = name.char_indices().skip(1).find(|(_, c)| *c == '.');
    let (stem, rest) = name.split_at(dot.map_or(name.len(), |(at, _)| at));
    path.with_file_name(format!("{stem}-{}{rest}", at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("barewire-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_appear_complete_and_replace_nothing() {
        let folder = folder("part");
        let path = folder.join("deep/flows.csv.gz");
        for text in [b"one", b"two"] {
            let mut part = Part::create(&path).unwrap();
            part.append(text).unwrap();
            assert!(
                names(&folder.join("deep"))
                    .iter()
                    .any(|n| n.starts_with('.'))
            );
            part.complete().unwrap();
        }
        let mut dropped = Part::create(&path).unwrap();
        let second = Part::create(&path).unwrap();
        dropped.append(b"never seen").unwrap();
        assert_eq!(dropped.len(), 10);
        drop((dropped, second));
        let found = names(&folder.join("deep"));
        assert_eq!(found, ["flows-2.csv.gz", "flows.csv.gz"]);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn numbers_go_before_the_extension() {
        for (name, second) in [
            ("a/flows.csv", "a/flows-2.csv"),
            ("flows", "flows-2"),
            (".hidden.csv.zst", ".hidden-2.csv.zst"),
        ] {
            assert_eq!(numbered(Path::new(name), 1), Path::new(second));
            assert_eq!(numbered(Path::new(name), 0), Path::new(name));
        }
    }
}
