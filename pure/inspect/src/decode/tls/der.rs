//! Distinguished encoding rules of ASN.1 (X.690), read byte by byte.
//!
//! The reader tracks the ends of the open elements and none of their contents. Its caller chooses
//! for each element whether to enter it, to read its contents, or to skip it. Lengths have at most
//! three bytes, as in TLS certificates. Indefinite lengths and tags of several bytes, which do not
//! occur in certificates, are refused.

use crate::Reason;

/// Maximum nesting of elements.
const DEPTH_MAX: usize = 8;

/// Identifier and length of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) tag: u8,
    pub(super) len: u32,
}

/// What to do with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Enter,
    Read,
    Skip,
}

/// Event of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// An element begins: call [`Der::choose`]. Without a choice it is skipped.
    Begins(Head),
    /// Contents of an element that is being read.
    Contents(&'a [u8]),
    /// The end of an element that was read.
    Ends,
    /// The end of an element that was entered; the last one is the input itself.
    Leaves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Tag,
    Len,
    /// This many bytes of a long length are missing.
    LongLen(u8),
    Read,
    Skip,
}

/// Position within an encoding.
pub(super) struct Der {
    stage: Stage,
    head: Head,
    /// Number of bytes read.
    at: u32,
    /// End of the current element.
    end: u32,
    /// Ends of the enclosing elements.
    ends: [u32; DEPTH_MAX],
    depth: u8,
}

impl Der {
    /// Creates a reader for an encoding of this many bytes.
    pub(super) const fn new(len: u32) -> Der {
        let mut ends = [0; DEPTH_MAX];
        ends[0] = len;
        Der {
            stage: Stage::Tag,
            head: Head { tag: 0, len: 0 },
            at: 0,
            end: 0,
            ends,
            depth: 1,
        }
    }

    /// End of the innermost open element.
    fn limit(&self) -> u32 {
        match usize::from(self.depth).checked_sub(1) {
            Some(at) => self.ends.get(at).copied().unwrap_or(0),
            None => 0,
        }
    }

    /// Decides what to do with the element that has begun.
    ///
    /// # Errors
    /// If it is entered and too many are open.
    pub(super) fn choose(&mut self, choice: Choice) -> Result<(), Reason> {
        self.stage = match choice {
            Choice::Read => Stage::Read,
            Choice::Skip => Stage::Skip,
            Choice::Enter => {
                let place = self.ends.get_mut(usize::from(self.depth));
                *place.ok_or(Reason::TooLong)? = self.end;
                self.depth += 1;
                Stage::Tag
            }
        };
        Ok(())
    }

    /// Reads up to the next event. `None`: the input has been used up.
    ///
    /// # Errors
    /// If an element is longer than the one around it, or not encoded as described above.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Reason> {
        loop {
            match self.stage {
                Stage::Tag if self.at == self.limit() => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Some(Event::Leaves));
                }
                Stage::Read if self.at == self.end => {
                    self.stage = Stage::Tag;
                    return Ok(Some(Event::Ends));
                }
                Stage::Skip if self.at == self.end => self.stage = Stage::Tag,
                _ if input.is_empty() => return Ok(None),
                Stage::Read => return Ok(Some(Event::Contents(self.take(input)))),
                Stage::Skip => {
                    self.take(input);
                }
                Stage::Tag | Stage::Len | Stage::LongLen(_) => {
                    if self.head(input)? {
                        return Ok(Some(Event::Begins(self.head)));
                    }
                }
            }
        }
    }

    /// Returns contents, as far as they are present.
    fn take<'a>(&mut self, input: &mut &'a [u8]) -> &'a [u8] {
        let left = (self.end - self.at) as usize;
        let (part, rest) = input.split_at(input.len().min(left));
        self.at += part.len() as u32;
        *input = rest;
        part
    }

    /// Reads a byte of a head; true for the last one.
    fn head(&mut self, input: &mut &[u8]) -> Result<bool, Reason> {
        let Some((byte, rest)) = input.split_first() else {
            return Ok(false);
        };
        *input = rest;
        self.at += 1;
        if self.at > self.limit() {
            return Err(Reason::BadLength);
        }
        let missing = match self.stage {
            Stage::Len if *byte < 0x80 => {
                self.head.len = (*byte).into();
                0
            }
            Stage::Len => match byte & 0x7f {
                0 => return Err(Reason::Unsupported),
                count @ 1..=3 => count,
                _ => return Err(Reason::BadLength),
            },
            Stage::LongLen(missing) => {
                self.head.len = self.head.len << 8 | u32::from(*byte);
                missing - 1
            }
            _ => {
                if byte & 0x1f == 0x1f {
                    return Err(Reason::Unsupported);
                }
                self.head = Head { tag: *byte, len: 0 };
                self.stage = Stage::Len;
                return Ok(false);
            }
        };
        if missing != 0 {
            self.stage = Stage::LongLen(missing);
            return Ok(false);
        }
        self.end = self.at + self.head.len;
        if self.end > self.limit() {
            return Err(Reason::BadLength);
        }
        self.stage = Stage::Skip;
        Ok(true)
    }

    /// Handles a gap of this many bytes. Returns true if they would have been skipped.
    pub(super) fn gap(&mut self, len: u32) -> bool {
        let is_skipped = self.stage == Stage::Skip && len <= self.end - self.at;
        if is_skipped {
            self.at += len;
        }
        is_skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Enters constructed elements, reads those with an even tag and skips the others.
    fn walk(bytes: &[u8], step: usize) -> Result<Vec<(char, Vec<u8>)>, Reason> {
        let mut der = Der::new(bytes.len() as u32);
        let mut seen: Vec<(char, Vec<u8>)> = Vec::new();
        for part in bytes.chunks(step) {
            let mut input = part;
            while let Some(event) = der.next(&mut input)? {
                match event {
                    Event::Begins(Head { tag, .. }) => {
                        seen.push(('b', [tag].to_vec()));
                        der.choose(match tag {
                            _ if tag & 0x20 != 0 => Choice::Enter,
                            _ if tag & 1 == 0 => Choice::Read,
                            _ => Choice::Skip,
                        })?;
                    }
                    Event::Contents(bytes) => match seen.last_mut() {
                        Some(('c', held)) => held.extend_from_slice(bytes),
                        _ => seen.push(('c', bytes.to_vec())),
                    },
                    Event::Ends => seen.push(('e', Vec::new())),
                    Event::Leaves => {
                        seen.push(('l', Vec::new()));
                        if der.depth == 0 {
                            return Ok(seen);
                        }
                    }
                }
            }
        }
        Ok(seen)
    }

    #[test]
    fn elements_do_not_depend_on_segmentation() {
        let long = [&[0x04, 0x82, 0x01, 0x00][..], &[7; 256]].concat();
        let bytes = [
            &[0x30, 0x82, 0x01, 0x11][..],
            &[0x06, 2, 0x55, 4, 0x05, 3, 1, 2, 3, 0x31, 0, 0x04, 0][..],
            &long,
        ]
        .concat();
        let expected = walk(&bytes, bytes.len()).unwrap();
        let kinds: std::string::String = expected.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, "bbcebblbebcell");
        assert_eq!(expected[2].1, [0x55, 4]);
        assert_eq!(expected[10].1, [7; 256]);
        for step in 1..bytes.len() {
            assert_eq!(walk(&bytes, step).unwrap(), expected, "every {step}");
        }
    }

    #[test]
    fn encodings_outside_certificates_are_refused() {
        for (bytes, reason) in [
            (&[0x30, 0x80][..], Reason::Unsupported),
            (&[0x1f, 0x81, 1], Reason::Unsupported),
            (&[0x30, 0x84, 0, 0, 0, 1], Reason::BadLength),
            (&[0x30, 2, 0x04, 1, 0], Reason::BadLength),
            (&[0x30, 9, 0x04], Reason::BadLength),
            (&[0x30, 1, 0x04, 0, 0], Reason::BadLength),
            (&[0x30], Reason::BadLength),
            (&[0x30, 0x81], Reason::BadLength),
        ] {
            let bytes = [bytes, &[0]].concat();
            // One byte less than the headers require.
            let len = bytes.len() as u32 - 1;
            let mut der = Der::new(len);
            let mut input = &bytes[..];
            let found = loop {
                match der.next(&mut input) {
                    Ok(Some(Event::Begins(_))) => {
                        if let Err(reason) = der.choose(Choice::Enter) {
                            break Err(reason);
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break Ok(()),
                    Err(reason) => break Err(reason),
                }
            };
            assert_eq!(found, Err(reason), "{bytes:02x?}");
        }
        // Nine nested elements.
        let nested: Vec<u8> = (0..9).rev().flat_map(|n| [0x30, n * 2]).collect();
        assert_eq!(walk(&nested, 1), Err(Reason::TooLong));
    }

    #[test]
    fn only_skipped_bytes_may_be_missing() {
        let mut der = Der::new(20);
        let mut input = &[0x05, 10, 1][..];
        assert!(!der.gap(1));
        assert!(matches!(der.next(&mut input), Ok(Some(Event::Begins(_)))));
        assert_eq!(der.next(&mut input), Ok(None));
        assert!(!der.gap(10));
        assert!(der.gap(9));
        let mut input = &[0x04, 2, 1, 2][..];
        assert!(matches!(der.next(&mut input), Ok(Some(Event::Begins(_)))));
        der.choose(Choice::Read).unwrap();
        assert!(!der.gap(1));
        assert_eq!(der.next(&mut input), Ok(Some(Event::Contents(&[1, 2]))));
    }
}
