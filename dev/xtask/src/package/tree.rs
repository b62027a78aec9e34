//! A tree of files to be packed, with modes that do not depend on the umask.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A directory that becomes `/`.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Creates an empty tree, replacing an existing one.
    pub fn new(root: PathBuf) -> Result<Tree> {
        let _ = fs::remove_dir_all(&root);
        let tree = Tree { root };
        tree.folder("")?;
        Ok(tree)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates a directory and its parents.
    pub fn folder(&self, path: &str) -> Result<()> {
        let mut at = self.root.clone();
        for part in [""].into_iter().chain(path.split('/')) {
            if !part.is_empty() {
                at.push(part);
            }
            if !at.is_dir() {
                fs::create_dir_all(&at).with_context(|| at.display().to_string())?;
                fs::set_permissions(&at, Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// Writes a file.
    pub fn text(&self, text: &str, path: &str, mode: u32) -> Result<()> {
        self.bytes(text.as_bytes(), path, mode)
    }

    /// Writes a file.
    pub fn bytes(&self, bytes: &[u8], path: &str, mode: u32) -> Result<()> {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder)?;
        }
        let file = self.root.join(path);
        fs::write(&file, bytes).with_context(|| file.display().to_string())?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
        Ok(())
    }

    /// Copies a file, following links.
    pub fn copy(&self, from: &Path, path: &str, mode: u32) -> Result<()> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.bytes(&bytes, path, mode)
    }

    /// Writes a file compressed with gzip, without name and time.
    pub fn packed(&self, bytes: &[u8], path: &str) -> Result<()> {
        self.bytes(&gzip(bytes)?, path, 0o644)
    }

    /// Creates a symbolic link.
    pub fn link(&self, target: &str, path: &str) -> Result<()> {
        symlink(target, self.root.join(path)).with_context(|| path.to_owned())
    }

    /// All files, as sorted paths below the root, without links.
    pub fn files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let path = entry.path();
                    let path = path.strip_prefix(&self.root)?;
                    files.push(path.to_string_lossy().into_owned());
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Compresses bytes.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .args(["-9", "-n", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("gzip")?;
    let mut stdin = child.stdin.take().context("gzip has no standard input")?;
    let bytes = bytes.to_owned();
    // Both ends at once: gzip writes while it reads.
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().context("gzip")?;
    writer
        .join()
        .expect("the writer does not panic")
        .context("gzip")?;
    ensure!(output.status.success(), "gzip: {}", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        let root = std::env::temp_dir().join(format!("barewire-tree-{}", std::process::id()));
        let tree = Tree::new(root.clone()).unwrap();
        tree.text("x", "a/b/c", 0o755).unwrap();
        tree.packed(&[7; 100_000], "a/d.gz").unwrap();
        assert_eq!(tree.files().unwrap(), ["a/b/c", "a/d.gz"]);
        for (path, mode) in [
            ("a", 0o755),
            ("a/b", 0o755),
            ("a/b/c", 0o755),
            ("a/d.gz", 0o644),
        ] {
            let found = fs::metadata(root.join(path)).unwrap().permissions().mode();
            assert_eq!(found & 0o7777, mode, "{path}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
