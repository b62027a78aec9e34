//! What a service does: words to the manager that started it, and `SIGHUP`, which reads the
//! configuration again.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use export::Exporters;
use port::{PortDescription, PortName};
use runtime::Reload;
use runtime::flows::{Status, Switch};
use runtime::notify::Manager;
use sys::{Error, ErrorKind, Result};

use super::export::Told;
use super::origin::Shared as Origins;
use crate::cmd::Command;
use crate::config::{self, Settings};
use crate::report::si;
use crate::{Cli, exit};

/// Keys of the file that take effect while the probe runs.
const LIVE: [&str; 5] = [
    "export",
    "export-mode",
    "sample",
    "sample-records",
    "sampling-rate",
];

/// The same, where it runs in this program.
const FILTER: &str = "filter";

/// The same, as long as each that was given is given, and no other.
const ORIGINS: [&str; 3] = ["asn", "geo", "mac-vendors"];

/// The manager, and the file if there is one.
pub struct Service {
    manager: Manager,
    file: Option<File>,
}

/// The configuration that is read again.
struct File {
    reload: Reload,
    path: PathBuf,
    arguments: Vec<OsString>,
    settings: Settings,
    port: PortDescription,
    told: Told,
    origins: Origins,
    /// The filter runs in this program.
    live_filter: bool,
}

/// Whether a port's filter may be left to this program.
///
/// # Errors
/// `InvalidInput` where it says what is taken from the host.
pub fn check_live_filter(name: &str) -> Result<()> {
    if PortName::parse(name)?.scheme != "afxdp" {
        return Ok(());
    }
    let why = "this port takes from the host what its filter selects, so it is in the kernel";
    let error = Error::new(ErrorKind::InvalidInput, "use --live-filter", why);
    Err(error.with_hint("leave live-filter out, or use the plain name of the interface, a tap"))
}

impl Service {
    /// For a probe on this port. With a configuration `SIGHUP` does not end it any more.
    ///
    /// # Errors
    /// When the signal cannot be caught, or the file is not there any more.
    pub fn new(
        path: Option<&PathBuf>,
        port: PortDescription,
        told: Told,
        origins: Origins,
        live_filter: bool,
    ) -> Result<Service> {
        let file = path.map(|path| {
            Ok(File {
                reload: Reload::on_hangup()?,
                settings: config::read(path)?,
                path: path.clone(),
                arguments: std::env::args_os().collect(),
                port,
                told,
                origins,
                live_filter,
            })
        });
        Ok(Service {
            manager: Manager::from_environment(),
            file: file.transpose()?,
        })
    }

    /// Packets are being taken.
    pub fn ready(&self) {
        self.manager.ready();
    }

    /// The end begins.
    pub fn stopping(&self) {
        self.manager.stopping();
    }

    /// About ten times a second.
    pub fn pulse(&mut self, exporters: &mut Option<Exporters>, status: &Status<'_>) {
        self.manager.pulse(|| {
            let total = status.total();
            let rate = total.meter.packets as f64 / status.elapsed.as_secs_f64().max(0.1);
            format!(
                "{} packets ({} on average), {} flows in the table, {} packets lost",
                total.meter.packets,
                si(rate.round(), "pps"),
                total.meter.table.live,
                status.account.rx_total().lost()
            )
        });
        let Some(file) = &mut self.file else { return };
        if !file.reload.take() {
            return;
        }
        self.manager.reloading();
        // What is wrong with the file does not end the probe.
        if let Err(error) = file.read_again(exporters, status.switch) {
            eprintln!("{}: nothing was changed", file.path.display());
            exit::tell(&error);
        }
        self.manager.ready();
    }
}

impl File {
    fn read_again(&mut self, exporters: &mut Option<Exporters>, switch: &Switch) -> Result<()> {
        let settings = config::read(&self.path)?;
        let arguments = config::merged(&self.arguments, &settings);
        let wrong = |why: String| {
            let what = format!("use {}", self.path.display());
            Error::new(ErrorKind::InvalidInput, what, why)
        };
        let cli = Cli::try_parse_from(arguments).map_err(|error| {
            let text = error.render().to_string();
            wrong(text.lines().next().unwrap_or_default().to_owned())
        })?;
        let Command::Flows(mut args) = cli.command else {
            return Err(wrong("it is not for `barewire flows`".into()));
        };
        // Where the filter runs is settled.
        args.live_filter = self.live_filter;
        let selection = args.selection(self.port.link_type)?;
        self.told.selectors = [selection.sampling, selection.record_sampling];
        let setup = args.export.setup(&self.port, &self.told);
        let targets = args.export.targets();
        let name = self.path.display();
        match exporters {
            Some(exporters) => {
                let changes = exporters.replace(targets, &setup)?;
                for (list, words) in [
                    (changes.begun, "exported to from now on"),
                    (changes.renewed, "was moved away, and is made anew"),
                    (changes.ended, "no longer exported to"),
                    (changes.resampled, "a new session, with the new sampling"),
                    (
                        changes.outdated,
                        "goes on, and tells the old sampling until it is moved away",
                    ),
                ] {
                    for target in list {
                        eprintln!("{name}: {target}: {words}");
                    }
                }
            }
            None if !targets.is_empty() => {
                let mut new = Exporters::open(targets, &setup)?;
                new.start()?;
                *exporters = Some(new);
                for target in targets {
                    eprintln!("{name}: {}: exported to from now on", target.text);
                }
            }
            None => {}
        }
        switch.select(selection);
        // What is told of origins (columns, templates) stays as it is; from which files does not.
        let files = args.origin.files();
        let is_same = files.parts() == self.told.beyond.origin;
        if is_same && files.parts().any() {
            self.origins.read_again(files)?;
        }
        let is_live = |key: &str| {
            let is_filter = self.live_filter && key == FILTER;
            is_filter || LIVE.contains(&key) || is_same && ORIGINS.contains(&key)
        };
        let keys = self.settings.keys().chain(settings.keys());
        let mut changed: Vec<&String> = keys
            .filter(|key| self.settings.get(*key) != settings.get(*key))
            .filter(|key| !is_live(key))
            .collect();
        changed.sort();
        changed.dedup();
        for key in changed {
            eprintln!("{name}: {key} has changed; it takes effect when the probe is started anew");
        }
        eprintln!("{name}: read again");
        // What needs a start is told again each time.
        let origins = ORIGINS.into_iter().filter(|_| is_same);
        let filter = [FILTER].into_iter().filter(|_| self.live_filter);
        for key in LIVE.into_iter().chain(origins).chain(filter) {
            match settings.get(key) {
                Some(values) => self.settings.insert(key.to_owned(), values.clone()),
                None => self.settings.remove(key),
            };
        }
        Ok(())
    }
}
