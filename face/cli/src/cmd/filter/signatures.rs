//! The p0f signatures of a capture's SYNs.

use std::net::IpAddr;
use std::path::Path;

use ::filter::p0f::{Handshake, RawSignature, raw_signature};
use port::{Direction, PortOptions, Ready};
use serde_json::json;
use sys::Result;
use wire::{Dissection, LinkType, dissect};

/// Prints a line for each SYN and SYN+ACK.
pub fn print(file: &Path, as_json: bool) -> Result<()> {
    let options = PortOptions {
        direction: Direction::Rx,
        ..PortOptions::default()
    };
    let mut port = port::open(&format!("file:{}", file.display()), &options)?;
    let mut text = String::new();
    let mut dissection = Dissection::EMPTY;
    let mut links = Vec::new();
    loop {
        let batch = port.rx[0].receive()?;
        for packet in batch.iter() {
            let index = usize::from(packet.interface_index());
            if index >= links.len() {
                links = port.control.describe().interfaces;
            }
            let link = links.get(index).map_or(1, |(link, _)| *link);
            let bytes = packet.bytes();
            dissect(LinkType(link), bytes, packet.wire_len(), &mut dissection);
            if let Some(line) = line(bytes, &dissection, packet.time_ns(), as_json) {
                text.push_str(&line);
            }
        }
        let is_empty = batch.is_empty();
        drop(batch);
        super::write_out(&text)?;
        text.clear();
        if is_empty && port.rx[0].wait(std::time::Duration::from_secs(1))? == Ready::End {
            return Ok(());
        }
    }
}

/// The line of a packet, if it is a SYN or SYN+ACK.
fn line(bytes: &[u8], found: &Dissection, time_ns: Option<u64>, as_json: bool) -> Option<String> {
    let packet = bytes.get(usize::from(found.ip_offset)..)?;
    let raw = raw_signature(packet)?;
    let [from, to] = addresses(packet)?;
    let (src_port, dst_port) = (found.src_port, found.dst_port);
    let flags = match raw.handshake {
        Handshake::Syn => "syn",
        Handshake::SynAck => "syn+ack",
    };
    Some(if as_json {
        let object = json!({
            "time_ns": time_ns,
            "src": from.to_string(),
            "src_port": src_port,
            "dst": to.to_string(),
            "dst_port": dst_port,
            "packet": flags,
            "signature": raw.to_string(),
        });
        format!("{object}\n")
    } else {
        text(from, src_port, to, dst_port, flags, &raw)
    })
}

fn text(from: IpAddr, src: u16, to: IpAddr, dst: u16, flags: &str, raw: &RawSignature) -> String {
    let ends = format!("{from}.{src} > {to}.{dst}");
    format!("{ends:<45} {flags:<7} {raw}\n")
}

/// Source and destination of an IP packet.
fn addresses(packet: &[u8]) -> Option<[IpAddr; 2]> {
    if packet.first()? >> 4 == 4 {
        let at = |at: usize| {
            packet
                .get(at..)?
                .first_chunk::<4>()
                .copied()
                .map(IpAddr::from)
        };
        Some([at(12)?, at(16)?])
    } else {
        let at = |at: usize| {
            packet
                .get(at..)?
                .first_chunk::<16>()
                .copied()
                .map(IpAddr::from)
        };
        Some([at(8)?, at(24)?])
    }
}
