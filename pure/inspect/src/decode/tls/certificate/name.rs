//! Distinguished and alternative names as text (RFC 5280 §4.1.2.4, §4.2.1.6).
//!
//! A distinguished name has the form that OpenSSL prints: `C=US, O="Example, Inc.", CN=a.example`,
//! in the order of the certificate, with `+` between attributes that belong together.

use super::element::{self, Element};
use super::oid;
use crate::text::{Text, hex};

// Types of strings (X.690 §8.23).
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const NUMERIC_STRING: u8 = 0x12;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VISIBLE_STRING: u8 = 0x1a;
const UNIVERSAL_STRING: u8 = 0x1c;
const BMP_STRING: u8 = 0x1e;
const SEQUENCE: u8 = 0x30;

// Kinds of GeneralName.
pub(super) const OTHER_NAME: u8 = 0xa0;
pub(super) const MAIL: u8 = 0x81;
pub(super) const DNS_NAME: u8 = 0x82;
pub(super) const DIRECTORY_NAME: u8 = 0xa4;
pub(super) const URI: u8 = 0x86;
pub(super) const IP_ADDRESS: u8 = 0x87;
pub(super) const REGISTERED_ID: u8 = 0x88;

/// Appends the contents of a Name.
pub(super) fn distinguished<const N: usize>(contents: &[u8], out: &mut Text<N>) {
    let mut is_first = true;
    for set in element::all(contents) {
        for (at, attribute) in element::all(set.contents).enumerate() {
            let mut parts = element::all(attribute.contents);
            let (Some(kind), Some(value)) = (parts.next(), parts.next()) else {
                continue;
            };
            if attribute.tag != SEQUENCE || kind.tag != OBJECT_IDENTIFIER {
                continue;
            }
            if !core::mem::take(&mut is_first) {
                out.push_str(if at == 0 { ", " } else { " + " });
            }
            let number = oid::dotted(kind.contents);
            match oid::attribute(&number) {
                Some(name) => out.push_str(name),
                None => push(number.bytes(), out),
            }
            out.push_char('=');
            quoted(&value, out);
            if value.is_cut() {
                out.cut();
            }
        }
    }
}

fn push<const N: usize>(ascii: &[u8], out: &mut Text<N>) {
    ascii
        .iter()
        .for_each(|byte| out.push_char(char::from(*byte)));
}

/// Passes the characters of a string on; false if its type is not a string.
fn letters(value: &Element<'_>, put: &mut dyn FnMut(char)) -> bool {
    let bytes = value.contents;
    match value.tag {
        UTF8_STRING => {
            for chunk in bytes.utf8_chunks() {
                chunk.valid().chars().for_each(&mut *put);
                let invalid = chunk.invalid().iter();
                invalid.for_each(|byte| put(char::from(*byte)));
            }
        }
        // T.61 has long been used for Latin 1.
        NUMERIC_STRING | PRINTABLE_STRING | TELETEX_STRING | IA5_STRING | VISIBLE_STRING
        | UTC_TIME | GENERALIZED_TIME => {
            bytes.iter().for_each(|byte| put(char::from(*byte)));
        }
        BMP_STRING => {
            let units = bytes.chunks_exact(2);
            let units =
                units.map(|pair| pair.iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte)));
            let letters = char::decode_utf16(units);
            letters.for_each(|letter| put(letter.unwrap_or(char::REPLACEMENT_CHARACTER)));
        }
        UNIVERSAL_STRING => {
            for four in bytes.chunks_exact(4) {
                let number = four.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                put(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        _ => return false,
    }
    true
}

/// Appends a value, in quotes if it contains what separates others (RFC 2253 §2.4). What is not a
/// string is `#` and its encoding in hexadecimal.
fn quoted<const N: usize>(value: &Element<'_>, out: &mut Text<N>) {
    let (mut count, mut needs_quotes, mut last) = (0_usize, false, ' ');
    let is_string = letters(value, &mut |letter| {
        let is_first = count == 0 && matches!(letter, ' ' | '#');
        needs_quotes |= is_first || matches!(letter, ',' | '+' | ';' | '<' | '>');
        count += 1;
        last = letter;
    });
    needs_quotes |= count != 0 && last == ' ';
    if !is_string {
        out.push_char('#');
        return encoding(value, out);
    }
    let quote = |out: &mut Text<N>| {
        if needs_quotes {
            out.push_char('"');
        }
    };
    quote(out);
    letters(value, &mut |letter| match letter {
        '"' | '\\' => {
            out.push_char('\\');
            out.push_char(letter);
        }
        '\0'..='\x1f' | '\x7f' => {
            out.push_char('\\');
            upper_hex(letter as u8, out);
        }
        _ => out.push_char(letter),
    });
    quote(out);
}

fn upper_hex<const N: usize>(byte: u8, out: &mut Text<N>) {
    push(&hex(byte).map(|digit| digit.to_ascii_uppercase()), out);
}

/// Appends the encoding of an element in hexadecimal.
fn encoding<const N: usize>(value: &Element<'_>, out: &mut Text<N>) {
    upper_hex(value.tag, out);
    let len = (value.len as u32).to_be_bytes();
    let zero_count = len.iter().take_while(|byte| **byte == 0).count().min(3);
    if value.len >= 0x80 {
        upper_hex(0x80 | (4 - zero_count) as u8, out);
    }
    let len = len.iter().skip(zero_count);
    len.for_each(|byte| upper_hex(*byte, out));
    value.contents.iter().for_each(|byte| upper_hex(*byte, out));
}

/// Appends an alternative name that is no address. The kinds that are rare have their name in
/// front, as in OpenSSL's configuration.
pub(super) fn alternative<const N: usize>(tag: u8, contents: &[u8], out: &mut Text<N>) {
    match tag {
        DIRECTORY_NAME => {
            out.push_str("DirName:");
            if let Some((name, _)) = element::first(contents) {
                distinguished(name.contents, out);
            }
        }
        REGISTERED_ID => {
            out.push_str("RID:");
            push(oid::dotted(contents).bytes(), out);
        }
        OTHER_NAME => {
            out.push_str("othername:");
            let mut parts = element::all(contents);
            if let Some(kind) = parts.next() {
                push(oid::dotted(kind.contents).bytes(), out);
            }
            // A user principal name, and the like (RFC 5280 §4.2.1.6): its value is tagged.
            let value = parts
                .next()
                .and_then(|value| element::first(value.contents));
            if let Some((value, _)) = value {
                out.push_char(':');
                if !letters(&value, &mut |letter| out.push_char(letter)) {
                    out.push_char('#');
                    encoding(&value, out);
                }
            }
        }
        // X.400 and EDI names.
        _ if tag & 0x20 != 0 => {
            out.push_char('#');
            upper_hex(tag, out);
            contents.iter().for_each(|byte| upper_hex(*byte, out));
        }
        _ => out.push(contents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn sized(tag: u8, contents: &[u8]) -> Vec<u8> {
        [&[tag, contents.len() as u8][..], contents].concat()
    }

    fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        sized(0x30, &[sized(6, oid), sized(tag, value)].concat())
    }

    fn shown(name: &[u8]) -> String {
        let mut out = Text::<255>::EMPTY;
        distinguished(name, &mut out);
        String::from_utf8(out.bytes().to_vec()).unwrap()
    }

    #[test]
    fn names_are_those_of_openssl() {
        const O: &[u8] = &[0x55, 4, 10];
        for (tag, value, expected) in [
            (0x13, &b"Example"[..], "O=Example"),
            (0x0c, "t\u{e9}st".as_bytes(), "O=t\u{e9}st"),
            (0x14, b"t\xe9st", "O=t\u{e9}st"),
            (
                0x1e,
                &[0, 0x41, 0x20, 0xac, 0xd8, 0x3d, 0xde, 0],
                "O=A\u{20ac}\u{1f600}",
            ),
            (0x1c, &[0, 0, 0, 0x41, 0, 1, 0xf6, 0], "O=A\u{1f600}"),
            (0x0c, b"a, b", "O=\"a, b\""),
            (0x0c, b"a\"b\\", "O=a\\\"b\\\\"),
            (0x0c, b"#a", "O=\"#a\""),
            (0x0c, b"a ", "O=\"a \""),
            (0x0c, b"a\nb\0", "O=a\\0Ab\\00"),
            (0x0c, b"", "O="),
            (0x04, b"ab", "O=#04026162"),
        ] {
            let name = sized(0x31, &attribute(O, tag, value));
            assert_eq!(shown(&name), expected);
        }
        let both = [
            attribute(O, 0x13, b"a"),
            attribute(&[0x55, 4, 3], 0x13, b"b"),
        ]
        .concat();
        let other = attribute(&[0x2a, 3, 4], 0x13, b"c");
        let name = [sized(0x31, &both), sized(0x31, &other)].concat();
        assert_eq!(shown(&name), "O=a + CN=b, 1.2.3.4=c");
        // Whatever is cut off.
        for len in 0..name.len() {
            assert!(shown(&name[..len]).len() <= shown(&name).len());
        }
    }

    #[test]
    fn alternative_names_show_their_kind() {
        let name = |tag, contents: &[u8]| {
            let mut out = Text::<255>::EMPTY;
            alternative(tag, contents, &mut out);
            String::from_utf8(out.bytes().to_vec()).unwrap()
        };
        assert_eq!(name(DNS_NAME, b"a.example"), "a.example");
        assert_eq!(name(URI, b"https://a.example/"), "https://a.example/");
        assert_eq!(name(REGISTERED_ID, &[0x2a, 3, 4]), "RID:1.2.3.4");
        let directory = sized(0x30, &sized(0x31, &attribute(&[0x55, 4, 3], 0x13, b"b")));
        assert_eq!(name(DIRECTORY_NAME, &directory), "DirName:CN=b");
        let user = [sized(6, &[0x2a, 3]), sized(0xa0, &sized(0x0c, b"u@a"))].concat();
        assert_eq!(name(OTHER_NAME, &user), "othername:1.2.3:u@a");
        assert_eq!(name(OTHER_NAME, &[]), "othername:");
    }
}
