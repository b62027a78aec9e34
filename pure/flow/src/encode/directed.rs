//! The fields of each direction of a record: one row per field, with its name in CSV and Parquet
//! (prefixed with `reverse_` for the other direction) and the condition for a value.

use crate::record::{Counters, Record};

/// Condition for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Always.
    All,
    /// If there are packets.
    Some,
    /// If there are packets, and they are TCP.
    Tcp,
    /// If it was seen: not 0.
    Seen,
}

/// A field of a direction.
#[derive(Clone, Copy, Debug)]
pub struct Directed {
    /// Its name.
    pub name: &'static str,
    /// Condition for a value.
    pub of: Of,
    /// Width of the unsigned number: 8, 16, 32 or 64 bits.
    pub bits: i8,
    /// Source of the value.
    pub read: fn(&Counters) -> u64,
}

impl Directed {
    /// The value for one direction of a record, if it has one.
    pub fn value(&self, record: &Record, sent: &Counters) -> Option<u64> {
        let value = (self.read)(sent);
        let has = match self.of {
            Of::All => true,
            Of::Some => sent.packets != 0,
            Of::Tcp => sent.packets != 0 && record.key().protocol() == 6,
            Of::Seen => value != 0,
        };
        has.then_some(value)
    }
}

const fn row(name: &'static str, of: Of, bits: i8, read: fn(&Counters) -> u64) -> Directed {
    Directed {
        name,
        of,
        bits,
        read,
    }
}

/// All fields in order. Names and types never change; new ones may be added.
pub static DIRECTED: &[Directed] = &[
    row("packets", Of::All, 64, |c| c.packets),
    row("bytes", Of::All, 64, |c| c.bytes),
    row("payload_bytes", Of::All, 64, |c| c.payload_bytes),
    row("tcp_flags", Of::Tcp, 16, |c| c.tcp_flags.into()),
    row("tcp_flags_first", Of::Tcp, 8, |c| c.tcp_flags_first.into()),
    row("tcp_flags_last", Of::Tcp, 8, |c| c.tcp_flags_last.into()),
    row("ttl_min", Of::Some, 8, |c| c.ttl_min.into()),
    row("ttl_max", Of::Some, 8, |c| c.ttl_max.into()),
    row("len_min", Of::Some, 16, |c| c.len_min.into()),
    row("len_max", Of::Some, 16, |c| c.len_max.into()),
    row("tos", Of::Some, 8, |c| c.traffic_class.into()),
    row("ip_flags", Of::Some, 8, |c| c.ip_flags.into()),
    row("fragments", Of::Some, 16, |c| c.fragments.into()),
    row("tcp_options", Of::Tcp, 64, |c| c.tcp_options),
    row("tcp_window", Of::Tcp, 16, |c| c.tcp_window.into()),
    row("tcp_mss", Of::Seen, 16, |c| c.tcp_mss.into()),
    row("retransmissions", Of::Tcp, 16, |c| c.retransmissions.into()),
    row("out_of_order", Of::Tcp, 16, |c| c.out_of_order.into()),
    row("handshake_us", Of::Seen, 32, |c| c.handshake_us.into()),
];
