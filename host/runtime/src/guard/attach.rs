//! The interface, and the attachment of the program to it.

use ::guard::Verdict;
use sys::link::Link;
use sys::{Error, ErrorKind, Result};
use xdp::{AttachMode, GuardLink};

use super::kept::Leftover;
use super::owner::Owner;
use super::table::Table;
use super::{Guard, RuleSpec};

/// ARP hardware types whose packets have an Ethernet header (`if_arp.h`).
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// The interface, if its packets have an Ethernet header.
pub(super) fn device(interface: &str) -> Result<Link> {
    let device = Link::by_name(interface)?;
    if matches!(device.hardware, ARPHRD_ETHER | ARPHRD_LOOPBACK) {
        return Ok(device);
    }
    let what = format!("guard {interface}");
    let why = "its packets have no Ethernet header, and the rules need one";
    Err(Error::new(ErrorKind::Unsupported, what, why))
}

/// Why answers to SYNs may not arrive in native mode on this interface. An XDP program that sends
/// on a veth puts packets into a ring of the other end, which the kernel wakes only if a program is
/// there, too (`veth_xdp_flush`, drivers/net/veth.c); generic mode sends as the stack does.
pub(super) fn unanswered(device: &Link, specs: &[RuleSpec]) -> Option<String> {
    let does_answer = specs.iter().any(|spec| spec.verdict == Verdict::Challenge);
    (does_answer && device.kind == "veth").then(|| {
        let name = &device.name;
        format!(
            "{name} is a veth, and the answers of challenge in native mode reach the other end \
             only if that has an XDP program, too"
        )
    })
}

/// An attached program.
pub(super) struct Attached {
    pub table: Table,
    pub link: GuardLink,
    /// Why generic mode is used, if it was not requested.
    pub fallback: Option<String>,
    /// Why answers to SYNs may not arrive in this mode.
    pub unanswered: Option<String>,
    pub had_leftover: bool,
    /// If this process owns the program that stays.
    pub owner: Option<Owner>,
}

/// Loads the program and attaches it in the place of what a killed process has left, which stays if
/// the program cannot be loaded. `unanswered` is a reason for generic mode, if none is requested.
pub(super) fn attach(
    load: impl Fn(AttachMode) -> Result<Table>,
    ifindex: u32,
    mode: Option<AttachMode>,
    unanswered: Option<String>,
    leftover: Leftover,
) -> Result<Attached> {
    let first = mode.unwrap_or(match unanswered {
        Some(_) => AttachMode::Generic,
        None => AttachMode::Native,
    });
    let attach = |table: &Table, mode| {
        GuardLink::attach(table.program(), ifindex, mode).map_err(|error| match error.kind() {
            ErrorKind::Busy => error.with_hint(
                "an interface can have only one program: stop the other one (`barewire devices` \
                 shows it; ip link set dev IFACE xdp off removes one attached by ip), or use \
                 --hook tc beside it",
            ),
            _ => error,
        })
    };
    let table = load(first)?;
    let (had_leftover, owner) = leftover.remove()?;
    let (table, link, fallback) = match attach(&table, first) {
        Ok(link) if mode.is_none() => (table, link, unanswered.clone()),
        Ok(link) => (table, link, None),
        Err(error) if error.kind() == ErrorKind::Unsupported && mode.is_none() => {
            let table = load(AttachMode::Generic)?;
            let link = attach(&table, AttachMode::Generic)?;
            (table, link, Some(error.to_string()))
        }
        Err(error) => return Err(error),
    };
    let is_native = link.mode() == Some(AttachMode::Native);
    Ok(Attached {
        table,
        link,
        fallback,
        unanswered: unanswered.filter(|_| is_native),
        had_leftover,
        owner,
    })
}

impl Guard {
    /// Refuses new rules whose answers need the mode that was not chosen at the start.
    pub(super) fn check_answers(&self, specs: &[RuleSpec]) -> Result<()> {
        let is_native = self.link.mode() == Some(AttachMode::Native);
        if !is_native || self.setup.mode.is_some() {
            return Ok(());
        }
        let Some(why) = unanswered(&device(&self.setup.interface)?, specs) else {
            return Ok(());
        };
        let what = "answer SYNs with cookies";
        Err(Error::new(ErrorKind::Unsupported, what, why).with_hint(
            "start barewire with this rule, so that it attaches the program in generic mode, or \
             with --mode generic",
        ))
    }

    /// Checks that the program is still attached: others may detach or replace it, and the
    /// interface may be removed.
    pub(super) fn check_attached(&self) -> Result<()> {
        if self.link.calls(self.table.program())? {
            return Ok(());
        }
        let what = format!("guard {}", self.setup.interface);
        let why = "its program is no longer attached: another process detached or replaced it";
        Err(Error::new(ErrorKind::NotFound, what, why))
    }

    /// The error if the interface no longer exists, whatever has failed because of that.
    pub(super) fn gone(&self) -> Option<Error> {
        let found = Link::by_index(self.ifindex);
        let is_gone = found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
        is_gone.then(|| {
            let what = format!("guard {}", self.setup.interface);
            Error::new(ErrorKind::Gone, what, "the interface was deleted")
        })
    }
}
