//! The laws of the dissector and of the file readers over all captures: real packets and files,
//! damaged ones included.

use anyhow::{Result, ensure};
use wire::file::{Event, Reader};
use wire::laws;

/// In larger files the laws of packets are checked by samples only, to save time.
const WHOLE_UP_TO: usize = 400_000;

/// One packet in sixteen, and the first of each file.
fn samples(bytes: &[u8]) -> usize {
    let (mut reader, mut at, mut count, mut tried) = (Reader::new(), 0, 0, 0);
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        match reader.next(rest) {
            Ok(Event::Need(_)) | Err(_) => return tried,
            Ok(event) => {
                if let Event::Packet(packet) = &event {
                    if count % 16 == 0 {
                        laws::packet(packet.link, &rest[packet.data.clone()], packet.wire_len);
                        tried += 1;
                    }
                    count += 1;
                }
                at += event.used();
            }
        }
    }
}

#[test]
fn every_capture_obeys_the_laws() -> Result<()> {
    let corpus = lab::corpus::captures();
    let (mut whole, mut sampled) = (0, 0);
    for path in &corpus.files {
        let bytes = std::fs::read(path)?;
        println!("{}", path.display());
        if bytes.len() <= WHOLE_UP_TO {
            laws::file(&bytes);
            whole += 1;
        } else {
            sampled += samples(&bytes);
        }
    }
    ensure!(
        whole >= corpus.at_least(100, 4) && sampled >= corpus.at_least(1000, 0),
        "{whole} files, {sampled} packets"
    );
    Ok(())
}
