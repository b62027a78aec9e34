//! Interfaces: their properties, XDP programs and events (rtnetlink and the generic family
//! `netdev`; drivers' information is in [`ethtool`](crate::ethtool)).
//!
//! All requests are for the network namespace of the calling thread; `/sys`, which may show another
//! one, is not read.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::netlink::{
    Message, NLM_F_DUMP, Notice, Reply, Socket, attributes, number, number_u32, text,
};
use crate::{Error, ErrorKind, Result};

/// Bytes of `struct ifinfomsg`.
const INFO_LEN: usize = 16;
/// `RTNLGRP_LINK`.
const GROUP_LINK: u32 = 1;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_XDP: u16 = 43;
const IFLA_CARRIER_DOWN_COUNT: u16 = 48;
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// Where an XDP program is attached, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpPlace {
    /// In the driver.
    Native,
    /// In the stack.
    Generic,
    /// On the card.
    Offload,
}

impl XdpPlace {
    /// Its name in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offload => "offload",
        }
    }
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpAttached {
    /// Where.
    pub place: XdpPlace,
    /// The kernel's number for the program.
    pub program_id: u32,
}

/// Counters of an interface, in packets unless noted otherwise (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received with errors.
    pub rx_errors: u64,
    /// Failed to send.
    pub tx_errors: u64,
    /// Received and dropped because the kernel had no memory for them.
    pub rx_dropped: u64,
    /// Dropped before they were sent.
    pub tx_dropped: u64,
    /// Lost by the card because its ring was full.
    pub rx_missed: u64,
}

/// The kernel's information about an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number, in this namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Hardware type (`ARPHRD_`): 1 is Ethernet, 772 loopback.
    pub hardware: u16,
    /// `IFF_` flags.
    pub flags: u32,
    /// Largest packet without the link header, in bytes.
    pub mtu: u32,
    /// Largest packet that the stack builds from several (GSO, GRO), without the link header, in
    /// bytes; 0 if the kernel does not report it.
    pub merged_max: u32,
    /// Hardware address.
    pub address: Vec<u8>,
    /// Kind of virtual interface (`veth`, `bond`, …); empty for a card.
    pub kind: String,
    /// The interface on top of which this one is or, for a veth, the other end (`IFLA_LINK`), if
    /// that is in this namespace; 0 if there is none.
    pub linked: u32,
    /// The bridge, bond or other interface that it is a port of; 0 if there is none.
    pub master: u32,
    /// Number of receive queues that it was created with; fewer may be in use, see
    /// [`Ethtool::channels`](crate::ethtool::Ethtool::channels).
    pub rx_queue_max: u32,
    /// Number of transmit queues that it was created with.
    pub tx_queue_max: u32,
    /// How often it lost its carrier (since Linux 4.16; 0 before).
    pub carrier_downs: u32,
    /// XDP programs on it now.
    pub xdp: Vec<XdpAttached>,
    /// Counters.
    pub stats: LinkStats,
}

impl Link {
    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Whether packets can pass: it is up, and has a carrier.
    pub fn is_running(&self) -> bool {
        let both = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        self.flags & both == both
    }

    /// Looks one up by name.
    ///
    /// # Errors
    /// `NotFound`, with the names that there are.
    pub fn by_name(name: &str) -> Result<Self> {
        let what = format!("find the interface {name:?}");
        // The kernel answers longer names with a misleading error (numerical result out of range).
        let absent = name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0');
        let found = if absent {
            Err(Error::new(ErrorKind::NotFound, &what, ""))
        } else {
            let ask = Message::new(libc::RTM_GETLINK, 0).raw(&[0; INFO_LEN]);
            Socket::route()?.request(&what, ask.attr_text(IFLA_IFNAME, name))
        };
        match found {
            Ok(replies) => Self::first(&what, &replies),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let error = error.with_why("there is no such interface");
                // An argument without a slash was treated as the name of an interface.
                let hint = match std::path::Path::new(name).exists() {
                    true => format!("for the file or directory of this name write ./{name}"),
                    false => names_hint(),
                };
                Err(error.with_hint(hint))
            }
            Err(error) => Err(error),
        }
    }

    /// Looks one up by index.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    pub fn by_index(index: u32) -> Result<Self> {
        Self::ask_by_index(&mut Socket::route()?, index)
    }

    /// As [`Link::by_index`], through a socket that is already open (and in its namespace).
    pub fn ask_by_index(socket: &mut Socket, index: u32) -> Result<Self> {
        let what = format!("find interface {index}");
        let mut info = [0; INFO_LEN];
        info[4..8].copy_from_slice(&index.to_ne_bytes());
        let replies = socket.request(&what, Message::new(libc::RTM_GETLINK, 0).raw(&info))?;
        Self::first(&what, &replies)
    }

    /// All interfaces of this namespace, by index.
    pub fn all() -> Result<Vec<Self>> {
        let ask = Message::new(libc::RTM_GETLINK, NLM_F_DUMP).raw(&[0; INFO_LEN]);
        let replies = Socket::route()?.request("list the interfaces", ask)?;
        let mut links: Vec<Self> = replies.iter().filter_map(Self::parse).collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    fn first(what: &str, replies: &[Reply]) -> Result<Self> {
        let damaged = || {
            Error::new(
                ErrorKind::Damaged,
                what,
                "the kernel's reply is not an interface",
            )
        };
        replies.iter().find_map(Self::parse).ok_or_else(damaged)
    }

    /// Parses a `RTM_NEWLINK` or `RTM_DELLINK` message.
    pub(crate) fn parse(reply: &Reply) -> Option<Self> {
        if !matches!(reply.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK) {
            return None;
        }
        let head = reply.body.first_chunk::<INFO_LEN>()?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let mut link = Self {
            hardware: u16::from_ne_bytes([head[2], head[3]]),
            index: word(4),
            flags: word(8),
            ..Self::default()
        };
        let mut elsewhere = false;
        for (kind, value) in reply.attributes(INFO_LEN) {
            match kind {
                IFLA_LINK => link.linked = number_u32(value),
                IFLA_MASTER => link.master = number_u32(value),
                IFLA_LINK_NETNSID => elsewhere = true,
                IFLA_ADDRESS => link.address = value.to_vec(),
                IFLA_IFNAME => link.name = text(value),
                IFLA_MTU => link.mtu = number_u32(value),
                IFLA_GSO_MAX_SIZE
                | IFLA_GRO_MAX_SIZE
                | IFLA_GSO_IPV4_MAX_SIZE
                | IFLA_GRO_IPV4_MAX_SIZE => {
                    link.merged_max = link.merged_max.max(number_u32(value));
                }
                IFLA_NUM_TX_QUEUES => link.tx_queue_max = number_u32(value),
                IFLA_NUM_RX_QUEUES => link.rx_queue_max = number_u32(value),
                IFLA_LINKINFO => {
                    let kind = attributes(value).find(|&(kind, _)| kind == IFLA_INFO_KIND);
                    link.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
                }
                IFLA_STATS64 => link.stats = parse_stats(value),
                IFLA_CARRIER_DOWN_COUNT => link.carrier_downs = number_u32(value),
                IFLA_XDP => link.xdp = parse_xdp(value),
                _ => {}
            }
        }
        if elsewhere {
            link.linked = 0;
        }
        Some(link)
    }
}

/// The existing names, for a hint.
fn names_hint() -> String {
    let names: Vec<String> = Link::all().map_or_else(
        |_| Vec::new(),
        |links| links.into_iter().map(|link| link.name).collect(),
    );
    const SHOWN_MAX: usize = 12;
    let more = if names.len() > SHOWN_MAX { ", …" } else { "" };
    format!(
        "interfaces here: {}{more}",
        names[..names.len().min(SHOWN_MAX)].join(", ")
    )
}

fn parse_stats(value: &[u8]) -> LinkStats {
    let word = |index: usize| {
        let bytes = value.get(index * 8..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    LinkStats {
        rx_packets: word(0),
        tx_packets: word(1),
        rx_bytes: word(2),
        tx_bytes: word(3),
        rx_errors: word(4),
        tx_errors: word(5),
        rx_dropped: word(6),
        tx_dropped: word(7),
        rx_missed: word(15),
    }
}

fn parse_xdp(value: &[u8]) -> Vec<XdpAttached> {
    let mut found = Vec::new();
    let (mut mode, mut single) = (0, 0);
    for (kind, value) in attributes(value) {
        let place = match kind {
            IFLA_XDP_ATTACHED => {
                mode = number_u32(value);
                continue;
            }
            IFLA_XDP_PROG_ID => {
                single = number_u32(value);
                continue;
            }
            IFLA_XDP_DRV_PROG_ID => XdpPlace::Native,
            IFLA_XDP_SKB_PROG_ID => XdpPlace::Generic,
            IFLA_XDP_HW_PROG_ID => XdpPlace::Offload,
            _ => continue,
        };
        found.push(XdpAttached {
            place,
            program_id: number_u32(value),
        });
    }
    // Kernels before 4.19 report only the mode and one id.
    if found.is_empty() && single != 0 {
        let place = match mode {
            2 => XdpPlace::Generic,
            3 => XdpPlace::Offload,
            _ => XdpPlace::Native,
        };
        found.push(XdpAttached {
            place,
            program_id: single,
        });
    }
    found
}

/// What a driver can do for XDP (generic family `netdev`, Since Linux 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Bits of `enum netdev_xdp_act`; see the constants.
    pub bits: u64,
    /// Most buffers per packet in zero-copy mode; 1 means no multi-buffer support.
    pub zero_copy_segments_max: u32,
    /// Bits of `enum netdev_xdp_rx_metadata`: 1 timestamp, 2 hash, 4 VLAN tag.
    pub rx_metadata: u64,
    /// Bits of `enum netdev_xsk_flags`: 1 TX timestamp, 2 TX checksum, 4 launch time.
    pub tx_metadata: u64,
}

impl XdpFeatures {
    /// The driver runs XDP programs.
    pub const BASIC: u64 = 1 << 0;
    /// It can redirect packets to other devices.
    pub const REDIRECT: u64 = 1 << 1;
    /// It can send packets redirected from other devices.
    pub const NDO_XMIT: u64 = 1 << 2;
    /// It supports AF_XDP zero-copy.
    pub const ZERO_COPY: u64 = 1 << 3;
    /// It can pass packets of several buffers to programs.
    pub const RX_SG: u64 = 1 << 5;
    /// It can send redirected packets of several buffers.
    pub const NDO_XMIT_SG: u64 = 1 << 6;

    /// RX metadata: arrival time.
    pub const META_TIMESTAMP: u64 = 1 << 0;
    /// RX metadata: flow hash.
    pub const META_HASH: u64 = 1 << 1;
    /// RX metadata: VLAN tag.
    pub const META_VLAN: u64 = 1 << 2;

    /// Whether it has all these bits.
    pub fn has(&self, bits: u64) -> bool {
        self.bits & bits == bits
    }

    /// Queries an interface.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.3.
    pub fn of(index: u32) -> Result<Self> {
        const DEV_GET: u8 = 1;
        const ATTR_INDEX: u16 = 1;
        let mut socket = Socket::generic()?;
        let family = socket.family("netdev")?;
        let ask = Message::generic(family.id, DEV_GET, 0).attr_u32(ATTR_INDEX, index);
        let replies = socket.request(&format!("query XDP on interface {index}"), ask)?;
        let mut features = Self::default();
        for (kind, value) in replies.iter().flat_map(Reply::generic_attributes) {
            match kind {
                3 => features.bits = number(value).unwrap_or(0),
                4 => features.zero_copy_segments_max = number_u32(value),
                5 => features.rx_metadata = number(value).unwrap_or(0),
                6 => features.tx_metadata = number(value).unwrap_or(0),
                _ => {}
            }
        }
        Ok(features)
    }
}

/// An event of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It exists and has this state: it is new, or something about it changed.
    Changed(Box<Link>),
    /// It has disappeared from this namespace.
    Removed(u32),
    /// Some events were lost: query the state again.
    Overrun,
}

/// Receives the events of all interfaces in the namespace in which it was opened. Needs no
/// privileges.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
}

impl LinkMonitor {
    /// Starts listening.
    pub fn open() -> Result<Self> {
        let socket = Socket::route()?;
        socket.join(GROUP_LINK)?;
        Ok(Self { socket })
    }

    /// The next event, if there is one. Never blocks.
    pub fn event(&mut self) -> Result<Option<LinkEvent>> {
        loop {
            let reply = match self.socket.notice()? {
                None => return Ok(None),
                Some(Notice::Overrun) => return Ok(Some(LinkEvent::Overrun)),
                Some(Notice::Message(reply)) => reply,
            };
            // A bridge reports its ports in the same group, with its own family.
            if reply.body.first() != Some(&0) {
                continue;
            }
            if let Some(link) = Link::parse(&reply) {
                return Ok(Some(match reply.kind {
                    libc::RTM_DELLINK => LinkEvent::Removed(link.index),
                    _ => LinkEvent::Changed(Box::new(link)),
                }));
            }
        }
    }

    /// Waits for an event, at most `timeout_ms`. True if there is one.
    pub fn wait(&self, timeout_ms: i32) -> Result<bool> {
        self.socket.wait(timeout_ms)
    }

    /// The descriptor, for polling together with others; readable when there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.socket.as_fd()
    }
}

/// Keeps an interface in promiscuous mode as long as this value exists, and no longer: the kernel
/// counts the users, and those of a dead process end with it.
#[derive(Debug)]
pub struct Promiscuous {
    _fd: OwnedFd,
}

impl Promiscuous {
    /// Starts. Needs CAP_NET_RAW.
    pub fn hold(index: u32) -> Result<Self> {
        let what = "set promiscuous mode";
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // Protocol 0: this socket receives nothing.
        // SAFETY: no pointers; a new descriptor or an error.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(Error::last_os(what));
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a struct of plain integers; all zero is a value.
        let mut membership: libc::packet_mreq = unsafe { std::mem::zeroed() };
        membership.mr_ifindex = index as i32;
        membership.mr_type = libc::PACKET_MR_PROMISC as u16;
        // SAFETY: the value is live and as long as stated.
        let result = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                std::ptr::from_ref(&membership).cast(),
                size_of::<libc::packet_mreq>() as u32,
            )
        };
        if result < 0 {
            return Err(Error::last_os(what));
        }
        Ok(Self { _fd: fd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known() {
        let lo = Link::by_name("lo").unwrap();
        assert_eq!((lo.hardware, lo.name.as_str()), (772, "lo"));
        assert!(lo.mtu >= 1500 && lo.rx_queue_max >= 1 && lo.xdp.is_empty());
        let same = Link::by_index(lo.index).unwrap();
        assert_eq!((same.name, same.mtu), (lo.name.clone(), lo.mtu));
        assert!(
            Link::all()
                .unwrap()
                .iter()
                .any(|link| link.index == lo.index)
        );
    }

    #[test]
    fn unknown_names_are_reported_with_the_known_ones() {
        for name in ["no-such-if0", "", "a-name-longer-than-fifteen", "a\0b"] {
            let error = Link::by_name(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{name:?}: {error}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("lo")),
                "{error}"
            );
        }
    }

    #[test]
    fn xdp_attributes_of_old_and_new_kernels() {
        let attr = |kind: u16, value: &[u8]| {
            let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let id = 7u32.to_ne_bytes();
        let old = [attr(IFLA_XDP_ATTACHED, &[2]), attr(IFLA_XDP_PROG_ID, &id)].concat();
        let generic = XdpAttached {
            place: XdpPlace::Generic,
            program_id: 7,
        };
        assert_eq!(parse_xdp(&old), [generic]);
        let new = [old, attr(IFLA_XDP_SKB_PROG_ID, &id)].concat();
        assert_eq!(parse_xdp(&new), [generic]);
        assert_eq!(parse_xdp(&attr(IFLA_XDP_ATTACHED, &[0])), []);
    }
}
