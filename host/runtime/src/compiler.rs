//! Filters from what people write: a pcap expression, or a p0f signature.

use std::io::Read;

use bpf::cbpf::Program;
use filter::dns::{Family, Name, Queries, QueryType};
use filter::expression;
use filter::p0f::{Handshake, Signature, Start};
use sys::{Error, ErrorKind, Result};

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;
/// `LINKTYPE_RAW`: packets begin with their IP header.
const RAW: u16 = 101;

/// Longest file of names, in bytes.
const NAMES_LEN_MAX: u64 = 4 << 20;

/// Marks a p0f signature where an expression may stand.
pub const P0F: &str = "p0f:";

/// Compiles an expression with our own compiler, for packets of a link type in a file.
///
/// # Errors
/// `InvalidInput` with the place in the text, `Unsupported` for what it does not know yet.
pub fn expression(text: &str, link_type: u16) -> Result<Program> {
    let options = expression::Options {
        link_type,
        ..expression::Options::default()
    };
    expression::compile(text, &options).map_err(|error| refused("filter", text, &error))
}

/// Reads a p0f signature.
///
/// # Errors
/// `InvalidInput` with the place in the text, or why no packet can match.
pub fn signature(text: &str) -> Result<Signature> {
    Signature::parse(text).map_err(|error| refused("p0f signature", text, &error))
}

/// Compiles a p0f signature for SYNs of a link type.
///
/// # Errors
/// `InvalidInput` as [`signature`]; `Unsupported` for link types other than Ethernet and raw IP,
/// and for signatures that cannot be compiled.
pub fn p0f(text: &str, link_type: u16) -> Result<Program> {
    compile_signature(&signature(text)?, link_type)
}

/// As [`p0f`], for a signature that was read.
///
/// # Errors
/// `Unsupported`, as there.
pub fn compile_signature(signature: &Signature, link_type: u16) -> Result<Program> {
    let what = || format!("compile the p0f signature {signature}");
    let start = start_of(link_type, what)?;
    filter::p0f::compile(signature, Handshake::Syn, start)
        .map_err(|error| Error::new(ErrorKind::Unsupported, what(), error.what))
}

/// Compiles queries for DNS names to a program. A word that begins with `@` is a file of names.
///
/// # Errors
/// `InvalidInput` with the place in the text; what the system says of the file; `Unsupported` for
/// link types other than Ethernet and raw IP, and for too many names.
pub fn dns(words: &[String], types: &[String], family: Family, link_type: u16) -> Result<Program> {
    let mut names = Vec::new();
    for word in words {
        let read;
        let text = match word.strip_prefix('@') {
            Some(path) => {
                read = read_names(path)?;
                &read
            }
            None => word,
        };
        let listed = Name::parse_list(text);
        names.extend(listed.map_err(|error| refused("DNS names", text, &error))?);
    }
    let queried = types.iter().map(|text| {
        QueryType::parse(text).map_err(|error| refused("DNS query type", text, &error))
    });
    let types = queried.collect::<Result<Vec<_>>>()?;
    let start = start_of(link_type, || "compile the DNS names".to_owned())?;
    let queries = Queries { names, types };
    let compiled = filter::dns::compile(&queries, family, start)
        .map_err(|error| Error::new(ErrorKind::Unsupported, "compile the DNS names", error.what))?;
    Ok(compiled.program)
}

/// A file of names, up to a bound.
fn read_names(path: &str) -> Result<String> {
    let what = || format!("read the DNS names in {path}");
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| Error::from_io(what(), error))?;
    let mut file = file.take(NAMES_LEN_MAX + 1);
    let read = file.read_to_string(&mut text);
    read.map_err(|error| Error::from_io(what(), error))?;
    if text.len() as u64 > NAMES_LEN_MAX {
        let why = format!("it is longer than {NAMES_LEN_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, what(), why));
    }
    Ok(text)
}

fn start_of(link_type: u16, what: impl FnOnce() -> String) -> Result<Start> {
    match link_type {
        ETHERNET => Ok(Start::Ethernet),
        RAW => Ok(Start::Ip),
        other => {
            let why = format!("packets of link type {other} are neither Ethernet nor raw IP");
            Err(Error::new(ErrorKind::Unsupported, what(), why))
        }
    }
}

fn refused(what: &str, text: &str, error: &filter::Error) -> Error {
    // Of a list of many lines only the one with the error is shown.
    let at = text.floor_char_boundary(error.at.start.min(text.len()));
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next().unwrap_or("");
    let mut here = error.clone();
    here.at = at - start..error.at.end.saturating_sub(start).min(line.len());
    let place = here.mark(line).replace('\n', "\n    ");
    let why = format!("{}\n    {place}", error.what);
    let what = format!("compile the {what}");
    let refused = Error::new(ErrorKind::InvalidInput, what, why);
    match error.expected.is_empty() {
        true => refused,
        false => refused.with_hint(error.expected.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_the_place() {
        let error = expression("tcp porz 80", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(
            error.to_string().contains("    tcp porz 80\n        ^^^^"),
            "{error}"
        );
        let error = p0f("4:64:0:*:*,*:mss,msss::0", 1).unwrap_err();
        assert!(error.to_string().contains("^^^^"), "{error}");
        let list = ["one.example\ntwo..example\nthree.example".to_owned()];
        let error = dns(&list, &[], Family::Both, 1).unwrap_err().to_string();
        assert!(error.contains("two..example\n"), "{error}");
        assert!(!error.contains("three"), "{error}");
        let error = p0f("4:64:0:*:*,*:mss::0", 113).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn expressions_and_signatures_become_programs() {
        for link_type in [ETHERNET, RAW] {
            expression("tcp port 80", link_type).unwrap();
            p0f("*:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0", link_type).unwrap();
        }
    }
}
