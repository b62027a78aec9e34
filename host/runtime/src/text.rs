//! Text files of bounded size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sys::{Error, ErrorKind, Result};

/// Reads a text file of at most this many bytes. The limit also holds for devices and pipes, whose
/// length is unknown. `what` is the failed operation of an error, such as "read the rules in x".
///
/// # Errors
/// Errors of the file; `InvalidInput` if it is longer, or not UTF-8.
pub fn read_text(path: &Path, len_max: u64, what: impl Fn() -> String) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(len_max + 1).read_to_end(&mut bytes))
        .map_err(|error| Error::from_io(what(), error))?;
    if bytes.len() as u64 > len_max {
        let why = format!("it is larger than {} KiB", len_max >> 10);
        return Err(Error::new(ErrorKind::InvalidInput, what(), why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        let why = format!("line {line}: it is not UTF-8 text");
        Error::new(ErrorKind::InvalidInput, what(), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_length_are_bounded_too() {
        let read = |path: &str, len_max| read_text(Path::new(path), len_max, || "read".into());
        let error = read("/dev/zero", 4096).unwrap_err().to_string();
        assert!(error.contains("larger than 4 KiB"), "{error}");
        assert_eq!(read("/dev/null", 0).unwrap(), "");
        assert_eq!(read("/none", 9).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_line_that_is_no_text_is_named() {
        let name = format!("barewire-text-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, b"# \xc3\xa4\n[[rule]]\nname = \"\xe4\"\n").unwrap();
        let error = read_text(&path, 100, || "read".into());
        std::fs::remove_file(&path).unwrap();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("line 3: it is not UTF-8"), "{error}");
    }
}
