//! Text of bounded length, received in pieces.

/// Up to `N` bytes; excess bytes are dropped and marked.
#[derive(Clone)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: u16,
    is_cut: bool,
}

impl<const N: usize> Text<N> {
    pub(crate) const EMPTY: Text<N> = Text {
        bytes: [0; N],
        len: 0,
        is_cut: false,
    };

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len).min(N);
        let len = bytes.len().min(N - at);
        self.bytes[at..at + len].copy_from_slice(&bytes[..len]);
        self.len = (at + len) as u16;
        self.is_cut |= len < bytes.len();
    }

    /// Appends a character in UTF-8. What follows one that does not fit is dropped.
    pub(crate) fn push_char(&mut self, letter: char) {
        let mut buffer = [0; 4];
        let bytes = letter.encode_utf8(&mut buffer).as_bytes();
        match self.is_cut || usize::from(self.len) + bytes.len() > N {
            true => self.is_cut = true,
            false => self.push(bytes),
        }
    }

    /// Appends a text, which may be cut between characters.
    pub(crate) fn push_str(&mut self, text: &str) {
        text.chars().for_each(|letter| self.push_char(letter));
    }

    /// Marks the text as truncated.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.is_cut = false;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(N)]
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn value(&self) -> crate::Value<'_> {
        crate::Value::Text {
            bytes: self.bytes(),
            is_cut: self.is_cut,
        }
    }

    /// Reads from `input` up to the end of the line. Returns true when the line is complete; its
    /// line feed and a carriage return before it are removed. Call [`Text::clear`] before the next
    /// one.
    pub(crate) fn line(&mut self, input: &mut &[u8]) -> bool {
        let (part, rest, is_whole) = match input.iter().position(|byte| *byte == b'\n') {
            Some(at) => (&input[..at], &input[at + 1..], true),
            None => (*input, &[][..], false),
        };
        self.push(part);
        *input = rest;
        if is_whole && !self.is_cut && self.bytes().last() == Some(&b'\r') {
            self.len -= 1;
        }
        is_whole
    }
}

/// Removes spaces and tabs at both ends.
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

/// The value of a header, if it has this name, ignoring case.
pub(crate) fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = line.split_at_checked(name.len())?;
    if !head.eq_ignore_ascii_case(name) {
        return None;
    }
    // RFC 3261 §7.3.1 allows space before the colon.
    let rest = rest.trim_ascii_start();
    rest.strip_prefix(b":").map(trim)
}

/// A number below 10^9 that consists of decimal digits only.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0, |sum, digit| {
        digit
            .is_ascii_digit()
            .then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

/// Writes a number in decimal digits and returns them.
pub(crate) fn decimal(number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    let mut rest = number;
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &buffer[at..];
        }
    }
}

/// Two hexadecimal digits of a byte.
pub(crate) const fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_segmentation() {
        let stream = b"one\r\ntwo\nthree is much too long\r\n\r\n";
        for step in 1..stream.len() {
            let mut line = Text::<8>::EMPTY;
            let mut found = std::vec::Vec::new();
            for part in stream.chunks(step) {
                let mut input = part;
                while line.line(&mut input) {
                    found.push((line.bytes().to_vec(), line.is_cut()));
                    line.clear();
                }
            }
            let expected: [(&[u8], bool); 4] = [
                (b"one", false),
                (b"two", false),
                (b"three is", true),
                (b"", false),
            ];
            assert!(found.iter().map(|(t, c)| (&t[..], *c)).eq(expected));
        }
    }

    #[test]
    fn small_helpers() {
        assert_eq!(header(b"HOST:  a b ", b"host"), Some(&b"a b"[..]));
        assert_eq!(header(b"Hosts: a", b"host"), None);
        assert_eq!(number(b"200"), Some(200));
        for bad in [&b""[..], b"2x", b"1234567890"] {
            assert_eq!(number(bad), None);
        }
        let mut buffer = [0; 20];
        assert_eq!(decimal(0, &mut buffer), b"0");
        assert_eq!(decimal(u64::MAX, &mut buffer), b"18446744073709551615");
        assert_eq!(&hex(0xaf), b"af");
    }
}
