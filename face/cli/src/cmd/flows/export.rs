//! `--export`: sends records to collectors and files, and reports what was exported and lost.

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::ValueEnum;
use export::{Account, DropReason, FORMATS, FanOut, Target};

use crate::report::{bytes, counted};

/// Export options.
#[derive(clap::Args)]
#[command(next_help_heading = "Export")]
pub struct ExportArgs {
    /// Export records to a collector or a file, for example ipfix:udp://192.0.2.1:4739,
    /// netflow9:udp://HOST, csv:FILE, parquet:DIRECTORY, json:kafka://BROKER/TOPIC; may be repeated
    /// (docs/export.md)
    #[arg(long, value_name = "URL", value_parser = parse_target)]
    export: Vec<Target>,
    /// How to distribute records over several destinations
    #[arg(long, value_enum, default_value = "all", value_name = "WHO")]
    export_mode: Mode,
    /// Sampling rate to report to collectors, if the port receives one packet in N
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    sampling_rate: u32,
    /// Serve Prometheus metrics at http://ADDRESS/metrics, for example 127.0.0.1:14739
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Every destination gets all records
    All,
    /// Each destination gets a share of the flows, by a hash of the flow key
    Hash,
}

fn parse_target(text: &str) -> std::result::Result<Target, String> {
    Target::parse(text).map_err(|error| match error.hint() {
        Some(hint) => format!("{}\nhint: {hint}", error.why()),
        None => error.why().to_owned(),
    })
}

impl ExportArgs {
    /// The destinations.
    pub fn targets(&self) -> &[Target] {
        &self.export
    }

    /// Warnings about destinations whose format cannot hold the fields of `--fields`.
    pub fn without_fields(&self) -> Vec<String> {
        let holding = FORMATS.iter().filter(|format| format.holds_measured);
        let holding: Vec<&str> = holding.map(|format| format.name).collect();
        let others = holding.join(", ");
        let without = self.export.iter().filter(|of| !of.format.holds_measured);
        let words = without.map(|target| {
            let (text, format) = (&target.text, target.format.name);
            format!("warning: {text}: {format} cannot hold the fields of --fields; use {others}")
        });
        words.collect()
    }

    /// Distribution of records to destinations.
    pub fn fan_out(&self) -> FanOut {
        match self.export_mode {
            Mode::All => FanOut::All,
            Mode::Hash => FanOut::Hash,
        }
    }

    /// The port receives one of this many packets.
    pub fn sampling_rate(&self) -> u32 {
        self.sampling_rate
    }

    /// The address at which metrics are served.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

/// Prints the accounts.
pub fn write_accounts(out: &mut impl Write, accounts: &[(String, Account)]) -> io::Result<()> {
    for (name, account) in accounts {
        writeln!(
            out,
            "\nexport {name}: {} ({}) in {}, {}",
            counted(account.exported.flows, "flow"),
            counted(account.exported.packets, "packet"),
            counted(account.messages, "message"),
            bytes(account.bytes),
        )?;
        for reason in DropReason::ALL {
            let sum = &account.dropped[reason as usize];
            if sum.flows != 0 {
                let name = reason.name().replace('_', " ");
                writeln!(
                    out,
                    "  {} ({}) not exported: {name}",
                    counted(sum.flows, "flow"),
                    counted(sum.packets, "packet")
                )?;
            }
        }
        if account.shortened != 0 {
            writeln!(
                out,
                "  {} exported without some extra fields: too long for a message; increase mtu=",
                counted(account.shortened, "record")
            )?;
        }
        if account.time_clamped != 0 {
            writeln!(
                out,
                "  {} from after 2262, which nanoseconds cannot hold: exported with the last time \
                 of that range; use times=us",
                counted(account.time_clamped, "record")
            )?;
        }
        if account.files != 0 {
            writeln!(out, "  {} completed", counted(account.files, "file"))?;
        }
        if account.sessions > 1 {
            writeln!(out, "  {} opened", counted(account.sessions, "connection"))?;
        }
        if account.refused_by_host != 0 {
            writeln!(
                out,
                "  port unreachable reported {}: messages sent then were lost",
                counted(account.refused_by_host, "time")
            )?;
        }
        if let Some(failure) = &account.last_failure {
            writeln!(out, "  {} failures, last: {failure}", account.failures)?;
        }
        let waiting = account.waiting();
        if waiting == 0 {
            writeln!(
                out,
                "  offered = {} exported + {} dropped: adds up",
                account.exported.flows,
                account.dropped_total().flows
            )?;
        } else {
            writeln!(
                out,
                "  {waiting} flows are neither exported nor dropped: a bug in barewire"
            )?;
        }
    }
    Ok(())
}
