//! The file that `--output-format` and `--output-filename` name together, as masscan has them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use sys::{Error, ErrorKind, Result};

use super::conf;

/// The file that `--output-format` and `--output-filename` name together on the command line.
#[derive(Default)]
pub(super) struct OutputFile {
    format: Option<Option<&'static str>>,
    file: Option<OsString>,
}

impl OutputFile {
    /// Takes one of the two options; false for any other argument.
    ///
    /// # Errors
    /// A format that does not exist, and an option without its value.
    pub(super) fn take(
        &mut self,
        word: &OsStr,
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<bool> {
        let bytes = word.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=');
        let (name, value) = bytes.split_at(at.unwrap_or(bytes.len()));
        let mut value = || match value.get(1..) {
            Some(value) => Ok(OsStr::from_bytes(value).to_owned()),
            None => super::value(word, words.next()),
        };
        match name {
            b"--output-filename" => self.file = Some(value()?),
            b"--output-format" => {
                let format = conf::known_format(&value()?.to_string_lossy());
                self.format = Some(format.map_err(|why| {
                    Error::new(ErrorKind::InvalidInput, "use --output-format", why)
                })?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The option that replaces them: XML, if no format is given.
    ///
    /// # Errors
    /// A format without a file.
    pub(super) fn option(self) -> Result<Option<OsString>> {
        let (format, file) = match (self.format, self.file) {
            (None, None) | (Some(None), _) => return Ok(None),
            (Some(Some(_)), None) => {
                let (what, why) = ("use --output-format", "no file is given");
                let error = Error::new(ErrorKind::InvalidInput, what, why);
                return Err(error.with_hint("give --output-filename FILE, too"));
            }
            (None, Some(file)) => ("xml", file),
            (Some(Some(format)), Some(file)) => (format, file),
        };
        let mut option = OsString::from(format!("--output={format}:"));
        option.push(file);
        Ok(Some(option))
    }
}
