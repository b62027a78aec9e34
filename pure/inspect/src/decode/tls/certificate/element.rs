//! Elements of DER (X.690) in a slice, whose end may be missing.

/// An element: its tag, its contents as far as they are present, and the length that it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) contents: &'a [u8],
    pub(super) len: usize,
}

impl Element<'_> {
    /// Whether the end is missing.
    pub(super) fn is_cut(&self) -> bool {
        self.contents.len() < self.len
    }
}

/// Splits the first element off; `None` at the end, and for a malformed one.
pub(super) fn first(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let [tag, len, rest @ ..] = bytes else {
        return None;
    };
    let (len, rest) = match len {
        0..=0x7f => (usize::from(*len), rest),
        0x81..=0x84 => {
            let (number, rest) = rest.split_at_checked(usize::from(len & 0x7f))?;
            let number = number
                .iter()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
            (usize::try_from(number).ok()?, rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at(len.min(rest.len()));
    let tag = *tag;
    Some((Element { tag, contents, len }, rest))
}

/// The elements of a slice.
pub(super) fn all(mut bytes: &[u8]) -> impl Iterator<Item = Element<'_>> {
    core::iter::from_fn(move || {
        let (element, rest) = first(bytes)?;
        bytes = rest;
        Some(element)
    })
}

/// Size in bits of the number that an INTEGER holds; its end may be missing.
pub(super) fn integer_bits(integer: &Element<'_>) -> Option<u64> {
    const INTEGER: u8 = 0x02;
    let zero_count = integer
        .contents
        .iter()
        .take_while(|byte| **byte == 0)
        .count();
    let first = integer.contents.get(zero_count)?;
    let bits = (integer.len - zero_count) as u64 * 8 - u64::from(first.leading_zeros());
    (integer.tag == INTEGER).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_may_be_cut() {
        let (element, rest) = first(&[4, 2, 1, 2, 5, 0]).unwrap();
        assert_eq!((element.contents, rest), (&[1, 2][..], &[5, 0][..]));
        let (element, rest) = first(&[4, 0x82, 1, 0, 7]).unwrap();
        assert!(element.is_cut() && rest.is_empty() && element.len == 256);
        for bad in [
            &[][..],
            &[4],
            &[4, 0x80, 0, 0],
            &[4, 0x85, 0, 0, 0, 0, 1],
            &[4, 0x82, 1],
        ] {
            assert_eq!(first(bad), None, "{bad:?}");
        }
        assert_eq!(all(&[5, 0, 5, 0, 9]).count(), 2);
    }

    #[test]
    fn numbers_have_a_size() {
        for (bytes, expected) in [
            (&[2, 1, 3][..], Some(2)),
            (&[2, 2, 0, 0x80], Some(8)),
            // 2,048 bits, of which one byte is present.
            (&[2, 0x82, 1, 1, 0, 0xc1], Some(2048)),
            (&[2, 1, 0], None),
            (&[2, 0], None),
            (&[4, 1, 3], None),
        ] {
            assert_eq!(
                integer_bits(&first(bytes).unwrap().0),
                expected,
                "{bytes:?}"
            );
        }
    }
}
