//! The enrichment files, and reloading them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use runtime::origin_table::{OriginFiles, OriginTable};
use sys::{Error, ErrorKind, Result};

/// The files as last read. Clones share them.
#[derive(Clone, Default)]
pub struct Origins(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    table: Option<OriginTable>,
    /// Files being reloaded.
    coming: Option<Reading>,
    /// Files to be reloaded after them.
    next: Option<OriginFiles>,
}

type Reading = JoinHandle<Result<OriginTable>>;

impl Origins {
    /// Reads these files, if any, which may take seconds.
    ///
    /// # Errors
    /// Errors of the files.
    pub fn open(files: &OriginFiles) -> Result<Origins> {
        let table = match files.parts().any() {
            true => Some(OriginTable::open(files)?),
            false => None,
        };
        let origins = Origins::default();
        origins.lock().table = table;
        Ok(origins)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the loaded files, if there are any.
    pub fn with<T>(&self, f: impl FnOnce(&mut OriginTable) -> T) -> Option<T> {
        self.lock().table.as_mut().map(f)
    }

    /// Memory in bytes.
    pub fn memory_len(&self) -> usize {
        self.with(|table| table.memory_len()).unwrap_or(0)
    }

    /// Reloads these files in a separate thread: packets do not wait for it. There is one such
    /// thread at a time.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn read_again(&self, files: OriginFiles) -> Result<()> {
        let mut state = self.lock();
        match state.coming {
            Some(_) => state.next = Some(files),
            None => state.coming = Some(start(files)?),
        }
        Ok(())
    }

    /// Takes over reloaded files, and returns the result once reading has ended. Invalid files
    /// change nothing.
    pub(crate) fn take(&self) -> Option<Result<()>> {
        let mut state = self.lock();
        let thread = state.coming.take_if(|thread| thread.is_finished())?;
        let read = thread.join().unwrap_or_else(|_| {
            let why = "the thread that reads them panicked, a bug in barewire";
            Err(Error::new(ErrorKind::Io, "read files", why))
        });
        let mut result = read.map(|table| state.table = Some(table));
        if let Some(files) = state.next.take() {
            match start(files) {
                Ok(thread) => state.coming = Some(thread),
                Err(error) => result = result.and(Err(error)),
            }
        }
        Some(result)
    }
}

fn start(files: OriginFiles) -> Result<Reading> {
    std::thread::Builder::new()
        .name("origins".into())
        .spawn(move || OriginTable::open(&files))
        .map_err(|e| Error::from_io("start the thread that reads files", e))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// With repeated requests the last files win, and one thread reads at a time.
    #[test]
    fn reloads_run_one_at_a_time() {
        let folder = std::env::temp_dir().join(format!("barewire-again-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = |name: &str| OriginFiles {
            networks: vec![folder.join(name)],
            ..OriginFiles::default()
        };
        // Reading it blocks until there is a writer.
        let slow = folder.join("slow");
        assert!(
            Command::new("mkfifo")
                .arg(&slow)
                .status()
                .unwrap()
                .success()
        );
        for asn in [1, 2, 3] {
            fs::write(
                folder.join(asn.to_string()),
                format!("192.0.2.0/24,{asn}\n"),
            )
            .unwrap();
        }
        let origins = Origins::default();
        origins.read_again(files("slow")).unwrap();
        for name in ["1", "2", "3"] {
            origins.read_again(files(name)).unwrap();
            origins.take();
            assert_eq!(origins.asn(), None);
        }
        fs::write(&slow, "192.0.2.0/24,9\n").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = Vec::new();
        while seen.last() != Some(&3) {
            assert!(Instant::now() < until, "{seen:?}");
            origins.take();
            seen.extend(origins.asn());
            seen.dedup();
        }
        assert_eq!(seen, [9, 3]);
        fs::remove_dir_all(folder).unwrap();
    }

    impl Origins {
        fn asn(&self) -> Option<u32> {
            self.with(|table| table.of_address([192, 0, 2, 1].into()).asn)
        }
    }
}
