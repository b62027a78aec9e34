//! Filters the engine's output of everything that a spreadsheet or a terminal would interpret:
//! columns may hold text from packets.

use std::io::{self, Read, Write};

use flow::encode::csv::safe_cell;
use inspect::is_unprintable;

use super::{Answer, NULL};

/// Copies a result to its end, sanitized as [`flow::encode::csv::Texts::Safe`] describes.
///
/// # Errors
/// Errors of reading and of writing.
pub fn copy(answer: Answer, from: impl Read, out: &mut impl Write) -> io::Result<()> {
    match answer {
        Answer::Csv => copy_csv(from, out)?,
        Answer::Json => copy_lines(from, out, |letter, to| {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                to.push_str(&format!("\\u{unit:04x}"));
            }
        })?,
        Answer::Table => copy_lines(from, out, |letter, to| {
            to.push_str(&format!("\\u{{{:x}}}", u32::from(letter)));
        })?,
    }
    out.flush()
}

fn copy_csv(from: impl Read, out: &mut impl Write) -> io::Result<()> {
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(from);
    let (mut row, mut line) = (csv::ByteRecord::new(), Vec::new());
    while rows.read_byte_record(&mut row)? {
        line.clear();
        for (at, cell) in row.iter().enumerate() {
            if at != 0 {
                line.push(b',');
            }
            match cell {
                b"" => line.extend(b"\"\""),
                _ if cell == NULL.as_bytes() => {}
                _ if is_number(cell) => line.extend(cell),
                _ => safe_cell(cell, &mut line),
            }
        }
        // A row of one NULL.
        if line.is_empty() {
            line.extend(b"\"\"");
        }
        line.push(b'\n');
        out.write_all(&line)?;
    }
    Ok(())
}

/// Whether it is a decimal number, which a spreadsheet treats as one even if it starts with a minus
/// sign.
fn is_number(cell: &[u8]) -> bool {
    let is_numeric = |byte: &u8| byte.is_ascii_digit() || b".eE+-".contains(byte);
    cell.first().is_some_and(|&first| first != b'+')
        && cell.iter().all(is_numeric)
        && str::from_utf8(cell).is_ok_and(|text| text.parse::<f64>().is_ok())
}

/// Escapes characters that must not reach a terminal, except line feeds.
fn copy_lines(
    mut from: impl Read,
    out: &mut impl Write,
    replace: impl Fn(char, &mut String),
) -> io::Result<()> {
    let (mut bytes, mut filled, mut text) = ([0; 16 << 10], 0, String::new());
    loop {
        let read = from.read(&mut bytes[filled..])?;
        filled += read;
        // The start of a character whose rest has not been read.
        let whole = match str::from_utf8(&bytes[..filled]) {
            Err(error) if read != 0 && error.error_len().is_none() => error.valid_up_to(),
            _ => filled,
        };
        text.clear();
        for letter in String::from_utf8_lossy(&bytes[..whole]).chars() {
            match letter != '\n' && is_unprintable(letter) {
                true => replace(letter, &mut text),
                false => text.push(letter),
            }
        }
        out.write_all(text.as_bytes())?;
        if read == 0 {
            return Ok(());
        }
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns a byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = self.0.len().min(1);
            buf[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn copied(answer: Answer, text: &str) -> String {
        let (mut slow, mut whole) = (Vec::new(), Vec::new());
        copy(answer, Slow(text.as_bytes()), &mut slow).unwrap();
        copy(answer, text.as_bytes(), &mut whole).unwrap();
        assert_eq!(slow, whole);
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn csv_cells_are_not_formulas_and_numbers_stay_numbers() {
        assert_eq!(
            copied(Answer::Csv, "name,n\n=1+1,-5\n\"@a,\"\"b\"\"\",1.5e-7\n"),
            "name,n\n'=1+1,-5\n\"'@a,\"\"b\"\"\",1.5e-7\n"
        );
        assert_eq!(copied(Answer::Csv, "-x,+1,-1-1\n"), "'-x,'+1,'-1-1\n");
        assert_eq!(copied(Answer::Csv, "a\n\\N\n\"\"\n"), "a\n\"\"\n\"\"\n");
        assert_eq!(copied(Answer::Csv, "\\N,\"\",x\n"), ",\"\",x\n");
        assert_eq!(copied(Answer::Csv, "\"a\nb\"\n"), "\"a\\x0ab\"\n");
    }

    #[test]
    fn control_characters_are_escaped_in_json_and_tables() {
        let text = "{\"a\":\"\u{9b}31m Zürich \u{202e}\u{e0041}\"}\n";
        let json = copied(Answer::Json, text);
        assert_eq!(
            json,
            "{\"a\":\"\\u009b31m Zürich \\u202e\\udb40\\udc41\"}\n"
        );
        assert_eq!(copied(Answer::Table, "│ \u{1b}[2J │\n"), "│ \\u{1b}[2J │\n");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let mut out = Vec::new();
        copy(Answer::Table, &b"a\xffb\xe2\x82"[..], &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a\u{fffd}b\u{fffd}\n".trim_end()
        );
    }
}
