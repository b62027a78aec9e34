//! Lists that `barewire capture` prints instead of capturing: interfaces (`-D`), link types (`-L`),
//! timestamp types (`-J`), the compiled filter (`-d`) and versions, in tcpdump's layout.

use std::fmt::Write as _;

use bpf::cbpf::Insn;
use bpf::disasm::Classic;
use nic::Interface;
use port::{Direction, FilterTarget, Intake};
use runtime::capture::Columns;
use runtime::filter;
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::{Args, summary};
use crate::out::{self, say};

/// `IFF_LOOPBACK` (netdevice(7)).
const LOOPBACK: u32 = 0x8;

impl Args {
    /// Prints the requested list; false if none was requested.
    pub(super) fn list(&self) -> Result<bool> {
        let list = &self.list;
        let text = if list.version {
            versions()
        } else if self.print.lists_fields() {
            Columns::names().join("\n") + "\n"
        } else if list.interfaces {
            interfaces()?
        } else if list.program > 0 {
            self.program()?
        } else if list.link_types {
            self.link_types()?
        } else if list.stamp_types {
            self.stamp_types()?
        } else {
            return Ok(false);
        };
        out::print(&out::stdout(1)?, text.into_bytes())?;
        Ok(true)
    }

    fn link_types(&self) -> Result<String> {
        let (inputs, _) = self.inputs()?;
        let name = inputs.first();
        let port = port::open(name, &self.port.options(Direction::Rx))?;
        let link = LinkType(port.control.describe().link_type);
        let words = description(link).map_or_else(String::new, |words| format!(" ({words})"));
        Ok(format!(
            "Data link types for {name} (use option -y to set):\n  {link}{words}\n"
        ))
    }

    fn stamp_types(&self) -> Result<String> {
        let (inputs, _) = self.inputs()?;
        let name = inputs.first();
        let mut text =
            format!("Time stamp types for {name} (use option -j to set):\n  host (Host)\n");
        let interface = nic::interface(port::PortName::parse(name)?.target.as_str());
        if interface.is_ok_and(|found| found.stamps_all_packets == Some(true)) {
            text.push_str("  adapter (Adapter)\n");
        }
        Ok(text)
    }

    /// The program of a filter, compiled for the port if one is named.
    fn program(&self) -> Result<String> {
        let first = self.words.first().map(String::as_str);
        let has_port = !self.interface.is_empty()
            || !self.read.is_empty()
            || self.listed.is_some()
            || first.is_some_and(is_port);
        let chosen = self
            .compat
            .link_type
            .as_deref()
            .map(link_type)
            .transpose()?;
        let mut snaplen = self.snaplen;
        let (link, tap, expression) = if has_port {
            let (inputs, expression) = self.inputs()?;
            let name = inputs.first();
            let port = port::open(name, &self.port.options(Direction::Rx))?;
            let limits = [snaplen, summary::snaplen_of(&port.control.describe())];
            snaplen = limits
                .into_iter()
                .filter(|limit| *limit != 0)
                .min()
                .unwrap_or(0);
            let link = chosen.unwrap_or(LinkType(port.control.describe().link_type));
            let parsed = port::PortName::parse(name)?;
            let tap = match nic::interface(&parsed.target) {
                Ok(found) if port.control.describe().intake != Intake::File => {
                    Some(found.link.index)
                }
                _ => None,
            };
            (link, tap, expression)
        } else {
            if chosen.is_none() {
                say!("Warning: assuming Ethernet");
            }
            let link = chosen.unwrap_or(LinkType::ETHERNET);
            (link, None, self.expression(&self.words)?)
        };
        let snaplen = match snaplen {
            0 => filter::SNAPLEN_MAX,
            limit => limit,
        };
        let target = FilterTarget {
            link_type: link.0,
            tap,
        };
        let program = self.filter(&expression).program(target, snaplen)?;
        Ok(dump(program.insns(), self.list.program))
    }
}

/// Formats a program in one of tcpdump's three forms.
fn dump(insns: &[Insn], level: u8) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    match level {
        1 => return Classic(insns).to_string(),
        2 => {
            for Insn { code, jt, jf, k } in insns {
                let _ = writeln!(text, "{{ {code:#x}, {jt}, {jf}, {k:#010x} }},");
            }
        }
        _ => {
            let _ = writeln!(text, "{}", insns.len());
            for Insn { code, jt, jf, k } in insns {
                let _ = writeln!(text, "{code} {jt} {jf} {k}");
            }
        }
    }
    text
}

fn versions() -> String {
    let libpcap = sys::libpcap::version().unwrap_or_else(|error| error.why().to_owned());
    format!("barewire {}\n{libpcap}\n", env!("CARGO_PKG_VERSION"))
}

/// Lists interfaces in the order of [`by_number`].
fn interfaces() -> Result<String> {
    let mut text = String::new();
    for (index, interface) in nic::interfaces()?.iter().enumerate() {
        let link = &interface.link;
        let states = [
            (link.is_up(), "Up"),
            (link.is_running(), "Running"),
            (link.flags & LOOPBACK != 0, "Loopback"),
        ];
        let states: Vec<&str> = states
            .into_iter()
            .filter_map(|(holds, word)| holds.then_some(word))
            .collect();
        let states = match states.as_slice() {
            [] => "none".to_owned(),
            words => words.join(", "),
        };
        let _ = writeln!(text, "{}.{} [{states}]", index + 1, link.name);
    }
    Ok(text)
}

/// The interface with this number in `-D`, unless an interface has the number as its name.
pub(super) fn by_number(name: &str) -> Option<String> {
    let number: usize = name.parse().ok()?;
    let all = nic::interfaces().ok()?;
    if all.iter().any(|interface| interface.link.name == name) {
        return None;
    }
    let found: &Interface = all.get(number.checked_sub(1)?)?;
    Some(found.link.name.clone())
}

/// Whether a word is a port rather than the start of a filter.
fn is_port(word: &str) -> bool {
    let is_scheme = |name: port::PortName| name.backend().is_some() && word.contains(':');
    nic::interface(word).is_ok()
        || std::path::Path::new(word).is_file()
        || port::PortName::parse(word).is_ok_and(is_scheme)
}

/// Finds a link type by libpcap's name.
pub(super) fn link_type(name: &str) -> Result<LinkType> {
    let found = LinkType::SUPPORTED.iter().copied().find(|link| {
        link.name()
            .is_some_and(|known| known.eq_ignore_ascii_case(name))
    });
    found.ok_or_else(|| {
        let names: Vec<&str> = LinkType::SUPPORTED
            .iter()
            .filter_map(|link| link.name())
            .collect();
        let why = "unknown link type";
        Error::new(
            ErrorKind::InvalidInput,
            format!("use link type {name:?}"),
            why,
        )
        .with_hint(format!("known link types: {}", names.join(", ")))
    })
}

/// libpcap's description of a link type.
fn description(link: LinkType) -> Option<&'static str> {
    Some(match link {
        LinkType::ETHERNET => "Ethernet",
        LinkType::NULL => "BSD loopback",
        LinkType::RAW => "Raw IP",
        LinkType::LINUX_SLL => "Linux cooked v1",
        LinkType::LINUX_SLL2 => "Linux cooked v2",
        LinkType::IEEE802_11 => "802.11",
        LinkType::IEEE802_11_RADIO => "802.11 plus radiotap header",
        LinkType::PPP => "PPP",
        LinkType::IPOIB => "RFC 4391 IP-over-Infiniband",
        _ => return None,
    })
}
