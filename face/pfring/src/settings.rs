//! Settings of a ring, made between `pfring_open` and `pfring_enable_ring`.

use std::time::Duration;

use port::{Direction, Fanout, PortOptions, TapMethod};
use runtime::filter::Expression;

use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

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
            snaplen: self.snaplen,
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
