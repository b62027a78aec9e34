//! Rotation of a capture, and the name of the next file: tcpdump's rules.
//!
//! By size: `x`, `x1`, `x2`, …; with a limit of files they are numbered from 0 with equal width and
//! reused in turn (`x0` to `x4` with 5). By time: the name is a strftime(3) format, filled in with
//! the start of the period; the limit ends the capture. By both: the number restarts with each
//! period, and the limit only sets the width of the numbers.
//!
//! There is one difference: a name without a time format gets the next number with each period,
//! where tcpdump would overwrite the previous file.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sys::local_time;

/// When to rotate the output file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// After this many bytes (0: never); the packet that crosses the limit is the file's last.
    pub size_max: u64,
    /// After this many seconds by packet time (0: never).
    pub period_s: u64,
    /// Maximum number of files (0: unlimited): by size the oldest is overwritten, by time the
    /// capture ends.
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
                // Numbers restart only if the period is in the name.
                self.index = if self.has_format() { 0 } else { self.index + 1 };
                if size_max == 0 && count_max != 0 && self.period_count > count_max {
                    return Step::Full;
                }
                return Step::Next;
            }
        }
        if size_max == 0 || len <= size_max {
            return Step::Stay;
        }
        self.index += 1;
        if period_s == 0 && count_max != 0 && self.index >= count_max {
            self.index = 0;
        }
        Step::Next
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
        let mut name = match self.period_start_s {
            Some(start) if self.needs_time() => {
                local_time::format(self.template.as_os_str(), start)
            }
            _ => self.template.clone().into_os_string(),
        };
        let numbered = self.width != 0 && self.rotation.size_max != 0;
        if index != 0 || numbered {
            name.push(format!("{index:0width$}", width = self.width));
        }
        name.into()
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
    }
}
