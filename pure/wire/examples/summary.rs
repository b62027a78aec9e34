//! Prints a capture file, one line per packet: `summary FILE`. Shows the whole use of the crate.

use barewire_wire::file::{Event, Reader};
use barewire_wire::{Dissection, Summary, dissect};
use std::io::{BufWriter, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: summary FILE")?;
    let file = std::fs::read(path)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut reader, mut at, mut dissection) = (Reader::new(), 0, Dissection::EMPTY);
    loop {
        let rest = file.get(at..).unwrap_or(&[]);
        let event = reader.next(rest)?;
        if let Event::Need(_) = event {
            // The whole file is in memory, so this is its end.
            reader.finish(rest.len())?;
            out.flush()?;
            return Ok(());
        }
        if let Event::Packet(packet) = &event {
            let bytes = &rest[packet.data.clone()];
            dissect(packet.link, bytes, packet.wire_len, &mut dissection);
            let summary = Summary {
                dissection: &dissection,
                bytes,
            };
            writeln!(out, "{} {summary}", packet.time.clock(6, 0))?;
        }
        at += event.used();
    }
}
