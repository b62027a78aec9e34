//! Writes the results of a scan to files. Each file is complete at any time: new rows and the
//! closing part are written by one call, over the previous closing part.
//!
//! If the process is killed, the file is as its last call left it. If it is killed during a call,
//! the kernel may end that call early, but only between two pages of the file; then the last rows
//! and the closing part may be cut off. Continuing the file repairs it: it continues after the last
//! whole row.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::scan::report::{CLOSING_MAX, Ended, Ending, FORMATS, Format, ROW_MAX, Report, Run};
use sys::create::CreateOptions;
use sys::{Error, ErrorKind, Result};

use super::{Notice, Outcome, Totals, now};

/// Number of bytes of rows that triggers a write.
const LEN_MAX: usize = 64 << 10;
/// Time since the last write after which a row is written at once; the progress report, every
/// second, always triggers a write.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// An output as given on the command line: a format and a file.
#[derive(Clone, Debug)]
pub struct OutputName {
    /// The format.
    pub format: &'static Format,
    /// The file.
    pub path: PathBuf,
}

impl OutputName {
    /// Parses `xml:scan.xml`; `all:scan` is one file in each format.
    ///
    /// # Errors
    /// The reason why the text is invalid, as a sentence without a full stop.
    pub fn parse(text: &OsStr) -> std::result::Result<Vec<Self>, String> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        let (word, path) = bytes.split_at(colon.unwrap_or(bytes.len()));
        let path = OsStr::from_bytes(path.get(1..).unwrap_or_default());
        let shown = text.to_string_lossy();
        if path.is_empty() {
            return Err(format!("{shown:?} has no file: expected FORMAT:FILE"));
        }
        if word == b"all" {
            let of = |format: &&'static Format| {
                let mut name = path.as_bytes().to_vec();
                name.push(b'.');
                name.extend(format.extension.as_bytes());
                Self {
                    format,
                    path: OsString::from_vec(name).into(),
                }
            };
            return Ok(FORMATS.iter().map(of).collect());
        }
        let found = FORMATS.iter().find(|row| row.word.as_bytes() == word);
        let format = found.ok_or_else(|| {
            let words: Vec<&str> = FORMATS.iter().map(|row| row.word).collect();
            let words = words.join(", ");
            format!("unknown format in {shown:?}: there are {words}, and all")
        })?;
        let path = path.into();
        Ok(vec![Self { format, path }])
    }
}

/// The files of one scan.
#[derive(Debug, Default)]
pub struct Outputs(Vec<OutputFile>);

impl Outputs {
    /// Opens the files: `append` continues existing ones, otherwise they are truncated. None may be
    /// one of the files to `keep`, compared by device and inode.
    ///
    /// # Errors
    /// `InvalidInput` for two outputs to the same file, for pipes, and for a file to continue that
    /// does not end as its format requires; and any error of the system.
    pub fn open(
        names: &[OutputName],
        run: &Run,
        (append, totals): (bool, &Totals),
        keep: &[(u64, u64)],
    ) -> Result<Self> {
        let mut keep = keep.to_vec();
        let mut outputs = Self::default();
        for name in names {
            let (mut file, identity) = OutputFile::open(name, run, append, &keep)?;
            keep.extend(identity);
            file.flush(totals, None)?;
            outputs.0.push(file);
        }
        Ok(outputs)
    }

    /// Records a notice in all files.
    ///
    /// # Errors
    /// A file that cannot be written; the notice is in the others nevertheless.
    pub fn note(&mut self, notice: &Notice<'_>) -> Result<()> {
        let mut result = Ok(());
        for file in &mut self.0 {
            let noted = file.note(notice);
            result = result.and(noted);
        }
        result
    }

    /// Completes the files.
    ///
    /// # Errors
    /// A file that cannot be written; the others are still completed.
    pub fn end(mut self, outcome: &Outcome) -> Result<()> {
        let mut result = Ok(());
        for file in &mut self.0 {
            let ended = file.flush(&outcome.totals, Some(outcome));
            result = result.and(ended);
        }
        result
    }
}

/// Appends the closing part of a report of a scan that has ended.
pub fn close(report: &Report, outcome: &Outcome, out: &mut Vec<u8>) {
    let error = outcome.error.as_ref().map(ToString::to_string);
    let result = Ended {
        seconds: outcome.elapsed.as_secs_f64(),
        sending_seconds: outcome.sending.as_secs_f64(),
        is_complete: outcome.is_complete,
        error: error.as_deref(),
    };
    let ending = Ending {
        totals: &outcome.totals,
        now: now(),
        result: Some(result),
    };
    report.close(&ending, out);
}

/// A file in one format.
#[derive(Debug)]
struct OutputFile {
    path: PathBuf,
    file: File,
    report: Report,
    /// Offset of the closing part; `None` for a device, which has no offsets.
    at: Option<u64>,
    /// The closing part as last written.
    closing: Vec<u8>,
    totals: Totals,
    flushed: Instant,
    /// Whether a write has failed.
    is_broken: bool,
}

impl OutputFile {
    /// Opens a file; returns it with its device and inode.
    fn open(
        name: &OutputName,
        run: &Run,
        append: bool,
        keep: &[(u64, u64)],
    ) -> Result<(Self, Option<(u64, u64)>)> {
        let path = &name.path;
        let what = || format!("write {}", path.display());
        let failed = |error| Error::from_io(what(), error);
        let options = CreateOptions {
            keep,
            ..CreateOptions::BY_UMASK
        };
        let (start, end) = if append {
            ends_of(path)
        } else {
            Default::default()
        };
        let file = match append {
            true => options.open(path).map(|made| made.file),
            false => options.create(path),
        };
        let file = file.map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        let kind = data.file_type();
        if kind.is_fifo() || kind.is_socket() {
            let why = "it is a pipe, whose reader the scan would wait for";
            return Err(Error::new(ErrorKind::InvalidInput, what(), why)
                .with_hint("write to - and pipe standard output"));
        }
        let format = name.format;
        let (report, overwritten) = match end.is_empty() {
            true => (Report::new(format, run.clone()), 0),
            false => {
                let whole = Report::continued(format, run.clone(), &end);
                let found = whole.or_else(|| Report::repaired(format, run.clone(), (&start, &end)));
                found.ok_or_else(|| {
                    let why = format!("it is not a file of a scan in the format {}", format.word);
                    Error::new(ErrorKind::InvalidInput, what(), why)
                        .with_hint("write to another file, or remove this one")
                })?
            }
        };
        let at = kind.is_file().then(|| data.len() - overwritten as u64);
        let closing = end[end.len() - overwritten..].to_vec();
        let opened = Self {
            path: path.clone(),
            file,
            report,
            at,
            closing,
            totals: Totals::default(),
            flushed: Instant::now(),
            is_broken: false,
        };
        let identity = kind.is_file().then(|| (data.dev(), data.ino()));
        Ok((opened, identity))
    }

    fn note(&mut self, notice: &Notice<'_>) -> Result<()> {
        match notice {
            Notice::Found(found) => self.report.answer(found),
            Notice::Banner(banner, time) => self.report.banner(banner, *time),
            Notice::Rate(change, time) => self.report.rate(change, *time),
            Notice::Progress(totals, _) => {
                self.totals = **totals;
                return self.flush(totals, None);
            }
            _ => return Ok(()),
        }
        if self.report.len() >= LEN_MAX || self.flushed.elapsed() >= WAIT_MAX {
            let totals = self.totals;
            return self.flush(&totals, None);
        }
        Ok(())
    }

    /// Writes the new rows, followed by the closing part.
    fn flush(&mut self, totals: &Totals, outcome: Option<&Outcome>) -> Result<()> {
        self.flushed = Instant::now();
        if self.is_broken || (self.report.is_empty() && outcome.is_none() && self.at.is_none()) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.report.take(&mut bytes);
        let row_len = bytes.len();
        let ending = Ending {
            totals,
            now: now(),
            result: None,
        };
        match outcome {
            Some(outcome) => close(&self.report, outcome, &mut bytes),
            None if self.at.is_some() => self.report.close(&ending, &mut bytes),
            None => {}
        }
        // Newlines overwrite the rest of a longer closing part; XML and JSON may end in them.
        let len = bytes.len();
        bytes.resize(len.max(self.closing.len()), b'\n');
        let written = self.write(&bytes, row_len, len);
        self.is_broken = written.is_err();
        let what = || format!("write {}", self.path.display());
        written.map_err(|error| Error::from_io(what(), error))
    }

    /// Writes all bytes in one call, and truncates the file after `len` of them.
    fn write(&mut self, bytes: &[u8], row_len: usize, len: usize) -> io::Result<()> {
        let Some(at) = self.at else {
            return io::Write::write_all(&mut self.file, &bytes[..len]);
        };
        if let Err(error) = self.file.write_all_at(bytes, at) {
            // The previous closing part fits even if the disk is full, so the file stays complete.
            let _ = self.file.write_all_at(&self.closing, at);
            let _ = self.file.set_len(at + self.closing.len() as u64);
            return Err(error);
        }
        self.at = Some(at + row_len as u64);
        self.closing = bytes[row_len..len].to_vec();
        match len < bytes.len() {
            true => self.file.set_len(at + len as u64),
            false => Ok(()),
        }
    }
}

/// Returns the first and the last bytes of an existing regular file.
fn ends_of(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let read = || -> io::Result<(Vec<u8>, Vec<u8>)> {
        // Opening a pipe would block if it has no writer.
        if !path.metadata()?.is_file() {
            return Ok(Default::default());
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let from = len.saturating_sub(ROW_MAX as u64);
        let mut start = vec![0; len.min(CLOSING_MAX as u64) as usize];
        file.read_exact_at(&mut start, 0)?;
        let mut end = vec![0; (len - from) as usize];
        file.read_exact_at(&mut end, from)?;
        Ok((start, end))
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests;
