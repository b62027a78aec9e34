//! Inputs whose first packet is not due yet: only their descriptors are open.
//!
//! The files of a set follow each other in time, so of thousands only a few are read at once.

use std::fs::File;
use std::sync::Arc;

use sys::Result;

use super::super::Shared;
use super::super::control::Facts;
use super::super::rx::Rx;
use super::place;
use crate::account::RxCounters;
use crate::options::PortOptions;
use crate::rx::RxBackend;

/// A file that is opened again when its first packet is due.
pub(super) struct Waiting {
    path: String,
    file: File,
    options: PortOptions,
    /// Sort key of its first packet.
    pub(super) first: u64,
    pub(super) facts: Facts,
    pub(super) shared: Arc<Shared>,
}

impl Waiting {
    /// Reads the time of a file's first packet. `None` for inputs to be read at once: pipes,
    /// which cannot be read twice, damaged files, and those without a packet or its time.
    pub(super) fn new(path: &str, options: &PortOptions) -> Option<Self> {
        let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
        if path == "-" || !is_file {
            return None;
        }
        let file = File::open(path).ok()?;
        let mut first_options = options.clone();
        (first_options.filter, first_options.filter_source) = (None, None);
        // A mapping is not worth its cost for one packet.
        first_options.map_files = false;
        let mut rx = Rx::over(file.try_clone().ok()?, path, &first_options, Arc::default()).ok()?;
        rx.open(true).ok()?;
        let mut slots = Vec::new();
        rx.fill(&mut slots, 1).ok()?;
        let first = slots.first().map(place).filter(|first| *first != 0)?;
        Some(Self {
            path: path.to_owned(),
            file,
            options: options.clone(),
            first,
            facts: Facts {
                memory_len: 0,
                ..Facts::of(&rx)
            },
            shared: Arc::default(),
        })
    }

    /// Selects every packet when it is read.
    pub(super) fn end_filter(&mut self) {
        (self.options.filter, self.options.filter_source) = (None, None);
    }

    /// Opens it from its start.
    ///
    /// # Errors
    /// As for a file that is opened by name.
    pub(super) fn open(self, counters: &Arc<RxCounters>) -> Result<Rx> {
        let mut rx = Rx::over(self.file, &self.path, &self.options, counters.clone())?;
        rx.shared = self.shared;
        rx.open(true)?;
        Ok(rx)
    }
}
