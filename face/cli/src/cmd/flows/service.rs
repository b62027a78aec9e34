//! `SIGHUP`: reloads the configuration of a running probe.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use port::PortName;
use probe::{Change, Running};
use runtime::Reload;
use runtime::flows::Switch;
use sys::{Error, ErrorKind, Result};

use super::Args;
use crate::cmd::Command;
use crate::config::{self, Settings};
use crate::confine::ConfineArgs;
use crate::inputs::Inputs;
use crate::out::{say, warning};
use crate::{Cli, exit, kept};

/// Keys of the file that take effect while the probe runs.
const LIVE: [&str; 5] = [
    "export",
    "export-mode",
    "sample",
    "sample-records",
    "sampling-rate",
];

/// The filter's key, which takes effect while the probe runs if the filter runs in this program.
const FILTER: &str = "filter";

/// Keys that take effect while the probe runs, as long as the same ones are given.
const ORIGINS: [&str; 3] = ["asn", "geo", "mac-vendors"];

/// The configuration to reload.
pub struct Reloading {
    reload: Reload,
    path: PathBuf,
    arguments: Vec<OsString>,
    settings: Settings,
    /// Whether the filter runs in this program.
    live_filter: bool,
    link_type: u16,
    confine: ConfineArgs,
}

/// Checks that the port's filter can run in this program.
///
/// # Errors
/// `InvalidInput` if the filter decides which packets are taken from the host, and for several
/// ports.
pub fn check_live_filter(inputs: &Inputs) -> Result<()> {
    if inputs.count() > 1 {
        let why = "it takes one port";
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "use --live-filter",
            why,
        ));
    }
    let row = PortName::parse(inputs.first())?.backend();
    if !row.is_some_and(|row| row.filter_takes) {
        return Ok(());
    }
    let why = "the filter of this port selects packets to take from the host, in the kernel";
    let error = Error::new(ErrorKind::InvalidInput, "use --live-filter", why);
    Err(error.with_hint("remove live-filter, or use the plain interface name, which is a tap"))
}

impl Reloading {
    /// Prepares the reloading of a probe's configuration, on a port of this link type: `SIGHUP` no
    /// longer ends the probe.
    ///
    /// # Errors
    /// If the signal handler cannot be installed, or the file no longer exists.
    pub fn new(path: &Path, args: &Args, link_type: u16) -> Result<Reloading> {
        Ok(Reloading {
            reload: Reload::on_hangup()?,
            settings: config::read(path)?,
            path: path.to_owned(),
            arguments: std::env::args_os().collect(),
            live_filter: args.live_filter,
            link_type,
            confine: args.port_args.confine,
        })
    }

    /// Called about ten times a second.
    pub fn pulse(&mut self, running: &mut Running, switch: &Switch) {
        if !self.reload.take() {
            return;
        }
        running.reloading();
        // An error in the file does not end the probe.
        if let Err(error) = self.read_again(running, switch) {
            warning!("{}: not reloaded, nothing was changed", self.path.display());
            exit::print(&self.confine.explain(error));
        }
        running.ready();
    }

    fn read_again(&mut self, running: &mut Running, switch: &Switch) -> Result<()> {
        let settings = config::read(&self.path)?;
        let mut args = self.arguments(&settings)?;
        args.export.targets().iter().for_each(kept::keep_target);
        // Where the filter runs cannot change.
        args.live_filter = self.live_filter;
        let change = Change {
            targets: args.export.targets().to_vec(),
            fan_out: args.export.fan_out(),
            sampling_rate: args.export.sampling_rate(),
            selection: args.selection(self.link_type)?,
            origins: args.origin.files(),
        };
        let changed = running.change(change, switch)?;
        let name = self.path.display();
        for (list, words) in [
            (changed.exports.begun, "export started"),
            (changed.exports.renewed, "file was moved away, reopened"),
            (changed.exports.ended, "export stopped"),
            (
                changed.exports.resampled,
                "new session with the new sampling rate",
            ),
            (
                changed.exports.outdated,
                "reports the old sampling rate until the file is moved away",
            ),
        ] {
            for target in list {
                say!("{name}: {target}: {words}");
            }
        }
        self.note(settings, changed.has_same_origins);
        Ok(())
    }

    /// The arguments of the command line with these settings.
    fn arguments(&self, settings: &Settings) -> Result<Box<Args>> {
        let arguments = config::merged(&self.arguments, settings);
        let wrong = |why: String| {
            let what = format!("use {}", self.path.display());
            Error::new(ErrorKind::InvalidInput, what, why)
        };
        let cli = Cli::try_parse_from(arguments).map_err(|error| {
            let (why, hint) = exit::why_and_hint(&error, "see `barewire flows --help`");
            wrong(why).with_hint(hint)
        })?;
        match cli.command {
            Command::Flows(args) => Ok(args),
            _ => Err(wrong(
                "it is not a configuration of `barewire flows`".into(),
            )),
        }
    }

    /// Reports which changes take effect at the next restart, and stores the others.
    fn note(&mut self, settings: Settings, has_same_origins: bool) {
        let name = self.path.display();
        let is_live = |key: &str| {
            let is_filter = self.live_filter && key == FILTER;
            is_filter || LIVE.contains(&key) || has_same_origins && ORIGINS.contains(&key)
        };
        let keys = self.settings.keys().chain(settings.keys());
        let mut changed: Vec<&String> = keys
            .filter(|key| self.settings.get(*key) != settings.get(*key))
            .filter(|key| !is_live(key))
            .collect();
        changed.sort();
        changed.dedup();
        for key in changed {
            warning!("{name}: {key} has changed; restart the probe for it to take effect");
        }
        say!("{name}: reloaded");
        // Changes that need a restart are reported each time.
        let origins = ORIGINS.into_iter().filter(|_| has_same_origins);
        let filter = [FILTER].into_iter().filter(|_| self.live_filter);
        for key in LIVE.into_iter().chain(origins).chain(filter) {
            match settings.get(key) {
                Some(values) => self.settings.insert(key.to_owned(), values.clone()),
                None => self.settings.remove(key),
            };
        }
    }
}
