//! Device names of PF_RING, as names of ports.

use port::BACKENDS;
use sys::ethtool::Ethtool;
use sys::link::Link;

use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN_ADAPTER};

/// Maximum length of a name; those of files can be long.
const LEN_MAX: usize = 4096;

/// Largest number of channels that programs have room for (`MAX_NUM_RX_CHANNELS`).
pub const CHANNEL_COUNT_MAX: u32 = 64;

/// The device of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Names of ports; the first that can be opened is used.
    pub ports: Vec<String>,
    /// The interface, if it is one.
    pub interface: Option<String>,
    /// Whether packets are taken from the host, as by PF_RING ZC.
    pub is_bypass: bool,
}

impl Device {
    /// Interprets a name:
    ///
    /// - `eth0`, `any`: a tap, like PF_RING with the driver of the kernel;
    /// - `zc:eth0`, `zc:eth0@2` (queue 2): AF_XDP, and without a queue AF_PACKET where AF_XDP is
    ///   not possible;
    /// - `zc:99@3`: queue 3 of the cluster 99;
    /// - `pcap:FILE`: a capture file;
    /// - any name of a port with its scheme (`afxdp:eth0`, `file:trace.pcap`).
    ///
    /// # Errors
    /// The status of `pf_ring.h`.
    pub fn new(name: &str) -> Result<Self, i32> {
        if name.is_empty() || name.len() > LEN_MAX {
            return Err(INVALID_ARGUMENT);
        }
        if let Some(rest) = name.strip_prefix("zc:") {
            return Self::zero_copy(rest);
        }
        if let Some(file) = name.strip_prefix("pcap:") {
            return Ok(Self::port(format!("file:{file}")));
        }
        if let Some((scheme, _)) = name.split_once(':')
            && BACKENDS.iter().any(|row| row.scheme == scheme)
        {
            return Ok(Self::port(name.to_owned()));
        }
        if name.contains([':', ';', ',', '@']) {
            // Other modules of PF_RING, several interfaces, a queue of a tap.
            return Err(NOT_SUPPORTED);
        }
        exists(name)?;
        Ok(Self {
            ports: vec![format!("afpacket:{name}")],
            interface: Some(name.to_owned()),
            is_bypass: false,
        })
    }

    fn zero_copy(name: &str) -> Result<Self, i32> {
        let (target, queue) = match name.split_once('@') {
            Some((target, queue)) => (target, Some(number(queue)?)),
            None => (name, None),
        };
        if target.bytes().all(|byte| byte.is_ascii_digit()) {
            let cluster = number(target)?;
            let queue = queue.map_or(String::new(), |queue| format!("/{queue}"));
            return Ok(Self::port(format!("ring:{cluster}{queue}")));
        }
        exists(target)?;
        let ports = match queue {
            Some(queue) => vec![format!("afxdp:{target}/{queue}")],
            None => vec![format!("afxdp:{target}"), format!("afpacket:{target}")],
        };
        Ok(Self {
            ports,
            interface: Some(target.to_owned()),
            is_bypass: true,
        })
    }

    fn port(name: String) -> Self {
        Self {
            ports: vec![name],
            interface: None,
            is_bypass: false,
        }
    }

    /// The speed of the interface in Mbit/s, if its driver knows it.
    pub fn speed_mbps(&self) -> Option<u32> {
        speed_mbps(self.interface.as_deref()?)
    }

    /// Number of receive queues of the interface, at most [`CHANNEL_COUNT_MAX`]; 1 if unknown.
    pub fn channel_count(&self) -> u32 {
        let created = self.link().map_or(1, |link| link.rx_queue_max);
        let name = self.interface.as_deref().unwrap_or_default();
        let known = Ethtool::open().and_then(|ethtool| ethtool.channels(name));
        let used = known.ok().flatten().map(|it| it.rx + it.combined);
        let count = used.filter(|&used| used != 0).unwrap_or(created);
        count.clamp(1, CHANNEL_COUNT_MAX)
    }

    /// The interface, with its present address and index.
    pub fn link(&self) -> Option<Link> {
        Link::by_name(self.interface.as_deref()?).ok()
    }
}

/// The speed of an interface in Mbit/s, if its driver knows it.
pub fn speed_mbps(interface: &str) -> Option<u32> {
    let speed = Ethtool::open().and_then(|ethtool| ethtool.speed_mbps(interface));
    speed.ok().flatten()
}

fn number(text: &str) -> Result<u32, i32> {
    text.parse().map_err(|_| INVALID_ARGUMENT)
}

fn exists(interface: &str) -> Result<(), i32> {
    match interface == "any" || Link::by_name(interface).is_ok() {
        true => Ok(()),
        false => Err(UNKNOWN_ADAPTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pf_ring_are_names_of_ports() {
        let ports = |name| Device::new(name).map(|device| device.ports);
        for (name, expected) in [
            ("lo", &["afpacket:lo"][..]),
            ("any", &["afpacket:any"]),
            ("zc:lo", &["afxdp:lo", "afpacket:lo"]),
            ("zc:lo@2", &["afxdp:lo/2"]),
            ("zc:99@3", &["ring:99/3"]),
            ("zc:99", &["ring:99"]),
            ("pcap:a.pcap", &["file:a.pcap"]),
            ("afxdp:lo?attach=generic", &["afxdp:lo?attach=generic"]),
        ] {
            let expected: Vec<String> = expected.iter().map(|&text| text.to_owned()).collect();
            assert_eq!(ports(name), Ok(expected), "{name}");
        }
        for (name, status) in [
            ("", INVALID_ARGUMENT),
            ("zc:", INVALID_ARGUMENT),
            ("zc:lo@x", INVALID_ARGUMENT),
            ("no-such-interface", UNKNOWN_ADAPTER),
            ("zc:no-such-one", UNKNOWN_ADAPTER),
            ("lo@1", NOT_SUPPORTED),
            ("lo,lo", NOT_SUPPORTED),
            ("dag:0", NOT_SUPPORTED),
        ] {
            assert_eq!(ports(name), Err(status), "{name}");
        }
        assert_eq!(ports(&"x".repeat(LEN_MAX + 1)), Err(INVALID_ARGUMENT));
    }
}
