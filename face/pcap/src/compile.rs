//! Compiles filter expressions with barewire's compiler.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use bpf::cbpf::Insn;
use filter::expression::{self, Options};
use runtime::filter::HostNames;

use crate::failure::{Failure, Result};
use crate::link;

/// The code of `ret #k`.
const RETURN: u16 = 6;

/// The packets that a filter is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Their `DLT_` number.
    pub dlt: i32,
    /// Bytes to keep per packet.
    pub snaplen: i32,
    /// The interface of a live capture.
    pub tap: Option<u32>,
    /// The netmask of the network, in host byte order; 0 if unknown.
    pub netmask: u32,
    /// Whether the program is optimized.
    pub optimize: bool,
}

/// `DLT_` numbers that equal those in capture files: the original accepts them even without a name.
const KNOWN: RangeInclusive<i32> = 104..=289;

/// Cache of resolved names.
static NAMES: OnceLock<HostNames> = OnceLock::new();

/// Compiles an expression; a blank one matches every packet.
///
/// # Errors
/// The error in the expression, and its position.
pub fn compile(text: &str, target: &Target) -> Result<Vec<Insn>> {
    let snaplen = u32::try_from(target.snaplen).unwrap_or(0);
    if snaplen == 0 {
        return Err(Failure::new("snaplen of 0 rejects all packets"));
    }
    if link::name(target.dlt).is_none() && !KNOWN.contains(&target.dlt) {
        let (dlt, min, max) = (target.dlt, KNOWN.start(), KNOWN.end());
        return Err(Failure::new(format!(
            "unknown data link type {dlt} (min {min}, max {max})"
        )));
    }
    if text.trim().is_empty() {
        // It matches packets of any link type.
        return Ok(vec![Insn::new(RETURN, 0, 0, snaplen)]);
    }
    let link_type = u16::try_from(link::to_file(target.dlt))
        .map_err(|_| Failure::new(format!("unknown data link type {}", target.dlt)))?;
    let options = Options {
        link_type,
        snaplen,
        tap: target.tap,
        netmask: target.netmask,
        optimize: target.optimize,
        extended: false,
        names: NAMES.get_or_init(HostNames::default),
    };
    match expression::compile(text, &options) {
        Ok(program) => Ok(program.insns().to_vec()),
        Err(error) if error.what == "no packet of this link type can match" => {
            Err(Failure::new("expression rejects all packets"))
        }
        Err(error) => Err(Failure::new(format!(
            "can't parse filter expression: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_those_that_programs_look_for() {
        let target = |snaplen| Target {
            dlt: 12,
            snaplen,
            tap: None,
            netmask: 0,
            optimize: true,
        };
        let insns = compile("ip", &target(64)).unwrap();
        assert_eq!(insns.last().unwrap().code, 6);
        assert!(insns.iter().any(|insn| insn.code == 6 && insn.k == 64));
        let any_link = Target {
            dlt: 197,
            ..target(64)
        };
        assert_eq!(compile(" ", &any_link).unwrap(), [Insn::new(6, 0, 0, 64)]);
        let text = |expression, snaplen| compile(expression, &target(snaplen)).unwrap_err().text;
        assert_eq!(text("ip", 0), "snaplen of 0 rejects all packets");
        assert_eq!(text("1 = 2", 64), "expression rejects all packets");
        assert!(text("tcp prt 80", 64).starts_with("can't parse filter expression: "));
    }
}
