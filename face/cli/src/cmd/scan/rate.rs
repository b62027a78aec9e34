//! `--rate-file`: a rate that changes while the scan runs.

use std::path::{Path, PathBuf};

use runtime::scan::{RateControl, Setup};
use sys::{Error, Result};
use traffic::Rate;

use super::parse::parse_rate;
use super::refused;
use crate::inputs;
use crate::out::warning;

/// Maximum length of the file in bytes.
const LEN_MAX: u64 = 1 << 10;

/// Reads the rate of a file: its first line, in the form of `--rate`.
///
/// # Errors
/// Errors of the file; `InvalidInput` if it is no rate.
pub fn read(path: &Path) -> Result<Rate> {
    let what = || format!("read the rate from {}", path.display());
    // Opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(|error| Error::from_io(what(), error))?;
    if !found.is_file() {
        return Err(refused(&what(), "it is not a regular file".into()));
    }
    let bytes = inputs::read_bytes(path, LEN_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim();
    parse_rate(line).map_err(|why| refused(&what(), why))
}

/// A file that is read again and again.
pub struct RateFile {
    path: PathBuf,
    control: RateControl,
    /// The rate at the start, whose unit stays.
    first: Rate,
    /// What was wrong with it last time; each error is reported once.
    wrong: Option<String>,
}

impl RateFile {
    /// The file of a scan whose rate may change.
    pub fn new(path: &Path, setup: &Setup) -> Option<Self> {
        Some(Self {
            path: path.to_owned(),
            control: setup.control.clone()?,
            first: setup.rate,
            wrong: None,
        })
    }

    /// Reads the file; if that fails, the rate stays as it is.
    pub fn follow(&mut self) {
        self.wrong = match self.look() {
            Ok(rate) => {
                self.control.set(rate);
                None
            }
            // An editor may have truncated the file, and not yet written it: twice is an error.
            Err(error) => {
                let error = error.to_string();
                match &self.wrong {
                    None => Some(String::new()),
                    Some(before) => {
                        if *before != error {
                            warning!("warning: {error}; the rate stays as it is");
                        }
                        Some(error)
                    }
                }
            }
        };
    }

    fn look(&self) -> Result<f64> {
        let same = match (read(&self.path)?, self.first) {
            (Rate::Packets(rate), Rate::Packets(_)) | (Rate::Bits(rate), Rate::Bits(_)) => rate,
            _ => return Err(self.unit_error()),
        };
        Ok(same)
    }

    fn unit_error(&self) -> Error {
        let what = format!("read the rate from {}", self.path.display());
        refused(&what, "its unit differs from that at the start".into())
    }
}
