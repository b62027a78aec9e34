//! Runs a filter of libpcap (`pcap_offline_filter`, which is `bpf_filter`) on the packets of a
//! capture in memory: `baseline-filter FILE ROUNDS EXPRESSION`; prints nanoseconds a packet and how
//! many packets it selects.

use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: baseline-filter FILE ROUNDS EXPRESSION";
    let file = args.next().ok_or(usage)?;
    let rounds: u32 = args.next().ok_or(usage)?.parse()?;
    let expression = args.next().ok_or(usage)?;
    let mut capture = pcap::Capture::from_file(&file)?;
    let mut packets = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        packets.push(packet.data.to_vec());
    }
    let program = pcap::Capture::dead(pcap::Linktype::ETHERNET)?.compile(&expression, true)?;
    let start = Instant::now();
    let mut selected = 0u64;
    for _ in 0..rounds {
        for packet in &packets {
            selected += u64::from(program.filter(black_box(packet)));
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    let count = f64::from(rounds) * packets.len() as f64;
    println!("{} {}", ns / count, selected / u64::from(rounds.max(1)));
    Ok(())
}
