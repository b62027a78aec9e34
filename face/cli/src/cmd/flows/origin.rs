//! `--asn`, `--geo`, `--mac-vendors`: who stands behind the ends of flows, by files of the user.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;

use flow::{EndReason, Extra, Record};
use runtime::flows::{Fate, Outlet, Status};
use runtime::origin::{OriginFiles, OriginTable};
use sys::{Error, ErrorKind, Result};

/// Files about addresses and network cards.
#[derive(clap::Args)]
#[command(next_help_heading = "Origins")]
pub struct OriginArgs {
    /// Tell the autonomous systems of addresses, by a MaxMind DB file or a list of prefixes or
    /// ranges (iptoasn.com and others); may be given several times (docs/origins.md)
    #[arg(long, value_name = "FILE")]
    asn: Vec<PathBuf>,
    /// Tell countries and cities of addresses, by files of the same kinds
    #[arg(long, value_name = "FILE")]
    geo: Vec<PathBuf>,
    /// Tell the makers of network cards, by IEEE's oui.csv or Wireshark's manuf; with --key mac
    #[arg(long, value_name = "FILE")]
    mac_vendors: Vec<PathBuf>,
}

impl OriginArgs {
    /// The files.
    pub fn files(&self) -> OriginFiles {
        OriginFiles {
            networks: self.asn.clone(),
            places: self.geo.clone(),
            vendors: self.mac_vendors.clone(),
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// Of files; and where makers are asked for, but no addresses of cards are recorded.
    pub fn open(&self, has_mac: bool) -> Result<Shared> {
        let files = self.files();
        if files.parts().vendor && !has_mac {
            let what = "tell makers of network cards";
            let why = "addresses of network cards are not recorded";
            let error = Error::new(ErrorKind::InvalidInput, what, why);
            return Err(error.with_hint("--key mac records them; they are then part of the key"));
        }
        let table = match files.parts().any() {
            true => Some(OriginTable::open(&files)?),
            false => None,
        };
        Ok(Shared {
            table: Rc::new(RefCell::new(table)),
            coming: Rc::default(),
            next: Rc::default(),
        })
    }
}

/// The files as they were read last, for whoever tells of flows.
#[derive(Clone, Default)]
pub struct Shared {
    table: Rc<RefCell<Option<OriginTable>>>,
    /// Those that are being read again.
    coming: Rc<RefCell<Option<Reading>>>,
    /// Those that are to be read behind them.
    next: Rc<RefCell<Option<OriginFiles>>>,
}

type Reading = JoinHandle<Result<OriginTable>>;

impl Shared {
    /// Does something with the files, if there are any.
    pub fn with<T>(&self, f: impl FnOnce(&mut OriginTable) -> T) -> Option<T> {
        self.table.borrow_mut().as_mut().map(f)
    }

    /// Bytes of memory.
    pub fn memory_len(&self) -> usize {
        self.with(|table| table.memory_len()).unwrap_or(0)
    }

    /// Reads these files from now on, in a thread of its own: packets do not wait for it. There is
    /// one such thread at a time.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn read_again(&self, files: OriginFiles) -> Result<()> {
        let mut coming = self.coming.borrow_mut();
        match *coming {
            Some(_) => *self.next.borrow_mut() = Some(files),
            None => *coming = Some(start(files)?),
        }
        Ok(())
    }

    /// Takes files that were read again. Those that are wrong change nothing.
    fn take(&self) {
        let mut coming = self.coming.borrow_mut();
        let Some(thread) = coming.take_if(|thread| thread.is_finished()) else {
            return;
        };
        match thread.join() {
            Ok(Ok(table)) => {
                *self.table.borrow_mut() = Some(table);
                eprintln!("the files of --asn, --geo and --mac-vendors were read again");
            }
            Ok(Err(error)) => {
                eprintln!("the files of --asn, --geo and --mac-vendors stay as they were");
                crate::exit::tell(&error);
            }
            Err(_) => eprintln!("a fault of this program: the thread that reads files panicked"),
        }
        let Some(files) = self.next.borrow_mut().take() else {
            return;
        };
        match start(files) {
            Ok(thread) => *coming = Some(thread),
            Err(error) => crate::exit::tell(&error),
        }
    }
}

fn start(files: OriginFiles) -> Result<Reading> {
    std::thread::Builder::new()
        .name("origins".into())
        .spawn(move || OriginTable::open(&files))
        .map_err(|e| Error::from_io("start a thread that reads files", e))
}

/// An outlet that says who stands behind the ends of flows.
pub struct Placing<'a> {
    /// The outlet behind it.
    pub inner: &'a mut dyn Outlet,
    /// The files.
    pub origins: Shared,
}

impl Outlet for Placing<'_> {
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) -> Result<Fate> {
        let Some(origins) = self.origins.with(|table| table.of(record, extra)) else {
            return self.inner.ended(record, extra, reason);
        };
        let extra = Extra {
            origins: Some(&origins),
            ..*extra
        };
        self.inner.ended(record, &extra, reason)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        self.origins.take();
        self.inner.pulse(status)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// However often it is asked for: the last files count, and one thread reads at a time.
    #[test]
    fn files_are_read_again_one_after_another() {
        let folder = std::env::temp_dir().join(format!("barewire-again-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = |name: &str| OriginFiles {
            networks: vec![folder.join(name)],
            ..OriginFiles::default()
        };
        // Reading it waits for a writer.
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
        let shared = Shared::default();
        shared.read_again(files("slow")).unwrap();
        for name in ["1", "2", "3"] {
            shared.read_again(files(name)).unwrap();
            shared.take();
            assert_eq!(shared.asn(), None);
        }
        fs::write(&slow, "192.0.2.0/24,9\n").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = Vec::new();
        while seen.last() != Some(&3) {
            assert!(Instant::now() < until, "{seen:?}");
            shared.take();
            seen.extend(shared.asn());
            seen.dedup();
        }
        assert_eq!(seen, [9, 3]);
        fs::remove_dir_all(folder).unwrap();
    }

    impl Shared {
        fn asn(&self) -> Option<u32> {
            self.with(|table| table.of_address([192, 0, 2, 1].into()).asn)
        }
    }
}
