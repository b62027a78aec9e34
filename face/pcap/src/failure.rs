//! What a function returns when it fails, and the text that explains it.

use std::ffi::c_char;

/// Bytes of an error buffer, its zero included (`PCAP_ERRBUF_SIZE`).
pub const ERROR_LEN: usize = 256;

/// Generic error.
pub const ERROR: i32 = -1;
/// A loop was ended by `pcap_breakloop`.
pub const BREAK: i32 = -2;
/// The handle is not activated.
pub const NOT_ACTIVATED: i32 = -3;
/// The handle is activated already.
pub const ACTIVATED: i32 = -4;

/// A return value below zero, and its text; an empty text leaves to the status what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the function returns.
    pub code: i32,
    /// What `pcap_geterr` gives.
    pub text: String,
}

/// The result of what can fail.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A generic error.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(ERROR, text)
    }

    /// An error with a code of its own.
    pub fn of(code: i32, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    /// A generic error with what the system says to it.
    pub fn system(what: &str, errno: i32) -> Self {
        Self::new(format!("{what}: {}", system_text(errno)))
    }
}

/// What strerror(3) says.
pub fn system_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    // The standard library adds the number.
    let end = text.rfind(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

/// The text that a handle gives out.
pub struct ErrorText([u8; ERROR_LEN]);

impl ErrorText {
    /// No error.
    pub fn new() -> Self {
        Self([0; ERROR_LEN])
    }

    /// Replaces the text, cut to what fits.
    pub fn set(&mut self, text: &str) {
        let len = text.floor_char_boundary(text.len().min(ERROR_LEN - 1));
        self.0.fill(0);
        self.0[..len].copy_from_slice(&text.as_bytes()[..len]);
    }

    /// The start of the text; a zero follows it.
    pub fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_and_end() {
        let mut text = ErrorText::new();
        text.set(&"é".repeat(200));
        assert_eq!(text.0[253..], [0xa9, 0, 0]);
        text.set("x");
        assert_eq!(text.0[..3], [b'x', 0, 0]);
        assert_eq!(system_text(libc::ENOENT), "No such file or directory");
    }
}
