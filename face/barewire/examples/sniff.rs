//! Prints a line for each packet of an interface or a capture file.
//!
//! `sniff eth0`, `sniff trace.pcapng`; stop with Ctrl-C.

use std::time::Duration;

use barewire::packet::{Dissection, LinkType, Summary, dissect};
use barewire::{PortOptions, Ready, Result, Stop};

fn main() -> Result<()> {
    let name = std::env::args().nth(1).expect("usage: sniff PORT");
    let stop = Stop::on_signals()?;
    let options = PortOptions {
        queue_count: 1,
        ..PortOptions::default()
    };
    let mut port = barewire::open(&name, &options)?;
    eprintln!("listening");
    let mut dissection = Dissection::EMPTY;
    while !stop.is_set() {
        let batch = port.rx[0].receive()?;
        let is_idle = batch.is_empty();
        // The link types of a file become known while it is read.
        let link = LinkType(port.control.describe().link_type);
        for packet in batch.iter() {
            let bytes = packet.bytes();
            dissect(link, bytes, packet.wire_len(), &mut dissection);
            let dissection = &dissection;
            println!("{}", Summary { dissection, bytes });
        }
        drop(batch);
        if is_idle && port.rx[0].wait(Duration::from_millis(100))? == Ready::End {
            break;
        }
    }
    Ok(())
}
