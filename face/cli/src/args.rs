//! Arguments that several subcommands share, and their translation into port options.

use clap::ValueEnum;
use port::{AttachMode, BindMode, Direction, PortName, PortOptions, TimestampSource};
use runtime::Pacing;
use sys::rights::Capability;
use sys::{Error, ErrorKind, Result};

/// Where the XDP program goes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Attach {
    /// In the driver if it can, else generic
    Auto,
    /// In the driver, or fail
    Native,
    /// Behind the driver, on socket buffers
    Generic,
}

/// How memory is shared with the driver.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Bind {
    /// Zero-copy if the driver can, else copy
    Auto,
    /// The card writes into our frames, or fail
    ZeroCopy,
    /// The kernel copies
    Copy,
}

/// Who says when a packet arrived.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Timestamp {
    /// The best there is
    Auto,
    /// The card or driver, or fail
    Device,
    /// The kernel, at its earliest hook
    Kernel,
    /// The reader's clock, once a batch
    Batch,
    /// Nobody
    None,
}

/// What to do while no packets are there.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Idle {
    /// Let batches gather under load, sleep on the socket otherwise
    Gather,
    /// Sleep on the socket
    Wait,
    /// Spin: a core a queue
    Spin,
}

/// How a port is opened for receiving.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Port options")]
pub struct PortArgs {
    /// Where the XDP program of afxdp: is attached
    #[arg(long, value_enum, default_value = "auto")]
    pub attach: Attach,
    /// How afxdp: shares memory with the driver
    #[arg(long, value_enum, default_value = "auto")]
    pub bind: Bind,
    /// Who says when a packet arrived
    #[arg(long, value_enum, default_value = "auto")]
    pub timestamp: Timestamp,
    /// Queues to open, a thread each; 0 is all (afxdp:) or one
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub queues: u32,
    /// Entries of each ring; 0 is the backend's choice
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub ring: u32,
    /// Let the kernel handle up to N packets for us in one call (busy polling)
    #[arg(long, value_name = "N")]
    pub busy_poll: Option<u16>,
    /// What to do while no packets are there
    #[arg(long, value_enum, default_value = "gather")]
    pub idle: Idle,
    /// Processors to pin the threads to, in the order of queues, for example 2,3
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cpus: Vec<usize>,
    /// Become this user once the port is open
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

/// The right that reading a port's counters takes, if any.
///
/// # Errors
/// As [`PortName::parse`].
pub fn to_read_counters(name: &str) -> Result<Option<Capability>> {
    let row = PortName::parse(name)?.backend();
    Ok(row.and_then(|row| (row.to_count)()))
}

/// Looks whether threads may run on these processors, before anything is opened.
///
/// # Errors
/// `InvalidInput` for one that the machine has not, or that this process may not use.
pub fn check_cpus(cpus: &[usize]) -> Result<()> {
    let allowed = sys::affinity::allowed_cpus();
    let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) else {
        return Ok(());
    };
    let list: Vec<String> = allowed.iter().map(usize::to_string).collect();
    let why = "the machine has none of that number, or this process may not use it";
    let what = format!("pin a thread to processor {cpu}");
    Err(Error::new(ErrorKind::InvalidInput, what, why)
        .with_hint(format!("these can be used: {}", list.join(", "))))
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
        match self.idle {
            Idle::Gather => Pacing::Gather,
            Idle::Wait => Pacing::Wait,
            Idle::Spin => Pacing::Spin,
        }
    }
}
