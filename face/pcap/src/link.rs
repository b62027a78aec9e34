//! Link types: names, descriptions, and the two numberings.
//!
//! `DLT_` numbers are those of the programming interface, `LINKTYPE_` numbers those of capture
//! files. They differ for a few old types.

use std::ffi::CStr;

/// The named link types: `DLT_` number, name, description, as in libpcap 1.10.
#[rustfmt::skip]
const NAMES: &[(i32, &CStr, &CStr)] = &[
    (0, c"NULL", c"BSD loopback"),
    (1, c"EN10MB", c"Ethernet"),
    (6, c"IEEE802", c"Token ring"),
    (7, c"ARCNET", c"BSD ARCNET"),
    (8, c"SLIP", c"SLIP"),
    (9, c"PPP", c"PPP"),
    (10, c"FDDI", c"FDDI"),
    (11, c"ATM_RFC1483", c"RFC 1483 LLC-encapsulated ATM"),
    (12, c"RAW", c"Raw IP"),
    (15, c"SLIP_BSDOS", c"BSD/OS SLIP"),
    (16, c"PPP_BSDOS", c"BSD/OS PPP"),
    (19, c"ATM_CLIP", c"Linux Classical IP over ATM"),
    (50, c"PPP_SERIAL", c"PPP over serial"),
    (51, c"PPP_ETHER", c"PPPoE"),
    (99, c"SYMANTEC_FIREWALL", c"Symantec Firewall"),
    (104, c"C_HDLC", c"Cisco HDLC"),
    (105, c"IEEE802_11", c"802.11"),
    (107, c"FRELAY", c"Frame Relay"),
    (108, c"LOOP", c"OpenBSD loopback"),
    (109, c"ENC", c"OpenBSD encapsulated IP"),
    (113, c"LINUX_SLL", c"Linux cooked v1"),
    (114, c"LTALK", c"Localtalk"),
    (117, c"PFLOG", c"OpenBSD pflog file"),
    (119, c"PRISM_HEADER", c"802.11 plus Prism header"),
    (122, c"IP_OVER_FC", c"RFC 2625 IP-over-Fibre Channel"),
    (123, c"SUNATM", c"Sun raw ATM"),
    (127, c"IEEE802_11_RADIO", c"802.11 plus radiotap header"),
    (129, c"ARCNET_LINUX", c"Linux ARCNET"),
    (130, c"JUNIPER_MLPPP", c"Juniper Multi-Link PPP"),
    (131, c"JUNIPER_MLFR", c"Juniper Multi-Link Frame Relay"),
    (132, c"JUNIPER_ES", c"Juniper Encryption Services PIC"),
    (133, c"JUNIPER_GGSN", c"Juniper GGSN PIC"),
    (134, c"JUNIPER_MFR", c"Juniper FRF.16 Frame Relay"),
    (135, c"JUNIPER_ATM2", c"Juniper ATM2 PIC"),
    (136, c"JUNIPER_SERVICES", c"Juniper Advanced Services PIC"),
    (137, c"JUNIPER_ATM1", c"Juniper ATM1 PIC"),
    (138, c"APPLE_IP_OVER_IEEE1394", c"Apple IP-over-IEEE 1394"),
    (139, c"MTP2_WITH_PHDR", c"SS7 MTP2 with Pseudo-header"),
    (140, c"MTP2", c"SS7 MTP2"),
    (141, c"MTP3", c"SS7 MTP3"),
    (142, c"SCCP", c"SS7 SCCP"),
    (143, c"DOCSIS", c"DOCSIS"),
    (144, c"LINUX_IRDA", c"Linux IrDA"),
    (163, c"IEEE802_11_RADIO_AVS", c"802.11 plus AVS radio information header"),
    (164, c"JUNIPER_MONITOR", c"Juniper Passive Monitor PIC"),
    (165, c"BACNET_MS_TP", c"BACnet MS/TP"),
    (166, c"PPP_PPPD", c"PPP for pppd, with direction flag"),
    (167, c"JUNIPER_PPPOE", c"Juniper PPPoE"),
    (168, c"JUNIPER_PPPOE_ATM", c"Juniper PPPoE/ATM"),
    (169, c"GPRS_LLC", c"GPRS LLC"),
    (170, c"GPF_T", c"GPF-T"),
    (171, c"GPF_F", c"GPF-F"),
    (174, c"JUNIPER_PIC_PEER", c"Juniper PIC Peer"),
    (175, c"ERF_ETH", c"Ethernet with Endace ERF header"),
    (176, c"ERF_POS", c"Packet-over-SONET with Endace ERF header"),
    (177, c"LINUX_LAPD", c"Linux vISDN LAPD"),
    (178, c"JUNIPER_ETHER", c"Juniper Ethernet"),
    (179, c"JUNIPER_PPP", c"Juniper PPP"),
    (180, c"JUNIPER_FRELAY", c"Juniper Frame Relay"),
    (181, c"JUNIPER_CHDLC", c"Juniper C-HDLC"),
    (182, c"MFR", c"FRF.16 Frame Relay"),
    (183, c"JUNIPER_VP", c"Juniper Voice PIC"),
    (184, c"A429", c"Arinc 429"),
    (185, c"A653_ICM", c"Arinc 653 Interpartition Communication"),
    (186, c"USB_FREEBSD", c"USB with FreeBSD header"),
    (187, c"BLUETOOTH_HCI_H4", c"Bluetooth HCI UART transport layer"),
    (188, c"IEEE802_16_MAC_CPS", c"IEEE 802.16 MAC Common Part Sublayer"),
    (189, c"USB_LINUX", c"USB with Linux header"),
    (190, c"CAN20B", c"Controller Area Network (CAN) v. 2.0B"),
    (191, c"IEEE802_15_4_LINUX", c"IEEE 802.15.4 with Linux padding"),
    (192, c"PPI", c"Per-Packet Information"),
    (193, c"IEEE802_16_MAC_CPS_RADIO",
        c"IEEE 802.16 MAC Common Part Sublayer plus radiotap header"),
    (194, c"JUNIPER_ISM", c"Juniper Integrated Service Module"),
    (195, c"IEEE802_15_4", c"IEEE 802.15.4 with FCS"),
    (196, c"SITA", c"SITA pseudo-header"),
    (197, c"ERF", c"Endace ERF header"),
    (198, c"RAIF1", c"Ethernet with u10 Networks pseudo-header"),
    (199, c"IPMB_KONTRON", c"IPMB with Kontron pseudo-header"),
    (200, c"JUNIPER_ST", c"Juniper Secure Tunnel"),
    (201, c"BLUETOOTH_HCI_H4_WITH_PHDR", c"Bluetooth HCI UART transport layer plus pseudo-header"),
    (202, c"AX25_KISS", c"AX.25 with KISS header"),
    (209, c"IPMB_LINUX", c"IPMB with Linux/Pigeon Point pseudo-header"),
    (215, c"IEEE802_15_4_NONASK_PHY", c"IEEE 802.15.4 with non-ASK PHY data"),
    (216, c"LINUX_EVDEV", c"Linux evdev events"),
    (219, c"MPLS", c"MPLS with label as link-layer header"),
    (220, c"USB_LINUX_MMAPPED", c"USB with padded Linux header"),
    (221, c"DECT", c"DECT"),
    (222, c"AOS", c"AOS Space Data Link protocol"),
    (223, c"WIHART", c"Wireless HART"),
    (224, c"FC_2", c"Fibre Channel FC-2"),
    (225, c"FC_2_WITH_FRAME_DELIMS", c"Fibre Channel FC-2 with frame delimiters"),
    (226, c"IPNET", c"Solaris ipnet"),
    (227, c"CAN_SOCKETCAN", c"CAN-bus with SocketCAN headers"),
    (228, c"IPV4", c"Raw IPv4"),
    (229, c"IPV6", c"Raw IPv6"),
    (230, c"IEEE802_15_4_NOFCS", c"IEEE 802.15.4 without FCS"),
    (231, c"DBUS", c"D-Bus"),
    (232, c"JUNIPER_VS", c"Juniper Virtual Server"),
    (233, c"JUNIPER_SRX_E2E", c"Juniper SRX E2E"),
    (234, c"JUNIPER_FIBRECHANNEL", c"Juniper Fibre Channel"),
    (235, c"DVB_CI", c"DVB-CI"),
    (236, c"MUX27010", c"MUX27010"),
    (237, c"STANAG_5066_D_PDU", c"STANAG 5066 D_PDUs"),
    (238, c"JUNIPER_ATM_CEMIC", c"Juniper ATM CEMIC"),
    (239, c"NFLOG", c"Linux netfilter log messages"),
    (240, c"NETANALYZER", c"Ethernet with Hilscher netANALYZER pseudo-header"),
    (241, c"NETANALYZER_TRANSPARENT",
        c"Ethernet with Hilscher netANALYZER pseudo-header and with preamble and SFD"),
    (242, c"IPOIB", c"RFC 4391 IP-over-Infiniband"),
    (243, c"MPEG_2_TS", c"MPEG-2 transport stream"),
    (244, c"NG40", c"ng40 protocol tester Iub/Iur"),
    (245, c"NFC_LLCP", c"NFC LLCP PDUs with pseudo-header"),
    (246, c"PFSYNC", c"Packet filter state syncing"),
    (247, c"INFINIBAND", c"InfiniBand"),
    (248, c"SCTP", c"SCTP"),
    (249, c"USBPCAP", c"USB with USBPcap header"),
    (250, c"RTAC_SERIAL", c"Schweitzer Engineering Laboratories RTAC packets"),
    (251, c"BLUETOOTH_LE_LL", c"Bluetooth Low Energy air interface"),
    (253, c"NETLINK", c"Linux netlink"),
    (254, c"BLUETOOTH_LINUX_MONITOR", c"Bluetooth Linux Monitor"),
    (255, c"BLUETOOTH_BREDR_BB", c"Bluetooth Basic Rate/Enhanced Data Rate baseband packets"),
    (256, c"BLUETOOTH_LE_LL_WITH_PHDR", c"Bluetooth Low Energy air interface with pseudo-header"),
    (257, c"PROFIBUS_DL", c"PROFIBUS data link layer"),
    (258, c"PKTAP", c"Apple DLT_PKTAP"),
    (259, c"EPON", c"Ethernet with 802.3 Clause 65 EPON preamble"),
    (260, c"IPMI_HPM_2", c"IPMI trace packets"),
    (261, c"ZWAVE_R1_R2", c"Z-Wave RF profile R1 and R2 packets"),
    (262, c"ZWAVE_R3", c"Z-Wave RF profile R3 packets"),
    (263, c"WATTSTOPPER_DLM",
        c"WattStopper Digital Lighting Management (DLM) and Legrand Nitoo Open protocol"),
    (264, c"ISO_14443", c"ISO 14443 messages"),
    (265, c"RDS", c"IEC 62106 Radio Data System groups"),
    (266, c"USB_DARWIN", c"USB with Darwin header"),
    (267, c"OPENFLOW", c"OpenBSD DLT_OPENFLOW"),
    (268, c"SDLC", c"IBM SDLC frames"),
    (269, c"TI_LLN_SNIFFER", c"TI LLN sniffer frames"),
    (271, c"VSOCK", c"Linux vsock"),
    (272, c"NORDIC_BLE", c"Nordic Semiconductor Bluetooth LE sniffer frames"),
    (273, c"DOCSIS31_XRA31", c"Excentis XRA-31 DOCSIS 3.1 RF sniffer frames"),
    (274, c"ETHERNET_MPACKET", c"802.3br mPackets"),
    (275, c"DISPLAYPORT_AUX", c"DisplayPort AUX channel monitoring data"),
    (276, c"LINUX_SLL2", c"Linux cooked v2"),
    (278, c"OPENVIZSLA", c"OpenVizsla USB"),
    (279, c"EBHSCR", c"Elektrobit High Speed Capture and Replay (EBHSCR)"),
    (280, c"VPP_DISPATCH", c"VPP graph dispatch tracer"),
    (281, c"DSA_TAG_BRCM", c"Broadcom tag"),
    (282, c"DSA_TAG_BRCM_PREPEND", c"Broadcom tag (prepended)"),
    (283, c"IEEE802_15_4_TAP", c"IEEE 802.15.4 with pseudo-header"),
    (284, c"DSA_TAG_DSA", c"Marvell DSA"),
    (285, c"DSA_TAG_EDSA", c"Marvell EDSA"),
    (286, c"ELEE", c"ELEE lawful intercept packets"),
    (287, c"Z_WAVE_SERIAL", c"Z-Wave serial frames between host and chip"),
    (288, c"USB_2_0", c"USB 2.0/1.1/1.0 as transmitted over the cable"),
    (289, c"ATSC_ALP", c"ATSC Link-Layer Protocol packets"),
];

/// `DLT_` numbers that differ from those in files, with the latter.
const DIFFERENT: [(i32, i32); 5] = [(11, 100), (12, 101), (15, 102), (16, 103), (19, 106)];

/// Maximum length of a packet for most link types, libpcap's bound.
pub const SNAPLEN_MAX: u32 = 262_144;

/// The name of a `DLT_` number.
pub fn name(dlt: i32) -> Option<&'static CStr> {
    row(dlt).map(|row| row.1)
}

/// The description of a `DLT_` number.
pub fn description(dlt: i32) -> Option<&'static CStr> {
    row(dlt).map(|row| row.2)
}

fn row(dlt: i32) -> Option<&'static (i32, &'static CStr, &'static CStr)> {
    let at = NAMES.binary_search_by_key(&dlt, |row| row.0).ok()?;
    NAMES.get(at)
}

/// The `DLT_` number of a name, with or without `DLT_`, ignoring case.
pub fn of_name(name: &[u8]) -> Option<i32> {
    let name = match name.split_at_checked(4) {
        Some((start, rest)) if start.eq_ignore_ascii_case(b"DLT_") => rest,
        _ => name,
    };
    let is_it = |row: &&(i32, &CStr, &CStr)| row.1.to_bytes().eq_ignore_ascii_case(name);
    NAMES.iter().find(is_it).map(|row| row.0)
}

/// The number in capture files for a `DLT_` number.
pub fn to_file(dlt: i32) -> i32 {
    DIFFERENT
        .iter()
        .find(|row| row.0 == dlt)
        .map_or(dlt, |row| row.1)
}

/// Whether packets of a `DLT_` number can be written to capture files. Others have meanings that
/// differ between systems.
pub fn has_file_number(dlt: i32) -> bool {
    matches!(dlt, 0..=12 | 15 | 16 | 19 | 50 | 51 | 99 | 104..=289)
}

/// The `DLT_` number for a number in a capture file.
pub fn of_file(number: i32) -> i32 {
    DIFFERENT
        .iter()
        .find(|row| row.1 == number)
        .map_or(number, |row| row.0)
}

/// Maximum length of a packet of a link type: some contain messages rather than packets.
pub fn snaplen_max(dlt: i32) -> u32 {
    match dlt {
        // D-Bus, USB.
        231 | 186 | 189 | 220 | 249 | 266 => 128 << 20,
        // EBHSCR.
        279 => 8 << 20,
        _ => SNAPLEN_MAX,
    }
}

/// The snaplen of a capture file, limited to valid values.
pub fn snaplen(dlt: i32, stated: u32) -> i32 {
    match i32::try_from(stated) {
        Ok(snaplen) if snaplen > 0 => snaplen,
        _ => snaplen_max(dlt) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_are_found_by_name_and_number() {
        assert!(NAMES.is_sorted_by_key(|row| row.0));
        for &(dlt, text, _) in NAMES {
            assert_eq!(of_name(text.to_bytes()), Some(dlt));
            assert_eq!(name(dlt), Some(text));
            assert_eq!(of_file(to_file(dlt)), dlt);
        }
        assert_eq!(of_name(b"dlt_en10mb"), Some(1));
        assert_eq!(of_name(b"none"), None);
        assert_eq!(to_file(12), 101);
        assert!(has_file_number(289) && !has_file_number(290) && !has_file_number(100));
        assert_eq!(description(-1), None);
    }

    #[test]
    fn snaplens_are_held_within_bounds() {
        assert_eq!(snaplen(1, 0), 262_144);
        assert_eq!(snaplen(1, u32::MAX), 262_144);
        assert_eq!(snaplen(1, 96), 96);
        assert_eq!(snaplen(231, 0), 128 << 20);
    }
}
