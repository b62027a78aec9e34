//! Files that a probe opens while it runs.

use std::path::Path;
use std::time::Instant;

use export::{Place, Target};
use runtime::Stop;

use super::Args;
use crate::confine::Files;
use crate::fifo::{self, Reader};

/// Directories of a service (systemd.exec(5)).
const SERVICE: [&str; 3] = ["STATE_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY"];

impl Args {
    /// Files of rotated exports, files that a reload reads, and a report to be deleted if it is not
    /// written.
    pub(super) fn files(&self) -> Files {
        let mut files = Files::default();
        let reloads = self.config.is_some();
        if let Some(config) = &self.config {
            files.read_beside(config);
            let origins = self.origin.files();
            let read = [origins.networks, origins.places, origins.vendors];
            read.iter()
                .flatten()
                .for_each(|file| files.read_beside(file));
            // Exports may be added there.
            for name in SERVICE {
                let folders = std::env::var_os(name).unwrap_or_default();
                let folders = std::env::split_paths(&folders);
                folders
                    .filter(|folder| folder.is_absolute())
                    .for_each(|folder| files.write_in(&folder));
            }
        }
        for target in self.export.targets() {
            of_target(target, reloads, &mut files);
        }
        if let Some(report) = self.report.as_ref().filter(|_| !self.reports_to_stdout()) {
            files.delete(report);
        }
        files
    }

    /// Whether packets or records also go elsewhere than to standard output.
    pub(super) fn has_other_outputs(&self) -> bool {
        self.report.is_some()
            || self.egress.port().is_some()
            || self.export.metrics().is_some()
            || self
                .export
                .targets()
                .iter()
                .any(|target| !is_stdout(target))
    }

    /// Waits until programs read the named pipes among the exports and the report. Returns the open
    /// pipes, or `None` if a stop was requested or the time was over first.
    pub(super) fn wait_for_readers(&self, stop: &Stop) -> Option<Vec<Reader>> {
        let exports = self.export.targets().iter().filter_map(|target| {
            let is_one = !target.is_folder() && !target.options.rotation.is_some();
            match &target.place {
                Place::Path(path) if is_one && path != Path::new("-") => Some(path),
                _ => None,
            }
        });
        let since = Instant::now();
        let mut readers = Vec::new();
        let report = self.report.as_ref().filter(|_| !self.reports_to_stdout());
        for path in exports.chain(report) {
            let left = self.duration;
            let left = left.map(|duration| duration.saturating_sub(since.elapsed()));
            match fifo::wait(path, stop, left) {
                Reader::Absent => return None,
                reader => readers.push(reader),
            }
        }
        Some(readers)
    }
}

/// Whether a destination is standard output.
pub(super) fn is_stdout(target: &Target) -> bool {
    matches!(&target.place, Place::Path(path) if path == Path::new("-"))
}

fn of_target(target: &Target, reloads: bool, files: &mut Files) {
    let options = &target.options;
    match &target.place {
        Place::Path(path) if path == Path::new("-") => {}
        Place::Path(folder) if target.is_folder() => files.write_in(folder),
        Place::Path(pattern) if options.rotation.is_some() => files.write_pattern(pattern),
        // It is created again after it was moved away.
        Place::Path(path) if reloads => files.write_beside(path),
        _ => {}
    }
    for file in [&options.ca, &options.cert, &options.key]
        .into_iter()
        .flatten()
    {
        files.read_beside(file);
    }
    // librdkafka reads files named in its properties; only the library knows which.
    for (_, value) in &options.properties {
        let path = Path::new(value);
        if path.is_absolute() {
            files.read_beside(path);
        }
    }
}
