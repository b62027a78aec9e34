//! Signatures as text and as JSON.

use std::sync::atomic::{AtomicU64, Ordering};

use filter::p0f::{Database, Handshake, RawSignature, raw_signature};
use port::RxBatch;
use runtime::filter::link::ip_packet;
use runtime::output::Output;
use runtime::{Engine, Verdict};
use serde_json::json;
use sys::Result;

use crate::cmd::filter::packet::tcp_ends;

/// State shared by the threads.
pub(super) struct Shared {
    pub link_type: u16,
    /// Link type and name of each interface of a file.
    pub links: Vec<(u16, String)>,
    pub database: Database,
    pub json: bool,
    /// Maximum number of signatures to print.
    pub count_max: u64,
    /// Number of signatures printed.
    pub found: AtomicU64,
    pub output: Output,
}

/// Reader of the signatures of one queue.
pub(super) struct Signatures<'a> {
    shared: &'a Shared,
    text: String,
}

impl<'a> Signatures<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        let text = String::new();
        Self { shared, text }
    }

    /// Claims one of the remaining signatures to print; false if none is left.
    fn take(&self) -> bool {
        let (found, max) = (&self.shared.found, self.shared.count_max);
        let next = |found: u64| (found < max).then_some(found + 1);
        found
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }

    fn line(&mut self, ip: &[u8], raw: &RawSignature, time_ns: Option<u64>) {
        let kind = match raw.handshake {
            Handshake::Syn => "SYN",
            Handshake::SynAck => "SYN+ACK",
        };
        let found = self.shared.database.find(raw);
        let ends = tcp_ends(ip);
        if self.shared.json {
            let mut line =
                json!({ "type": "signature", "kind": kind, "signature": raw.to_string() });
            if let Some(time_ns) = time_ns {
                line["time_ns"] = time_ns.into();
            }
            if let Some((source, destination)) = ends {
                line["source"] = source.to_string().into();
                line["destination"] = destination.to_string().into();
            }
            if let Some(found) = found {
                line["label"] = found.label.into();
                line["fuzzy"] = found.is_fuzzy.into();
            }
            self.text += &format!("{line}\n");
            return;
        }
        self.text += &format!("{kind:<8}");
        if let Some((source, destination)) = ends {
            self.text += &format!("{source} > {destination} ");
        }
        self.text += &raw.to_string();
        if !self.shared.database.is_empty() {
            self.text += &format!("  {}", found.map_or("unknown", |found| found.label));
            if found.is_some_and(|found| found.is_fuzzy) {
                self.text += " (fuzzy)";
            }
        }
        self.text += "\n";
    }
}

impl Engine for Signatures<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut verdict = Verdict::Continue;
        for packet in batch.iter() {
            let of_file = self.shared.links.get(usize::from(packet.interface_index()));
            let link_type = of_file.map_or(self.shared.link_type, |(link_type, _)| *link_type);
            // The headers are in the first segment.
            let Some(ip) = ip_packet(link_type, packet.bytes()) else {
                continue;
            };
            let Some(raw) = raw_signature(ip) else {
                continue;
            };
            if !self.take() {
                verdict = Verdict::Finish;
                break;
            }
            self.line(ip, &raw, packet.time_ns());
        }
        if self.shared.found.load(Ordering::Relaxed) >= self.shared.count_max {
            verdict = Verdict::Finish;
        }
        let text = std::mem::take(&mut self.text);
        crate::out::print(&self.shared.output, text.into_bytes())?;
        Ok(verdict)
    }
}
