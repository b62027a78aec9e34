//! The schema of a Parquet file: its bytes in the footer, which files of one writer have in common,
//! and the names of its columns. Everything else in the footer grows with the file and is not read.
//!
//! The footer is a Thrift structure in the compact protocol; the schema is its second field
//! (Apache Parquet, `parquet.thrift`, `FileMetaData`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parquet::file::metadata::ParquetMetaDataReader;

/// The end of a file: length of the footer, magic number.
const TAIL_LEN: usize = 8;
const MAGIC: &[u8; 4] = b"PAR1";
/// Bytes of the footer that are read first; the schema of a flow file takes less than 8 KiB.
const FIRST_LEN: usize = 16 << 10;
/// Maximum length of a footer.
const FOOTER_MAX: usize = 64 << 20;
/// Field number of the schema.
const SCHEMA: i16 = 2;
/// Maximum nesting of structures.
const DEPTH_MAX: u32 = 16;

/// The schema's bytes; `None` if the file is not Parquet, or cannot be read.
pub fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut tail = [0; TAIL_LEN];
    let tail_at = len.checked_sub(TAIL_LEN as u64)?;
    file.read_exact_at(&mut tail, tail_at).ok()?;
    let (footer_len, magic) = tail.split_first_chunk::<4>()?;
    let footer_len = u32::from_le_bytes(*footer_len) as usize;
    let start = tail_at.checked_sub(footer_len as u64)?;
    if magic != MAGIC || footer_len > FOOTER_MAX {
        return None;
    }
    let mut footer = Vec::new();
    for part in [FIRST_LEN.min(footer_len), footer_len] {
        footer.resize(part, 0);
        file.read_exact_at(&mut footer, start).ok()?;
        if let Some(schema) = schema_in(&footer) {
            return Some(schema.to_vec());
        }
    }
    None
}

/// The names of a file's columns.
pub fn columns_of(path: &Path) -> Vec<String> {
    let read = |file: File| ParquetMetaDataReader::new().parse_and_finish(&file).ok();
    let Some(footer) = File::open(path).ok().and_then(read) else {
        return Vec::new();
    };
    let root = footer.file_metadata().schema();
    let names = root.get_fields().iter().map(|field| field.name());
    names.map(str::to_owned).collect()
}

/// The bytes of the schema in a footer, or in its first part.
fn schema_in(footer: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader { rest: footer };
    let mut id = 0;
    loop {
        let kind = reader.field(&mut id)?;
        let start = footer.len() - reader.rest.len();
        reader.skip(kind, DEPTH_MAX)?;
        if id == SCHEMA {
            return footer.get(start..footer.len() - reader.rest.len());
        }
    }
}

/// Reads the compact protocol. `None` is the end of the bytes, or a type that does not exist.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn advance(&mut self, len: usize) -> Option<()> {
        self.rest = self.rest.get(len..)?;
        Some(())
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The type of the next field, whose number is computed from the one before; `None` after the
    /// last.
    fn field(&mut self, id: &mut i16) -> Option<u8> {
        let head = self.byte()?;
        if head & 15 == 0 {
            return None;
        }
        *id = match i16::from(head >> 4) {
            0 => {
                let zigzag = self.number()?;
                ((zigzag >> 1) as i16) ^ -((zigzag & 1) as i16)
            }
            delta => id.checked_add(delta)?,
        };
        Some(head & 15)
    }

    /// Skips a field's value.
    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Booleans are in the type.
            1 | 2 => Some(()),
            3 => self.advance(1),
            4..=6 => self.number().map(drop),
            7 => self.advance(8),
            8 => {
                let len = usize::try_from(self.number()?).ok()?;
                self.advance(len)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.number()?,
                    count => count.into(),
                };
                (0..count).try_for_each(|_| self.skip_item(head & 15, depth))
            }
            11 => {
                let count = self.number()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.skip_item(kinds >> 4, depth)?;
                    self.skip_item(kinds & 15, depth)
                })
            }
            12 => {
                let mut id = 0;
                loop {
                    if self.rest.first()? & 15 == 0 {
                        return self.advance(1);
                    }
                    let kind = self.field(&mut id)?;
                    self.skip(kind, depth)?;
                }
            }
            _ => None,
        }
    }

    /// Skips an item of a list or map, in which a boolean takes a byte.
    fn skip_item(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            1 | 2 => self.advance(1),
            kind => self.skip(kind, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1, then a list of two structures: a name each, and one with a list of booleans.
    const FOOTER: &[u8] = &[
        0x15, 0x02, // field 1: i32
        0x19, 0x2c, // field 2: a list of two structures
        0x48, 0x01, b'a', 0x00, // field 4: text
        0x48, 0x01, b'b', 0x19, 0x21, 0x01, 0x02, 0x00, // and field 5: a list of two booleans
        0x16, 0x08, // field 3: i64
        0x00,
    ];

    #[test]
    fn the_schema_ends_where_the_next_field_begins() {
        assert_eq!(schema_in(FOOTER), Some(&FOOTER[3..16]));
        // Cut before its end there is none; cut after it there is.
        for len in 0..FOOTER.len() {
            let found = schema_in(&FOOTER[..len]);
            assert_eq!(found.is_some(), len >= 16, "{len}");
        }
    }

    #[test]
    fn damaged_footers_have_no_schema() {
        for (at, byte) in [(1, 0x80), (2, 0x1d), (3, 0xfc), (6, 0x7f)] {
            let mut footer = FOOTER.to_vec();
            footer[at] = byte;
            let found = schema_in(&footer);
            assert!(found.is_none_or(|schema| schema.len() < FOOTER.len()));
        }
        let deep = [&[0x19, 0x1c][..], &[0x1c; 1000]].concat();
        assert_eq!(schema_in(&deep), None);
        // A list that claims more items than there are bytes.
        assert_eq!(schema_in(&[0x29, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
