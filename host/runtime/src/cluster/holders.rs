//! The processes that read queues. A program may open a queue, fork and exit, as daemons do: then
//! the process that attached is not the one that reads. All that read have a mapping of the queue's
//! memory, which names its inode (`/proc/PID/maps`, proc(5)).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::status::Status;

/// Name of a queue's memory in the maps of a process.
const MEMORY: &str = "/memfd:barewire-queue";

/// The inodes of queues that are mapped, according to a process's maps.
fn mapped(maps: &str) -> impl Iterator<Item = u64> {
    maps.lines()
        .filter(|line| line.contains(MEMORY))
        .filter_map(|line| line.split_ascii_whitespace().nth(4)?.parse().ok())
}

/// Whether a process has mapped a queue; `None` if its maps cannot be read.
fn holds(process: u32, inode: u64) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    Some(mapped(&maps).any(|it| it == inode))
}

/// Whether there is a process of this number.
fn is_alive(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// A process that has attached, in words.
pub(super) fn named(process: u32) -> String {
    match is_alive(process) {
        true => format!("process {process}"),
        false => format!("a process that process {process} has started"),
    }
}

/// For each queue that another process than `owner` has mapped, the first such process.
fn all(owner: u32) -> HashMap<u64, u32> {
    let mut found = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    let mut processes: Vec<u32> = numbers.filter(|process| *process != owner).collect();
    processes.sort_unstable();
    for process in processes {
        // Of other users, or ended meanwhile.
        let Ok(maps) = fs::read_to_string(format!("/proc/{process}/maps")) else {
            continue;
        };
        for inode in mapped(&maps) {
            found.entry(inode).or_insert(process);
        }
    }
    found
}

/// Replaces readers that have passed their queue on to another process by that process, and marks
/// those that have exited where it cannot be found.
pub(super) fn correct(status: &mut Status) {
    let owner = status.process;
    let mut known = None;
    for queue in &mut status.queues {
        // One whose port reads in the cluster's process.
        let Some(process) = queue.reader.filter(|process| *process != owner) else {
            continue;
        };
        let inode = queue.memory;
        match holds(process, inode) {
            _ if inode == 0 => {}
            Some(true) => continue,
            None if is_alive(process) => continue,
            _ => {
                let known = known.get_or_insert_with(|| all(owner));
                if let Some(&holder) = known.get(&inode) {
                    queue.reader = Some(holder);
                    continue;
                }
            }
        }
        queue.has_reader_exited = !is_alive(process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_queues_are_found_by_their_inodes() {
        let maps = "\
            55d0-55d1 r-xp 00000000 08:01 4711 /usr/bin/barewire\n\
            7f00-7f01 rw-s 00000000 00:01 2063 /memfd:barewire-queue (deleted)\n\
            7f02-7f03 r--s 00000000 00:01 2064 /memfd:barewire-pool (deleted)\n\
            7f04-7f05 rw-s 00000000 00:01 x /memfd:barewire-queue (deleted)\n\
            7f06-7f07 rw-s 00000000 00:01 2070 /memfd:barewire-queue (deleted)\n\
            7ffd-7ffe rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(mapped(maps).collect::<Vec<_>>(), [2063, 2070]);
        assert!(is_alive(std::process::id()));
        assert_eq!(holds(std::process::id(), 0), Some(false));
    }
}
