//! The title of a page (HTML, §4.2.2) in an HTTP/1 response (RFC 9112), found as it arrives.
//!
//! The body may be chunked anywhere (§7.1). Without a response the bytes are taken for a page.

/// Maximum length of a title, and of a header line, that is read.
const TITLE_MAX: usize = 1024;
const LINE_MAX: usize = 256;
/// Maximum number of bytes of a body that are searched.
const SEARCHED_MAX: u32 = 32 << 10;

const OPEN: &[u8] = b"<title";
const CLOSE: &[u8] = b"</title";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The first bytes, which may be a response.
    Start,
    Headers,
    /// Bytes of a body up to its end.
    Body,
    /// Length of a chunk, the chunk, and the line after it.
    ChunkLen,
    Chunk(u64),
    ChunkEnd,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Title {
    /// Bytes of `<title` that were just read.
    Searched(usize),
    /// Within the tag.
    Tag,
    Text,
}

/// Reader of a response.
#[derive(Clone, Debug)]
pub struct Page {
    at: At,
    line: Vec<u8>,
    is_chunked: bool,
    title: Title,
    text: Vec<u8>,
    searched: u32,
}

impl Page {
    /// Before the first byte.
    pub const NEW: Self = Self {
        at: At::Start,
        line: Vec::new(),
        is_chunked: false,
        title: Title::Searched(0),
        text: Vec::new(),
        searched: 0,
    };

    /// Whether it is a response, whose title may follow.
    pub fn awaits_title(&self) -> bool {
        !matches!(self.at, At::Start | At::Over)
    }

    /// The title, or the part of it that was read.
    pub fn title(&self) -> Option<&[u8]> {
        (self.title == Title::Text && !self.text.is_empty()).then_some(&self.text)
    }

    /// Reads the next bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.at != At::Over
            && let Some(byte) = rest.first()
        {
            match self.at {
                At::Start => {
                    self.line.push(*byte);
                    rest = &rest[1..];
                    self.start();
                }
                At::Headers | At::ChunkLen | At::ChunkEnd => {
                    rest = &rest[1..];
                    match byte {
                        b'\n' => self.end_line(),
                        b'\r' => {}
                        _ if self.line.len() < LINE_MAX => self.line.push(*byte),
                        _ => {}
                    }
                }
                At::Body => {
                    self.search(rest);
                    return;
                }
                At::Chunk(left) => {
                    let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let (part, behind) = rest.split_at(len);
                    rest = behind;
                    self.at = match left - len as u64 {
                        0 => At::ChunkEnd,
                        left => At::Chunk(left),
                    };
                    self.search(part);
                }
                At::Over => {}
            }
        }
    }

    /// Decides whether the first bytes are those of a response.
    fn start(&mut self) {
        const RESPONSE: &[u8] = b"HTTP/";
        if !RESPONSE.starts_with(&self.line) {
            self.at = At::Body;
            let line = std::mem::take(&mut self.line);
            self.search(&line);
        } else if self.line.len() == RESPONSE.len() {
            self.at = At::Headers;
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line).to_ascii_lowercase();
        let value = |name: &str| line.strip_prefix(name.as_bytes()).map(<[u8]>::trim_ascii);
        self.at = match self.at {
            At::Headers if line.is_empty() && self.is_chunked => At::ChunkLen,
            At::Headers if line.is_empty() => At::Body,
            At::Headers => {
                if let Some(codings) = value("transfer-encoding:") {
                    self.is_chunked = codings.ends_with(b"chunked");
                } else if let Some(kind) = value("content-type:") {
                    let has = |word: &[u8]| kind.windows(word.len()).any(|part| part == word);
                    if !has(b"html") && !has(b"xml") {
                        self.at = At::Over;
                        return;
                    }
                }
                At::Headers
            }
            At::ChunkEnd => At::ChunkLen,
            _ => {
                let digits = line
                    .iter()
                    .map_while(|digit| char::from(*digit).to_digit(16));
                let digits = digits.take(15);
                match digits.fold(0, |sum, digit| sum << 4 | u64::from(digit)) {
                    0 => At::Over,
                    len => At::Chunk(len),
                }
            }
        };
    }

    /// Searches the next bytes of the page.
    fn search(&mut self, part: &[u8]) {
        for byte in part {
            match self.title {
                Title::Searched(len) if len == OPEN.len() => {
                    // Otherwise it is the name of another element.
                    self.title = match byte {
                        b'>' => Title::Text,
                        b'/' => Title::Tag,
                        _ if byte.is_ascii_whitespace() => Title::Tag,
                        _ => Title::Searched(0),
                    };
                }
                Title::Searched(len) => {
                    let lower = byte.to_ascii_lowercase();
                    self.title = Title::Searched(match OPEN[len] == lower {
                        true => len + 1,
                        false => usize::from(lower == OPEN[0]),
                    });
                }
                Title::Tag if *byte == b'>' => self.title = Title::Text,
                Title::Tag => {}
                Title::Text => {
                    self.text.push(*byte);
                    let end = self.text.len().saturating_sub(CLOSE.len());
                    let is_closed = self.text[end..].eq_ignore_ascii_case(CLOSE);
                    if is_closed {
                        self.text.truncate(end);
                    }
                    if is_closed || self.text.len() >= TITLE_MAX {
                        return self.close();
                    }
                }
            }
        }
        self.searched = self.searched.saturating_add(part.len() as u32);
        if self.searched >= SEARCHED_MAX && self.title != Title::Text {
            self.at = At::Over;
        }
    }

    /// Ends a title. Those of pictures may be empty: the search continues.
    fn close(&mut self) {
        match self.text.trim_ascii().is_empty() {
            true => {
                self.text.clear();
                self.title = Title::Searched(0);
            }
            false => self.at = At::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(bytes: &[u8], step: usize) -> Option<String> {
        let mut page = Page::NEW;
        bytes.chunks(step).for_each(|part| page.read(part));
        assert!(page.line.len() <= LINE_MAX && page.text.len() <= TITLE_MAX);
        let title = page.title();
        title.map(|title| String::from_utf8_lossy(title).into_owned())
    }

    /// A response whose body is sent in chunks of this length.
    fn chunked(body: &[u8], len: usize) -> Vec<u8> {
        let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(len) {
            out.extend(format!("{:x};a=b\r\n", chunk.len()).bytes());
            out.extend(chunk);
            out.extend(b"\r\n");
        }
        out.extend(b"0\r\n\r\n<title>no</title>");
        out
    }

    #[test]
    fn titles_do_not_depend_on_chunks_or_segments() {
        let page = b"<html><titles>x</titles><<Title lang=en>a <b> &amp; c</TITLE><title>2</title>";
        let expected = Some("a <b> &amp; c".to_owned());
        for step in [1, 2, 3, 7, 1000] {
            for len in [1, 2, 5, 100] {
                assert_eq!(title(&chunked(page, len), step), expected, "{len} {step}");
            }
            let plain = [&b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n"[..], page].concat();
            assert_eq!(title(&plain, step), expected);
            assert_eq!(title(page, step), expected);
        }
    }

    #[test]
    fn headers_and_what_is_not_a_page_have_no_title() {
        let headers = "X: <title>no</title>\r\n".repeat(3000);
        let far = format!("HTTP/1.1 200 OK\r\n{headers}\r\n<title>yes</title>");
        assert_eq!(title(far.as_bytes(), 1000), Some("yes".into()));
        let other = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n<title>no</title>";
        assert_eq!(title(other, 10), None);
        let page = b"HTTP/1.1 200 OK\r\nContent-Type: Text/HTML\r\n\r\n<title> </title><title>cut";
        assert_eq!(title(page, 10), Some("cut".into()));
        assert_eq!(title(b"<title", 1), None);
        assert_eq!(title(b"<title>", 1), None);
        let late = ["x".repeat(40_000), "<title>no</title>".into()].concat();
        assert_eq!(title(late.as_bytes(), 100), None);
        let long = ["<title>".into(), "x".repeat(9000)].concat();
        assert_eq!(title(long.as_bytes(), 9).unwrap().len(), TITLE_MAX);
    }
}
