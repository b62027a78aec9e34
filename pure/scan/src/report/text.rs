//! Sanitizes text from services for output.

/// Maximum number of characters to print of a line from a server.
const LINE_MAX: usize = 100;

/// Returns the first line, if it is text.
pub fn first_line(start: &[u8]) -> Option<String> {
    let line = start.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let text = std::str::from_utf8(line).ok()?.trim();
    let is_text = !text.is_empty() && !text.chars().any(char::is_control);
    is_text.then(|| safe(text))
}

/// Returns the text between `<title>` and `</title>`, or the part of it that was kept.
pub fn title(start: &[u8]) -> Option<String> {
    let lower = start.to_ascii_lowercase();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|part| part == what);
    let open = find(&lower, b"<title")?;
    let begin = open + find(&lower[open..], b">")? + 1;
    let end = begin + find(&lower[begin..], b"<").unwrap_or(lower.len() - begin);
    let text = String::from_utf8_lossy(&start[begin..end]);
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| safe(&words.join(" ")))
}

/// Makes text from the network safe for a terminal, and truncates it.
pub fn safe(text: &str) -> String {
    let printable = |letter| match inspect::is_unprintable(letter) {
        true => '.',
        false => letter,
    };
    let mut out: String = text.chars().take(LINE_MAX).map(printable).collect();
    if text.chars().count() > LINE_MAX {
        out.push_str("...");
    }
    out
}

/// Calls `plain` for printable characters, and escapes all other bytes as nmap does: `\x00`.
/// Backslashes are doubled, so that the original bytes can be restored.
pub(super) fn escaped(bytes: &[u8], out: &mut Vec<u8>, plain: impl Fn(char, &mut Vec<u8>)) {
    let hex = |byte: u8, out: &mut Vec<u8>| {
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
        out.extend([b'\\', b'x', digit(byte >> 4), digit(byte)]);
    };
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => out.extend(b"\\\\"),
                // Not characters of XML 1.0 (section 2.2).
                '\u{fffe}' | '\u{ffff}' => out.extend(b"\\?"),
                _ if inspect::is_unprintable(letter) => {
                    let mut utf8 = [0; 4];
                    let utf8 = letter.encode_utf8(&mut utf8).as_bytes();
                    utf8.iter().for_each(|byte| hex(*byte, out));
                }
                _ => plain(letter, out),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex(*byte, out));
    }
}

/// Appends a character unchanged.
pub(super) fn as_is(letter: char, out: &mut Vec<u8>) {
    out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Returns the name of a service's protocol; empty if it is unknown.
pub fn service(banner: &crate::grab::Banner) -> String {
    let name = banner.application.name();
    name.map_or_else(String::new, |name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_lines_are_safe_to_print() {
        let page = b"HTTP/1.0 200 OK\r\n\r\n<HTML><Title lang=en>a\n  b\x1b[2J</title>";
        assert_eq!(title(page).unwrap(), "a b.[2J");
        assert_eq!(first_line(page).unwrap(), "HTTP/1.0 200 OK");
        assert_eq!(title(b"<title>cut"), Some("cut".into()));
        assert_eq!(title(b"<title"), None);
        assert_eq!(first_line(b"\x16\x03\x01"), None);
        assert_eq!(safe(&"x".repeat(101)).len(), 103);
    }

    #[test]
    fn bytes_that_cannot_be_printed_are_numbers() {
        let mut out = Vec::new();
        escaped(b"a\\\r\n\xff\xc3\xa9\xc2\x85\x00", &mut out, as_is);
        let expected = "a\\\\\\x0d\\x0a\\xff\u{e9}\\xc2\\x85\\x00";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
