//! Errors: the return value of a function that fails, and the text that explains it.

use std::ffi::c_char;

/// Size of an error buffer, including the terminating zero (`PCAP_ERRBUF_SIZE`).
pub const ERROR_LEN: usize = 256;

/// Generic error.
pub const ERROR: i32 = -1;
/// A loop was ended by `pcap_breakloop`.
pub const BREAK: i32 = -2;
/// The handle is not activated.
pub const NOT_ACTIVATED: i32 = -3;
/// The handle is activated already.
pub const ACTIVATED: i32 = -4;

/// A negative return value, and its text; if the text is empty, the status explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function's return value.
    pub code: i32,
    /// The text that `pcap_geterr` returns.
    pub text: String,
}

/// The result of a function that can fail.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a generic error.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(ERROR, text)
    }

    /// Creates an error with another code.
    pub fn of(code: i32, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    /// Creates a generic error with the system's message.
    pub fn system(what: &str, errno: i32) -> Self {
        Self::new(format!("{what}: {}", system_text(errno)))
    }
}

/// The message of strerror(3).
pub fn system_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    // The standard library appends the number.
    let end = text.rfind(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

/// The error text of a handle.
pub struct ErrorText([u8; ERROR_LEN]);

impl ErrorText {
    /// Creates an empty text.
    pub fn new() -> Self {
        Self([0; ERROR_LEN])
    }

    /// Replaces the text, truncated to fit.
    pub fn set(&mut self, text: &str) {
        let len = text.floor_char_boundary(text.len().min(ERROR_LEN - 1));
        self.0.fill(0);
        self.0[..len].copy_from_slice(&text.as_bytes()[..len]);
    }

    /// Pointer to the text, which is null-terminated.
    pub fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_fit_and_are_null_terminated() {
        let mut text = ErrorText::new();
        text.set(&"é".repeat(200));
        assert_eq!(text.0[253..], [0xa9, 0, 0]);
        text.set("x");
        assert_eq!(text.0[..3], [b'x', 0, 0]);
        assert_eq!(system_text(libc::ENOENT), "No such file or directory");
    }
}
