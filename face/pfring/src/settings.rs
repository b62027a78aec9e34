//! Settings of a ring, made between `pfring_open` and `pfring_enable_ring`.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use port::{Direction, Fanout, PortOptions, TapMethod};
use runtime::filter::Expression;

use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

/// `PF_RING_REENTRANT`.
pub const REENTRANT: u32 = 1 << 1;
/// `PF_RING_RX_PACKET_BOUNCE`: received packets are sent on, whole.
pub const BOUNCES: u32 = 1 << 6;
/// `PF_RING_LONG_HEADER`: the extended header is filled, too.
pub const LONG_HEADER: u32 = 1 << 2;
/// `PF_RING_PROMISC`.
pub const PROMISCUOUS: u32 = 1 << 3;
/// `PF_RING_DO_NOT_PARSE`: the headers of packets are not parsed.
pub const UNPARSED: u32 = 1 << 9;
/// `PF_RING_FLOW_OFFLOAD`: packets have the number of their flow as hash.
pub const FLOW_NUMBERS: u32 = 1 << 17;

/// Wait of `pfring_recv` in milliseconds if the program sets none, as PF_RING's.
pub const POLL_MS: u32 = 500;
/// Maximum time for which the kernel holds back packets to fill a block.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(5);

/// Packets of which direction are received (`packet_direction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Received and sent ones.
    #[default]
    Both,
    /// Received ones.
    Received,
    /// Sent ones.
    Sent,
}

impl Wanted {
    /// The one with this number.
    pub fn of(number: u8) -> Self {
        match number {
            1 => Self::Received,
            2 => Self::Sent,
            _ => Self::Both,
        }
    }
}

/// What a ring is used for (`socket_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Sending and receiving.
    #[default]
    Both,
    /// Sending only.
    Send,
    /// Receiving only.
    Receive,
    /// Neither: only the device is looked at.
    Manage,
}

/// What a ring returns of which packets, which may change while a thread receives.
#[derive(Debug)]
pub struct Selection {
    /// [`Wanted`] as a number.
    pub wanted: AtomicU8,
    /// One packet in how many is returned.
    pub sampling: AtomicU32,
    /// The VLAN, or [`ANY_VLAN`].
    pub vlan: AtomicU32,
    /// The layer up to which packets are returned, or 0, and the number of bytes after it.
    pub layer: AtomicU8,
    /// As above.
    pub more: AtomicU32,
}

/// `RING_ANY_VLAN`; 0 stands for packets without a tag.
pub const ANY_VLAN: u16 = 0xffff;

impl Default for Selection {
    fn default() -> Self {
        Self {
            wanted: AtomicU8::new(Wanted::Both as u8),
            sampling: AtomicU32::new(1),
            vlan: AtomicU32::new(ANY_VLAN.into()),
            layer: AtomicU8::new(0),
            more: AtomicU32::new(0),
        }
    }
}

impl Selection {
    /// What is selected now.
    pub fn now(&self) -> Selected {
        let order = Ordering::Relaxed;
        let vlan = self.vlan.load(order) as u16;
        Selected {
            wanted: Wanted::of(self.wanted.load(order)),
            sampling: self.sampling.load(order).max(1),
            vlan: (vlan != ANY_VLAN).then_some(vlan),
            slice: match self.layer.load(order) {
                0 => None,
                layer => Some((layer, self.more.load(order))),
            },
        }
    }
}

/// What a ring returns, as for one call.
#[derive(Clone, Copy, Debug)]
pub struct Selected {
    /// Packets of which direction.
    pub wanted: Wanted,
    /// One packet in how many.
    pub sampling: u32,
    /// Only those of this VLAN, 0 for those without a tag.
    pub vlan: Option<u16>,
    /// Up to this layer, and so many bytes after it.
    pub slice: Option<(u8, u32)>,
}

/// Settings of a ring.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes kept per packet; 0 for all.
    pub snaplen: u32,
    /// Whether packets for other stations are received.
    pub promiscuous: bool,
    /// Packets of which direction are received.
    pub wanted: Wanted,
    /// What the ring is used for.
    pub mode: Mode,
    /// The cluster: a group of rings, of any process, that share the packets.
    pub cluster: Option<(u16, Fanout)>,
    /// The filter.
    pub filter: Option<Expression>,
    /// Packets taken from the device at once, unless as many as are usual.
    pub batch_max: Option<usize>,
    /// Whether packets are only read, so that those in read-only memory can stay there.
    pub only_reads: bool,
    /// Whether packets are sent on, so that the whole packet is needed.
    pub bounces: bool,
}

impl Settings {
    /// The settings of `pfring_open`.
    pub fn new(caplen: u32, flags: u32) -> Self {
        Self {
            snaplen: caplen,
            promiscuous: flags & PROMISCUOUS != 0,
            wanted: Wanted::Both,
            mode: Mode::Both,
            cluster: None,
            filter: None,
            batch_max: None,
            only_reads: false,
            bounces: flags & BOUNCES != 0,
        }
    }

    /// Sets the cluster, by `cluster_type` of `pf_ring.h`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a number that no fan-out group can have, `NOT_SUPPORTED` for an
    /// unknown type.
    pub fn set_cluster(&mut self, number: u32, kind: u32) -> Result<(), i32> {
        let number = u16::try_from(number).map_err(|_| INVALID_ARGUMENT)?;
        let fanout = match kind {
            // By flow, by 4 or 5 of its fields, also those of the inner packet, or by the stations
            // if it is not IP: the kernel's hash of addresses and ports keeps any of these
            // together, and gives packets that are not IP to one ring.
            0 | 3 | 4 | 6 | 8 | 9 | 11 | 12 => Fanout::Hash,
            1 => Fanout::RoundRobin,
            // By addresses, or by flow only with TCP: UDP packets of two hosts stay together.
            2 | 5 => Fanout::Addresses,
            7 | 10 => Fanout::InnerAddresses,
            _ => return Err(NOT_SUPPORTED),
        };
        self.cluster = Some((number, fanout));
        Ok(())
    }

    /// Options of the port for these settings, without the filter, and this use of it.
    pub fn options(&self, direction: Direction) -> PortOptions {
        let (group, fanout) = match self.cluster {
            Some((number, fanout)) => (Some(number), fanout),
            None => (None, Fanout::Hash),
        };
        PortOptions {
            direction,
            snaplen: if self.bounces { 0 } else { self.snaplen },
            promiscuous: self.promiscuous,
            outgoing: self.wanted != Wanted::Received,
            fanout,
            fanout_group: group,
            block_timeout: BLOCK_TIMEOUT,
            // Its filter can be replaced without privileges.
            tap: TapMethod::Tpacket,
            // Signals are the program's.
            map_files: false,
            batch_max: self.batch_max.unwrap_or(PortOptions::default().batch_max),
            ..PortOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_types_are_fan_out_modes() {
        let mut settings = Settings::new(1500, PROMISCUOUS);
        assert!(settings.promiscuous);
        for (kind, fanout) in [
            (0, Fanout::Hash),
            (1, Fanout::RoundRobin),
            (2, Fanout::Addresses),
            (4, Fanout::Hash),
            (5, Fanout::Addresses),
            (7, Fanout::InnerAddresses),
            (10, Fanout::InnerAddresses),
            (12, Fanout::Hash),
        ] {
            settings.set_cluster(99, kind).unwrap();
            let options = settings.options(Direction::Rx);
            assert_eq!((options.fanout_group, options.fanout), (Some(99), fanout));
        }
        assert_eq!(settings.set_cluster(1 << 16, 0), Err(INVALID_ARGUMENT));
        for kind in [13, 99] {
            assert_eq!(settings.set_cluster(1, kind), Err(NOT_SUPPORTED));
        }
    }
}
