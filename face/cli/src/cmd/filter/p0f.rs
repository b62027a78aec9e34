//! `barewire filter p0f`: the signatures of a capture file.

use std::path::PathBuf;

use filter::p0f::{Handshake, RawSignature, Signature, matches, raw_signature};
use port::{PortOptions, RxBatch};
use runtime::{Engine, Pacing, Stop, Verdict, worker};
use serde_json::json;
use sys::Result;
use wire::link::LinkType;

use super::test::file_port;
use crate::out::{say, warning};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Capture file; - is standard input
    file: String,
    /// Name the systems by a file of fingerprints (Debian's package p0f has /etc/p0f/p0f.fp)
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Print one JSON object per packet
    #[arg(long)]
    json: bool,
}

/// Bytes of a file of fingerprints at most.
const DATABASE_MAX: u64 = 4 << 20;

/// A line of the file of fingerprints.
struct Entry {
    handshake: Handshake,
    label: String,
    signature: Signature,
}

/// Prints a line for each SYN and SYN+ACK.
pub fn run(args: &Args) -> Result<()> {
    let database = match &args.database {
        Some(path) => read_database(&super::read_text(path, DATABASE_MAX)?),
        None => Vec::new(),
    };
    let mut port = port::open(&file_port(&args.file), &PortOptions::default())?;
    let stop = Stop::on_signals()?;
    let description = port.control.describe();
    let mut signatures = Signatures {
        link_type: description.link_type,
        links: description.interfaces.clone(),
        database,
        json: args.json,
        found: 0,
        text: String::new(),
    };
    let ended = match port.rx.first_mut() {
        Some(rx) => worker::run(rx, &mut signatures, &stop, Pacing::Wait),
        None => return Ok(()),
    };
    let seen = port.control.account()?.rx_total().seen;
    say!(
        "{} of {seen} packets are SYNs or SYN+ACKs",
        signatures.found
    );
    ended.map(drop)
}

/// The TCP signatures of a file, in its order. Lines that cannot be read are reported and left out.
fn read_database(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let (mut section, mut label) = ("", "");
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let handshake = match section {
            "[tcp:request]" => Handshake::Syn,
            "[tcp:response]" => Handshake::SynAck,
            _ => continue,
        };
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        match (key.trim(), value.trim()) {
            ("label", value) => label = value,
            ("sig", value) => match Signature::parse(value) {
                Ok(signature) => entries.push(Entry {
                    handshake,
                    label: label.to_owned(),
                    signature,
                }),
                Err(why) => warning!("line {} is not used: {why}", index + 1),
            },
            _ => {}
        }
    }
    entries
}

struct Signatures {
    link_type: u16,
    links: Vec<(u16, String)>,
    database: Vec<Entry>,
    json: bool,
    found: u64,
    text: String,
}

impl Signatures {
    /// The name of a system: a specific one (`s:`) before a general one (`g:`).
    fn label(&self, raw: &RawSignature) -> Option<&str> {
        let all = || {
            self.database
                .iter()
                .filter(|e| e.handshake == raw.handshake && matches(&e.signature, raw))
        };
        let specific = all().find(|e| e.label.starts_with("s:"));
        specific.or_else(|| all().next()).map(|e| e.label.as_str())
    }

    fn line(&mut self, raw: &RawSignature, time_ns: Option<u64>) {
        let kind = match raw.handshake {
            Handshake::Syn => "SYN",
            Handshake::SynAck => "SYN+ACK",
        };
        self.found += 1;
        let label = self.label(raw).map(str::to_owned);
        if self.json {
            let mut line = json!({ "kind": kind, "signature": raw.to_string() });
            if let Some(time_ns) = time_ns {
                line["time_ns"] = time_ns.into();
            }
            if let Some(label) = label {
                line["label"] = label.into();
            }
            self.text += &format!("{line}\n");
            return;
        }
        self.text += &format!("{kind:<8} {raw}");
        if !self.database.is_empty() {
            self.text += &format!("  {}", label.as_deref().unwrap_or("unknown"));
        }
        self.text += "\n";
    }
}

/// Where the IP header of a packet begins; VLAN tags are skipped.
fn ip_packet(link_type: u16, bytes: &[u8]) -> Option<&[u8]> {
    match LinkType(link_type) {
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => Some(bytes),
        LinkType::LINUX_SLL => bytes.get(16..),
        LinkType::LINUX_SLL2 => bytes.get(20..),
        LinkType::ETHERNET => {
            let mut at = 12;
            // Two tags at most.
            for _ in 0..3 {
                match bytes.get(at..at + 2)? {
                    [0x81, 0] | [0x88, 0xa8] => at += 4,
                    [8, 0] | [0x86, 0xdd] => return bytes.get(at + 2..),
                    _ => return None,
                }
            }
            None
        }
        _ => None,
    }
}

impl Engine for Signatures {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        for packet in batch.iter() {
            let of_file = self.links.get(usize::from(packet.interface_index()));
            let link_type = of_file.map_or(self.link_type, |(link_type, _)| *link_type);
            // Headers are in the first segment.
            let raw = ip_packet(link_type, packet.bytes()).and_then(raw_signature);
            if let Some(raw) = raw {
                self.line(&raw, packet.time_ns());
            }
        }
        let text = std::mem::take(&mut self.text);
        super::print(&text)?;
        Ok(Verdict::Continue)
    }
}
