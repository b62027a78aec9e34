//! Registers and bits of the 8254x family, by the sections of Intel's "PCI/PCI-X Family of Gigabit
//! Ethernet Controllers Software Developer's Manual" (317453), chapter 13.

/// Device control (13.4.1).
pub(super) const CTRL: u32 = 0x0000;
/// Full duplex, if forced.
pub(super) const CTRL_FD: u32 = 1 << 0;
/// Take the speed from the PHY.
pub(super) const CTRL_ASDE: u32 = 1 << 5;
/// Set link up.
pub(super) const CTRL_SLU: u32 = 1 << 6;
/// Force the speed.
pub(super) const CTRL_FRCSPD: u32 = 1 << 11;
/// Force the duplex mode.
pub(super) const CTRL_FRCDPX: u32 = 1 << 12;
/// Reset everything but the PHY and the PCI configuration; clears itself.
pub(super) const CTRL_RST: u32 = 1 << 26;
/// Receive flow control.
pub(super) const CTRL_RFCE: u32 = 1 << 27;
/// Send flow control.
pub(super) const CTRL_TFCE: u32 = 1 << 28;
/// Remove VLAN tags from packets.
pub(super) const CTRL_VME: u32 = 1 << 30;

/// Device status (13.4.2).
pub(super) const STATUS: u32 = 0x0008;
/// Full duplex.
pub(super) const STATUS_FD: u32 = 1 << 0;
/// Link up.
pub(super) const STATUS_LU: u32 = 1 << 1;
/// Speed: 10, 100, 1000, 1000 Mb/s.
pub(super) const STATUS_SPEED_SHIFT: u32 = 6;

/// EEPROM read (13.4.4): start, done, address, data, as on the 82540, 82545 and 82546.
pub(super) const EERD: u32 = 0x0014;
/// Start a read.
pub(super) const EERD_START: u32 = 1 << 0;
/// The data are valid.
pub(super) const EERD_DONE: u32 = 1 << 4;
/// Position of the word's address.
pub(super) const EERD_ADDRESS_SHIFT: u32 = 8;
/// Position of its data.
pub(super) const EERD_DATA_SHIFT: u32 = 16;

/// MDI control (13.4.3), for access to the PHY's registers; it is PHY number 1.
pub(super) const MDIC: u32 = 0x0020;
/// Position of the PHY's register number.
pub(super) const MDIC_REGISTER_SHIFT: u32 = 16;
/// The PHY's number in its position.
pub(super) const MDIC_PHY: u32 = 1 << 21;
/// Operation: write.
pub(super) const MDIC_WRITE: u32 = 1 << 26;
/// Operation: read.
pub(super) const MDIC_READ: u32 = 2 << 26;
/// The access is complete.
pub(super) const MDIC_READY: u32 = 1 << 28;
/// The access failed.
pub(super) const MDIC_ERROR: u32 = 1 << 30;
/// The PHY's control register (IEEE 802.3 §22.2.4.1).
pub(super) const PHY_CONTROL: u32 = 0;
/// Its power-down bit.
pub(super) const PHY_POWER_DOWN: u16 = 1 << 11;

/// VLAN Ethertype (13.4.12).
pub(super) const VET: u32 = 0x0038;

/// Interrupt cause (13.4.17): cleared by reading.
pub(super) const ICR: u32 = 0x00c0;
/// Interrupt mask set (13.4.20).
pub(super) const IMS: u32 = 0x00d0;
/// Interrupt mask clear (13.4.21).
pub(super) const IMC: u32 = 0x00d8;
/// Receive descriptors are running low.
pub(super) const INT_RXDMT0: u32 = 1 << 4;
/// The receiver was overrun.
pub(super) const INT_RXO: u32 = 1 << 6;
/// A packet was received.
pub(super) const INT_RXT0: u32 = 1 << 7;

/// Receive control (13.4.22).
pub(super) const RCTL: u32 = 0x0100;
/// Enable receiving.
pub(super) const RCTL_EN: u32 = 1 << 1;
/// Accept all unicast packets.
pub(super) const RCTL_UPE: u32 = 1 << 3;
/// Accept all multicast packets.
pub(super) const RCTL_MPE: u32 = 1 << 4;
/// Accept packets longer than 1522 bytes.
pub(super) const RCTL_LPE: u32 = 1 << 5;
/// Accept broadcast packets.
pub(super) const RCTL_BAM: u32 = 1 << 15;
/// Strip the frame check sequence. With BSIZE and BSEX at 0 buffers have 2048 bytes.
pub(super) const RCTL_SECRC: u32 = 1 << 26;

/// Transmit control (13.4.33).
pub(super) const TCTL: u32 = 0x0400;
/// Enable sending.
pub(super) const TCTL_EN: u32 = 1 << 1;
/// Pad short packets.
pub(super) const TCTL_PSP: u32 = 1 << 3;
/// Collision threshold 15 and distance 64, for full duplex.
pub(super) const TCTL_COLLISIONS: u32 = 15 << 4 | 64 << 12;
/// Retransmit after a late collision.
pub(super) const TCTL_RTLC: u32 = 1 << 24;
/// Inter-packet gap (13.4.34).
pub(super) const TIPG: u32 = 0x0410;
/// The values of IEEE 802.3 for 10/100/1000BASE-T.
pub(super) const TIPG_COPPER: u32 = 10 | 8 << 10 | 6 << 20;

/// Receive descriptors: base (13.4.25, 13.4.26), length in bytes (13.4.27), head (13.4.28), tail
/// (13.4.29), interrupt delays (13.4.30 and following).
pub(super) const RDBAL: u32 = 0x2800;
/// See above.
pub(super) const RDBAH: u32 = 0x2804;
/// See above.
pub(super) const RDLEN: u32 = 0x2808;
/// See above.
pub(super) const RDH: u32 = 0x2810;
/// See above.
pub(super) const RDT: u32 = 0x2818;
/// See above.
pub(super) const RDTR: u32 = 0x2820;
/// See above.
pub(super) const RADV: u32 = 0x282c;

/// Transmit descriptors, in the same order (13.4.35 and following).
pub(super) const TDBAL: u32 = 0x3800;
/// See above.
pub(super) const TDBAH: u32 = 0x3804;
/// See above.
pub(super) const TDLEN: u32 = 0x3808;
/// See above.
pub(super) const TDH: u32 = 0x3810;
/// See above.
pub(super) const TDT: u32 = 0x3818;
/// See above.
pub(super) const TIDV: u32 = 0x3820;
/// See above.
pub(super) const TADV: u32 = 0x382c;

/// Receive checksum control (13.4, RXCSUM): checks IP, and TCP and UDP.
pub(super) const RXCSUM: u32 = 0x5000;
/// Check the IP checksum.
pub(super) const RXCSUM_IPOFL: u32 = 1 << 8;
/// Check TCP and UDP checksums.
pub(super) const RXCSUM_TUOFL: u32 = 1 << 9;

/// Multicast table (13.5.1), 128 words.
pub(super) const MTA: u32 = 0x5200;
/// Number of words in it.
pub(super) const MTA_COUNT: u32 = 128;
/// Receive addresses (13.5.2, 13.5.3): 16 pairs of a low and a high word.
pub(super) const RAL: u32 = 0x5400;
/// See above.
pub(super) const RAH: u32 = 0x5404;
/// Number of pairs.
pub(super) const RA_COUNT: u32 = 16;
/// The address is valid.
pub(super) const RAH_AV: u32 = 1 << 31;

/// Statistics (13.7), all cleared by reading. Missed packets: the card's memory was full.
pub(super) const MPC: u32 = 0x4010;
/// Good packets received.
pub(super) const GPRC: u32 = 0x4074;
/// Good packets sent.
pub(super) const GPTC: u32 = 0x4080;
/// Errors, by the manual's names.
pub(super) const ERRORS: &[(&str, u32)] = &[
    ("CRC", 0x4000),
    ("alignment", 0x4004),
    ("symbol", 0x4008),
    ("RX", 0x400c),
    ("undersize", 0x40a4),
    ("fragment", 0x40a8),
    ("oversize", 0x40ac),
    ("jabber", 0x40b0),
];
