//! Rotation of a capture, and the name of the next file: tcpdump's rules, with three differences.
//!
//! By size: `x`, `x1`, `x2`, …; with a limit of files they are numbered from 0 with equal width and
//! reused in turn (`x0` to `x4` with 5). By time: the name is a strftime(3) format, filled in with
//! the start of the period; the limit ends the capture. By both: the number restarts with each
//! period.
//!
//! The number stands before the extension (`x1.pcap.gz`), so that programs recognize the file.
//! A name without a time format gets the next number with each period, where tcpdump would
//! overwrite the previous file. By both size and time, the limit is that of the files kept, where
//! tcpdump ignores it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::local_time;

/// When to rotate the output file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// After this many bytes (0: never); the packet that crosses the limit is the file's last.
    pub size_max: u64,
    /// After this many seconds by packet time (0: never).
    pub period_s: u64,
    /// Maximum number of files (0: unlimited): by time the capture ends; by size, and by both, only
    /// the last ones are kept.
    pub count_max: u32,
}

impl Rotation {
    /// Whether there can be more than one file.
    pub fn is_on(&self) -> bool {
        self.size_max != 0 || self.period_s != 0
    }
}

/// Action before the next packet is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// None.
    Stay,
    /// Open the next file.
    Next,
    /// Stop: the last file is complete, and the packet has no place.
    Full,
}

/// Position of the writer in a set of files.
#[derive(Debug)]
pub(super) struct Sequence {
    template: PathBuf,
    rotation: Rotation,
    /// Number of digits.
    width: usize,
    /// Number of the file within the period, or overall if the name does not distinguish periods.
    index: u32,
    /// Number of periods begun.
    period_count: u32,
    /// Start of the period, in seconds since 1970; known from the first packet on.
    period_start_s: Option<u64>,
}

impl Sequence {
    pub(super) fn new(template: &Path, rotation: Rotation) -> Self {
        let largest = rotation.count_max.saturating_sub(1);
        let width = if largest == 0 {
            0
        } else {
            largest.ilog10() as usize + 1
        };
        Self {
            template: template.to_owned(),
            rotation,
            width,
            index: 0,
            period_count: 1,
            period_start_s: None,
        }
    }

    /// Whether the name depends on the time of the first packet.
    pub(super) fn needs_time(&self) -> bool {
        self.rotation.period_s != 0 && self.has_format()
    }

    fn has_format(&self) -> bool {
        self.template.as_os_str().as_bytes().contains(&b'%')
    }

    /// Sets the first packet's time: the first period starts with it.
    pub(super) fn start(&mut self, time_s: u64) {
        self.period_start_s.get_or_insert(time_s);
    }

    /// Action before a packet of `time_s` when the file has `len` bytes.
    #[inline]
    pub(super) fn step(&mut self, time_s: u64, len: u64) -> Step {
        let Rotation {
            size_max,
            period_s,
            count_max,
        } = self.rotation;
        if period_s != 0 {
            let start = *self.period_start_s.get_or_insert(time_s);
            // A packet older than the period stays in it: files never go back.
            let past = time_s.saturating_sub(start);
            if past >= period_s {
                self.period_start_s = Some(start + past / period_s * period_s);
                self.period_count = self.period_count.saturating_add(1);
                if size_max == 0 && count_max != 0 && self.period_count > count_max {
                    return Step::Full;
                }
                match self.has_format() {
                    // Numbers restart only if the period is in the name.
                    true => self.index = 0,
                    false => self.count(),
                }
                return Step::Next;
            }
        }
        if size_max == 0 || len <= size_max {
            return Step::Stay;
        }
        self.count();
        Step::Next
    }

    /// Increments the number, which starts again if the files of one period are all there are.
    fn count(&mut self) {
        self.index += 1;
        let Rotation {
            size_max,
            count_max,
            ..
        } = self.rotation;
        if size_max != 0 && count_max != 0 && !self.needs_time() && self.index >= count_max {
            self.index = 0;
        }
    }

    /// Names of files that will be overwritten or written next, as far as known.
    pub(super) fn later(&self) -> impl Iterator<Item = PathBuf> {
        /// Maximum number of names returned.
        const COUNT_MAX: u32 = 1000;
        let Rotation {
            period_s,
            count_max,
            ..
        } = self.rotation;
        let end = match period_s {
            0 => count_max.clamp(2, COUNT_MAX),
            _ => 2,
        };
        (0..end).map(|index| self.name_of(index))
    }

    /// The name of the file to write now.
    pub(super) fn name(&self) -> PathBuf {
        self.name_of(self.index)
    }

    fn name_of(&self, index: u32) -> PathBuf {
        let name = match self.period_start_s {
            Some(start) if self.needs_time() => {
                local_time::format(self.template.as_os_str(), start)
            }
            _ => self.template.clone().into_os_string(),
        };
        let is_numbered = self.width != 0 && self.rotation.size_max != 0;
        if index == 0 && !is_numbered {
            return name.into();
        }
        numbered(&name, &format!("{index:0width$}", width = self.width))
    }
}

/// Inserts a number before the extension.
fn numbered(name: &OsStr, number: &str) -> PathBuf {
    let bytes = name.as_bytes();
    let (stem, extension) = bytes.split_at(bytes.len() - extension_len(bytes));
    OsString::from_vec([stem, number.as_bytes(), extension].concat()).into()
}

/// Length of the extension with its dot, and of a compression's behind it: `.pcap.gz`. What begins
/// with a digit is part of a date or an address.
fn extension_len(name: &[u8]) -> usize {
    let after_slash = name.iter().rposition(|byte| *byte == b'/');
    let file = &name[after_slash.map_or(0, |at| at + 1)..];
    let one = |file: &[u8]| {
        let dot = file.iter().rposition(|byte| *byte == b'.').unwrap_or(0);
        let letters = &file[(dot + 1).min(file.len())..];
        let is_extension = letters.first().is_some_and(u8::is_ascii_alphabetic)
            && letters.iter().all(u8::is_ascii_alphanumeric);
        // A dot at the start belongs to the name.
        if dot != 0 && is_extension {
            file.len() - dot
        } else {
            0
        }
    };
    let packed = [".gz", ".zst"]
        .iter()
        .find(|end| file.ends_with(end.as_bytes()));
    let packed_len = packed.map_or(0, |end| end.len());
    packed_len + one(&file[..file.len() - packed_len])
}

/// The files of a set that are on disk. Clones share them; the lock is taken once a file.
#[derive(Clone, Debug, Default)]
pub struct FileNames(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    first: Option<PathBuf>,
    last: Option<PathBuf>,
    /// With a limit, the files on disk, the oldest first.
    kept: VecDeque<PathBuf>,
}

impl FileNames {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file, and deletes the oldest ones beyond the limit.
    pub(super) fn add(&self, path: &Path, rotation: Rotation) {
        let mut names = self.lock();
        names.first.get_or_insert_with(|| path.to_owned());
        names.last = Some(path.to_owned());
        if rotation.count_max == 0 || rotation.size_max == 0 {
            return;
        }
        // A name may be used again.
        names.kept.retain(|kept| kept != path);
        names.kept.push_back(path.to_owned());
        let surplus = names.kept.len().saturating_sub(rotation.count_max as usize);
        let mut index = 0;
        for _ in 0..surplus {
            match std::fs::remove_file(&names.kept[index]) {
                // It stays, and is tried again with the next file.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => index += 1,
                _ => drop(names.kept.remove(index)),
            }
        }
    }

    /// The oldest file on disk.
    pub fn first(&self) -> Option<PathBuf> {
        let names = self.lock();
        names.kept.front().or(names.first.as_ref()).cloned()
    }

    /// The file written last.
    pub fn last(&self) -> Option<PathBuf> {
        self.lock().last.clone()
    }

    /// Number of files on disk, if there is a limit.
    pub fn kept_count(&self) -> Option<usize> {
        let count = self.lock().kept.len();
        (count != 0).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(template: &str, rotation: Rotation, packets: &[(u64, u64)]) -> Vec<String> {
        let mut sequence = Sequence::new(Path::new(template), rotation);
        let mut names = Vec::new();
        for &(time_s, len) in packets {
            match sequence.step(time_s, len) {
                Step::Full => {
                    names.push("full".into());
                    break;
                }
                Step::Next => {}
                Step::Stay if names.is_empty() => {}
                Step::Stay => continue,
            }
            names.push(sequence.name().to_string_lossy().into_owned());
        }
        names
    }

    #[test]
    fn by_size_names_count_up() {
        let by_size = |count_max| Rotation {
            size_max: 10,
            count_max,
            ..Rotation::default()
        };
        // tcpdump rotates before a packet when the file is longer than the limit.
        let packets = [(0, 0), (0, 10), (0, 11), (0, 11), (0, 5), (0, 11)];
        assert_eq!(names("x", by_size(0), &packets), ["x", "x1", "x2", "x3"]);
        assert_eq!(names("x", by_size(3), &packets), ["x0", "x1", "x2", "x0"]);
        assert_eq!(names("x", by_size(11), &packets)[..2], ["x00", "x01"]);
        assert_eq!(names("x", by_size(10), &packets)[..2], ["x0", "x1"]);
        assert_eq!(names("x", by_size(1), &packets), ["x", "x", "x", "x"]);
    }

    #[test]
    fn by_time_names_are_filled_in() {
        let by_time = |count_max| Rotation {
            period_s: 10,
            count_max,
            ..Rotation::default()
        };
        let packets = [(100, 0), (109, 9), (110, 9), (135, 9), (90, 9), (200, 9)];
        let wanted = ["x-100", "x-110", "x-130", "x-200"];
        assert_eq!(names("x-%s", by_time(0), &packets), wanted);
        assert_eq!(names("x-%s", by_time(1), &packets), ["x-100", "full"]);
        assert_eq!(names("x", by_time(0), &packets), ["x", "x1", "x2", "x3"]);
    }

    #[test]
    fn by_both_numbers_start_again() {
        let both = |count_max| Rotation {
            period_s: 10,
            size_max: 10,
            count_max,
        };
        let packets = [(100, 0), (101, 11), (102, 11), (111, 5), (112, 11)];
        let wanted = ["x-100", "x-1001", "x-1002", "x-110", "x-1101"];
        assert_eq!(names("x-%s", both(0), &packets), wanted);
        let wanted = ["x-1000", "x-1001", "x-1002", "x-1100", "x-1101"];
        assert_eq!(names("x-%s", both(2), &packets), wanted);
        let wanted = ["x", "x1", "x2", "x3", "x4"];
        assert_eq!(names("x", both(0), &packets), wanted, "no name twice");
        let wanted = ["x0", "x1", "x0", "x1", "x0"];
        assert_eq!(names("x", both(2), &packets), wanted, "used in turn");
    }

    #[test]
    fn the_number_stands_before_the_extension() {
        for (name, second) in [
            ("c.pcapng.zst", "c1.pcapng.zst"),
            ("a/c.pcap", "a/c1.pcap"),
            ("c.gz", "c1.gz"),
            ("c", "c1"),
            ("a.d/c", "a.d/c1"),
            ("10.0.0.1", "10.0.0.11"),
            ("web.pcap-old", "web.pcap-old1"),
            ("a/.hidden", "a/.hidden1"),
            (".hidden.pcap", ".hidden1.pcap"),
            ("c.", "c.1"),
            ("2026.11.28.trace", "2026.11.281.trace"),
        ] {
            assert_eq!(numbered(OsStr::new(name), "1"), Path::new(second));
        }
    }
}
