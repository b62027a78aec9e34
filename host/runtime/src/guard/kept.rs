//! A program that stays attached when the process is killed, on request: its link has a name in the
//! BPF file system. Any user may create names there, so a name is not trusted; who owns the
//! program of an interface is decided by a lock in a directory of root's.

use std::fs;
use std::path::Path;

use sys::link::Link;
use sys::{Error, ErrorKind, Result};
use xdp::{GUARD_NAME, GuardLink, PinnedLink};

use super::iptables::pinned::{FOLDER, namespace};
use super::owner::{Kind, LOCKS, Owner};

/// Names to try: others may have created some.
const NAMES_MAX: u32 = 64;

/// The name of the link, removed on drop.
#[derive(Debug)]
pub(super) struct Kept {
    path: String,
    /// Held as long as the process lives.
    _owner: Owner,
}

impl Kept {
    /// Gives the link its name.
    ///
    /// # Errors
    /// `Busy` if the link of another process has it.
    pub fn keep(interface: &str, link: &GuardLink, owner: Owner) -> Result<Self> {
        let mut number = 0;
        loop {
            let path = path(interface, number)?;
            match link.pin(&path) {
                Ok(()) => {
                    let _owner = owner;
                    return Ok(Self { path, _owner });
                }
                Err(_) if number + 1 < NAMES_MAX && fs::symlink_metadata(&path).is_ok() => {
                    number += 1;
                }
                Err(error) => {
                    let hint = format!("mount the BPF file system: mount -t bpf bpf {FOLDER}");
                    return Err(error.with_hint(hint));
                }
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The link was detached before.
        let _ = fs::remove_file(&self.path);
    }
}

/// The directories with the names of links and with locks.
pub fn folders() -> [&'static Path; 2] {
    [Path::new(FOLDER), Path::new(LOCKS)]
}

/// The program that a killed process has left on an interface.
#[derive(Debug)]
pub(super) struct Leftover {
    links: Vec<PinnedLink>,
    owner: Option<Owner>,
    /// What has the name of a link and is none: it is left alone.
    pub foreign: Option<Error>,
}

impl Leftover {
    /// Looks for it. With `keeps`, this process becomes the owner even if there is none.
    ///
    /// # Errors
    /// `Busy` if the process still runs; those of the lock.
    pub fn find(interface: &str, ifindex: u32, keeps: bool) -> Result<Self> {
        let mut found = Self {
            links: Vec::new(),
            owner: None,
            foreign: None,
        };
        for number in 0..NAMES_MAX {
            match PinnedLink::open(&path(interface, number)?, ifindex, GUARD_NAME) {
                None => {}
                Some(Ok(link)) => found.links.push(link),
                Some(Err(error)) => found.foreign = found.foreign.or(Some(error)),
            }
        }
        if keeps || !found.links.is_empty() {
            found.owner = Some(Owner::become_owner(Kind::Program, interface)?);
        }
        Ok(found)
    }

    /// Detaches it. Returns whether there was one, and the owner.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(self) -> Result<(bool, Option<Owner>)> {
        let was_there = !self.links.is_empty();
        for link in self.links {
            link.remove()?;
        }
        Ok((was_there, self.owner))
    }
}

/// Detaches the program that a killed process has left on an interface. Returns whether there was
/// one, and what has the name of one but is none.
///
/// # Errors
/// `Busy` if the process still runs; those of the file system.
pub fn remove(interface: &str) -> Result<(bool, Option<Error>)> {
    let ifindex = match Link::by_name(interface) {
        Ok(device) => device.index,
        // Its link's name may still be there, with the number 0.
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let mut leftover = Leftover::find(interface, ifindex, false)?;
    let foreign = leftover.foreign.take();
    Ok((leftover.remove()?.0, foreign))
}

fn path(interface: &str, number: u32) -> Result<String> {
    // The file system has no names with dots, and no interface has a colon in its name.
    let interface = interface.replace('.', ":");
    let number = match number {
        0 => String::new(),
        number => number.to_string(),
    };
    let namespace = namespace()?;
    Ok(format!(
        "{FOLDER}/bwguard-{namespace}-link{number}-{interface}"
    ))
}
