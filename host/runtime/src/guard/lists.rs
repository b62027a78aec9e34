//! Prefix lists of rules: a file, or the prefixes themselves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::guard::{List, Prefix, parse_list};
use sys::{Error, ErrorKind, Result};

use crate::text::read_text;

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
        let text = read_text(path, LEN_MAX, what)?;
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

/// The list files of a rule file. A file that several rules name is read once, and its list is
/// shared.
pub(super) struct ListFiles<'a> {
    folder: &'a Path,
    read: RefCell<BTreeMap<PathBuf, ListSpec>>,
}

impl<'a> ListFiles<'a> {
    /// List files with names relative to this folder.
    pub fn in_folder(folder: &'a Path) -> Self {
        let read = RefCell::default();
        Self { folder, read }
    }

    /// The list in a file.
    ///
    /// # Errors
    /// As [`ListSpec::file`].
    pub fn list(&self, name: &str) -> Result<ListSpec> {
        let path = self.folder.join(name);
        if let Some(list) = self.read.borrow().get(&path) {
            return Ok(list.clone());
        }
        let list = ListSpec::file(&path)?;
        self.read.borrow_mut().insert(path, list.clone());
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_for_all_rules_that_name_it() {
        let folder = std::env::temp_dir();
        let name = format!("barewire-shared-{}.txt", std::process::id());
        std::fs::write(folder.join(&name), "10.0.0.0/8\n").unwrap();
        let files = ListFiles::in_folder(&folder);
        let first = files.list(&name).unwrap();
        std::fs::remove_file(folder.join(&name)).unwrap();
        let second = files.list(&name).unwrap();
        assert!(Arc::ptr_eq(first.list(), second.list()));
    }

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
