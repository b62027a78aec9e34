//! A file that is hidden until it is complete: written under another name, renamed at its end.
//!
//! While it is written it is called `.NAME.part`, in the directory where it will be: readers of
//! directories pass hidden names over, and so do patterns such as `*.parquet`. When the process is
//! killed, what it was writing stays behind under that name; everything else is whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sys::create::CreateOptions;

/// Maximum number of names that are tried for one file.
const NAMES_MAX: u32 = 10_000;

/// A file on its way.
pub(crate) struct Part {
    file: File,
    hidden: PathBuf,
    path: PathBuf,
    /// Bytes of whole messages.
    len: u64,
    is_done: bool,
}

impl Part {
    /// Begins the file that will be called `path`. Directories are made where they are missing.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn create(path: &Path) -> io::Result<Part> {
        let name = path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file")
        })?;
        let folder = folder_of(path);
        fs::create_dir_all(folder)?;
        // A part that is there is another process's, or was left behind: not ours either way.
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

    /// Appends all of it, or nothing.
    ///
    /// # Errors
    /// Where it could not be written; what was is taken back.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            self.file.set_len(self.len)?;
            self.file.seek(SeekFrom::Start(self.len))?;
            return Err(error);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Brings it to the disk and gives it its name; where that is taken, one with a number: nothing
    /// is ever overwritten. Gives the name.
    ///
    /// # Errors
    /// Where that failed; then the file is gone.
    pub fn complete(mut self) -> io::Result<PathBuf> {
        self.file.sync_data()?;
        for at in 0..NAMES_MAX {
            let path = numbered(&self.path, at);
            // A link does not replace what has that name, as a rename would.
            match fs::hard_link(&self.hidden, &path) {
                // Dropped, it takes the hidden name away.
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // A file system without links.
                Err(_) if path.symlink_metadata().is_ok() => continue,
                Err(_) => {
                    fs::rename(&self.hidden, &path)?;
                    self.is_done = true;
                }
            }
            // The name, too, where that can be had: the file is there either way.
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

/// `flows.csv.gz` as `flows-2.csv.gz`.
fn numbered(path: &Path, at: u32) -> PathBuf {
    let Some(name) = path.file_name().filter(|_| at != 0) else {
        return path.to_owned();
    };
    let name = name.to_string_lossy();
    // A dot in front belongs to the name.
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
    fn files_appear_whole_and_replace_nothing() {
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
    fn numbers_stand_before_the_ending() {
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
