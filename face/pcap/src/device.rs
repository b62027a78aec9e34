//! Devices, by their names.

use std::path::Path;

use port::{BACKENDS, Direction, Port, PortOptions};
use runtime::in_place::queue_count;
use sys::Error;
use sys::ethtool::Ethtool;
use sys::link::Link;

use crate::framing::Framing;

/// Least ring memory of a tap: two blocks in which the longest packet fits.
const RING_BYTES_MIN: usize = 512 << 10;
/// Ring memory of a tap if the program does not set it.
const RING_BYTES: usize = 32 << 20;

/// A device, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name of the port.
    pub port: String,
    /// The interface, if it is a tap; `any` is one.
    pub tap: Option<String>,
    /// Whether the timestamps are the kernel's.
    pub has_kernel_time: bool,
    /// Whether it is a card that can send beside receiving.
    pub is_card: bool,
    /// Whether it is a queue of a cluster, which may have a return path.
    pub is_queue: bool,
}

impl Device {
    /// The device of a name: that of a port with its scheme, otherwise an interface, whatever the
    /// current directory contains.
    pub fn new(name: &str) -> Self {
        let scheme = name.split_once(':').map(|(scheme, _)| scheme);
        let is_known = BACKENDS.iter().any(|row| Some(row.scheme) == scheme);
        let port = match is_known {
            true => name.to_owned(),
            // As libpcap names its devices for group and queue 0.
            false if matches!(name, "nflog" | "nfqueue") => format!("{name}:0"),
            false => format!("afpacket:{}", without_label(name)),
        };
        let target = port.strip_prefix("afpacket:");
        let target = target.map(|rest| rest.split('?').next().unwrap_or_default().to_owned());
        Self {
            tap: target,
            has_kernel_time: !port.contains('?'),
            // All queues of a card are read.
            is_card: queue_count(&port) == 0,
            is_queue: port.starts_with("ring:"),
            port,
        }
    }

    /// Whether it is the tap on all interfaces together.
    pub fn is_any(&self) -> bool {
        self.tap.as_deref() == Some("any")
    }

    /// The interface of a tap, as it is now.
    pub fn link(&self) -> Option<Link> {
        Link::by_name(self.tap.as_deref()?).ok()
    }

    /// The headers of its packets.
    pub fn framing(&self) -> Framing {
        match (self.is_any(), self.link()) {
            (true, _) => Framing::Any,
            (false, Some(link)) => Framing::of(&link),
            (false, None) => Framing::Own,
        }
    }

    /// The timestamp types that a program can choose from, by their `PCAP_TSTAMP_` numbers: those
    /// of the card only if it timestamps every packet.
    pub fn timestamp_types(&self) -> Vec<i32> {
        /// The types with the bits of `SOF_TIMESTAMPING_SOFTWARE`, `SYS_HARDWARE` and
        /// `RAW_HARDWARE`: `HOST`, `ADAPTER`, `ADAPTER_UNSYNCED`.
        const TYPES: [(i32, u32); 3] = [(0, 1 << 4), (3, 1 << 5), (4, 1 << 6)];
        /// `1 << HWTSTAMP_FILTER_ALL`.
        const ALL: u32 = 1 << 1;
        let only_host = vec![0];
        let Some(tap) = self.tap.as_deref().filter(|tap| *tap != "any") else {
            return only_host;
        };
        let known = Ethtool::open().and_then(|ethtool| ethtool.timestamping(tap));
        let sources = match known {
            Ok(Some([sources, filters])) if filters & ALL != 0 => sources,
            // The driver does not say.
            Ok(None) => u32::MAX,
            _ => return only_host,
        };
        let types = TYPES.iter().filter(|(_, bit)| sources & bit != 0);
        let types: Vec<i32> = types.map(|row| row.0).collect();
        if types.is_empty() { only_host } else { types }
    }

    /// Packets that the interface of a tap has dropped for lack of room since it exists, as far as
    /// its driver counts them.
    pub fn dropped(&self) -> u64 {
        let name = self.tap.as_deref().unwrap_or_default();
        dropped_in(&Path::new("/sys/class/net").join(name).join("statistics"))
    }

    /// Opens the port with the least demanding of the options that work.
    ///
    /// # Errors
    /// The port's.
    pub fn open(&self, options: &PortOptions) -> sys::Result<Port> {
        let is_memory = |error: &Error| error.os_code() == Some(libc::ENOMEM);
        let mut options = options.clone();
        if self.tap.is_some() && options.ring_bytes != 0 {
            options.ring_bytes = options.ring_bytes.max(RING_BYTES_MIN);
        }
        if self.is_queue {
            (options.direction, options.tx_optional) = (Direction::Both, true);
        }
        if self.is_card {
            let both = PortOptions {
                direction: Direction::Both,
                ..options.clone()
            };
            if let Ok(port) = port::open(&self.port, &both) {
                return Ok(port);
            }
        }
        loop {
            let opened = port::open(&self.port, &options);
            let bytes = match options.ring_bytes {
                0 => RING_BYTES,
                bytes => bytes,
            };
            match &opened {
                // The ring is locked memory in one piece per block.
                Err(error) if self.tap.is_some() && is_memory(error) && bytes > RING_BYTES_MIN => {
                    options.ring_bytes = (bytes / 2).max(RING_BYTES_MIN);
                }
                _ => return opened,
            }
        }
    }
}

/// An interface's name without the label of an address (`eth0:1`, by `ifconfig`), which the kernel
/// ignores where libpcap looks up the interface. Options behind it stay.
fn without_label(name: &str) -> String {
    let (device, options) = name.split_at(name.find('?').unwrap_or(name.len()));
    let device = device.split(':').next().unwrap_or_default();
    format!("{device}{options}")
}

/// The sum of the counters that libpcap reads (`ps_ifdrop`), in a directory of the kernel; 0 for
/// those that are not there.
fn dropped_in(statistics: &Path) -> u64 {
    let counters = ["rx_missed_errors", "rx_fifo_errors"].into_iter();
    let texts = counters.filter_map(|name| std::fs::read_to_string(statistics.join(name)).ok());
    let numbers = texts.filter_map(|text| text.trim().parse::<u64>().ok());
    numbers.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_addresses_are_not_part_of_an_interface() {
        let cases = [
            ("lo:1", "lo", "afpacket:lo"),
            ("lo:web:2", "lo", "afpacket:lo"),
            ("lo:1?fanout=a:b", "lo", "afpacket:lo?fanout=a:b"),
            ("lo?x=a:b", "lo", "afpacket:lo?x=a:b"),
            ("afpacket:lo", "lo", "afpacket:lo"),
        ];
        for (name, tap, port) in cases {
            let device = Device::new(name);
            assert_eq!((device.tap.as_deref(), &*device.port), (Some(tap), port));
        }
        assert_eq!(Device::new("file:x:1").port, "file:x:1");
        for (name, port) in [
            ("nflog", "nflog:0"),
            ("nflog:7", "nflog:7"),
            ("nfqueue", "nfqueue:0"),
        ] {
            assert_eq!(Device::new(name).port, port);
        }
        // Neither a scheme nor an interface.
        assert_eq!(Device::new(":1").port, "afpacket:");
    }

    #[test]
    fn counters_of_the_interface_are_added() {
        let folder = std::env::temp_dir().join(format!("bw-pcap-device-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(dropped_in(&folder), 0);
        for (name, text) in [("rx_missed_errors", "3\n"), ("rx_fifo_errors", "4\n")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        std::fs::write(folder.join("rx_dropped"), "100\n").unwrap();
        assert_eq!(dropped_in(&folder), 7);
        std::fs::remove_dir_all(&folder).unwrap();
        // An interface without such counters, and a device that is none.
        assert_eq!(Device::new("no-such-interface").dropped(), 0);
        assert_eq!(Device::new("file:x").dropped(), 0);
    }
}
