//! Formats of result files that are not text: other crates write them.

use std::io;
use std::path::Path;

use wire::Timestamp;

use super::{Ending, Found, Run};
use crate::grab::Banner;

/// A file format that is not text.
pub struct TableFormat {
    /// Name of the format on the command line.
    pub word: &'static str,
    /// Letter of the short option: `K` in `-oK`.
    pub letter: char,
    /// File name extension.
    pub extension: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Whether existing files are continued; otherwise a continued scan begins the next file of the
    /// series.
    pub is_continued: bool,
    /// Opens a file.
    pub open: OpenTable,
}

/// Opens a file, or creates it.
///
/// # Errors
/// Errors of the system, and `InvalidInput` for a file to continue that is of another kind.
pub type OpenTable = fn(&TableOptions<'_>) -> io::Result<Box<dyn TableFile>>;

impl std::fmt::Debug for TableFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word)
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions<'a> {
    /// The file.
    pub path: &'a Path,
    /// The run whose results it gets.
    pub run: &'a Run,
    /// Whether an existing file is continued; otherwise it is truncated.
    pub append: bool,
    /// Device and inode of files that are not overwritten.
    pub keep: &'a [(u64, u64)],
}

/// An open file. After each [`commit`](Self::commit) it is valid, and has all rows before it, also
/// if the process is killed.
pub trait TableFile: Send {
    /// Adds an answer.
    ///
    /// # Errors
    /// Errors of the system.
    fn answer(&mut self, found: &Found) -> io::Result<()>;

    /// Adds a banner of a service.
    ///
    /// # Errors
    /// Errors of the system.
    fn banner(&mut self, banner: &Banner, time: Timestamp) -> io::Result<()>;

    /// Writes the rows since the last call.
    ///
    /// # Errors
    /// Errors of the system. The rows before the last call are still in the file.
    fn commit(&mut self, ending: &Ending<'_>) -> io::Result<()>;

    /// Completes the file after the last commit.
    ///
    /// # Errors
    /// Errors of the system. All committed rows are in the file nevertheless.
    fn close(&mut self) -> io::Result<()>;

    /// Bytes of the file after the last commit.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Device and inode of the file.
    fn identity(&self) -> (u64, u64);
}
