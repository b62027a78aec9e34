//! Filters from what people write: a pcap expression, or a p0f signature.

use bpf::cbpf::Program;
use filter::expression;
use filter::p0f::{Handshake, Signature, Start};
use sys::{Error, ErrorKind, Result};

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;
/// `LINKTYPE_RAW`: packets begin with their IP header.
const RAW: u16 = 101;

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
    let start = match link_type {
        ETHERNET => Start::Ethernet,
        RAW => Start::Ip,
        other => {
            let why = format!("packets of link type {other} are neither Ethernet nor raw IP");
            return Err(Error::new(ErrorKind::Unsupported, what(), why));
        }
    };
    filter::p0f::compile(signature, Handshake::Syn, start)
        .map_err(|error| Error::new(ErrorKind::Unsupported, what(), error.what))
}

fn refused(what: &str, text: &str, error: &filter::Error) -> Error {
    let place = error.mark(text).replace('\n', "\n    ");
    let mut why = format!("{}\n    {place}\n", error.what);
    why.truncate(why.trim_end().len());
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
