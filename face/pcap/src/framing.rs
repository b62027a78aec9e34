//! Headers of the packets of an interface, by its hardware type (`include/uapi/linux/if_arp.h`):
//! its own, or Linux cooked ones where those are missing, as for PPP, or unknown. As in libpcap
//! 1.10.3, of whose types these are.

use sys::link::Link;

use crate::cooked;

/// `DLT_LINUX_IRDA`, `DLT_LINUX_LAPD`, `DLT_NETLINK`: a cooked header, and then no IP packet.
const IRDA: i32 = 144;
const LAPD: i32 = 177;
const NETLINK: i32 = 253;

/// Headers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// The device's own.
    #[default]
    Own,
    /// Cooked: packets of all interfaces.
    Any,
    /// Cooked, of one interface. Packets with the first version of the header have this link type,
    /// as a `DLT_` number.
    Cooked(i32),
    /// The same, since its hardware type is not known.
    Unknown(u16),
}

impl Framing {
    /// The headers of a tap on an interface.
    pub fn of(link: &Link) -> Self {
        match link.hardware {
            // ATM, PPP.
            19 | 512 => Self::Cooked(cooked::DLT_V1),
            783 => Self::Cooked(IRDA),
            8445 => Self::Cooked(LAPD),
            824 => Self::Cooked(NETLINK),
            // ISDN has several formats under the type of Ethernet.
            1 if is_isdn(&link.name) => Self::Cooked(cooked::DLT_V1),
            hardware if is_raw(hardware) => Self::Own,
            hardware => Self::Unknown(hardware),
        }
    }

    /// Whether packets get cooked headers.
    pub fn is_cooked(self) -> bool {
        self != Self::Own
    }

    /// The link type of packets with the first version of the cooked header.
    pub fn cooked_dlt(self) -> i32 {
        match self {
            Self::Cooked(dlt) => dlt,
            _ => cooked::DLT_V1,
        }
    }

    /// What the original leaves as the text of an error, although the device works.
    pub fn warning(self) -> Option<String> {
        let Self::Unknown(hardware) = self else {
            return None;
        };
        Some(format!(
            "arptype {hardware} not supported by libpcap - falling back to cooked socket"
        ))
    }
}

fn is_isdn(name: &str) -> bool {
    name.starts_with("isdn") || name.starts_with("isdY")
}

/// Whether the packets of a hardware type are delivered as they are.
fn is_raw(hardware: u16) -> bool {
    matches!(
        hardware,
        // Ethernet, Metricom, loopback; AX.25, Token Ring, ARCNET.
        1 | 23 | 772 | 3 | 6 | 800 | 7
            // Experimental Ethernet, ProNET, Chaosnet.
            | 2 | 4 | 5
            // Frame relay, SLIP in its variants, raw HDLC, IPIP, SIT, none: IP without a header.
            | 15 | 256..=259 | 264 | 518 | 768 | 776 | 0xfffe
            // Fibre Channel, Cisco HDLC, frame relay access, LocalTalk, FDDI.
            | 18 | 784..=787 | 513 | 770 | 773 | 774
            // 802.11 bare, with Prism and radiotap headers, 802.15.4, vsock monitor.
            | 801..=804 | 826
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_without_a_known_header_get_a_cooked_one() {
        let of = |hardware, name: &str| {
            Framing::of(&Link {
                name: name.into(),
                hardware,
                ..Link::default()
            })
        };
        for hardware in [1, 772, 776, 801, 0xfffe] {
            assert_eq!(of(hardware, "eth0"), Framing::Own);
        }
        assert_eq!(of(512, "ppp0"), Framing::Cooked(113));
        assert_eq!(of(1, "isdn0"), Framing::Cooked(113));
        assert_eq!(of(824, "nlmon0").cooked_dlt(), 253);
        // Tunnels in IPv6 and with GRE.
        for hardware in [769, 778, 4711] {
            let framing = of(hardware, "gre0");
            assert_eq!(framing, Framing::Unknown(hardware));
            assert!(framing.is_cooked() && framing.cooked_dlt() == 113);
            let text = framing.warning().unwrap();
            assert!(
                text.starts_with(&format!("arptype {hardware} not supported")),
                "{text}"
            );
        }
    }
}
