//! The `process_…` metrics that Prometheus' client libraries serve for their process.
//!
//! The files are opened at startup and read through their descriptors: later Landlock or another
//! user may not allow to open them (proc(5)).

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{Kind, Page};

/// Ticks of `/proc` a second: `USER_HZ`, which is 100 on all architectures of Rust's Linux targets.
const TICKS_A_SECOND: u64 = 100;
/// Indices of utime, stime and starttime after the name of the process.
const USER: usize = 11;
const SYSTEM: usize = 12;
const START: usize = 19;

/// The opened files. A metric whose file could not be opened is left out.
#[derive(Default)]
pub struct Process {
    stat: Option<File>,
    status: Option<File>,
    descriptors: Option<File>,
    /// The limit of open files.
    descriptors_max: Option<u64>,
    /// When the machine started, in seconds since the Unix epoch.
    booted: Option<u64>,
}

impl Process {
    /// Opens the files of this process.
    pub fn open() -> Process {
        let open = |name: &str| File::open(format!("/proc/self/{name}")).ok();
        let machine = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Process {
            stat: open("stat"),
            status: open("status"),
            descriptors: open("fd"),
            descriptors_max: word_after(&limits, "Max open files"),
            booted: word_after(&machine, "btime"),
        }
    }

    /// Adds the metrics to a page.
    pub fn write(&self, page: &mut Page) {
        let stat = self.stat.as_ref().and_then(read).unwrap_or_default();
        // The name is in parentheses and may contain any character.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = |at: usize| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
        if let (Some(user), Some(system)) = (ticks(USER), ticks(SYSTEM)) {
            let name = "process_cpu_seconds_total";
            page.family(name, Kind::Counter, "CPU time of all threads in seconds.");
            page.seconds(name, (user + system) * (100 / TICKS_A_SECOND));
        }
        if let (Some(start), Some(booted)) = (ticks(START), self.booted) {
            let name = "process_start_time_seconds";
            let about = "When the process started, in seconds since the Unix epoch.";
            page.family(name, Kind::Gauge, about);
            page.seconds(name, booted * 100 + start * (100 / TICKS_A_SECOND));
        }
        let status = self.status.as_ref().and_then(read).unwrap_or_default();
        let kib = |name: &str| word_after(&status, name).map(|kib: u64| kib << 10);
        let count = |file: &File| sys::descriptors::count_entries(file).ok();
        for (name, about, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory in bytes.",
                kib("VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory in bytes.",
                kib("VmSize:"),
            ),
            (
                "process_open_fds",
                "Open file descriptors.",
                self.descriptors.as_ref().and_then(count),
            ),
            (
                "process_max_fds",
                "Limit of open file descriptors.",
                self.descriptors_max,
            ),
        ] {
            if let Some(value) = value {
                page.family(name, Kind::Gauge, about);
                page.value(name, &[], value);
            }
        }
    }
}

/// Reads a short file from its start.
fn read(file: &File) -> Option<String> {
    let mut bytes = [0; 8 << 10];
    let len = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

/// The number after a name at the start of a line.
fn word_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let process = Process::open();
        let held: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
        let mut page = Page::default();
        process.write(&mut page);
        let value = |name: &str| -> f64 {
            let line = page.text().lines().find(|line| line.starts_with(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {}", page.text()));
            line[name.len()..].trim().parse().unwrap()
        };
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let age = now.as_secs_f64() - value("process_start_time_seconds");
        assert!((-2.0..1e6).contains(&age), "{age}");
        assert!(value("process_open_fds") >= held.len() as f64);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_resident_memory_bytes") >= f64::from(1 << 20));
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        // All of them again, with fewer descriptors.
        let before = value("process_open_fds");
        drop(held);
        let mut later = Page::default();
        process.write(&mut later);
        let line = format!("process_open_fds {before}\n");
        assert!(!later.text().contains(&line), "{}", later.text());
    }
}
