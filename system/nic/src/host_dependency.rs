//! Whether this host depends on an interface: checked before its packets or its card are taken
//! away.
//!
//! Queried in the calling thread's network namespace, by netlink and `/proc`. If this cannot be
//! determined, the answer is yes; `--force` overrides it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use sys::link::Link;
use sys::route::{DefaultRoute, default_routes};
use sys::{Error, Result};

/// How many ancestor processes to search for the SSH session.
const ANCESTORS_MAX: usize = 32;

/// Why taking an interface away may cut the machine off, as a sentence; `None` if it does not:
/// neither it nor an interface above it (bridge, bond, VLAN, PPPoE) has a route to everywhere in
/// any table, and this very session does not come through one of them.
pub fn host_dependency(name: &str) -> Option<String> {
    find(name).unwrap_or_else(|error: Error| {
        Some(format!(
            "barewire cannot determine whether this host depends on {name}: {error}"
        ))
    })
}

/// Whether a default route uses this interface itself, in any table. False if that cannot be
/// determined: for display, not for decisions.
pub fn has_default_route(name: &str) -> bool {
    let (Ok(link), Ok(routes)) = (Link::by_name(name), default_routes()) else {
        return false;
    };
    routes
        .iter()
        .any(|route| route.interfaces.contains(&link.index))
}

fn find(name: &str) -> Result<Option<String>> {
    let links = Link::all()?;
    let link = Link::by_name(name)?;
    let stack = above(&links, link.index);
    let name_of = |index: u32| {
        let found = links.iter().find(|link| link.index == index);
        found.map_or_else(|| format!("interface {index}"), |link| link.name.clone())
    };
    let through = |index: u32| match index == link.index {
        true => name.to_owned(),
        false => format!("{}, which is on top of {name}", name_of(index)),
    };
    for route in default_routes()? {
        let Some(by) = by(&route, &stack) else {
            continue;
        };
        let table = match route.table {
            254 => String::new(),
            table => format!(" of table {table}"),
        };
        return Ok(Some(match by {
            Some(index) => format!("this host's default route{table} uses {}", through(index)),
            None => {
                format!("a default route{table} uses an interface that the kernel does not show")
            }
        }));
    }
    for &index in &stack {
        if has_pppoe(&name_of(index))? {
            return Ok(Some(format!(
                "a PPPoE session runs over {}",
                through(index)
            )));
        }
    }
    if let Some(session) = session() {
        for &index in &stack {
            if is_at(&session, index)? {
                return Ok(Some(format!(
                    "this SSH session came through {}",
                    through(index)
                )));
            }
        }
    }
    Ok(None)
}

/// The interface among these through which a route leaves; `Some(None)` if the route reports none.
fn by(route: &DefaultRoute, stack: &BTreeSet<u32>) -> Option<Option<u32>> {
    if route.interfaces.is_empty() {
        return Some(None);
    }
    let found = route.interfaces.iter().find(|index| stack.contains(index));
    found.map(|index| Some(*index))
}

/// An interface and all those whose packets leave through it: the interfaces of which it is a port,
/// and those on top of it. The other end of a veth pair is not one of them.
fn above(links: &[Link], index: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([index]);
    loop {
        let before = found.len();
        for link in links {
            if found.contains(&link.index) && link.master != 0 {
                found.insert(link.master);
            }
            if link.kind != "veth" && found.contains(&link.linked) {
                found.insert(link.index);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Whether a PPPoE session uses this interface; the kernel does not link the two
/// (`drivers/net/ppp/pppoe.c`: number, address, device).
fn has_pppoe(name: &str) -> Result<bool> {
    match fs::read_to_string("/proc/thread-self/net/pppoe") {
        Ok(text) => Ok(text
            .lines()
            .skip(1)
            .any(|line| line.split_whitespace().last() == Some(name))),
        // The module does not exist, so there is no session.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::from_io("list the PPPoE sessions", error)),
    }
}

/// An SSH session: both ends of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The end that logged in.
    pub client: SocketAddr,
    /// This machine.
    pub server: SocketAddr,
}

impl Session {
    /// Parses `SSH_CONNECTION` (ssh(1)): address and port of the client, then of this machine.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut end = || {
            let ip: IpAddr = words.next()?.parse().ok()?;
            Some(SocketAddr::new(
                ip.to_canonical(),
                words.next()?.parse().ok()?,
            ))
        };
        Some(Self {
            client: end()?,
            server: end()?,
        })
    }
}

/// The SSH session that this process belongs to, if it comes through this interface or one above
/// it.
///
/// # Errors
/// If the kernel does not list interfaces or addresses.
pub fn session_through(name: &str) -> Result<Option<Session>> {
    let Some(session) = session() else {
        return Ok(None);
    };
    for index in above(&Link::all()?, Link::by_name(name)?.index) {
        if is_at(&session, index)? {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

/// Whether the local address of the session is one of this interface.
fn is_at(session: &Session, index: u32) -> Result<bool> {
    let own = sys::address::of(index)?;
    Ok(own.iter().any(|own| own.addr == session.server.ip()))
}

/// The SSH session that this process belongs to. sudo(8) removes the variable, so parent processes
/// are searched, too.
fn session() -> Option<Session> {
    let parse = Session::parse;
    if let Ok(text) = std::env::var("SSH_CONNECTION") {
        return parse(&text);
    }
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..ANCESTORS_MAX {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let found = environ
            .split(|&byte| byte == 0)
            .find_map(|entry| entry.strip_prefix(b"SSH_CONNECTION="));
        if let Some(text) = found {
            return parse(&String::from_utf8_lossy(text));
        }
        // The fields after the name, which may contain anything: state, parent.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        pid = fields.split_whitespace().nth(1)?.parse().ok()?;
        if pid <= 1 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, linked: u32, master: u32, kind: &str) -> Link {
        Link {
            index,
            linked,
            master,
            kind: kind.into(),
            ..Link::default()
        }
    }

    #[test]
    fn addresses_and_upper_devices_of_an_interface_are_found() {
        // A card in a bond, a VLAN on the bond, and a bridge with that VLAN; a veth pair next to
        // them.
        let links = [
            link(2, 0, 10, ""),
            link(3, 0, 10, ""),
            link(10, 0, 0, "bond"),
            link(11, 10, 12, "vlan"),
            link(12, 0, 0, "bridge"),
            link(20, 21, 0, "veth"),
            link(21, 20, 12, "veth"),
        ];
        assert_eq!(above(&links, 2), BTreeSet::from([2, 10, 11, 12]));
        assert_eq!(above(&links, 12), BTreeSet::from([12]));
        assert_eq!(above(&links, 20), BTreeSet::from([20]));
        assert_eq!(above(&links, 21), BTreeSet::from([21, 12]));
    }

    #[test]
    fn a_route_without_interface_is_everybodys() {
        let stack = BTreeSet::from([2]);
        let route = |interfaces: &[u32]| DefaultRoute {
            table: 254,
            interfaces: interfaces.to_vec(),
        };
        assert_eq!(by(&route(&[]), &stack), Some(None));
        assert_eq!(by(&route(&[3, 2]), &stack), Some(Some(2)));
        assert_eq!(by(&route(&[3]), &stack), None);
    }

    #[test]
    fn unknown_use_is_a_reason_to_refuse() {
        let why = host_dependency("no-such-if").unwrap();
        assert!(why.contains("cannot determine"), "{why}");
        assert_eq!(host_dependency("lo"), None);
    }
}
