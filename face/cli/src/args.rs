//! Arguments that several subcommands share, and their translation into port options.

use std::time::Duration;

use crate::confine::ConfineArgs;
use clap::ValueEnum;
use port::{AttachMode, BindMode, Direction, PortName, PortOptions, TimestampSource};
use runtime::Pacing;
use runtime::filter::{Compiler, Expression};
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};

/// Where the XDP program is attached.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Attach {
    /// Native if the driver supports it, else generic
    Auto,
    /// In the driver; fail if it has no XDP support
    Native,
    /// In the network stack, on socket buffers
    Generic,
}

/// Whether the AF_XDP socket shares packet memory with the driver.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Bind {
    /// Zero-copy if the driver supports it, else copy
    Auto,
    /// The card writes into barewire's frames; fail if the driver cannot
    ZeroCopy,
    /// The kernel copies each packet
    Copy,
}

/// Timestamp source.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Timestamp {
    /// The best source available
    Auto,
    /// The card or its driver, else fail; packets without its timestamp get the kernel's
    Device,
    /// The kernel, at its earliest hook
    Kernel,
    /// The receiving thread's clock, read once per batch
    Batch,
    /// No timestamps
    None,
}

/// Compiler of filter expressions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FilterCompiler {
    /// barewire's compiler; refuses expressions it does not support
    #[default]
    Barewire,
    /// The installed libpcap
    Libpcap,
}

impl FilterCompiler {
    /// An expression for this compiler.
    pub fn expression(self, text: impl Into<String>) -> Expression {
        Expression::new(text).by(self.into())
    }
}

impl From<FilterCompiler> for Compiler {
    fn from(compiler: FilterCompiler) -> Self {
        match compiler {
            FilterCompiler::Barewire => Compiler::Barewire,
            FilterCompiler::Libpcap => Compiler::Libpcap,
        }
    }
}

/// What a receiving thread does when there are no packets.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Idle {
    /// Pause briefly under load so that batches fill up, else sleep in poll(2)
    Gather,
    /// Sleep in poll(2)
    Wait,
    /// Busy-poll: uses a whole core per queue
    Spin,
}

impl Idle {
    /// The same for the receive loops.
    pub fn pacing(self) -> Pacing {
        match self {
            Idle::Gather => Pacing::Gather,
            Idle::Wait => Pacing::Wait,
            Idle::Spin => Pacing::Spin,
        }
    }
}

/// How a port is opened for receiving.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Port options")]
pub struct PortArgs {
    /// XDP attach mode (afxdp:)
    #[arg(long, value_enum, default_value = "auto")]
    pub attach: Attach,
    /// AF_XDP bind mode (afxdp:)
    #[arg(long, value_enum, default_value = "auto")]
    pub bind: Bind,
    /// Timestamp source
    #[arg(long, value_enum, default_value = "auto")]
    pub timestamp: Timestamp,
    /// Queues to open, one thread each; 0 means all (afxdp:) or one (others)
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub queues: u32,
    /// Entries in each ring; 0 means the backend's default
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub ring: u32,
    /// Busy-poll budget: packets the kernel may process per call (afxdp:)
    #[arg(long, value_name = "N")]
    pub busy_poll: Option<u16>,
    /// What a receiving thread does when there are no packets
    #[arg(long, value_enum, default_value = "gather")]
    pub idle: Idle,
    /// CPUs to pin the threads to, in queue order, for example 2,3
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cpus: Vec<usize>,
    /// Drop privileges to this user once the port is open
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    #[command(flatten)]
    pub confine: ConfineArgs,
}

/// Parses a time as all commands take it: a number of seconds, or with a unit (`us`, `ms`, `s`,
/// `m`, `h`).
///
/// # Errors
/// The expected format, for other texts and times that are not above 0.
pub fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit {other:?}: use us, ms, s, m or h")),
    };
    let seconds = digits.parse::<f64>().unwrap_or(-1.0) * unit;
    match (1e-6..=1e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("expected a time above 0, such as 10, 90s, 5m".into()),
    }
}

/// The capability needed to read a port's counters, if any.
///
/// # Errors
/// As [`PortName::parse`].
pub fn to_read_counters(name: &str) -> Result<Option<Capability>> {
    let row = PortName::parse(name)?.backend();
    Ok(row.and_then(|row| (row.to_count)()))
}

/// Whether one of these ports calls bpf(2) once it is open.
///
/// # Errors
/// As [`PortName::parse`].
pub fn calls_bpf(names: &[&str]) -> Result<bool> {
    let mut calls = false;
    for name in names {
        // An unknown backend may call it.
        calls |= PortName::parse(name)?
            .backend()
            .is_none_or(|row| row.calls_bpf);
    }
    Ok(calls)
}

/// As [`to_read_counters`] for several ports, without duplicates.
///
/// # Errors
/// As [`PortName::parse`].
pub fn to_read_counters_of(names: &[&str]) -> Result<Vec<Capability>> {
    each_once(names, to_read_counters)
}

/// The capabilities needed to open these ports again, for receiving, without duplicates.
///
/// # Errors
/// As [`PortName::parse`].
pub fn to_receive(names: &[&str]) -> Result<Vec<Capability>> {
    let mut all = Vec::new();
    for name in names {
        let row = PortName::parse(name)?.backend();
        for right in row.map_or(&[][..], |row| row.to_receive) {
            if !all.contains(right) {
                all.push(*right);
            }
        }
    }
    Ok(all)
}

fn each_once(
    names: &[&str],
    needed: impl Fn(&str) -> Result<Option<Capability>>,
) -> Result<Vec<Capability>> {
    let mut all = Vec::new();
    for name in names {
        all.extend(needed(name)?.filter(|right| !all.contains(right)));
    }
    Ok(all)
}

/// Checks that threads may run on these processors, before anything is opened.
///
/// # Errors
/// `InvalidInput` for a processor that does not exist or that this process may not use.
pub fn check_cpus(cpus: &[usize]) -> Result<()> {
    let allowed = sys::affinity::allowed_cpus();
    let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) else {
        return Ok(());
    };
    let list: Vec<String> = allowed.iter().map(usize::to_string).collect();
    let why = "there is no such CPU, or this process may not use it";
    let what = format!("pin a thread to CPU {cpu}");
    Err(Error::new(ErrorKind::InvalidInput, what, why)
        .with_hint(format!("usable CPUs: {}", list.join(", "))))
}

impl PortArgs {
    /// The options for opening a port.
    pub fn options(&self, direction: Direction) -> PortOptions {
        PortOptions {
            direction,
            attach: match self.attach {
                Attach::Auto => AttachMode::Auto,
                Attach::Native => AttachMode::Native,
                Attach::Generic => AttachMode::Generic,
            },
            bind: match self.bind {
                Bind::Auto => BindMode::Auto,
                Bind::ZeroCopy => BindMode::ZeroCopy,
                Bind::Copy => BindMode::Copy,
            },
            timestamp: match self.timestamp {
                Timestamp::Auto => TimestampSource::Auto,
                Timestamp::Device => TimestampSource::Device,
                Timestamp::Kernel => TimestampSource::Kernel,
                Timestamp::Batch => TimestampSource::Batch,
                Timestamp::None => TimestampSource::None,
            },
            queue_count: self.queues,
            ring_len: self.ring,
            busy_poll_budget: self.busy_poll,
            ..PortOptions::default()
        }
    }

    /// What the receive loops do while idle.
    pub fn pacing(&self) -> Pacing {
        self.idle.pacing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_to_read_counters_have_no_duplicates() {
        let needed = |name: &str| Ok(name.starts_with("afxdp:").then_some(Capability::Bpf));
        let all = |names: &[&str]| each_once(names, needed).unwrap();
        assert_eq!(all(&["afxdp:a", "afxdp:b"]), [Capability::Bpf]);
        assert_eq!(all(&["a", "afxdp:b"]), [Capability::Bpf]);
        assert_eq!(all(&["a", "b"]), []);
    }
}
