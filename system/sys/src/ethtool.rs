//! Properties of an interface that its driver reports: the `SIOCETHTOOL` requests that read (Linux
//! `include/uapi/linux/ethtool.h`). Only the module `steering` changes anything.
//!
//! A driver that does not know a request answers `EOPNOTSUPP`, which is reported as `None`.

mod rule;
mod steering;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Error, ErrorKind, Result};

pub use rule::{Fields, IpFields, Masked, Rule, RuleSpec};
pub use steering::{InstalledRule, NtupleFeature, RuleTable};

const GSET: u32 = 0x01;
const GDRVINFO: u32 = 0x03;
const GLINK: u32 = 0x0a;
const GRINGPARAM: u32 = 0x10;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GFLAGS: u32 = 0x25;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GET_TS_INFO: u32 = 0x41;
const GRSSH: u32 = 0x46;

/// `ETH_SS_STATS`, `ETH_SS_FEATURES`: the sets of names of statistics and features.
const STATISTICS_SET: u32 = 1;
const FEATURES_SET: u32 = 4;
/// Bytes of a name in a string set (`ETH_GSTRING_LEN`).
const NAME_LEN: usize = 32;
/// A limit on the kernel's reply: no driver has as many statistics or table entries.
const COUNT_MAX: usize = 65_536;

/// Driver and firmware, as `ethtool -i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// The driver's name.
    pub driver: String,
    /// Its version, often the kernel's.
    pub version: String,
    /// The card's firmware.
    pub firmware: String,
    /// Its address on its bus, for example `0000:01:00.0`.
    pub bus: String,
}

/// How many queues are in use and possible, as `ethtool -l` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Maximum number of receive-only queues.
    pub rx_max: u32,
    /// Maximum number of transmit-only queues.
    pub tx_max: u32,
    /// Maximum number of queues for both.
    pub combined_max: u32,
    /// Receive-only queues now.
    pub rx: u32,
    /// Transmit-only queues now.
    pub tx: u32,
    /// Queues for both now.
    pub combined: u32,
}

/// Entries of the card's rings, as `ethtool -g`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingSizes {
    /// Receive ring at most.
    pub rx_max: u32,
    /// Transmit ring at most.
    pub tx_max: u32,
    /// Receive ring now.
    pub rx: u32,
    /// Transmit ring now.
    pub tx: u32,
}

/// Receive-side scaling, as `ethtool -x`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Queue of each entry of the indirection table.
    pub table: Vec<u32>,
    /// The hash key.
    pub key: Vec<u8>,
    /// Hash functions in use: bit 0 Toeplitz, bit 1 XOR, bit 2 CRC32.
    pub functions: u8,
}

impl Rss {
    /// Whether the key gives both directions of a flow the same hash: a Toeplitz key that repeats
    /// every two bytes.
    pub fn is_symmetric(&self) -> bool {
        let even = self.key.len() & !1;
        self.functions & 1 != 0
            && even >= 4
            && self.key[..even]
                .chunks_exact(2)
                .all(|pair| pair == &self.key[..2])
    }
}

/// The offloads that matter here, as flags of `ethtool -k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Large receive offload: the card merges packets, so XDP cannot run.
    pub lro: bool,
    /// Steering rules may be set.
    pub ntuple: bool,
    /// The card delivers its hash with each packet.
    pub rx_hash: bool,
    /// The card removes VLAN tags from received packets.
    pub rx_vlan: bool,
    /// The card inserts VLAN tags into sent packets.
    pub tx_vlan: bool,
}

/// The socket for requests.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    /// `struct ifreq` is as long as its longest member.
    rest: [u8; 16],
}

impl Ethtool {
    /// Opens a socket for requests; needs no privileges.
    pub fn open() -> Result<Self> {
        // SAFETY: a plain system call.
        let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(Error::last_os("open a socket for ethtool"));
        }
        // SAFETY: the descriptor was just returned to us.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { socket })
    }

    /// Sends a request as [`request`](Self::request) does. `None` where the driver does not know
    /// it.
    fn ask(&self, interface: &str, words: &mut [u32]) -> Result<Option<()>> {
        let Err(error) = self.request(interface, words)? else {
            return Ok(Some(()));
        };
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM) => Ok(None),
            _ => {
                let what = format!("query the driver of {interface:?}");
                Err(Error::from_io(what, error))
            }
        }
    }

    /// Sends a request whose first word is the command; the kernel answers in place.
    ///
    /// The caller must size `words` so that the answer fits: the kernel writes no more than the
    /// sizes in the request's header allow.
    ///
    /// # Errors
    /// If the interface does not exist; every other error of the system is in the inner result.
    fn request(&self, interface: &str, words: &mut [u32]) -> Result<io::Result<()>> {
        let mut name = [0; libc::IFNAMSIZ];
        if interface.len() >= name.len() {
            let why = "interface names have at most 15 bytes";
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("query {interface:?}"),
                why,
            ));
        }
        name[..interface.len()].copy_from_slice(interface.as_bytes());
        let mut request = Request {
            name,
            data: words.as_mut_ptr().cast(),
            rest: [0; 16],
        };
        // SAFETY: `request` has the layout of `struct ifreq`; `data` leads to a buffer that each
        // caller sized for its command.
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::SIOCETHTOOL as _,
                &raw mut request,
            )
        };
        if result >= 0 {
            return Ok(Ok(()));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENODEV) => {
                let what = format!("query the driver of {interface:?}");
                Err(Error::from_io(what, error)
                    .with_why("there is no such interface")
                    .with_hint("`barewire devices` lists the interfaces"))
            }
            _ => Ok(Err(error)),
        }
    }

    /// Driver, version, firmware and bus address.
    pub fn driver_info(&self, interface: &str) -> Result<Option<DriverInfo>> {
        // struct ethtool_drvinfo: cmd, 5 × 32 bytes, 12 bytes, 5 words.
        let mut words = [0; 1 + 40 + 3 + 5];
        words[0] = GDRVINFO;
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let text = |at: usize| text_of(&bytes_of(&words[1 + 8 * at..9 + 8 * at]));
        Ok(Some(DriverInfo {
            driver: text(0),
            version: text(1),
            firmware: text(2),
            bus: text(3),
        }))
    }

    /// Queue counts.
    pub fn channels(&self, interface: &str) -> Result<Option<Channels>> {
        let mut words = [0; 9];
        words[0] = GCHANNELS;
        let [_, rx_max, tx_max, _, combined_max, rx, tx, _, combined] =
            match self.ask(interface, &mut words)? {
                Some(()) => words,
                None => return Ok(None),
            };
        Ok(Some(Channels {
            rx_max,
            tx_max,
            combined_max,
            rx,
            tx,
            combined,
        }))
    }

    /// Ring sizes.
    pub fn ring_sizes(&self, interface: &str) -> Result<Option<RingSizes>> {
        let mut words = [0; 9];
        words[0] = GRINGPARAM;
        let [_, rx_max, _, _, tx_max, rx, _, _, tx] = match self.ask(interface, &mut words)? {
            Some(()) => words,
            None => return Ok(None),
        };
        Ok(Some(RingSizes {
            rx_max,
            tx_max,
            rx,
            tx,
        }))
    }

    /// Indirection table, key and hash functions.
    pub fn rss(&self, interface: &str) -> Result<Option<Rss>> {
        // struct ethtool_rxfh: cmd, rss_context, indir_size, key_size, hfunc and padding, reserved;
        // then the data.
        let mut head = [GRSSH, 0, 0, 0, 0, 0];
        if self.ask(interface, &mut head)?.is_none() {
            return Ok(None);
        }
        let (table_len, key_len) = (head[2] as usize, head[3] as usize);
        if table_len > COUNT_MAX || key_len > COUNT_MAX || table_len + key_len == 0 {
            return Ok(None);
        }
        let mut words = vec![0; 6 + table_len + key_len.div_ceil(4)];
        words[0] = GRSSH;
        (words[2], words[3]) = (head[2], head[3]);
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let mut key = bytes_of(&words[6 + table_len..]);
        key.truncate(key_len);
        let table = words[6..6 + table_len].to_vec();
        Ok(Some(Rss {
            table,
            key,
            functions: words[4].to_ne_bytes()[0],
        }))
    }

    /// Offload flags.
    pub fn offloads(&self, interface: &str) -> Result<Option<Offloads>> {
        let mut words = [GFLAGS, 0];
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let bit = |n: u32| words[1] & (1 << n) != 0;
        Ok(Some(Offloads {
            lro: bit(15),
            ntuple: bit(27),
            rx_hash: bit(28),
            rx_vlan: bit(8),
            tx_vlan: bit(7),
        }))
    }

    /// Whether packets longer than the MTU may be received or sent: a kind of segmentation, of GRO
    /// or LRO is on, in the card or in the kernel. `None` if that is not known.
    pub fn merges(&self, interface: &str) -> Result<Option<bool>> {
        // Segmentation inside tunnels has no effect without that of the inner protocol.
        const OTHERS: [&str; 6] = [
            "rx-lro",
            "tx-generic-segmentation",
            "tx-gso-list",
            "tx-sctp-segmentation",
            "tx-udp-fragmentation",
            "tx-udp-segmentation",
        ];
        let merges = |name: &String| {
            let is_other = OTHERS.contains(&name.as_str());
            is_other || name.starts_with("tx-tcp") || name.starts_with("rx-gro")
        };
        let features = self.active_features(interface)?;
        Ok(features.map(|names| names.iter().any(merges)))
    }

    /// The names of the features that are on, as `ethtool -k` shows them.
    fn active_features(&self, interface: &str) -> Result<Option<Vec<String>>> {
        Ok(self.features(interface)?.map(|(names, blocks)| {
            let is_on = |at: usize| blocks[at / 32 * 4 + 2] & 1 << (at % 32) != 0;
            let active = names.into_iter().enumerate().filter(|(at, _)| is_on(*at));
            active.map(|(_, name)| name).collect()
        }))
    }

    /// The names of the features (`netdev_features_strings` in net/ethtool/common.c), and four
    /// words for each 32 of them: available, requested, active, never changed. `None` if there are
    /// none.
    fn features(&self, interface: &str) -> Result<Option<(Vec<String>, Vec<u32>)>> {
        let Some(names) = self.names(interface, FEATURES_SET)? else {
            return Ok(None);
        };
        // struct ethtool_gfeatures: cmd, size, then the blocks.
        let size = names.len().div_ceil(32);
        let mut words = vec![0; 2 + 4 * size];
        (words[0], words[1]) = (GFEATURES, size as u32);
        let asked = self.ask(interface, &mut words)?;
        Ok(asked.map(|()| (names, words.split_off(2))))
    }

    /// Speed of the link in megabits per second; `None` also if the driver does not know it.
    pub fn speed_mbps(&self, interface: &str) -> Result<Option<u32>> {
        // struct ethtool_cmd, 44 bytes: the speed's low half is at byte 12, its high half at byte
        // 28.
        let mut words = [0; 11];
        words[0] = GSET;
        let asked = self.ask(interface, &mut words)?;
        let speed = (words[7] & 0xffff) << 16 | (words[3] & 0xffff);
        Ok(asked
            .map(|()| speed)
            .filter(|&speed| speed != 0 && speed != u32::MAX && speed != 0xffff))
    }

    /// Whether the link is up, according to the driver.
    pub fn has_link(&self, interface: &str) -> Result<Option<bool>> {
        let mut words = [GLINK, 0];
        Ok(self.ask(interface, &mut words)?.map(|()| words[1] != 0))
    }

    /// Whether the card can record the arrival time of every received packet:
    /// `SOF_TIMESTAMPING_RX_HARDWARE` and the filter for all packets.
    pub fn stamps_all_packets(&self, interface: &str) -> Result<Option<bool>> {
        let known = self.timestamping(interface)?;
        Ok(known.map(|[sources, filters]| sources & (1 << 2) != 0 && filters & (1 << 1) != 0))
    }

    /// The timestamps that the driver can provide: bits of `SOF_TIMESTAMPING_`, and of the filters
    /// of received packets (`1 << HWTSTAMP_FILTER_`).
    pub fn timestamping(&self, interface: &str) -> Result<Option<[u32; 2]>> {
        // struct ethtool_ts_info: cmd, so_timestamping, phc_index, tx_types, 3 reserved,
        // rx_filters, 3 reserved.
        let mut words = [0; 11];
        words[0] = GET_TS_INFO;
        let asked = self.ask(interface, &mut words)?;
        Ok(asked.map(|()| [words[1], words[7]]))
    }

    /// The driver's own counters, as `ethtool -S`: name and value.
    pub fn statistics(&self, interface: &str) -> Result<Option<Vec<(String, u64)>>> {
        let Some(names) = self.names(interface, STATISTICS_SET)? else {
            return Ok(None);
        };
        let count = names.len();
        // As for the names: the set may grow.
        let mut values = vec![0; 2 + 2 * 2 * count];
        (values[0], values[1]) = (GSTATS, count as u32);
        let asked = self.ask(interface, &mut values)?;
        let value = |at: usize| u64::from(values[3 + 2 * at]) << 32 | u64::from(values[2 + 2 * at]);
        let named = names.into_iter().enumerate();
        Ok(asked.map(|()| named.map(|(at, name)| (name, value(at))).collect()))
    }

    /// The names in a set; `None` also if there is none.
    fn names(&self, interface: &str, set: u32) -> Result<Option<Vec<String>>> {
        let Some(count) = self.count_of(interface, set)? else {
            return Ok(None);
        };
        // struct ethtool_gstrings: cmd, string_set, len; then the names. If queues are added
        // between the calls the set of statistics grows, and the kernel writes as many names as it
        // has; so there is room for twice as many.
        let mut words = vec![0; 3 + 2 * count * NAME_LEN / 4];
        (words[0], words[1], words[2]) = (GSTRINGS, set, count as u32);
        let asked = self.ask(interface, &mut words)?;
        let bytes = bytes_of(&words[3..]);
        let names = bytes.chunks_exact(NAME_LEN).take(count).map(text_of);
        Ok(asked.map(|()| names.collect()))
    }

    /// Number of names in a set; `None` also if there is none.
    fn count_of(&self, interface: &str, set: u32) -> Result<Option<usize>> {
        // struct ethtool_sset_info: cmd, reserved, a mask of 64 bits, then a count for each bit.
        let mut info = [GSSET_INFO, 0, 1 << set, 0, 0];
        let asked = self.ask(interface, &mut info)?;
        let count = info[4] as usize;
        Ok(asked.and((1..=COUNT_MAX).contains(&count).then_some(count)))
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Text up to the first zero byte.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback passes on packets of 64 KiB unless its features were turned off.
    #[test]
    fn loopback_merges_packets() {
        let ethtool = Ethtool::open().unwrap();
        if ethtool.names("lo", FEATURES_SET).unwrap().is_none() {
            skip::skip!("the kernel does not report the features of loopback");
        }
        let features = ethtool.active_features("lo").unwrap().unwrap();
        assert!(features.contains(&"loopback".to_owned()), "{features:?}");
        assert_eq!(ethtool.merges("lo").unwrap(), Some(true), "{features:?}");
    }

    #[test]
    fn unknown_interface_is_not_found() {
        let error = Ethtool::open()
            .unwrap()
            .driver_info("no-such-if")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.hint().is_some());
        assert!(
            Ethtool::open()
                .unwrap()
                .channels("a name that is far too long")
                .is_err()
        );
    }

    #[test]
    fn symmetric_keys_are_recognised() {
        let key = [0x6d, 0x5a].repeat(20);
        let mut rss = Rss {
            table: vec![0, 1],
            key,
            functions: 1,
        };
        assert!(rss.is_symmetric());
        rss.key[7] = 0;
        assert!(!rss.is_symmetric());
    }
}
