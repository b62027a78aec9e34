//! Scans by SYNs, and prints the counts: `barewire scan` without its command line, its files, and
//! the dropping of privileges.
//!
//! ```text
//! cargo build --release -p barewire-runtime --example scan_cost
//! target/release/examples/scan_cost afxdp:eth0 198.18.0.0/16 80-95 100000000 1 02:00:00:00:00:02
//! ```
//!
//! Arguments: port, targets, TCP ports, SYNs per second, milliseconds to wait for answers to the
//! last SYNs, MAC address of the router, and for `vfio:` the source address.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use barewire_runtime::Stop;
use barewire_runtime::scan::{Notice, Setup, prepare, run};
use scan::{Options, Ports, RangeList, Shard, parse_range};
use traffic::Rate;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, targets, ports, rate, wait, router, source @ ..] = &args[..] else {
        return Err("PORT TARGETS PORTS RATE WAIT ROUTER [SOURCE]".into());
    };
    let source_addrs = source.iter().map(|text| text.parse());
    let scan = prepare(Setup {
        include: std::iter::once(parse_range(targets)?).collect(),
        random_count: 0,
        pairs: Vec::new(),
        exclude: RangeList::default(),
        opt_out: RangeList::default(),
        ports: Ports::tcp(ports)?,
        port: Some(port.clone()),
        source_addrs: source_addrs.collect::<Result<_, _>>()?,
        routers: Vec::new(),
        source_ports: (61_000, 4096),
        router_mac: Some(router.parse()?),
        rate: Rate::Packets(rate.parse()?),
        rate_min: None,
        control: None,
        attempts: 1,
        shard: Shard::WHOLE,
        seed: 1,
        block: None,
        from: 0,
        wait: Duration::from_millis(wait.parse()?),
        options: Options::Minimal,
        ttl: 255,
        grab: None,
        queues: Some(1),
        vendors: std::sync::Arc::default(),
        firewall: false,
    })?;
    let mut answers = 0_u64;
    let stop = Stop::default();
    let outcome = run(
        &scan,
        [7; 16],
        &stop,
        (None, None),
        || Ok(()),
        |notice| {
            answers += u64::from(matches!(notice, Notice::Found(_)));
            Ok(())
        },
    )?;
    if let Some(error) = outcome.error {
        return Err(error.into());
    }
    let (sent, lost) = (outcome.totals.sent, outcome.totals.lost);
    println!("{sent} sent, {answers} answers, {lost} lost");
    Ok(())
}
