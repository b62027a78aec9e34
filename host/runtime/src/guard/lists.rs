//! Lists of rules, of prefixes or DNS names: a file, or the entries themselves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::guard::{Name, Prefix, parse_list};
use sys::{Error, ErrorKind, Result};

use crate::text::read_text;

/// Maximum size of a list file, in bytes.
const LEN_MAX: u64 = 64 << 20;

/// What a list has.
pub trait Item: Sized {
    /// The word for several of them.
    const PLURAL: &str;
    /// Parses one.
    ///
    /// # Errors
    /// The reason.
    fn parse(text: &str) -> std::result::Result<Self, String>;
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The reason, with the line.
    fn parse_list(text: &str) -> std::result::Result<Vec<Self>, String>;
}

impl Item for Prefix {
    const PLURAL: &str = "prefixes";

    fn parse(text: &str) -> std::result::Result<Self, String> {
        Prefix::parse(text)
    }

    fn parse_list(text: &str) -> std::result::Result<Vec<Self>, String> {
        parse_list(text)
    }
}

impl Item for Name {
    const PLURAL: &str = "names";

    fn parse(text: &str) -> std::result::Result<Self, String> {
        Name::parse(text).map_err(|error| reason(&error))
    }

    fn parse_list(text: &str) -> std::result::Result<Vec<Self>, String> {
        Name::parse_list(text).map_err(|error| {
            let before = text.get(..error.at.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", reason(&error))
        })
    }
}

fn reason(error: &::filter::Error) -> String {
    match error.expected.is_empty() {
        true => error.what.clone(),
        false => format!("{}; {}", error.what, error.expected),
    }
}

/// The source of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    File(PathBuf),
    Inline(Vec<String>),
}

/// A list as read. Two lists are equal if they have the same source: a rule whose file has new
/// entries is still the same rule.
#[derive(Clone, Debug)]
pub struct ListSpec<T = Prefix> {
    origin: Origin,
    list: Arc<[T]>,
}

impl<T> PartialEq for ListSpec<T> {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
    }
}

impl<T> Eq for ListSpec<T> {}

impl<T: Item> ListSpec<T> {
    /// Creates a list from its entries.
    ///
    /// # Errors
    /// The first invalid entry, and the reason.
    pub fn inline(texts: Vec<String>) -> std::result::Result<Self, String> {
        if texts.is_empty() {
            return Err(format!("the list has no {}", T::PLURAL));
        }
        let entries: std::result::Result<Vec<T>, String> =
            texts.iter().map(|text| T::parse(text)).collect();
        Ok(Self {
            list: Arc::from(entries?),
            origin: Origin::Inline(texts),
        })
    }

    /// Reads a list from a file: one prefix per line, comments after `#` or `;`; or names separated
    /// by white space or commas, comments after `#`.
    ///
    /// # Errors
    /// The error with file name and line.
    pub fn file(path: &Path) -> Result<Self> {
        let what = || format!("read the {} in {}", T::PLURAL, path.display());
        let invalid = |why: String| Error::new(ErrorKind::InvalidInput, what(), why);
        let text = read_text(path, LEN_MAX, what)?;
        // A rule file names it, not the command line.
        sys::create::kept::keep_input(path);
        let entries = T::parse_list(&text).map_err(invalid)?;
        Ok(Self {
            origin: Origin::File(path.to_owned()),
            list: Arc::from(entries),
        })
    }
}

impl ListSpec {
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
}

impl<T> ListSpec<T> {
    /// The entries.
    pub fn list(&self) -> &Arc<[T]> {
        &self.list
    }

    /// The file it was read from, if any.
    pub fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File(path) => Some(path),
            Origin::Inline(_) => None,
        }
    }

    /// The name shown to users: the file name, or the entries.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::File(path) => path.display().to_string(),
            Origin::Inline(texts) => texts.join(", "),
        }
    }
}

/// The list files of a rule file. A file that several rules name is read once, and its list is
/// shared.
pub(super) struct ListFiles<'a, T = Prefix> {
    folder: &'a Path,
    read: RefCell<BTreeMap<PathBuf, ListSpec<T>>>,
}

impl<'a, T: Item + Clone> ListFiles<'a, T> {
    /// List files with names relative to this folder.
    pub fn in_folder(folder: &'a Path) -> Self {
        let read = RefCell::default();
        Self { folder, read }
    }

    /// The list in a file.
    ///
    /// # Errors
    /// As [`ListSpec::file`].
    pub fn list(&self, name: &str) -> Result<ListSpec<T>> {
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
        let files: ListFiles<'_> = ListFiles::in_folder(&folder);
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
        assert!(ListSpec::<Prefix>::inline(Vec::new()).is_err());
    }

    #[test]
    fn an_invalid_name_is_reported_with_its_line() {
        let names = ListSpec::<Name>::inline(vec!["a.test".into(), "*.B.test".into()]).unwrap();
        assert_eq!(
            (names.list().len(), names.name().as_str()),
            (2, "a.test, *.B.test")
        );
        let folder = std::env::temp_dir().join(format!("barewire-lists-{}", std::process::id()));
        // Fails if it exists: another user may have created it.
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("names");
        std::fs::write(&path, "# ours\na.test b.test\nc..test\n").unwrap();
        let error = ListSpec::<Name>::file(&path).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            error.contains("names in") && error.contains("line 3: empty label"),
            "{error}"
        );
    }
}
