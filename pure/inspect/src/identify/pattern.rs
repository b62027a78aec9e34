//! First bytes of a protocol, as written in the rows of the table.

/// A byte of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// This byte.
    Is(u8),
    /// A byte of a range, both ends included.
    In(u8, u8),
    /// This letter in upper or lower case.
    Letter(u8),
    /// Any byte.
    Any,
}

impl Byte {
    /// Whether a byte matches.
    pub const fn fits(self, byte: u8) -> bool {
        match self {
            Byte::Is(own) => own == byte,
            Byte::In(first, last) => first <= byte && byte <= last,
            Byte::Letter(own) => own.eq_ignore_ascii_case(&byte),
            Byte::Any => true,
        }
    }
}

/// A pattern at the beginning of a protocol, at most [`crate::decode::FIRST_MAX`] bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This text.
    Text(&'static [u8]),
    /// This text, ignoring case.
    AnyCase(&'static [u8]),
    /// Individual bytes.
    Bytes(&'static [Byte]),
}

impl Pattern {
    /// A pattern that matches anything: the row's check alone decides.
    pub const ANY: Pattern = Pattern::Bytes(&[]);

    /// Number of bytes needed to match.
    pub const fn len(&self) -> usize {
        match self {
            Pattern::Text(text) | Pattern::AnyCase(text) => text.len(),
            Pattern::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether it matches anything.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pattern at an offset.
    pub fn at(&self, at: usize) -> Option<Byte> {
        match self {
            Pattern::Text(text) => text.get(at).map(|byte| Byte::Is(*byte)),
            Pattern::AnyCase(text) => text.get(at).map(|byte| Byte::Letter(*byte)),
            Pattern::Bytes(bytes) => bytes.get(at).copied(),
        }
    }
}
