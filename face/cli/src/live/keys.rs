//! Keys of a terminal in raw mode: characters in UTF-8, control characters, and the ECMA-48
//! sequences that xterm sends for arrow and page keys.
//!
//! The descriptor is read directly, and not by a library, because a closed terminal must be
//! noticed: once the other side is closed, every read returns 0 bytes at once.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use sys::poll::{self, Wanted};

/// Maximum number of bytes read at a time; the rest stays unread.
const READ_MAX: usize = 1024;
/// A longer sequence is not a known key.
const SEQUENCE_MAX: usize = 32;

const ESC: u8 = 0x1b;

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// Standard input as a terminal.
pub struct Keys {
    input: File,
    /// Bytes read but not yet parsed.
    bytes: Vec<u8>,
}

impl Keys {
    /// # Errors
    /// If there is no standard input.
    pub fn new() -> io::Result<Keys> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Keys {
            input: File::from(input),
            bytes: Vec::new(),
        })
    }

    /// The keys pressed since the last call. Never blocks.
    ///
    /// # Errors
    /// `UnexpectedEof` or a system error if the terminal was closed.
    pub fn read(&mut self) -> io::Result<Vec<Key>> {
        let mut wanted = [Wanted::readable(&self.input)];
        poll::wait(&mut wanted, Duration::ZERO).map_err(io::Error::other)?;
        let mut is_quiet = true;
        if wanted[0].is_ready() {
            let mut part = [0; READ_MAX];
            match (&self.input).read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.bytes.extend(&part[..len]);
                    is_quiet = false;
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(take(&mut self.bytes, is_quiet))
    }
}

/// Removes complete keys from the front. A sequence may arrive in two reads: an incomplete one
/// stays, unless nothing followed it in the meantime. Only then an ESC is the Escape key.
fn take(bytes: &mut Vec<u8>, is_quiet: bool) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        match first(rest) {
            Some((key, len)) => {
                keys.extend(key);
                at += len;
            }
            None if is_quiet => {
                keys.extend((rest == [ESC]).then_some(Key::Escape));
                at = bytes.len();
            }
            None => break,
        }
    }
    bytes.drain(..at);
    keys
}

/// The first key, if it is a known one, and its length; `None` if it is incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let key = match bytes[0] {
        ESC => return sequence(bytes),
        b'\r' | b'\n' => Some(Key::Enter),
        b'\t' => Some(Key::Tab),
        0x08 | 0x7f => Some(Key::Backspace),
        0x03 => Some(Key::Interrupt),
        0x0c => Some(Key::Redraw),
        0x1a => Some(Key::Suspend),
        0..0x20 => None,
        byte => return character(byte, bytes),
    };
    Some((key, 1))
}

fn character(byte: u8, bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let len = match byte {
        0..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return Some((None, 1)),
    };
    let text = std::str::from_utf8(bytes.get(..len)?);
    match text.ok().and_then(|text| text.chars().next()) {
        Some(letter) if !letter.is_control() => Some((Some(Key::Char(letter)), len)),
        Some(_) => Some((None, len)),
        None => Some((None, 1)),
    }
}

/// Parses `ESC [ parameters final` and `ESC O final`; anything else after ESC is a separate key.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let (parameters, last, len) = match bytes.get(1)? {
        b'[' => {
            let body = &bytes[2..];
            match body.iter().position(|byte| (0x40..0x7f).contains(byte)) {
                Some(at) => (&body[..at], body[at], at + 3),
                None if body.len() > SEQUENCE_MAX => return Some((None, bytes.len())),
                None => return None,
            }
        }
        b'O' => (&[][..], *bytes.get(2)?, 3),
        _ => return Some((Some(Key::Escape), 1)),
    };
    let key = match (parameters, last) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        (_, b'M') if bytes[1] == b'O' => Some(Key::Enter),
        _ => None,
    };
    Some((key, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &[u8]) -> Vec<Key> {
        let mut bytes = text.to_vec();
        let keys = take(&mut bytes, true);
        assert!(bytes.is_empty());
        keys
    }

    #[test]
    fn keys_are_recognized_by_their_bytes() {
        assert_eq!(keys(b"q"), [Key::Char('q')]);
        assert_eq!(keys("é▾".as_bytes()), [Key::Char('é'), Key::Char('▾')]);
        assert_eq!(keys(b"\r\t\x7f"), [Key::Enter, Key::Tab, Key::Backspace]);
        assert_eq!(
            keys(b"\x03\x1a\x0c"),
            [Key::Interrupt, Key::Suspend, Key::Redraw]
        );
        assert_eq!(keys(b"\x1b[A\x1bOB"), [Key::Up, Key::Down]);
        assert_eq!(keys(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(keys(b"\x1b[H\x1b[4~"), [Key::Home, Key::End]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1bq"), [Key::Escape, Key::Char('q')]);
        // Keys without a function here, and invalid bytes.
        assert_eq!(keys(b"\x1b[24~\x1b[1;5C\x01\xff\xc3"), []);
    }

    #[test]
    fn a_sequence_in_two_reads_is_one_key() {
        for cut in 1..3 {
            let whole = b"\x1b[A";
            let mut bytes = whole[..cut].to_vec();
            assert_eq!(take(&mut bytes, false), []);
            bytes.extend(&whole[cut..]);
            assert_eq!(take(&mut bytes, false), [Key::Up]);
        }
        let mut bytes = b"\x1b".to_vec();
        assert_eq!(take(&mut bytes, false), []);
        assert_eq!(take(&mut bytes, true), [Key::Escape]);
        assert_eq!(take(&mut bytes, true), []);
    }

    /// For any input: it terminates, and its buffer is bounded.
    #[test]
    fn any_key_bytes_are_consumed() {
        let mut state = 7_u32;
        let mut bytes = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let byte = (state >> 24) as u8;
            bytes.push(if byte.is_multiple_of(5) { ESC } else { byte });
            take(&mut bytes, state & 0xff00 == 0);
            assert!(bytes.len() <= SEQUENCE_MAX + 4);
        }
    }
}
