//! Output of scan results: standard output, and files in several formats.

use std::ffi::OsString;
use std::path::Path;

use ::scan::State;
use ::scan::report::{Format, NDJSON, Report, Run};
use port::file::{FileWriter, WriterOptions};
use runtime::scan::{
    Notice, OutputFormat, OutputName, OutputOptions, Outputs, Recording, Rotation, Scan, Totals,
};
use sys::privileges::User;
use sys::{Error, Result};
use wire::Timestamp;

use super::refused;
use crate::args::parse_duration;
use crate::confine::Files;

/// Output options of `barewire scan`.
#[derive(clap::Args)]
#[command(next_help_heading = "Output options")]
pub struct OutputArgs {
    /// Also write the results to a file: xml, grepable, list, json, ndjson, csv, sql
    /// (for SQLite), pem (certificates, with --banners), parquet, sqlite (a database), or all (FILE
    /// is then a prefix); - prints them instead of text. -oX, -oG, -oL, -oJ, -oD, -oC, -oQ, -oP,
    /// -oK, -oS and -oA FILE are short for it
    #[arg(long, value_name = "FORMAT:FILE")]
    output: Vec<OsString>,
    /// Append to existing files; without it they are truncated, unless --state resumes a scan
    #[arg(long, visible_alias = "append")]
    append_output: bool,
    /// Begin the next file (scan.2.xml after scan.xml) once one has this many bytes (100MB), or
    /// after this time (1h), if it has any row
    #[arg(long, value_parser = parse_rotation, value_name = "SIZE|TIME")]
    rotate: Option<Rotation>,
    /// Report open ports only
    #[arg(long, visible_alias = "open-only")]
    open: bool,
    /// Print each answer, the counts every second and the totals at the end as one JSON object per
    /// line
    #[arg(long)]
    pub json: bool,
}

/// Parses a size in bytes, or a time.
fn parse_rotation(text: &str) -> std::result::Result<Rotation, String> {
    const UNITS: [(&str, u64); 8] = [
        ("B", 1),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TB", 1_000_000_000_000),
    ];
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text[digits.len()..].trim();
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    if let (Some((_, unit)), Ok(number @ 1..)) = (unit, digits.trim().parse::<u64>()) {
        return Ok(Rotation::Size(number.saturating_mul(*unit)));
    }
    // A number alone could be either.
    let has_unit = digits.len() < text.len();
    match parse_duration(text) {
        Ok(age) if has_unit => Ok(Rotation::Age(age)),
        _ => Err("expected a size such as 100MB, or a time such as 1h".into()),
    }
}

/// The selected outputs.
pub struct Chosen {
    /// The format on standard output, unless it is text.
    stdout: Option<&'static Format>,
    files: Vec<OutputName>,
    options: OutputOptions,
    run: Run,
}

impl OutputArgs {
    /// Returns the outputs selected for a scan; a resumed scan continues its files.
    ///
    /// # Errors
    /// An unknown format, or two formats on standard output.
    pub fn chosen(&self, scan: &Scan, is_resumed: bool) -> Result<Chosen> {
        let mut stdout = self.json.then_some(NDJSON);
        let mut files = Vec::new();
        for text in &self.output {
            let names = OutputName::parse(text, &export::scan::FORMATS);
            for name in names.map_err(|why| refused("write the results", why))? {
                let format = match name.format {
                    _ if name.path != Path::new("-") => {
                        files.push(name);
                        continue;
                    }
                    OutputFormat::Text(format) => format,
                    OutputFormat::Table(format) => {
                        let why = format!("{} cannot be printed", format.word);
                        let error = refused("write the results", why);
                        return Err(error.with_hint("name a file"));
                    }
                };
                if stdout.replace(format).is_some() {
                    let why = "two formats are to be printed on standard output";
                    return Err(refused("write the results", why.into()));
                }
            }
        }
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let words = words.collect::<Vec<_>>().join(" ");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = Timestamp(now.as_nanos() as u64);
        Ok(Chosen {
            stdout,
            files,
            options: OutputOptions {
                append: self.append_output || is_resumed,
                rotation: self.rotate,
            },
            run: Run::new(
                (scan.plan(), scan.fingerprint()),
                env!("CARGO_PKG_VERSION"),
                words,
                (now, scan.setup().asked_rate()),
            ),
        })
    }

    /// Whether this format is written.
    pub fn has(&self, word: &str) -> bool {
        let names = self
            .output
            .iter()
            .filter_map(|text| OutputName::parse(text, &export::scan::FORMATS).ok());
        names.flatten().any(|name| name.format.word() == word)
    }

    /// Whether the options exclude a notice from the output.
    pub fn is_hidden(&self, notice: &Notice<'_>) -> bool {
        match notice {
            Notice::Found(found) => {
                self.open && !matches!(found.answer.state, State::Open | State::Up)
            }
            _ => false,
        }
    }
}

impl Chosen {
    /// Returns the report for standard output, unless it is text.
    pub fn stdout(&self) -> Option<Report> {
        let format = self.stdout?;
        Some(Report::new(format, self.run.clone()))
    }

    /// Whether results are also written to files.
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// The files that are written while the scan runs.
    pub fn needed(&self) -> Files {
        let mut files = Files::default();
        let is_rotated = self.options.rotation.is_some();
        for name in &self.files {
            match name.format {
                _ if is_rotated => files.write_beside(&name.path),
                // The log of a database.
                OutputFormat::Table(format) if format.is_continued => files.delete(&name.path),
                _ => {}
            }
        }
        files
    }

    /// Opens the output files; none of them may be an input file of the scan.
    ///
    /// # Errors
    /// As [`Outputs::open`].
    pub fn open<'p>(&self, inputs: impl Iterator<Item = &'p Path>) -> Result<Outputs> {
        let keep: Vec<_> = inputs.filter_map(crate::inputs::identity).collect();
        let totals = Totals::default();
        Outputs::open(&self.files, &self.run, (self.options, &totals), &keep).map_err(explained)
    }
}

/// Creates the capture file, with the privileges of the start.
///
/// # Errors
/// For a pipe, one of the inputs, and any error of the system.
pub fn recording(path: &Path, scan: &Scan, user: Option<&User>) -> Result<Recording> {
    let refused = |why: &str| {
        let what = format!("write {}", path.display());
        refused(&what, why.into()).with_hint("name a file")
    };
    if path == Path::new("-") {
        return Err(refused("standard output has the results"));
    }
    let mut options = WriterOptions::new(path);
    options.owner = user.map(|user| (user.uid, user.gid));
    options.application = concat!("barewire ", env!("CARGO_PKG_VERSION")).into();
    let writer = FileWriter::create(options)?;
    if writer.is_stream() {
        return Err(refused(
            "it is a pipe, whose reader the scan would wait for",
        ));
    }
    Recording::new(writer, (scan.interface(), scan.is_bare()))
}

/// Adds a hint to an error about an input file.
fn explained(error: Error) -> Error {
    match error.why().contains("input file") {
        true => error.with_hint("each output needs a file of its own"),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rotations_are_sizes_or_times() {
        assert_eq!(parse_rotation("100MB"), Ok(Rotation::Size(100_000_000)));
        assert_eq!(parse_rotation("4KiB"), Ok(Rotation::Size(4096)));
        assert_eq!(parse_rotation("1B"), Ok(Rotation::Size(1)));
        assert_eq!(
            parse_rotation("5m"),
            Ok(Rotation::Age(Duration::from_secs(300)))
        );
        for bad in ["", "5", "0MB", "MB", "0s", "1x", "-1MB"] {
            assert!(parse_rotation(bad).is_err(), "{bad}");
        }
    }
}
