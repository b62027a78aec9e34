//! Compiles filter expressions with barewire's compiler.

use std::ops::RangeInclusive;

use bpf::cbpf::Insn;
use filter::expression::{self, Options};
use runtime::filter::HostNames;

use crate::failure::{Failure, Result};
use crate::link;
use crate::wording;

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
    /// The netmask of the network, in host byte order, if it is known.
    pub netmask: Option<u32>,
    /// Whether the program is optimized.
    pub optimize: bool,
    /// Where they come from.
    pub source: Source,
}

/// Where the packets of a filter come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A capture file, which has no metadata of the kernel.
    File,
    /// A device.
    Device,
    /// No handle that reads: it may be used for a capture, as `tcpdump -d` prints it.
    Unknown,
}

/// `DLT_` numbers that equal those in capture files: the original accepts them even without a name.
const KNOWN: RangeInclusive<i32> = 104..=289;

/// Compiles an expression; a blank one matches every packet.
///
/// # Errors
/// The error in the expression, and its position.
pub fn compile(text: &str, target: &Target) -> Result<Vec<Insn>> {
    // The original takes it as it is, a negative one as a large number.
    let snaplen = target.snaplen.cast_unsigned();
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
    let names = HostNames::default();
    let options = Options {
        link_type,
        snaplen,
        tap: target.tap,
        netmask: target.netmask.unwrap_or(0),
        optimize: target.optimize,
        extended: false,
        // The kernel would refuse a long one, which then runs here.
        long: true,
        // Of this call only: names may resolve later, and to other addresses.
        names: &names,
    };
    let mut options = options;
    let mut compiled = expression::compile(text, &options);
    if target.source == Source::Unknown && compiled.as_ref().is_err_and(wording::is_about_metadata)
    {
        options.tap = Some(0);
        compiled = expression::compile(text, &options);
    }
    if target.netmask.is_none()
        && text.contains("broadcast")
        && let Ok(program) = &compiled
    {
        // It depends on the mask if another one makes another program.
        let other = Options {
            netmask: u32::MAX << 8,
            ..options
        };
        let other = expression::compile(text, &other);
        if other.is_ok_and(|other| other.insns() != program.insns()) {
            let text = "netmask not known, so 'ip broadcast' not supported";
            return Err(Failure::new(text));
        }
    }
    match compiled {
        Ok(program) => Ok(program.insns().to_vec()),
        Err(error) => Err(Failure::new(wording::text(&error, text, target.dlt))),
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
            netmask: Some(0),
            optimize: true,
            source: Source::File,
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
        for contradiction in ["1 = 2", "tcp and udp"] {
            assert_eq!(text(contradiction, 64), "expression rejects all packets");
        }
        let unknown = Target {
            netmask: None,
            ..target(64)
        };
        let error = compile("tcp or ip broadcast", &unknown).unwrap_err();
        assert_eq!(
            error.text,
            "netmask not known, so 'ip broadcast' not supported"
        );
        assert!(compile("ip", &unknown).is_ok() && compile("ip broadcast", &target(64)).is_ok());
        // More than the kernel takes.
        let hosts: Vec<String> = (0..1500)
            .map(|n| format!("host 10.7.{}.{}", n / 200, n % 200))
            .collect();
        assert!(compile(&hosts.join(" or "), &target(64)).unwrap().len() > 4096);
        let syntax = "can't parse filter expression: syntax error";
        assert_eq!(text("tcp prt 80", 64), syntax);
    }
}
