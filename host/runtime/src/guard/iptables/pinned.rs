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

const FOLDER: &str = "/sys/fs/bpf";

/// First part of the names for an interface. Other network namespaces may have an interface of the
/// same name, and the file system has no names with dots.
fn prefix(interface: &str) -> Result<String> {
    let namespace = fs::metadata("/proc/self/ns/net")
        .map_err(|error| Error::from_io("identify the network namespace", error))?;
    // No interface has a colon in its name.
    let interface = interface.replace('.', ":");
    Ok(format!("bwguard-{}-{interface}-", namespace.ino()))
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
    let path = format!("{FOLDER}/{}{number}-{command}", prefix(interface)?);
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
    let prefix = prefix(interface)?;
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::from_io(what(), error)),
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(&prefix));
        let parts = rest.and_then(|rest| rest.split_once('-'));
        parts.is_some_and(|(number, command)| {
            number.parse::<usize>().is_ok() && command.ends_with("tables")
        })
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    for path in paths.filter(is_ours) {
        fs::remove_file(path).map_err(|error| Error::from_io(what(), error))?;
    }
    Ok(())
}
