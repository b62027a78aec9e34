//! Filters that run here, on packets that the port did not filter.

use std::time::{SystemTime, UNIX_EPOCH};

use bpf::cbpf::Program;
use bpf::vm_cbpf::{self, PacketInfo};
use port::Packet;

/// `PACKET_OUTGOING` of `if_packet.h`.
const OUTGOING: u8 = 4;

/// The present time in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// Whether the filter selects a packet, with the metadata that the kernel would provide.
pub(super) fn selects(filter: &Program, packet: &Packet<'_>, ifindex: u32) -> bool {
    let protocol = packet
        .bytes()
        .get(12..14)
        .map_or([0, 0], |at| [at[0], at[1]]);
    let info = PacketInfo {
        ifindex,
        protocol: u16::from_be_bytes(protocol),
        rx_hash: packet.rss_hash().unwrap_or(0),
        packet_type: if packet.is_outgoing() { OUTGOING } else { 0 },
        vlan: packet.vlan().map(|tag| (tag.tpid, tag.tci)),
        ..PacketInfo::UNKNOWN
    };
    vm_cbpf::run_with(filter, packet.bytes(), packet.wire_len(), &info) != 0
}
