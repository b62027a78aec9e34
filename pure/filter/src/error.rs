//! Compilation errors, with their position in the text.

use std::fmt;
use std::ops::Range;

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Maximum number of characters of a text that [`Error::mark`] shows.
const MARKED_MAX: usize = 120;

/// Maximum number of characters of [`Error::what`], which may repeat a word of any length.
const WHAT_MAX: usize = 200;

/// Reason why a filter was not compiled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    /// Byte range of the text at fault; empty at the end if something is missing.
    pub at: Range<usize>,
    /// What is wrong, such as "unknown port name \"htpp\"".
    pub what: String,
    /// What was expected, or what to do; may be empty.
    pub expected: String,
    /// Whether the text is valid, but not supported by this compiler; another one (libpcap's) may
    /// support it.
    pub is_unsupported: bool,
}

impl Error {
    /// Creates an error at a byte range of the text.
    pub fn new(at: Range<usize>, what: impl Into<String>) -> Self {
        let mut what = what.into();
        if let Some((end, _)) = what.char_indices().nth(WHAT_MAX) {
            what.truncate(end);
            what += "...";
        }
        Error {
            at,
            what,
            expected: String::new(),
            is_unsupported: false,
        }
    }

    /// Creates an error for valid text that is not supported here.
    pub fn unsupported(at: Range<usize>, what: impl Into<String>) -> Self {
        Error {
            is_unsupported: true,
            ..Error::new(at, what)
        }
    }

    /// Adds what was expected.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = expected.into();
        self
    }

    /// The text with the position marked below it, as compilers do: two lines without a final line
    /// end. Of a long text only the part around the position is shown. Control characters become
    /// spaces.
    pub fn mark(&self, text: &str) -> String {
        let start = text.floor_char_boundary(self.at.start.min(text.len()));
        let end = text.ceil_char_boundary(self.at.end.min(text.len()));
        let before: Vec<char> = text[..start].chars().collect();
        let shown_from = match text.chars().nth(MARKED_MAX) {
            Some(_) => before.len().saturating_sub(MARKED_MAX / 2),
            None => 0,
        };
        let mut rest = text.chars().skip(shown_from);
        let shown: String = rest.by_ref().take(MARKED_MAX).collect();
        let plain = shown.replace(|c: char| c.is_control(), " ");
        let dots = |is_cut: bool| if is_cut { "..." } else { "" };
        let (left, right) = (dots(shown_from > 0), dots(rest.next().is_some()));
        let before = before.len() - shown_from;
        let width = text[start..end.max(start)].chars().count();
        let width = width.min(shown.chars().count() - before).max(1);
        let blank = " ".repeat(left.len() + before);
        format!("{left}{plain}{right}\n{blank}{}", "^".repeat(width))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at character {}", self.what, self.at.start + 1)?;
        if self.expected.is_empty() {
            return Ok(());
        }
        write!(f, "; {}", self.expected)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_marked_below_the_text() {
        let error = Error::new(4..8, "unknown word \"porz\"").expected("did you mean \"port\"?");
        assert_eq!(error.mark("tcp porz 80"), "tcp porz 80\n    ^^^^");
        assert_eq!(
            error.to_string(),
            "unknown word \"porz\" at character 5; did you mean \"port\"?"
        );
        // A position after the end, inside a character, or among control characters.
        assert_eq!(Error::new(9..9, "").mark("tcp"), "tcp\n   ^");
        assert_eq!(Error::new(1..2, "").mark("é\tx"), "é x\n^");
    }

    #[test]
    fn a_long_word_is_not_repeated_whole() {
        let error = Error::new(0..9, format!("unknown word \"{}\"", "é".repeat(60_000)));
        assert_eq!(error.what.chars().count(), WHAT_MAX + 3);
    }

    #[test]
    fn only_a_part_of_a_long_text_is_shown() {
        let text = "tcp or ".repeat(100) + "porz" + &" or tcp".repeat(100);
        let marked = Error::new(700..704, "").mark(&text);
        let (line, marks) = marked.split_once('\n').unwrap();
        assert_eq!(line.len(), 3 + MARKED_MAX + 3);
        assert_eq!(&line[marks.find('^').unwrap()..marks.len()], "porz");
        let whole = Error::new(0..text.len(), "").mark(&text);
        let (line, marks) = whole.split_once('\n').unwrap();
        assert_eq!(line.len(), MARKED_MAX + 3);
        assert_eq!(marks, "^".repeat(MARKED_MAX));
        let end = Error::new(text.len()..text.len(), "").mark(&text);
        let (line, marks) = end.split_once('\n').unwrap();
        assert_eq!(line.len() + 1, marks.len());
    }
}
