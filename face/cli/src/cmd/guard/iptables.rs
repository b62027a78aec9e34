//! `barewire guard --hook iptables`: prints the rules as commands, or installs them until the end.

use std::process::Command;

use export::prometheus::Endpoint;
use runtime::guard::{self, Installed};
use runtime::{Stop, TotalsRequest};
use sys::{Error, ErrorKind, Result};

use super::show::{About, Show};
use super::{Args, Attach, Hook, metrics};
use crate::out::{self, say, warning};

/// Runs one of the commands for iptables.
pub(super) fn run(args: &Args) -> Result<()> {
    check(args)?;
    if args.print {
        let text = guard::iptables(&args.setup()?)?;
        return out::print(&out::stdout(1)?, text.into_bytes());
    }
    if args.undo {
        let interface = args.interface.as_deref().unwrap_or_default();
        match guard::undo(interface)? {
            true => say!("removed the rules on {interface}"),
            false => say!("there are no rules on {interface}"),
        }
        return Ok(());
    }
    install(args)
}

/// Refuses options that iptables rules do not have.
fn check(args: &Args) -> Result<()> {
    let refused = |option: &str, why: &str| {
        let what = format!("use {option}");
        Err(Error::new(ErrorKind::InvalidInput, what, why))
    };
    let is_iptables = args.hook == Hook::Iptables;
    if args.print && !is_iptables {
        let why = "rules of a program are not commands; use it with --hook iptables";
        return refused("--print", why);
    }
    let options = [
        ("--keep", args.keep),
        ("--detect", args.detect.is_some()),
        ("--sample-drops", args.sample_drops.is_some()),
        ("--user", args.user.is_some()),
        ("--mode", !matches!(args.mode, Attach::Auto)),
    ];
    match options.into_iter().find(|option| option.1) {
        Some((option, _)) => refused(option, "--hook iptables does not support it"),
        None => Ok(()),
    }
}

/// The command of the process that removes the rules if this one is killed.
fn helper(interface: &str) -> Result<Command> {
    let program = std::env::current_exe()
        .map_err(|error| Error::from_io("find the path of this program", error))?;
    let mut command = Command::new(program);
    command.args(["guard", "undo-when-closed", "--", interface]);
    Ok(command)
}

/// Installs the rules, and removes them at the end; privileges are kept for that.
fn install(args: &Args) -> Result<()> {
    let stop = Stop::on_signals()?;
    let request = TotalsRequest::on_signal()?;
    let setup = args.setup()?;
    let installed = Installed::install(&setup, helper(&setup.interface)?)?;
    if installed.had_leftovers {
        warning!("warning: removed rules that an earlier run had left");
    }
    for note in installed.notes() {
        say!("{note}");
    }
    let interface = installed.interface().to_owned();
    let mut endpoint = args.metrics.map(Endpoint::bind).transpose()?;
    let totals = installed.totals()?;
    if let Some(endpoint) = &mut endpoint {
        endpoint.show(metrics::page(&interface, args.dry_run, &totals));
        endpoint.start()?;
        say!("metrics at http://{}/metrics", endpoint.address());
    }
    let about = About {
        interface: interface.clone(),
        mode: "iptables".into(),
        dry_run: args.dry_run,
        detect: None,
        samples: None,
    };
    let mut show = Show::start(about, totals, args.json)?;
    let outcome = installed.run(args.duration, &stop, |totals| {
        if request.take() {
            show.so_far(totals);
        }
        show.progress(totals);
        if let Some(endpoint) = &endpoint {
            endpoint.show(metrics::page(&interface, args.dry_run, totals));
        }
    });
    let reported = show.end(&outcome);
    outcome.error.map_or(Ok(()), Err).and(reported)
}
