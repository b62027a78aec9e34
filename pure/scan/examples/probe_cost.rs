//! Writes probes into memory and drops them: what a scan costs before the device.
//!
//! `generate KIND COUNT`, where KIND is `ipv4`, `ipv6` or `exclude` (a million single addresses
//! are excluded). Run it under `valgrind --tool=callgrind` for two counts: the difference is the
//! cost of the probes between them, without the start.

use std::hint::black_box;
use std::time::Instant;

use barewire_scan::{
    AddrRange, Cookies, FrameOptions, Frames, Lane, NextHops, Options, Order, Payloads, Plan,
    Ports, Prober, RangeList, Shard, Source, Targets, parse_range,
};
use wire::Mac;

/// Number of excluded addresses, and the distance between two of them.
const EXCLUDED: u128 = 1_000_000;
const EXCLUDED_STEP: u128 = 4_001;

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_default();
    let count: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let range = match kind.as_str() {
        "ipv4" | "exclude" => "0.0.0.0/0",
        "ipv6" => "2001:db8::/64",
        _ => {
            eprintln!("usage: generate ipv4|ipv6|exclude COUNT");
            std::process::exit(2);
        }
    };
    let began = Instant::now();
    let single = |n: u128| AddrRange {
        is_ipv6: false,
        first: n * EXCLUDED_STEP,
        last: n * EXCLUDED_STEP,
    };
    let excluded = match kind.as_str() {
        "exclude" => (0..EXCLUDED).map(single).collect(),
        _ => RangeList::default(),
    };
    let targets = Targets::new(vec![parse_range(range).expect("a range")], excluded);
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: Some("2001:db8:1::7".parse().expect("an address")),
        ports: (61_000, 4_096),
    };
    let order = Order {
        seed: 7,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 1 << 20,
    };
    let ports = Ports::tcp("80").expect("a port");
    let plan = Plan::new(targets.expect("targets"), ports, source, order).expect("a plan");
    let cookies = Cookies::new([3; 16], source);
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let look = FrameOptions {
        src_mac: mac,
        ttl: 64,
        options: Options::Minimal,
    };
    let frames = Frames::new(source, look, &Payloads::built_in());
    let hops = NextHops::routers(Some(mac), Some(mac));
    let mut prober = Prober::new(&plan, (0, Lane::WHOLE), &cookies, &frames, &hops);
    let ready = began.elapsed();
    let mut buffer = [0_u8; 2048];
    let began = Instant::now();
    prober.stop_at(count.into());
    while prober.next_len().is_some() && prober.write(&mut buffer).is_some() {
        black_box(&mut buffer);
    }
    let ns = began.elapsed().as_nanos() as f64 / count.max(1) as f64;
    println!(
        "{kind}: {count} probes, {ns:.1} ns each, {:.0} ms to start",
        ready.as_secs_f64() * 1e3
    );
}
