//! XDP on an interface: the program, how it is attached, and the processes that keep it attached.

use std::fs;
use std::path::Path;

use sys::bpf::{Link, ObjectKind, Program, object_ids, open_by_id};
use sys::link::XdpAttached;

/// An XDP program on an interface, with the processes that keep it attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpHolder {
    /// How it is attached, and the program's id.
    pub attached: XdpAttached,
    /// Its name, if the process has the privileges to read it.
    pub program_name: Option<String>,
    /// Id of the link that attaches it; `None` if it was attached through netlink (then it stays
    /// until it is detached), or without the privileges to read it.
    pub link_id: Option<u32>,
    /// Processes that hold the program or its link: pid and name.
    pub processes: Vec<(u32, String)>,
}

/// Finds the processes that hold a program. Values that need missing privileges stay empty.
pub(crate) fn holder(attached: XdpAttached, ifindex: u32) -> XdpHolder {
    let id = attached.program_id;
    let program = open_by_id(ObjectKind::Program, id).map(Program::from_fd);
    let program_name = program.and_then(|p| p.info()).ok().map(|info| info.name);
    let links = object_ids(ObjectKind::Link).unwrap_or_default();
    let link_id = links.into_iter().find(|&link| {
        let info = open_by_id(ObjectKind::Link, link).and_then(|fd| Link::from_fd(fd).info());
        info.is_ok_and(|info| info.program_id == id && info.xdp_ifindex == Some(ifindex))
    });
    XdpHolder {
        attached,
        program_name,
        link_id,
        processes: processes_with(id),
    }
}

/// Processes that have the program, or a link of it, open: `/proc/PID/fdinfo/FD` contains the
/// program's id.
fn processes_with(program_id: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if has_open(&entry.path(), program_id) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push((pid, name.trim().to_owned()));
        }
    }
    found
}

fn has_open(process: &Path, program_id: u32) -> bool {
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    files.into_iter().any(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        (target == "anon_inode:bpf_link" || target == "anon_inode:bpf-prog")
            && fs::read_to_string(process.join("fdinfo").join(file.file_name())).is_ok_and(|info| {
                info.lines().any(|line| {
                    let number = line.strip_prefix("prog_id:").map(str::trim);
                    number.and_then(|n| n.parse().ok()) == Some(program_id)
                })
            })
    })
}
