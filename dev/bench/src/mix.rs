//! A mix of packets: IPv4 and IPv6 80 to 20, TCP and UDP 70 to 30, one in ten with a VLAN tag, 60
//! to 1514 bytes; the same at every call.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use wire::file::pcap::{Precision, emit_header, emit_record};
use wire::{LinkType, Timestamp};

/// Packets of the mix.
pub fn packets(count: usize) -> Vec<Vec<u8>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count).map(|_| packet(&mut state)).collect()
}

/// xorshift64: good enough, and the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn packet(state: &mut u64) -> Vec<u8> {
    let (kind, addresses) = (next(state), next(state));
    let (ipv6, udp, vlan) = (
        kind % 10 < 2,
        kind / 10 % 10 < 3,
        (kind / 100).is_multiple_of(10),
    );
    let transport_len = if udp { 8 } else { 32 };
    let payload_len = [0, 6, 46, 512, 1400][(kind / 1000 % 5) as usize];
    let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if vlan {
        out.extend([0x81, 0, 0, 100]);
    }
    let protocol = if udp { 17 } else { 6 };
    let length = (transport_len + payload_len) as u16;
    let address = addresses.to_be_bytes();
    if ipv6 {
        out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        out.extend(length.to_be_bytes());
        out.extend([protocol, 64]);
        for half in [&address[..4], &address[4..]] {
            out.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
            out.extend(half);
        }
    } else {
        out.extend([8, 0, 0x45, 0]);
        out.extend((20 + length).to_be_bytes());
        out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        out.extend(address);
    }
    out.extend((kind as u16 | 1024).to_be_bytes());
    out.extend([1, 0xbb]);
    if udp {
        out.extend(length.to_be_bytes());
        out.extend([0, 0]);
    } else {
        // Sequence numbers, offset 8 words, PSH and ACK, window, checksum, urgent; NOP NOP
        // timestamps.
        out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x18, 0x7f, 0xff, 0, 0, 0, 0]);
        out.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    }
    out.resize(out.len() + payload_len, 0x5a);
    out.resize(out.len().max(60), 0);
    out
}

/// Writes packets as a pcap file.
pub fn write_pcap(path: &Path, packets: &[Vec<u8>]) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut header = [0; 24];
    emit_header(
        &mut header,
        LinkType::ETHERNET,
        65_535,
        Precision::Microseconds,
    );
    file.write_all(&header)?;
    for (at, packet) in packets.iter().enumerate() {
        let mut record = [0; 16];
        let time = Timestamp(1_700_000_000_000_000_000 + at as u64 * 1_000);
        let len = packet.len() as u32;
        emit_record(&mut record, time, len, len, Precision::Microseconds);
        file.write_all(&record)?;
        file.write_all(packet)?;
    }
    Ok(file.flush()?)
}
