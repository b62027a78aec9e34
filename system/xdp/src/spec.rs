//! Configuration of a program and of its attachment, as plain values.

use std::fmt;

use bpf::cbpf::Program;

/// Where in the receive path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachMode {
    /// In the driver, before a socket buffer is allocated; the driver must support it.
    Native,
    /// In the network stack, with every driver, after the packet has been copied once.
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
    /// No timestamps.
    #[default]
    None,
    /// A kernel clock, read by the program when it sees the packet.
    Program,
    /// The device, if it has a time for this packet; otherwise as [`TimestampSource::Program`].
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

/// Metadata that the program writes before each redirected packet; see [`crate::metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MetadataSpec {
    /// Source of the arrival time.
    pub time: TimestampSource,
    /// The device's flow hash (Linux 6.3, native mode).
    pub hash: bool,
    /// The VLAN tag that the device removed (Linux 6.8, native mode).
    pub vlan: bool,
}

impl MetadataSpec {
    /// Whether any metadata is requested.
    pub fn is_wanted(&self) -> bool {
        self.time != TimestampSource::None || self.needs_device()
    }

    /// Whether device metadata is requested, which binds the program to the device and to native
    /// mode.
    pub fn needs_device(&self) -> bool {
        self.time == TimestampSource::Device || self.hash || self.vlan
    }
}

/// Configuration of the program for AF_XDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectSpec {
    /// Number of queues that have counters and may have sockets. Packets of further queues go to
    /// the host uncounted: pass the maximum number of queues of the device.
    pub queue_count: u32,
    /// Packets to redirect; all others pass to the host. `None` redirects all.
    ///
    /// It sees what the program sees: the bytes as they arrived, a VLAN tag only if the device left
    /// it in place, and nothing that the kernel determines later (direction, type).
    pub filter: Option<Program>,
    /// Metadata to write before each packet.
    pub metadata: MetadataSpec,
    /// Support multi-buffer packets (Linux 5.18); needed if the MTU exceeds one buffer.
    pub frags: bool,
    /// Interface index of the device, if [`MetadataSpec::needs_device`]; ignored otherwise.
    pub ifindex: u32,
}

impl Default for RedirectSpec {
    /// One queue, all packets, no metadata.
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
