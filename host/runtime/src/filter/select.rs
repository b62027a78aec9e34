//! Selections (an expression, a p0f signature, DNS names), compiled for each place where a filter
//! can run.

use ::filter::dns::{self, Family, Queries};
use ::filter::p0f::{self, Handshake, Signature, Start, Version};
use ::filter::print::IPTABLES_MAX;
use bpf::cbpf::Program;
use port::{FilterSource, FilterTarget};
use sys::{Error, ErrorKind, Result};

use super::Expression;

/// Link types whose packets start with the IP header (raw IP, IPv4, IPv6).
const RAW: [u16; 3] = [101, 228, 229];
const ETHERNET: u16 = 1;
/// An interface index that no interface has: a program may run on any.
const NO_INTERFACE: u32 = 0;

/// What to select.
#[derive(Clone, Debug)]
pub enum Select {
    /// Packets that an expression matches.
    Expression(Expression),
    /// TCP SYNs that have a signature.
    P0f(Signature),
    /// TCP SYNs that match a signature fuzzily.
    P0fFuzzy(Signature),
    /// DNS queries.
    Dns(Queries),
}

impl Select {
    /// Parses a p0f signature.
    ///
    /// # Errors
    /// `InvalidInput` with the position in the text.
    pub fn p0f(text: &str) -> Result<Select> {
        let signature = Signature::parse(text).map_err(|e| refused("the signature", text, &e))?;
        Ok(Select::P0f(signature))
    }

    /// From the text of a signature, for packets that match it fuzzily (`p0f::matches_fuzzy`).
    ///
    /// # Errors
    /// As [`Select::p0f`].
    pub fn p0f_fuzzy(text: &str) -> Result<Select> {
        match Select::p0f(text)? {
            Select::P0f(signature) => Ok(Select::P0fFuzzy(signature)),
            other => Ok(other),
        }
    }

    /// From the text of a signature, with the verdicts of Cloudflare's bpftools.
    ///
    /// # Errors
    /// As [`Select::p0f`].
    pub fn p0f_cloudflare(text: &str) -> Result<Select> {
        let made = p0f::cloudflare(text).map_err(|e| refused("the signature", text, &e))?;
        Ok(Select::Expression(Expression::new(made)))
    }

    /// Parses a list of DNS names, and query types.
    ///
    /// # Errors
    /// `InvalidInput` with the position in the text.
    pub fn dns(names: &str, types: &[String]) -> Result<Select> {
        let names = dns::Name::parse_list(names).map_err(|e| refused("the names", names, &e))?;
        let types = types
            .iter()
            .map(|t| dns::QueryType::parse(t).map_err(|e| refused("the type", t, &e)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Select::Dns(Queries { names, types }))
    }

    /// Compiles one program for a link type, for both IP versions if both are selected. All of the
    /// packet, including its VLAN tags, is among its bytes, as in a file or an XDP program.
    ///
    /// # Errors
    /// `InvalidInput` if it cannot be compiled, `Unsupported` for an unsupported link type.
    pub fn compile(&self, link_type: u16) -> Result<Program> {
        self.compile_for(FilterTarget {
            link_type,
            tap: None,
        })
    }

    /// Compiles one program for packets of the kernel's network stack (sockets and tc), which keeps
    /// the outer VLAN tag, the direction and the interface outside the packet's bytes.
    ///
    /// # Errors
    /// As [`Select::compile`].
    pub fn compile_for_stack(&self, link_type: u16) -> Result<Program> {
        self.compile_for(FilterTarget {
            link_type,
            tap: Some(NO_INTERFACE),
        })
    }

    fn compile_for(&self, target: FilterTarget) -> Result<Program> {
        let start = || start_of(target.link_type);
        // Other link types have their own test for the IP header.
        let any = || start().unwrap_or(Start::Link(target.link_type));
        match self {
            Select::Expression(expression) => one_expression(expression, target),
            Select::P0f(signature) => one_signature(p0f::compile, signature, any()),
            Select::P0fFuzzy(signature) => one_signature(p0f::compile_fuzzy, signature, any()),
            Select::Dns(queries) => names(queries, Family::Both, start()?),
        }
    }

    /// The programs for `-m bpf --bytecode`, each with its command (iptables or ip6tables). There
    /// are two if one program for both IP versions would be longer.
    ///
    /// # Errors
    /// As [`Select::compile`], and if a program has more than 64 instructions.
    pub fn for_iptables(&self) -> Result<Vec<(&'static str, Program)>> {
        let programs = self.iptables_programs()?;
        for (command, program) in &programs {
            check_iptables(command, program)?;
        }
        Ok(programs)
    }

    /// As [`Select::for_iptables`], of any length.
    pub(crate) fn iptables_programs(&self) -> Result<Vec<(&'static str, Program)>> {
        Ok(match self {
            Select::Expression(_) => vec![("iptables", self.compile(RAW[0])?)],
            Select::P0f(signature) | Select::P0fFuzzy(signature) => {
                let compile = match self {
                    Select::P0fFuzzy(_) => p0f::compile_fuzzy,
                    _ => p0f::compile,
                };
                let versions = signature.versions().iter();
                versions
                    .map(|version| {
                        let one = for_version(signature, *version);
                        Ok((command(*version), one_signature(compile, &one, Start::Ip)?))
                    })
                    .collect::<Result<Vec<_>>>()?
            }
            Select::Dns(queries) => vec![
                ("iptables", names(queries, Family::V4, Start::Ip)?),
                ("ip6tables", names(queries, Family::V6, Start::Ip)?),
            ],
        })
    }

    /// The selection as a port's filter, compiled once the link type is known.
    pub fn source(&self) -> FilterSource {
        if let Select::Expression(expression) = self {
            return expression.source();
        }
        let select = self.clone();
        FilterSource::new(move |target| select.compile(target.link_type).map(Some))
    }
}

/// Where packets of a link type start, for lists of names.
///
/// # Errors
/// `Unsupported` if it is neither Ethernet nor raw IP.
pub fn start_of(link_type: u16) -> Result<Start> {
    match link_type {
        ETHERNET => Ok(Start::Ethernet),
        raw if RAW.contains(&raw) => Ok(Start::Ip),
        other => Err(Error::new(
            ErrorKind::Unsupported,
            "compile the filter",
            format!("link type {other} is neither Ethernet nor raw IP"),
        )
        .with_hint("an expression works on every link type")),
    }
}

/// Refuses a program that is too long for `-m bpf --bytecode`.
pub(crate) fn check_iptables(command: &str, program: &Program) -> Result<()> {
    let count = program.insns().len();
    if count <= IPTABLES_MAX {
        return Ok(());
    }
    let what = format!("compile the filter for {command}");
    let why = format!("{count} instructions; -m bpf accepts {IPTABLES_MAX}");
    let hint = "split the filter over several rules, or use barewire guard, which has no such \
        limit";
    Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint))
}

/// The signature restricted to one IP version.
pub fn for_version(signature: &Signature, version: Version) -> Signature {
    Signature {
        version,
        quirks: signature.quirks_of(version),
        ..signature.clone()
    }
}

fn one_expression(expression: &Expression, target: FilterTarget) -> Result<Program> {
    let compiled = expression.compile(target)?;
    compiled.ok_or_else(|| {
        let what = "compile the filter";
        Error::new(ErrorKind::InvalidInput, what, "the expression is empty")
            .with_hint("give an expression, --p0f or --dns")
    })
}

fn command(version: Version) -> &'static str {
    match version {
        Version::V6 => "ip6tables",
        _ => "iptables",
    }
}

/// The compiler of signatures, exact or fuzzy.
type CompileP0f = fn(&Signature, Handshake, Start) -> ::filter::Result<Program>;

fn one_signature(compile: CompileP0f, signature: &Signature, start: Start) -> Result<Program> {
    let text = signature.to_string();
    compile(signature, Handshake::Syn, start).map_err(|error| match error.is_unsupported {
        true => Error::new(ErrorKind::Unsupported, "use the signature", error.what)
            .with_hint(error.expected),
        false => refused("the signature", &text, &error),
    })
}

fn names(queries: &Queries, family: Family, start: Start) -> Result<Program> {
    dns::compile(queries, family, start)
        .map(|made| made.program)
        .map_err(|e| refused("the names", "", &e))
}

/// A compiler error with its position marked below the text, if the text is one line.
pub(super) fn refused(what: &str, text: &str, error: &::filter::Error) -> Error {
    let mut why = error.what.clone();
    if !text.is_empty() && !text.contains('\n') && error.at.end <= text.len() {
        why = format!("{why}\n  {}", error.mark(text).replace('\n', "\n  "));
    } else if text.contains('\n') {
        let before = text.get(..error.at.start).unwrap_or(text);
        why += &format!(" in line {}", before.matches('\n').count() + 1);
    }
    let what = format!("use {what}");
    if error.is_unsupported {
        return Error::new(ErrorKind::Unsupported, what, why)
            .with_hint("--filter-compiler libpcap compiles it with the installed libpcap");
    }
    let new = Error::new(ErrorKind::InvalidInput, what, why);
    match error.expected.is_empty() {
        true => new,
        false => new.with_hint(error.expected.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_of_both_ip_versions_gives_two_iptables_rules() {
        let select = Select::p0f("*:64:0:*:mss*10,*:mss,sok,ts,nop,ws:df,id+:0").unwrap();
        let programs = select.for_iptables().unwrap();
        let commands: Vec<&str> = programs.iter().map(|p| p.0).collect();
        assert_eq!(commands, ["iptables", "ip6tables"]);
        for link_type in [1, 101, 228, 0, 108, 113, 276, 9, 105, 127] {
            assert!(select.compile(link_type).is_ok());
        }
        // USB has no IP header.
        let error = select.compile(189).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            !error.hint().unwrap_or_default().contains("libpcap"),
            "{error}"
        );
    }

    #[test]
    fn programs_too_long_for_iptables_are_refused_with_the_count() {
        let list: Vec<String> = (0..20).map(|i| format!("host-{i}.example.com")).collect();
        let select = Select::dns(&list.join(","), &[]).unwrap();
        let error = select.for_iptables().unwrap_err();
        assert!(error.why().contains("-m bpf accepts 64"), "{error}");
        assert!(select.compile(1).is_ok());
    }

    #[test]
    fn dialects_have_programs_of_their_own() {
        let text = "4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0";
        let programs = [
            Select::p0f(text),
            Select::p0f_fuzzy(text),
            Select::p0f_cloudflare(text),
        ]
        .map(|select| select.unwrap().for_iptables().unwrap());
        assert!(programs.iter().all(|list| list.len() == 1));
        assert_ne!(programs[0], programs[1]);
        assert_ne!(programs[0], programs[2]);
        assert!(Select::p0f_cloudflare("*:64:0:*:*,*:mss::0").is_err());
    }

    #[test]
    fn an_error_shows_its_position() {
        let error = Select::p0f("4:64:0:*:*,*:mss:dg:0").unwrap_err();
        assert!(
            error.why().contains("\n                   ^^"),
            "{}",
            error.why()
        );
        let error = Select::dns("a.test\nb..test", &[]).unwrap_err();
        assert!(error.why().contains("line 2"), "{}", error.why());
    }
}
