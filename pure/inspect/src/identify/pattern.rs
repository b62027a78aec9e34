//! The start of a protocol, as written in rows of the table.

/// A byte of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// This one.
    Is(u8),
    /// One of a range, both ends included.
    In(u8, u8),
    /// This letter, upper or lower case.
    Letter(u8),
    /// Any byte.
    Any,
}

impl Byte {
    /// Whether a byte fits.
    pub const fn fits(self, byte: u8) -> bool {
        match self {
            Byte::Is(own) => own == byte,
            Byte::In(first, last) => first <= byte && byte <= last,
            Byte::Letter(own) => own.eq_ignore_ascii_case(&byte),
            Byte::Any => true,
        }
    }
}

/// What a protocol may begin with. A protocol has no pattern longer than
/// [`crate::decode::FIRST_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This text.
    Text(&'static [u8]),
    /// This text, ignoring case.
    AnyCase(&'static [u8]),
    /// Byte by byte.
    Bytes(&'static [Byte]),
}

impl Pattern {
    /// A pattern that anything fits: the row's check alone decides.
    pub const ANY: Pattern = Pattern::Bytes(&[]);

    /// Bytes that it takes to match.
    pub const fn len(&self) -> usize {
        match self {
            Pattern::Text(text) | Pattern::AnyCase(text) => text.len(),
            Pattern::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether anything fits.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What fits at a place.
    pub fn at(&self, at: usize) -> Option<Byte> {
        match self {
            Pattern::Text(text) => text.get(at).map(|byte| Byte::Is(*byte)),
            Pattern::AnyCase(text) => text.get(at).map(|byte| Byte::Letter(*byte)),
            Pattern::Bytes(bytes) => bytes.get(at).copied(),
        }
    }
}
