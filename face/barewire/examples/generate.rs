//! Sends UDP packets at a rate: `generate eth0 10.0.0.1-10.0.0.9 10.0.1.1 100kpps 5000`.

use std::time::Duration;

use barewire::send::{Addresses, Clock, L4, Order, Pace, Pacer, Range, Rate, Sizes, Template, Udp};
use barewire::{Direction, PortOptions, Stop};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, source, destination, rate, count] = &args[..] else {
        return Err("usage: generate PORT SOURCES DESTINATIONS RATE COUNT".into());
    };
    let mut generator = Template {
        src_mac: Range::macs("02:00:00:00:00:01")?,
        dst_mac: Range::macs("ff:ff:ff:ff:ff:ff")?,
        tags: Vec::new(),
        addresses: Addresses::parse(source, destination)?,
        ttl: 64,
        traffic_class: 0,
        l4: L4::Udp(Udp {
            src_port: Range::numbers("1024-2047", 65535)?,
            dst_port: Range::one(9),
        }),
        payload: b"barewire".to_vec(),
        sizes: Sizes::parse("60")?,
        order: Order::default(),
        seed: 1,
    }
    .build()?;
    let options = PortOptions {
        direction: Direction::Tx,
        queue_count: 1,
        ..PortOptions::default()
    };
    let mut port = barewire::open(port, &options)?;
    let tx = &mut port.tx[0];
    let (stop, clock) = (Stop::on_signals()?, Clock::start());
    let mut pacer = Pacer::new(Pace::Rate {
        rate: Rate::parse(rate)?,
        on_wire: false,
    });
    let mut left: u64 = count.parse()?;
    while left > 0 && !stop.is_set() {
        let now_ns = clock.wait_until(pacer.due_ns(), &stop);
        let mut batch = tx.reserve(64)?;
        while left > 0 && pacer.due_ns() <= now_ns {
            let Some(buffer) = batch.buffer() else {
                break;
            };
            let len = generator.write(buffer);
            batch.advance(len);
            pacer.sent(len);
            left -= 1;
        }
        batch.submit()?;
        tx.flush()?;
        tx.wait(false, Duration::ZERO)?;
    }
    // Packets in the ring are sent before the port is closed.
    tx.wait(true, Duration::from_secs(1))?;
    let total = port.control.account()?.tx_total();
    println!("{} sent, {} failed", total.sent, total.failed);
    Ok(())
}
