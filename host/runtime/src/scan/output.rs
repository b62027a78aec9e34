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

use ::scan::report::{
    CLOSING_MAX, Ended, Ending, FORMATS, Format, Note, ROW_MAX, Report, Run, TableFormat,
};
use sys::create::CreateOptions;
use sys::{Error, ErrorKind, Result};

use self::table::TableOutput;
use super::{Notice, Outcome, Totals, now};

mod table;

/// Number of bytes of rows that triggers a write.
const LEN_MAX: usize = 64 << 10;
/// Time since the last write after which a row is written at once; the progress report, every
/// second, always triggers a write.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The format of a file.
#[derive(Clone, Copy, Debug)]
pub enum OutputFormat {
    /// Text.
    Text(&'static Format),
    /// A format of another crate.
    Table(&'static TableFormat),
}

impl OutputFormat {
    /// All formats of text, followed by these.
    pub fn all(tables: &[&'static TableFormat]) -> Vec<Self> {
        let text = FORMATS.iter().copied().map(Self::Text);
        text.chain(tables.iter().copied().map(Self::Table))
            .collect()
    }

    /// Name of the format on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text(format) => format.word,
            Self::Table(format) => format.word,
        }
    }

    /// Letter of the short option.
    pub fn letter(self) -> char {
        match self {
            Self::Text(format) => format.letter,
            Self::Table(format) => format.letter,
        }
    }

    /// File name extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Text(format) => format.extension,
            Self::Table(format) => format.extension,
        }
    }
}

/// An output as given on the command line: a format and a file.
#[derive(Clone, Debug)]
pub struct OutputName {
    /// The format.
    pub format: OutputFormat,
    /// The file.
    pub path: PathBuf,
}

impl OutputName {
    /// Parses `xml:scan.xml`; `all:scan` is one file in each format. `tables` are the formats in
    /// addition to those of text.
    ///
    /// # Errors
    /// The reason why the text is invalid, as a sentence without a full stop.
    pub fn parse(
        text: &OsStr,
        tables: &[&'static TableFormat],
    ) -> std::result::Result<Vec<Self>, String> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        let (word, path) = bytes.split_at(colon.unwrap_or(bytes.len()));
        let path = OsStr::from_bytes(path.get(1..).unwrap_or_default());
        let shown = text.to_string_lossy();
        if path.is_empty() {
            return Err(format!("{shown:?} has no file: expected FORMAT:FILE"));
        }
        let formats = OutputFormat::all(tables);
        if word == b"all" {
            let of = |format: OutputFormat| {
                let mut name = path.as_bytes().to_vec();
                name.push(b'.');
                name.extend(format.extension().as_bytes());
                Self {
                    format,
                    path: OsString::from_vec(name).into(),
                }
            };
            return Ok(formats.into_iter().map(of).collect());
        }
        let mut of_word = formats.iter().filter(|row| row.word().as_bytes() == word);
        let format = of_word.next().copied().ok_or_else(|| {
            let words: Vec<&str> = formats.iter().map(|row| row.word()).collect();
            let words = words.join(", ");
            format!("unknown format in {shown:?}: there are {words}, and all")
        })?;
        let path = path.into();
        Ok(vec![Self { format, path }])
    }
}

/// When a file is closed and the next one opened, if it has any row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Once it has this many bytes.
    Size(u64),
    /// After this time.
    Age(Duration),
}

/// How files are opened, and when they are closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// Whether existing files are continued; otherwise they are truncated.
    pub append: bool,
    /// When the next file is begun; `None`: never.
    pub rotation: Option<Rotation>,
}

/// The files of one scan.
#[derive(Debug, Default)]
pub struct Outputs {
    files: Vec<OutputFile>,
    tables: Vec<TableOutput>,
    rotation: Option<Rotation>,
    /// Files that are not overwritten, by device and inode.
    keep: Vec<(u64, u64)>,
}

/// The file of a series: `scan.xml`, `scan.2.xml`, and so on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number < 2 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The highest number of the files of a series that exist, whether or not there are others before
/// it; 1 without any.
fn last_number(path: &Path) -> u32 {
    let start = path.file_stem().unwrap_or_default().as_encoded_bytes();
    let end = path.extension().map(std::ffi::OsStr::as_encoded_bytes);
    let number_of = |name: &std::ffi::OsStr| -> Option<u32> {
        let rest = name.as_encoded_bytes().strip_prefix(start)?;
        let rest = rest.strip_prefix(b".")?;
        let digits = match end {
            Some(end) => rest.strip_suffix(end)?.strip_suffix(b".")?,
            None => rest,
        };
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (number > 1 && numbered(path, number).file_name() == Some(name)).then_some(number)
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = files.filter_map(|file| number_of(&file.file_name()));
    numbers.max().unwrap_or(1)
}

/// The next number of a series without a file.
fn next_number(path: &Path, after: u32) -> u32 {
    let is_free = |number: &u32| !numbered(path, *number).exists();
    (after + 1..u32::MAX).find(is_free).unwrap_or(u32::MAX)
}

/// Refuses to begin a series where one is: its last files would be taken for those of this scan
/// when it is continued.
fn refuse_series(path: &Path) -> Result<()> {
    let last = match last_number(path) {
        1 => return Ok(()),
        number => numbered(path, number),
    };
    let what = format!("write {}", path.display());
    let why = format!("{} is of an earlier series", last.display());
    Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(
        "move or remove the files of the series, write to another file, or use --append-output",
    ))
}

impl Outputs {
    /// Opens the files. None may be one of the files to `keep`, compared by device and inode. If
    /// they are rotated, a continued file is the last of its series.
    ///
    /// # Errors
    /// `InvalidInput` for two outputs to the same file, for pipes, for a new series of which a
    /// numbered file exists, and for a file to continue that does not end as its format requires;
    /// and any error of the system.
    pub fn open(
        names: &[OutputName],
        run: &Run,
        (options, totals): (OutputOptions, &Totals),
        keep: &[(u64, u64)],
    ) -> Result<Self> {
        let mut outputs = Self {
            files: Vec::new(),
            tables: Vec::new(),
            rotation: options.rotation,
            keep: keep.to_vec(),
        };
        if !options.append {
            // Before any of the files is truncated.
            let is_series = |name: &&OutputName| match name.format {
                OutputFormat::Table(format) if !format.is_continued => true,
                _ => options.rotation.is_some(),
            };
            let mut series = names.iter().filter(is_series);
            series.try_for_each(|name| refuse_series(&name.path))?;
        }
        for name in names {
            let number = match options {
                OutputOptions {
                    append: true,
                    rotation: Some(_),
                } => last_number(&name.path),
                _ => 1,
            };
            match name.format {
                OutputFormat::Text(format) => {
                    let place = (format, &*name.path, number);
                    let opened = OutputFile::open(place, run, options.append, &outputs.keep);
                    let (mut file, identity) = opened?;
                    outputs.keep.extend(identity);
                    file.flush(totals, None)?;
                    outputs.files.push(file);
                }
                OutputFormat::Table(format) => {
                    let is_continued = options.append && format.is_continued;
                    // Nothing of an earlier scan is overwritten, whatever files were moved away.
                    let number = match (options.append && !is_continued, last_number(&name.path)) {
                        (true, 1) if !name.path.exists() => 1,
                        (true, last) => last + 1,
                        (false, _) => number,
                    };
                    let place = (name.path.clone(), number);
                    let keep = &outputs.keep;
                    let table = TableOutput::open(format, place, run, is_continued, keep)?;
                    outputs.keep.push(table.identity());
                    outputs.tables.push(table);
                }
            }
        }
        Ok(outputs)
    }

    /// Records a notice in all files.
    ///
    /// # Errors
    /// A file that cannot be written; the notice is in the others nevertheless.
    pub fn note(&mut self, notice: &Notice<'_>) -> Result<()> {
        let mut result = Ok(());
        for file in &mut self.files {
            let mut noted = file.note(notice);
            if noted.is_ok() && self.rotation.is_some_and(|rotation| file.is_due(rotation)) {
                noted = file.rotate(&mut self.keep);
            }
            result = result.and(noted);
        }
        for table in &mut self.tables {
            let mut noted = table.note(notice);
            if noted.is_ok() && self.rotation.is_some_and(|rotation| table.is_due(rotation)) {
                noted = table.rotate(&mut self.keep);
            }
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
        for file in &mut self.files {
            let ended = file.flush(&outcome.totals, Some(outcome));
            result = result.and(ended);
        }
        for table in &mut self.tables {
            let ended = table.commit(&outcome.totals, Some(outcome));
            result = result.and(ended);
        }
        result
    }
}

/// Appends the closing part of a report of a scan that has ended.
pub fn close(report: &Report, outcome: &Outcome, out: &mut Vec<u8>) {
    let error = outcome.error.as_ref().map(ToString::to_string);
    let ending = Ending {
        totals: &outcome.totals,
        now: now(),
        result: Some(ended(outcome, error.as_deref())),
    };
    report.close(&ending, out);
}

/// The result of a scan that has ended, with its error.
fn ended<'a>(outcome: &Outcome, error: Option<&'a str>) -> Ended<'a> {
    Ended {
        seconds: outcome.elapsed.as_secs_f64(),
        sending_seconds: outcome.sending.as_secs_f64(),
        is_complete: outcome.is_complete,
        error,
    }
}

/// A file in one format.
#[derive(Debug)]
struct OutputFile {
    format: &'static Format,
    /// The name as given, and the number of this file in its series.
    name: PathBuf,
    number: u32,
    path: PathBuf,
    file: File,
    report: Report,
    run: Run,
    opened: Instant,
    /// Whether a row was written.
    has_rows: bool,
    /// Whether what precedes the rows was written.
    begun: bool,
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
        (format, name, number): (&'static Format, &Path, u32),
        run: &Run,
        append: bool,
        keep: &[(u64, u64)],
    ) -> Result<(Self, Option<(u64, u64)>)> {
        let path = &numbered(name, number);
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
            format,
            name: name.to_owned(),
            number,
            path: path.clone(),
            file,
            report,
            run: run.clone(),
            opened: Instant::now(),
            has_rows: false,
            begun: false,
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
            Notice::Rate(change, time) => self.report.note(&Note::Rate(*change), *time),
            Notice::Link(change, time) => self.report.note(&Note::Link(*change), *time),
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

    /// Whether the next file is to be begun.
    fn is_due(&self, rotation: Rotation) -> bool {
        let is_over = match rotation {
            Rotation::Size(len) => self.at.is_some_and(|at| at >= len),
            Rotation::Age(age) => self.opened.elapsed() >= age,
        };
        is_over && self.has_rows && self.at.is_some()
    }

    /// Begins the next file. This one is complete with its closing part.
    fn rotate(&mut self, keep: &mut Vec<(u64, u64)>) -> Result<()> {
        let totals = self.totals;
        self.flush(&totals, None)?;
        let number = next_number(&self.name, self.number);
        let next = (self.format, &*self.name, number);
        let opened = Self::open(next, &self.run, false, keep);
        let (mut file, identity) = opened.inspect_err(|_| self.is_broken = true)?;
        keep.extend(identity);
        file.flush(&totals, None)?;
        file.totals = totals;
        *self = file;
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
        self.has_rows |= row_len != 0 && self.begun;
        self.begun = true;
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
