//! Programs that are too long for `-m bpf --bytecode`, as eBPF programs pinned in the BPF file
//! system. The path is part of the rule: any change of the table by others needs it, so a program
//! stays pinned as long as its rule.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use bpf::cbpf;
use bpf::translate::skb_program;
use sys::bpf::{Program, ProgramSpec, ProgramType};
use sys::{Error, ErrorKind, Result};

use super::COMMANDS;

pub(in crate::guard) const FOLDER: &str = "/sys/fs/bpf";

/// The inode of this network namespace: others may have an interface of the same name.
pub(in crate::guard) fn namespace() -> Result<u64> {
    fs::metadata("/proc/self/ns/net")
        .map(|namespace| namespace.ino())
        .map_err(|error| Error::from_io("identify the network namespace", error))
}

/// The name of the program of a command and the rule of this number.
fn name(namespace: u64, interface: &str, (command, number): (&str, usize)) -> String {
    // The file system has no names with dots, and no interface has a colon in its name.
    let interface = interface.replace('.', ":");
    // The interface comes last, because it may contain what is before it.
    format!("bwguard-{namespace}-{number}-{command}-{interface}")
}

/// Whether a name is of a program of this interface.
fn is_of(text: &str, namespace: u64, interface: &str) -> bool {
    let mut parts = text.splitn(5, '-').skip(2);
    let number = parts.next().and_then(|number| number.parse().ok());
    let (Some(number), Some(command)) = (number, parts.next()) else {
        return false;
    };
    COMMANDS.iter().any(|row| row.0 == command)
        && text == name(namespace, interface, (command, number))
}

/// Loads and pins the program of a rule; returns the path.
pub(super) fn pin(
    interface: &str,
    (command, number): (&str, usize),
    program: &cbpf::Program,
) -> Result<String> {
    let what = format!("pin the program of rule {number}");
    let insns = skb_program(program)
        .map_err(|why| Error::new(ErrorKind::InvalidInput, &*what, why.to_string()))?;
    let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
    let program = Program::load(&ProgramSpec {
        kind: ProgramType::SocketFilter,
        name: "bw_guard",
        insns: &words,
        flags: 0,
        ifindex: 0,
    })
    .map_err(|failure| {
        let error = Error::from_io(&*what, failure.source);
        match xdp::verifier::explain(&failure.log) {
            Some(text) => error.with_why(text),
            None => error,
        }
    })?;
    let name = name(namespace()?, interface, (command, number));
    let path = format!("{FOLDER}/{name}");
    program.pin(&path).map_err(|error| {
        Error::from_io(what, error).with_hint(format!(
            "mount the BPF file system: mount -t bpf bpf {FOLDER}"
        ))
    })?;
    Ok(path)
}

/// Removes all pinned programs of an interface.
pub(super) fn remove(interface: &str) -> Result<()> {
    let what = || format!("remove pinned programs from {FOLDER}");
    let namespace = namespace()?;
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::from_io(what(), error)),
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| is_of(name, namespace, interface))
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    for path in paths.filter(is_ours) {
        fs::remove_file(path).map_err(|error| Error::from_io(what(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_interface_and_namespace() {
        let names = [
            (7, "eth0", ("iptables", 1)),
            (7, "eth0-1", ("ip6tables", 1)),
            (7, "eth0-1-iptables", ("iptables", 1)),
            (7, "eth0.1", ("iptables", 12)),
            (8, "eth0", ("iptables", 1)),
        ];
        for (namespace, interface, rule) in names {
            let name = name(namespace, interface, rule);
            for (other, of, _) in names {
                let is_same = (other, of) == (namespace, interface);
                assert_eq!(is_of(&name, other, of), is_same, "{name}, {of}");
            }
        }
        for name in [
            "bwguard-7",
            "bwguard-7-x-iptables-eth0",
            "bwguard-7-+1-iptables-eth0",
            "bwguard-7-1-mytables-eth0",
            "bwguard-7-1-iptables",
        ] {
            assert!(!is_of(name, 7, "eth0"), "{name}");
        }
    }
}
