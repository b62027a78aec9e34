//! The connections of printed packets: the initial sequence numbers of each side, and the state of
//! the decoders.
//!
//! A table of fixed size, in sets: when a set is full, the connection printed least recently is
//! evicted, and its later lines are treated as a new connection.

use std::hash::{BuildHasher, RandomState};

use wire::summary::SequenceBase;
use wire::{Dissection, tcp};

/// Number of connections in the table.
pub(super) const CONNECTION_COUNT: usize = 1 << 14;

/// Number of connections in a set.
const SET_LEN: usize = 8;

/// Addresses, ports and protocol, equal for both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    ends: [([u8; 16], u16); 2],
    version: u8,
    protocol: u8,
}

/// A connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    key: Key,
    /// When it was last printed, in packets; 0 is a free slot.
    stamp: u64,
    /// The base subtracted from each side's numbers, once a packet with both was seen.
    bases: Option<[u32; 2]>,
    /// Whether the second side of the key is the initiator.
    pub(super) is_reversed: bool,
    /// The decoders' handle.
    pub(super) flow: u32,
}

impl Connection {
    /// What tcpdump subtracts from the numbers of this segment: nothing in the first one with an
    /// acknowledgment, which sets the base of both sides, and in those with SYN.
    pub(super) fn sequence_base(&mut self, d: &Dissection, side: usize) -> SequenceBase {
        let other = 1 - side;
        if d.tcp_flags & tcp::flag::ACK == 0 {
            return SequenceBase::default();
        }
        let is_first = self.bases.is_none() || d.tcp_flags & tcp::flag::SYN != 0;
        let bases = self.bases.get_or_insert([0; 2]);
        if is_first {
            bases[side] = d.tcp_seq;
            bases[other] = d.tcp_ack.wrapping_sub(1);
        }
        SequenceBase {
            seq: if is_first { 0 } else { bases[side] },
            ack: if is_first { 0 } else { bases[other] },
            sack: bases[other],
        }
    }
}

/// A table of connections.
#[derive(Debug)]
pub(super) struct Connections {
    places: Box<[Connection]>,
    hasher: RandomState,
    clock: u64,
}

impl Connections {
    pub(super) fn new() -> Connections {
        Connections {
            places: vec![Connection::default(); CONNECTION_COUNT].into(),
            hasher: RandomState::new(),
            clock: 0,
        }
    }

    /// Finds or adds the connection of a packet with ports, and which side sent it. An evicted
    /// connection is passed to `gone`.
    pub(super) fn of(
        &mut self,
        d: &Dissection,
        gone: impl FnOnce(&mut Connection),
    ) -> (&mut Connection, usize) {
        let (src, dst) = ((d.src, d.src_port), (d.dst, d.dst_port));
        let side = usize::from((d.src_port, d.src) > (d.dst_port, d.dst));
        let key = Key {
            ends: if side == 1 { [dst, src] } else { [src, dst] },
            version: d.ip_version,
            protocol: d.ip_protocol,
        };
        self.clock += 1;
        let set_count = CONNECTION_COUNT / SET_LEN;
        let start = self.hasher.hash_one(key) as usize % set_count * SET_LEN;
        let set = &mut self.places[start..start + SET_LEN];
        let is_it = |place: &Connection| place.stamp != 0 && place.key == key;
        let index = match set.iter().position(is_it) {
            Some(index) => index,
            None => {
                let oldest = set.iter().enumerate().min_by_key(|(_, place)| place.stamp);
                let index = oldest.map_or(0, |(index, _)| index);
                if set[index].stamp != 0 {
                    gone(&mut set[index]);
                }
                // The initiator: the sender of a SYN, else the side with the higher port.
                let starts = d.tcp_flags & (tcp::flag::SYN | tcp::flag::ACK);
                let from_initiator = match d.ip_protocol {
                    6 if starts == tcp::flag::SYN => true,
                    6 if starts & tcp::flag::SYN != 0 => false,
                    _ => d.src_port >= d.dst_port,
                };
                set[index] = Connection {
                    key,
                    is_reversed: from_initiator == (side == 1),
                    ..Connection::default()
                };
                index
            }
        };
        set[index].stamp = self.clock;
        (&mut set[index], side)
    }
}
