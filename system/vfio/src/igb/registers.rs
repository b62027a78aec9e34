//! Registers and descriptor bits of the Intel 82576EB (datasheet 2.87, §8 and §7), by its names.
//! Offsets in BAR 0, in bytes.

/// Device Control (§8.2.1).
pub const CTRL: u32 = 0x0000;
/// Stop new requests on the bus.
pub const CTRL_MASTER_DISABLE: u32 = 1 << 2;
/// Set link up.
pub const CTRL_SLU: u32 = 1 << 6;
/// Reset everything but the PHY and the manageability parts.
pub const CTRL_RST: u32 = 1 << 26;
/// Remove VLAN tags from received packets.
pub const CTRL_VME: u32 = 1 << 30;

/// Device Status (§8.2.2).
pub const STATUS: u32 = 0x0008;
pub const STATUS_FULL_DUPLEX: u32 = 1 << 0;
pub const STATUS_LINK_UP: u32 = 1 << 1;
/// Two bits: 10, 100, 1000, 1000 Mbit/s.
pub const STATUS_SPEED_SHIFT: u32 = 6;
/// Two bits: the number of the card's port.
pub const STATUS_LAN_SHIFT: u32 = 2;
/// Requests on the bus are still pending.
pub const STATUS_MASTER_ENABLED: u32 = 1 << 19;

/// Extended Device Control (§8.2.3).
pub const CTRL_EXT: u32 = 0x0018;
/// Informs the firmware that a driver has the card.
pub const CTRL_EXT_DRIVER_LOADED: u32 = 1 << 28;
/// Link mode: 0 for the PHY in the card, for copper.
pub const CTRL_EXT_LINK_MODE: u32 = 3 << 22;

/// MDI Control (§8.2.4), for access to the PHY's registers; it is PHY number 1.
pub const MDIC: u32 = 0x0020;
pub const MDIC_REGISTER_SHIFT: u32 = 16;
pub const MDIC_PHY: u32 = 1 << 21;
pub const MDIC_WRITE: u32 = 1 << 26;
pub const MDIC_READ: u32 = 2 << 26;
pub const MDIC_READY: u32 = 1 << 28;
pub const MDIC_ERROR: u32 = 1 << 30;
/// The PHY's control register (IEEE 802.3 §22.2.4.1): number, negotiate, power down, renegotiate.
pub const PHY_CONTROL: u32 = 0;
pub const PHY_NEGOTIATE: u32 = 1 << 12;
pub const PHY_POWER_DOWN: u32 = 1 << 11;
pub const PHY_RESTART: u32 = 1 << 9;

/// Semaphores between drivers and firmware (§4.7, §8.16): reading takes the first bit, the second
/// can be set when the firmware allows it; SW_FW_SYNC then has the owners, one bit each for the PHY
/// of port 0 and 1, the firmware's 16 bits above.
pub const SWSM: u32 = 0x5b50;
pub const SWSM_DRIVERS: u32 = 1 << 0;
pub const SWSM_FIRMWARE: u32 = 1 << 1;
pub const SW_FW_SYNC: u32 = 0x5b5c;
pub const SYNC_PHY: u32 = 1 << 1;
pub const SYNC_FIRMWARE_SHIFT: u32 = 16;

/// Receive Control (§8.10.1).
pub const RCTL: u32 = 0x0100;
pub const RCTL_ENABLE: u32 = 1 << 1;
/// Accept all unicast packets.
pub const RCTL_UNICAST_PROMISCUOUS: u32 = 1 << 3;
/// Accept all multicast packets.
pub const RCTL_MULTICAST_PROMISCUOUS: u32 = 1 << 4;
/// Accept packets up to RLPML instead of 1522 bytes.
pub const RCTL_LONG_PACKETS: u32 = 1 << 5;
pub const RCTL_ACCEPT_BROADCAST: u32 = 1 << 15;
/// Do not write the frame check sequence to memory.
pub const RCTL_STRIP_CRC: u32 = 1 << 26;

/// Transmit Control (§8.12.1) and its fields: pad short packets, collision threshold and distance
/// as §8.12.1 recommends them.
pub const TCTL: u32 = 0x0400;
pub const TCTL_ENABLE: u32 = 1 << 1;
pub const TCTL_PAD: u32 = 1 << 3;
pub const TCTL_COLLISIONS: u32 = 0x0f << 4 | 0x40 << 12;

/// Extended interrupts (§8.8.1 to §8.8.8): set, mask set, mask clear, auto clear, cause.
pub const EIMS: u32 = 0x1524;
pub const EIMC: u32 = 0x1528;
pub const EIAC: u32 = 0x152c;
pub const EICR: u32 = 0x1580;
/// General Purpose Interrupt Enable (§8.8.16): vectors by message, no clear on read.
pub const GPIE: u32 = 0x1514;
pub const GPIE_MSIX: u32 = 1 << 4 | 1 << 0;
/// Pending bits of messages are kept (§7.3.3.2).
pub const GPIE_PBA: u32 = 1 << 31;
/// Legacy interrupts (§8.8.9 to §8.8.12): cause, mask clear.
pub const ICR: u32 = 0x1500;
pub const IMC: u32 = 0x150c;
/// Vector of a queue (§8.8.13): byte 0 of entry `n` for receiving queue `n`, byte 2 for receiving
/// queue `n + 8`.
pub const fn ivar(entry: u32) -> u32 {
    0x1700 + 4 * entry
}
pub const IVAR_VALID: u32 = 0x80;

/// A queue's receive registers (§8.10.5 to §8.10.14).
pub const fn rx(queue: u32, register: u32) -> u32 {
    0xc000 + 0x40 * queue + register
}
pub const RDBAL: u32 = 0x00;
pub const RDBAH: u32 = 0x04;
pub const RDLEN: u32 = 0x08;
pub const SRRCTL: u32 = 0x0c;
pub const RDH: u32 = 0x10;
pub const RDT: u32 = 0x18;
pub const RXDCTL: u32 = 0x28;
/// Packets dropped for lack of a descriptor; cleared by reading. 12 bits, which saturate.
pub const RQDPC: u32 = 0x30;
pub const RQDPC_MAX: u64 = 0xfff;
/// SRRCTL: buffer length in KiB in the low bits, advanced descriptors with one buffer, and packets
/// are dropped if no descriptor is left (instead of stopping all queues).
pub const SRRCTL_ONE_BUFFER: u32 = 1 << 25;
pub const SRRCTL_DROP: u32 = 1 << 31;
/// RXDCTL and TXDCTL: enable the queue.
pub const QUEUE_ENABLE: u32 = 1 << 25;
/// RXDCTL: fetch when fewer than 8 descriptors are left on the card and 8 are available, write each
/// back when it is done (§7.1.6).
pub const RXDCTL_THRESHOLDS: u32 = 8 | 8 << 8 | 1 << 16;

/// A queue's transmit registers (§8.12.8 to §8.12.16).
pub const fn tx(queue: u32, register: u32) -> u32 {
    0xe000 + 0x40 * queue + register
}
pub const TDBAL: u32 = 0x00;
pub const TDBAH: u32 = 0x04;
pub const TDLEN: u32 = 0x08;
pub const TDH: u32 = 0x10;
pub const TDT: u32 = 0x18;
pub const TXDCTL: u32 = 0x28;
/// TXDCTL: as for receiving; write-back follows the RS bit (§7.2.2.3).
pub const TXDCTL_THRESHOLDS: u32 = 8 | 1 << 8 | 1 << 16;

/// Receive Checksum Control (§8.10.15): check IP and transport checksums, and write the hash in
/// place of the fragment checksum (PCSD).
pub const RXCSUM: u32 = 0x5000;
pub const RXCSUM_IP: u32 = 1 << 8;
pub const RXCSUM_TRANSPORT: u32 = 1 << 9;
pub const RXCSUM_HASH: u32 = 1 << 13;
/// Receive Long Packet Maximum Length, frame check sequence included (§8.10.16).
pub const RLPML: u32 = 0x5004;
/// Multicast table, 128 words (§8.10.17).
pub const MTA: u32 = 0x5200;
pub const MTA_COUNT: u32 = 128;
/// Receive addresses (§8.10.18): the first is the card's own.
pub const RAL: u32 = 0x5400;
pub const RAH: u32 = 0x5404;
#[cfg(any(test, feature = "testing"))]
pub const RAH_VALID: u32 = 1 << 31;
/// Multiple Receive Queues Command (§8.10.22): RSS without virtual functions.
pub const MRQC: u32 = 0x5818;
pub const MRQC_RSS: u32 = 2;
/// Hashed packets: TCP over IPv4, IPv4, IPv6, TCP over IPv6, UDP over IPv4 and over IPv6.
pub const MRQC_FIELDS: u32 = 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23;
/// Redirection table, 32 words of four entries (§8.10.21).
pub const RETA: u32 = 0x5c00;
pub const RETA_COUNT: u32 = 32;
/// Key of the hash, 10 words (§8.10.20).
pub const RSSRK: u32 = 0x5c80;
pub const RSSRK_COUNT: u32 = 10;
/// A key that repeats every 16 bits gives both directions of a flow the same hash: swapping
/// addresses and ports shifts them by multiples of 16.
pub const SYMMETRIC_KEY: u32 = 0x5a6d_5a6d;

/// Statistics (§8.18), all cleared by reading.
pub const STATISTICS: std::ops::Range<u32> = 0x4000..0x4100;
/// Missed packets: the card's own memory was full.
pub const MPC: u32 = 0x4010;
/// Good packets received and sent.
pub const GPRC: u32 = 0x4074;
pub const GPTC: u32 = 0x4080;
/// Packets lost to errors, by name.
pub const ERRORS: &[(&str, u32)] = &[
    ("CRCERRS", 0x4000),
    ("ALGNERRC", 0x4004),
    ("RXERRC", 0x400c),
    ("RLEC", 0x4040),
    ("RUC", RUC),
    ("RFC", 0x40a8),
    ("ROC", ROC),
    ("RJC", 0x40b0),
];
/// Too short, too long.
pub const RUC: u32 = 0x40a4;
pub const ROC: u32 = 0x40ac;

/// Received descriptors as written back (§7.1.5.2), second word: done, end of packet, a VLAN tag
/// was removed.
pub const RX_DONE: u64 = 1 << 0;
pub const RX_END: u64 = 1 << 1;
pub const RX_VLAN: u64 = 1 << 3;
/// The transport checksum was checked.
pub const RX_TRANSPORT_CHECKED: u64 = 1 << 5;
/// The IP checksum was checked.
#[cfg(any(test, feature = "testing"))]
pub const RX_IP_CHECKED: u64 = 1 << 6;
/// Transport checksum wrong, IP checksum wrong, packet damaged.
pub const RX_TRANSPORT_ERROR: u64 = 1 << 29;
pub const RX_IP_ERROR: u64 = 1 << 30;
pub const RX_ERROR: u64 = 1 << 31;

/// Sent descriptors (§7.2.2.3), second word: type and commands.
pub const TX_DATA: u64 = 3 << 20;
pub const TX_END: u64 = 1 << 24;
/// Insert the frame check sequence.
pub const TX_INSERT_CRC: u64 = 1 << 25;
/// Report status.
pub const TX_REPORT: u64 = 1 << 27;
pub const TX_EXTENDED: u64 = 1 << 29;
/// Length of the whole packet.
pub const TX_PAYLOAD_SHIFT: u32 = 46;
/// As written back: done.
pub const TX_DONE: u64 = 1 << 32;
