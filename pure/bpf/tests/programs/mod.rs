//! Programs shared by several tests: code, jump if true, jump if false, constant.

/// An instruction.
pub type Row = (u16, u8, u8, u32);

/// `tcp port 80`, as compiled by libpcap for Ethernet.
pub const TCP_PORT_80: &[Row] = &[
    (0x28, 0, 0, 12),
    (0x15, 0, 6, 0x86dd),
    (0x30, 0, 0, 20),
    (0x15, 0, 15, 6),
    (0x28, 0, 0, 54),
    (0x15, 12, 0, 80),
    (0x28, 0, 0, 56),
    (0x15, 10, 11, 80),
    (0x15, 0, 10, 0x800),
    (0x30, 0, 0, 23),
    (0x15, 0, 8, 6),
    (0x28, 0, 0, 20),
    (0x45, 6, 0, 0x1fff),
    (0xb1, 0, 0, 14),
    (0x48, 0, 0, 14),
    (0x15, 2, 0, 80),
    (0x48, 0, 0, 16),
    (0x15, 0, 1, 80),
    (0x06, 0, 0, 262_144),
    (0x06, 0, 0, 0),
];
