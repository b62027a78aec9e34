//! Prefix lists of rules: a file, or the prefixes themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::guard::{List, Prefix, parse_list};
use sys::{Error, ErrorKind, Result};

/// Maximum size of a prefix file, in bytes.
const LEN_MAX: u64 = 64 << 20;

/// The source of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    File(PathBuf),
    Inline(Vec<String>),
}

/// A prefix list as read. Two lists are equal if they have the same source: a rule whose file has
/// new prefixes is still the same rule.
#[derive(Clone, Debug)]
pub struct ListSpec {
    origin: Origin,
    list: List,
}

impl PartialEq for ListSpec {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
    }
}

impl Eq for ListSpec {}

impl ListSpec {
    /// Creates a list from prefixes.
    ///
    /// # Errors
    /// The first invalid prefix, and the reason.
    pub fn inline(texts: Vec<String>) -> std::result::Result<Self, String> {
        if texts.is_empty() {
            return Err("the list has no prefixes".into());
        }
        let prefixes: std::result::Result<Vec<Prefix>, String> =
            texts.iter().map(|text| Prefix::parse(text)).collect();
        Ok(Self {
            list: Arc::from(prefixes?),
            origin: Origin::Inline(texts),
        })
    }

    /// Reads a list from a file: one prefix per line, comments after `#` or `;`.
    ///
    /// # Errors
    /// The error with file name and line.
    pub fn file(path: &Path) -> Result<Self> {
        let what = || format!("read the prefixes in {}", path.display());
        let invalid = |why: String| Error::new(ErrorKind::InvalidInput, what(), why);
        let from_io = |e| Error::from_io(what(), e);
        let len = std::fs::metadata(path).map_err(from_io)?.len();
        if len > LEN_MAX {
            return Err(invalid(format!(
                "it is {len} bytes long; the limit is {LEN_MAX}"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(from_io)?;
        let prefixes = parse_list(&text).map_err(invalid)?;
        Ok(Self {
            origin: Origin::File(path.to_owned()),
            list: Arc::from(prefixes),
        })
    }

    /// Parses an argument: prefixes separated by commas, or else a file name.
    ///
    /// # Errors
    /// As [`ListSpec::file`].
    pub fn argument(text: &str) -> Result<Self> {
        let texts = text.split(',').map(|t| t.trim().to_owned()).collect();
        let not_inline = match Self::inline(texts) {
            Ok(list) => return Ok(list),
            Err(why) => why,
        };
        Self::file(Path::new(text)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => error
                .with_why(format!(
                    "no such file, and no list of prefixes: {not_inline}"
                ))
                .with_hint("give a file with one prefix per line, or prefixes separated by commas"),
            _ => error,
        })
    }

    /// The prefixes.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// The file it was read from, if any.
    pub fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File(path) => Some(path),
            Origin::Inline(_) => None,
        }
    }

    /// The name shown to users: the file name, or the prefixes.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::File(path) => path.display().to_string(),
            Origin::Inline(texts) => texts.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_argument_is_prefixes_or_a_file() {
        let list = ListSpec::argument("10.0.0.0/8, 2001:db8::/32").unwrap();
        assert_eq!(list.list().len(), 2);
        assert_eq!(list.name(), "10.0.0.0/8, 2001:db8::/32");
        let error = ListSpec::argument("10.0.0.0/33").unwrap_err().to_string();
        assert!(error.contains("up to 32"), "{error}");
        assert!(ListSpec::inline(Vec::new()).is_err());
    }
}
