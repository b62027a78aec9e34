//! Sends the same packet repeatedly, as many as fit into each batch: what a device costs by itself,
//! beside `scan_cost`.
//!
//! ```text
//! cargo build --release -p barewire-runtime --example send_cost
//! target/release/examples/send_cost vfio:0000:01:00.0 1000000 02:00:00:00:00:02
//! ```
//!
//! Arguments: port, number of packets, MAC address that they are sent to.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use barewire_runtime::Stop;
use barewire_runtime::send::{Limits, Next, Source, send};
use port::{Direction, PortOptions, TxBatch};
use traffic::{Pace, Pacer};
use wire::Mac;

/// Bytes of a SYN with an MSS, without FCS.
const LEN: usize = 58;

/// An endless source of one packet.
struct Same([u8; LEN]);

impl Source for Same {
    fn next(&mut self) -> sys::Result<Next> {
        Ok(Next::Packet {
            len: LEN,
            time_ns: 0,
            again: false,
        })
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        batch.write(&self.0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, count, mac] = &args[..] else {
        return Err("PORT COUNT MAC".into());
    };
    let options = PortOptions {
        direction: Direction::Both,
        ..PortOptions::default()
    };
    let mut port = port::open(name, &options)?;
    while port.control.link_is_up() == Some(false) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mac: Mac = mac.parse()?;
    let mut packet = [0; LEN];
    packet[..6].copy_from_slice(&mac.0);
    // Experimental (RFC 9542): no stack looks at it.
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    let limits = Limits {
        packet_count: Some(count.parse()?),
        duration: None,
    };
    let (report, result) = send(
        &mut port.tx[0],
        &mut Same(packet),
        &mut Pacer::new(Pace::Max),
        &limits,
        &Stop::default(),
        &mut |_| {},
    );
    result?;
    println!("{} sent", report.packets);
    Ok(())
}
