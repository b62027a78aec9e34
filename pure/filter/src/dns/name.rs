//! Parses names and query types.

use std::fmt;

use crate::{Error, Result};

/// Maximum length of a name on the wire (RFC 1035, section 3.1).
const NAME_MAX: usize = 255;
/// Maximum length of a label.
const LABEL_MAX: usize = 63;

/// A name to match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Whether exactly one label of any text precedes it.
    is_below: bool,
    /// Labels in wire format and lower case, including the empty one at the end.
    wire: Vec<u8>,
}

impl Name {
    /// Parses `example.com`, with or without a dot at the end, or `*.example.com`.
    ///
    /// # Errors
    /// With the position of the invalid characters.
    pub fn parse(text: &str) -> Result<Name> {
        let body = text.strip_suffix('.').unwrap_or(text);
        let (is_below, start, body) = match body.strip_prefix("*.") {
            Some(rest) => (true, 2, rest),
            None => (false, 0, body),
        };
        if text.is_empty() || text == "*." || body == "*" {
            let error = Error::new(0..text.len(), format!("\"{text}\" is not a name"));
            return Err(error.expected("expected a name such as example.com or *.example.com"));
        }
        let mut wire = Vec::new();
        let mut at = start;
        // The root is a name without labels.
        for label in body.split('.').filter(|_| !body.is_empty()) {
            check(label, at)?;
            wire.push(label.len() as u8);
            wire.extend(label.bytes().map(|b| b.to_ascii_lowercase()));
            at += label.len() + 1;
        }
        wire.push(0);
        if wire.len() + 2 * usize::from(is_below) > NAME_MAX {
            let error = Error::new(start..text.len(), "the name is too long");
            return Err(error.expected("at most 255 bytes on the wire"));
        }
        Ok(Name { is_below, wire })
    }

    /// Parses a list: names separated by commas or white space, comments from `#` to the end of a
    /// line.
    ///
    /// # Errors
    /// As [`Name::parse`], with the position in the list; also for a list without names.
    pub fn parse_list(text: &str) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        let mut line_at = 0;
        for line in text.split('\n') {
            let code = line.split('#').next().unwrap_or("");
            let mut at = line_at;
            for word in code.split(|c: char| c == ',' || c.is_whitespace()) {
                if !word.is_empty() {
                    names.push(Name::parse(word).map_err(|mut error| {
                        error.at = error.at.start + at..error.at.end + at;
                        error
                    })?);
                }
                // The separator may be longer than one byte.
                at += word.len();
                at += code[at - line_at..]
                    .chars()
                    .next()
                    .map_or(0, char::len_utf8);
            }
            line_at += line.len() + 1;
        }
        if names.is_empty() {
            return Err(Error::new(text.len()..text.len(), "the list has no names"));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Whether exactly one label precedes [`Name::wire`].
    pub fn is_below(&self) -> bool {
        self.is_below
    }

    /// The fixed labels in wire format and lower case.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }
}

fn check(label: &str, at: usize) -> Result<()> {
    let error = |what: String| Error::new(at..at + label.len(), what);
    if label.is_empty() {
        return Err(error("empty label".into()).expected("remove one of the dots"));
    }
    if !label.is_ascii() {
        let what = format!("\"{label}\" is not ASCII");
        return Err(error(what).expected("write its ASCII form, which begins with xn--"));
    }
    if label.len() > LABEL_MAX {
        let what = format!("a label of {} bytes is too long", label.len());
        return Err(error(what).expected("at most 63"));
    }
    if label == "*" {
        return Err(error("\"*\" can only be the first label".into()));
    }
    match label
        .bytes()
        .all(|b| b.is_ascii_graphic() && b != b'*' && b != b'\\')
    {
        true => Ok(()),
        false => Err(error(format!(
            "\"{label}\" has characters that are not allowed in names"
        ))),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_below {
            f.write_str("*.")?;
        }
        let mut rest = &self.wire[..];
        let mut dot = "";
        while let Some((&len, after)) = rest.split_first()
            && len != 0
        {
            let (label, next) = after.split_at_checked(len.into()).unwrap_or((after, &[]));
            write!(f, "{dot}{}", String::from_utf8_lossy(label))?;
            dot = ".";
            rest = next;
        }
        if dot.is_empty() && !self.is_below {
            f.write_str(".")?;
        }
        Ok(())
    }
}

/// Type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryType(pub u16);

#[rustfmt::skip]
const TYPES: [(&str, u16); 18] = [
    ("A", 1), ("NS", 2), ("CNAME", 5), ("SOA", 6), ("PTR", 12), ("MX", 15), ("TXT", 16),
    ("AAAA", 28), ("SRV", 33), ("NAPTR", 35), ("DS", 43), ("RRSIG", 46), ("DNSKEY", 48),
    ("SVCB", 64), ("HTTPS", 65), ("AXFR", 252), ("ANY", 255), ("CAA", 257),
];

impl QueryType {
    /// Parses `A`, `AAAA`, `ANY` and others, or `TYPE65` (RFC 3597).
    ///
    /// # Errors
    /// For an unknown name.
    pub fn parse(text: &str) -> Result<QueryType> {
        let upper = text.to_ascii_uppercase();
        let known = TYPES.iter().find(|row| row.0 == upper).map(|row| row.1);
        let number = || upper.strip_prefix("TYPE")?.parse().ok();
        known.or_else(number).map(QueryType).ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|row| row.0).collect();
            Error::new(0..text.len(), format!("unknown query type \"{text}\""))
                .expected(format!("expected {} or TYPEn", names.join(", ")))
        })
    }
}

impl fmt::Display for QueryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TYPES.iter().find(|row| row.1 == self.0) {
            Some(row) => f.write_str(row.0),
            None => write!(f, "TYPE{}", self.0),
        }
    }
}
