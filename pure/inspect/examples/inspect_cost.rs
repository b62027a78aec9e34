//! Measures the cost of flows that no decoder reads: `inspect_cost tcp|udp zeros|random FLOWS`
//! passes that many flows to an inspector with all decoders and prints its counters. Each flow is
//! up to 24 packets of 200 bytes, from both sides for TCP and from one side for UDP; packets of a
//! flow that needs no further look are skipped.
//!
//! Run it under `valgrind --tool=callgrind` with two numbers of flows: the difference, divided by
//! the flows or packets, is the cost per flow or packet in instructions:
//!
//! ```text
//! cargo build --release -p barewire-inspect --example inspect_cost
//! valgrind --tool=callgrind target/release/examples/inspect_cost udp zeros 2000
//! ```
#![forbid(unsafe_code)]

use barewire_inspect::{DONE, Direction, Inspector, InspectorConfig, NONE, Segment, Transport};

const PACKETS: usize = 24;
const PAYLOAD_LEN: usize = 200;

/// Bytes with a period of many flows: a 64-bit generator (Knuth's constants).
fn random(len: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "inspect_cost tcp|udp zeros|random FLOWS";
    let [transport, content, flows] = args.as_slice() else {
        return Err(usage.to_string());
    };
    let transport = match transport.as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return Err(usage.to_string()),
    };
    let bytes = match content.as_str() {
        "zeros" => vec![0; 1 << 20],
        "random" => random(1 << 20),
        _ => return Err(usage.to_string()),
    };
    let flows: usize = flows.parse().map_err(|_| usage)?;
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 64,
        page_count: 64,
        held_count_max: 16,
        log_count_max: 16,
        ..InspectorConfig::default()
    });
    let mut at = 0;
    for _ in 0..flows {
        let mut flow = NONE;
        let mut next = [1_u32; 2];
        for number in 0..PACKETS {
            let from = match number % 2 {
                1 if transport == Transport::Tcp => Direction::Reverse,
                _ => Direction::Forward,
            };
            if at + PAYLOAD_LEN > bytes.len() {
                at = 0;
            }
            inspector.packet(
                &mut flow,
                &Segment {
                    transport,
                    from,
                    time_ns: 1,
                    ports: [50_000, 9],
                    sequence: next[from as usize],
                    is_syn: false,
                    begins: None,
                    payload: &bytes[at..at + PAYLOAD_LEN],
                    payload_len: PAYLOAD_LEN as u32,
                },
            );
            next[from as usize] += PAYLOAD_LEN as u32;
            if flow & DONE != 0 {
                break;
            }
            // An odd stride, so that packets of a second pass begin elsewhere.
            at += PAYLOAD_LEN + 1;
        }
        inspector.end(&mut flow, |_| ());
    }
    println!("{:?}", inspector.stats());
    Ok(())
}
