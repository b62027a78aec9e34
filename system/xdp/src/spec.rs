//! The configuration of a program and of its attachment, as plain values.

use std::fmt;

use bpf::cbpf::Program;

/// Where a device calls the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachMode {
    /// In the driver, before a socket buffer is made; the driver must support it.
    Native,
    /// In the network stack, for every driver; the packet has been copied once by that time.
    Generic,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// Timestamp source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TimestampSource {
    /// Nobody.
    #[default]
    None,
    /// The program reads a clock of the kernel when it sees the packet.
    Program,
    /// The device, where it has a time for this packet; else as [`TimestampSource::Program`].
    Device,
}

/// The clock that the program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProgramClock {
    /// `CLOCK_TAI`: wall-clock time without leap seconds (Linux 6.1).
    #[default]
    Tai,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
}

/// What the program writes before each packet that it redirects; see [`crate::metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MetadataSpec {
    /// Time of arrival.
    pub time: TimestampSource,
    /// The device's flow hash (Linux 6.3, native mode).
    pub hash: bool,
    /// The VLAN tag that the device took off (Linux 6.8, native mode).
    pub vlan: bool,
}

impl MetadataSpec {
    /// Whether anything is requested.
    pub fn is_wanted(&self) -> bool {
        self.time != TimestampSource::None || self.needs_device()
    }

    /// Whether device metadata is requested, which binds the program to the device and to native
    /// mode.
    pub fn needs_device(&self) -> bool {
        self.time == TimestampSource::Device || self.hash || self.vlan
    }
}

/// What the program for AF_XDP is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectSpec {
    /// How many queues have counters and may have sockets. Packets of further queues go to the host
    /// uncounted: request as many as the device can have.
    pub queue_count: u32,
    /// Which packets to take; all others pass to the host. `None` takes all.
    ///
    /// It sees what the program sees: the bytes as they arrived, a VLAN tag only if the device
    /// left it there, and nothing that the kernel would find out later (direction, type).
    pub filter: Option<Program>,
    /// What to write before each packet.
    pub metadata: MetadataSpec,
    /// Take packets of several buffers (Linux 5.18); needed when the MTU exceeds one buffer.
    pub frags: bool,
    /// The device, when [`MetadataSpec::needs_device`]; else it is not looked at.
    pub ifindex: u32,
}

impl Default for RedirectSpec {
    /// One queue, every packet, no metadata.
    fn default() -> Self {
        Self {
            queue_count: 1,
            filter: None,
            metadata: MetadataSpec::default(),
            frags: false,
            ifindex: 0,
        }
    }
}
