//! The requested features, and why others are not requested (VIRTIO 1.2 §2.2, §5.1.3, §6).

use sys::{Error, ErrorKind, Result};

/// A set of feature bits, by number.
pub(super) type Features = u64;

/// The device may mark received packets as having a verified or an incomplete checksum (§5.1.6.4);
/// without this feature its flags are ignored.
pub(super) const GUEST_CSUM: Features = 1 << 1;
/// The device reports the maximum packet size.
pub(super) const MTU: Features = 1 << 3;
/// The device has an address.
pub(super) const MAC: Features = 1 << 5;
/// A packet may be in several receive buffers.
pub(super) const MRG_RXBUF: Features = 1 << 15;
/// The configuration has a status field.
pub(super) const STATUS: Features = 1 << 16;
/// There is a control queue.
pub(super) const CTRL_VQ: Features = 1 << 17;
/// The control queue sets the receive mode.
pub(super) const CTRL_RX: Features = 1 << 18;
/// It can block all kinds of packets, which stops the intake.
pub(super) const CTRL_RX_EXTRA: Features = 1 << 20;
/// Several queue pairs.
pub(super) const MQ: Features = 1 << 22;
/// Notifications are suppressed by position (§2.7.7, §2.7.10, §2.8.10).
pub(super) const EVENT_IDX: Features = 1 << 29;
/// The device follows VIRTIO 1.0 or later.
pub(super) const VERSION_1: Features = 1 << 32;
/// The device accesses memory through the platform's IOMMU.
pub(super) const ACCESS_PLATFORM: Features = 1 << 33;
/// Packed virtqueues.
pub(super) const RING_PACKED: Features = 1 << 34;
/// A feature bit, and whether this driver requests it.
pub(super) struct Feature {
    /// Number of the bit.
    pub bit: u8,
    /// Its name in the specification, without `VIRTIO_F_` and `VIRTIO_NET_F_`.
    pub name: &'static str,
    /// Why it is not requested; `None` if it is.
    pub refused: Option<&'static str>,
}

const fn accept(bit: u8, name: &'static str) -> Feature {
    let refused = None;
    Feature { bit, name, refused }
}

const fn refuse(bit: u8, name: &'static str, why: &'static str) -> Feature {
    let refused = Some(why);
    Feature { bit, name, refused }
}

const NO_SEGMENTS: &str = "packets are sent as they are, none is to be cut by the device";
const NO_MERGED: &str = "a packet must be what was on the wire, not several joined";
const NO_NEED: &str = "nothing here would use it";

/// Every feature that the specification defines for this device. Bits that are not listed are not
/// requested either.
pub(super) const FEATURES: &[Feature] = &[
    refuse(0, "CSUM", "packets are sent with their checksums"),
    accept(1, "GUEST_CSUM"),
    refuse(2, "CTRL_GUEST_OFFLOADS", "offloads stay as negotiated"),
    accept(3, "MTU"),
    accept(5, "MAC"),
    refuse(7, "GUEST_TSO4", NO_MERGED),
    refuse(8, "GUEST_TSO6", NO_MERGED),
    refuse(9, "GUEST_ECN", NO_MERGED),
    refuse(10, "GUEST_UFO", NO_MERGED),
    refuse(11, "HOST_TSO4", NO_SEGMENTS),
    refuse(12, "HOST_TSO6", NO_SEGMENTS),
    refuse(13, "HOST_ECN", NO_SEGMENTS),
    refuse(14, "HOST_UFO", NO_SEGMENTS),
    accept(15, "MRG_RXBUF"),
    accept(16, "STATUS"),
    accept(17, "CTRL_VQ"),
    accept(18, "CTRL_RX"),
    refuse(19, "CTRL_VLAN", "packets of every VLAN are received"),
    accept(20, "CTRL_RX_EXTRA"),
    refuse(21, "GUEST_ANNOUNCE", "a port has no addresses to announce"),
    accept(22, "MQ"),
    refuse(23, "CTRL_MAC_ADDR", "the address stays as it is"),
    refuse(
        28,
        "INDIRECT_DESC",
        "a packet takes one or two descriptors, and a table is one more read",
    ),
    accept(29, "EVENT_IDX"),
    accept(32, "VERSION_1"),
    accept(33, "ACCESS_PLATFORM"),
    accept(34, "RING_PACKED"),
    refuse(
        35,
        "IN_ORDER",
        "buffers are checked one by one as they come back",
    ),
    accept(36, "ORDER_PLATFORM"),
    refuse(37, "SR_IOV", NO_NEED),
    refuse(38, "NOTIFICATION_DATA", NO_NEED),
    refuse(39, "NOTIF_CONFIG_DATA", NO_NEED),
    refuse(40, "RING_RESET", "the whole device is reset, or nothing"),
    refuse(53, "NOTF_COAL", "notifications are off while polling"),
    refuse(54, "GUEST_USO4", NO_MERGED),
    refuse(55, "GUEST_USO6", NO_MERGED),
    refuse(56, "HOST_USO", NO_SEGMENTS),
    refuse(
        57,
        "HASH_REPORT",
        "the header would be 20 bytes, and few devices know a hash",
    ),
    refuse(59, "GUEST_HDRLEN", NO_SEGMENTS),
    refuse(60, "RSS", "the device's own steering keeps flows together"),
    refuse(61, "RSC_EXT", NO_MERGED),
    refuse(62, "STANDBY", "there is no primary device"),
    refuse(63, "SPEED_DUPLEX", NO_NEED),
];

/// All features to request if offered.
pub(super) fn wanted() -> Features {
    let wanted = FEATURES.iter().filter(|feature| feature.refused.is_none());
    wanted.fold(0, |set, feature| set | 1 << feature.bit)
}

/// Selects the features to request from those offered, with the dependencies of §5.1.3.1.
///
/// # Errors
/// `Unsupported` for a device without VERSION_1, which has only the legacy interface, and for one
/// without ACCESS_PLATFORM: it treats every address as one of the machine's memory and bypasses the
/// IOMMU (§6), so that device addresses, valid only in the IOMMU, would refer to other memory.
pub(super) fn choose(offered: Features) -> Result<Features> {
    let mut chosen = offered & wanted();
    let refuse = |why: &str, hint: &str| {
        let what = "start a virtio-net device";
        Err(Error::new(ErrorKind::Unsupported, what, why).with_hint(hint))
    };
    if chosen & VERSION_1 == 0 {
        return refuse(
            "it does not offer VIRTIO_F_VERSION_1: it has the legacy interface only",
            "with QEMU: -device virtio-net-pci,disable-legacy=on,iommu_platform=on",
        );
    }
    if chosen & ACCESS_PLATFORM == 0 {
        return refuse(
            "it does not offer VIRTIO_F_ACCESS_PLATFORM: it bypasses the IOMMU and would write \
             into foreign memory",
            "with QEMU: -device virtio-net-pci,disable-legacy=on,iommu_platform=on; or use the \
             kernel's driver (afxdp:INTERFACE)",
        );
    }
    if chosen & CTRL_VQ == 0 {
        chosen &= !(CTRL_RX | CTRL_RX_EXTRA | MQ);
    }
    Ok(chosen)
}

/// The names of the features in a set, for users.
pub(super) fn names(set: Features) -> String {
    let named = FEATURES
        .iter()
        .filter(|feature| set >> feature.bit & 1 != 0);
    let names: Vec<_> = named.map(|feature| feature.name).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_not_requested() {
        let chosen = choose(Features::MAX).unwrap();
        assert_eq!(chosen, wanted());
        // A feature that changes the format of packets or rings must never be accepted by accident.
        for bit in [7, 8, 10, 11, 28, 35, 38, 57, 61] {
            assert_eq!(chosen >> bit & 1, 0, "bit {bit}");
        }
        let mut bits: Vec<_> = FEATURES.iter().map(|feature| feature.bit).collect();
        bits.dedup();
        assert_eq!(bits.len(), FEATURES.len(), "every bit once, in order");
        assert!(bits.is_sorted());
    }

    #[test]
    fn features_that_need_the_control_queue_depend_on_it() {
        let base = VERSION_1 | ACCESS_PLATFORM;
        assert_eq!(choose(base | MQ | CTRL_RX).unwrap(), base);
        let all = base | MQ | CTRL_RX | CTRL_VQ;
        assert_eq!(choose(all).unwrap(), all);
        assert_eq!(names(VERSION_1 | MAC), "MAC VERSION_1");
    }

    #[test]
    fn a_legacy_device_is_refused() {
        let error = choose(MAC | MRG_RXBUF | ACCESS_PLATFORM).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("legacy"), "{error}");
    }

    #[test]
    fn a_device_that_bypasses_the_iommu_is_refused() {
        let error = choose(Features::MAX & !ACCESS_PLATFORM).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("IOMMU"), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("iommu_platform=on"), "{hint}");
    }
}
