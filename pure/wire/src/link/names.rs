//! Names of the link types that are not dissected, as libpcap prints them.

/// Number in capture files, and name; ascending.
const NAMES: [(u16, &str); 86] = [
    (19, "ATM_CLIP"),
    (114, "LTALK"),
    (132, "JUNIPER_ES"),
    (139, "MTP2_WITH_PHDR"),
    (140, "MTP2"),
    (141, "MTP3"),
    (142, "SCCP"),
    (143, "DOCSIS"),
    (144, "LINUX_IRDA"),
    (165, "BACNET_MS_TP"),
    (169, "GPRS_LLC"),
    (170, "GPF_T"),
    (171, "GPF_F"),
    (174, "JUNIPER_PIC_PEER"),
    (175, "ERF_ETH"),
    (176, "ERF_POS"),
    (177, "LINUX_LAPD"),
    (182, "MFR"),
    (183, "JUNIPER_VP"),
    (184, "A429"),
    (185, "A653_ICM"),
    (186, "USB_FREEBSD"),
    (187, "BLUETOOTH_HCI_H4"),
    (188, "IEEE802_16_MAC_CPS"),
    (190, "CAN20B"),
    (191, "IEEE802_15_4_LINUX"),
    (194, "JUNIPER_ISM"),
    (196, "SITA"),
    (197, "ERF"),
    (198, "RAIF1"),
    (199, "IPMB_KONTRON"),
    (200, "JUNIPER_ST"),
    (201, "BLUETOOTH_HCI_H4_WITH_PHDR"),
    (202, "AX25_KISS"),
    (209, "IPMB_LINUX"),
    (215, "IEEE802_15_4_NONASK_PHY"),
    (216, "LINUX_EVDEV"),
    (219, "MPLS"),
    (221, "DECT"),
    (222, "AOS"),
    (223, "WIHART"),
    (224, "FC_2"),
    (225, "FC_2_WITH_FRAME_DELIMS"),
    (227, "CAN_SOCKETCAN"),
    (231, "DBUS"),
    (232, "JUNIPER_VS"),
    (233, "JUNIPER_SRX_E2E"),
    (234, "JUNIPER_FIBRECHANNEL"),
    (235, "DVB_CI"),
    (236, "MUX27010"),
    (237, "STANAG_5066_D_PDU"),
    (238, "JUNIPER_ATM_CEMIC"),
    (243, "MPEG_2_TS"),
    (244, "NG40"),
    (245, "NFC_LLCP"),
    (246, "PFSYNC"),
    (248, "SCTP"),
    (249, "USBPCAP"),
    (250, "RTAC_SERIAL"),
    (251, "BLUETOOTH_LE_LL"),
    (253, "NETLINK"),
    (254, "BLUETOOTH_LINUX_MONITOR"),
    (255, "BLUETOOTH_BREDR_BB"),
    (256, "BLUETOOTH_LE_LL_WITH_PHDR"),
    (257, "PROFIBUS_DL"),
    (259, "EPON"),
    (260, "IPMI_HPM_2"),
    (261, "ZWAVE_R1_R2"),
    (262, "ZWAVE_R3"),
    (264, "ISO_14443"),
    (265, "RDS"),
    (266, "USB_DARWIN"),
    (267, "OPENFLOW"),
    (268, "SDLC"),
    (269, "TI_LLN_SNIFFER"),
    (272, "NORDIC_BLE"),
    (273, "DOCSIS31_XRA31"),
    (274, "ETHERNET_MPACKET"),
    (275, "DISPLAYPORT_AUX"),
    (278, "OPENVIZSLA"),
    (279, "EBHSCR"),
    (280, "VPP_DISPATCH"),
    (286, "ELEE"),
    (287, "Z_WAVE_SERIAL"),
    (288, "USB_2_0"),
    (289, "ATSC_ALP"),
];

/// The name of a link type that is not dissected.
pub(super) fn of(number: u16) -> Option<&'static str> {
    let at = NAMES.binary_search_by_key(&number, |(number, _)| *number);
    NAMES.get(at.ok()?).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_ascending() {
        assert!(NAMES.is_sorted_by_key(|(number, _)| *number));
        assert_eq!(of(249), Some("USBPCAP"));
        assert_eq!(of(9999), None);
    }
}
