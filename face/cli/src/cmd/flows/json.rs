//! `--json`: a line a flow, and the summary.

use std::io::Write;

use flow::encode::json;
use flow::{EndReason, Record};
use runtime::flows::{Outlet, QueueStatus, Report, Status};
use serde_json::{Map, Value, json};
use sys::Result;
use wire::Reason;

use super::report::Memory;
use super::{ended_early, write_error};
use crate::report::account_json;

/// Written out when so full, and ten times a second.
const BUFFER_LEN: usize = 64 << 10;

/// Lines on their way out.
pub struct Lines<W: Write> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> Lines<W> {
    /// To standard output.
    pub fn new(out: W) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(BUFFER_LEN + 1024),
        }
    }

    fn write(&mut self) -> Result<()> {
        let written = self
            .out
            .write_all(&self.buffer)
            .and_then(|()| self.out.flush());
        self.buffer.clear();
        written.map_err(write_error)
    }

    /// The last line: totals and the account.
    pub fn summary(mut self, report: Report, name: &str, memory: &Memory) -> Result<()> {
        let line = summary(&report, name, memory);
        self.buffer.extend(line.to_string().as_bytes());
        self.buffer.push(b'\n');
        let written = self.write();
        ended_early(report.error).and(written)
    }
}

impl<W: Write> Outlet for Lines<W> {
    fn ended(&mut self, record: &Record, reason: EndReason) -> Result<()> {
        json::line(record, reason, &mut self.buffer);
        if self.buffer.len() >= BUFFER_LEN {
            return self.write();
        }
        Ok(())
    }

    fn pulse(&mut self, _: &Status<'_>) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.write()
    }
}

/// Counters by reason, those above zero, with the names of the reasons.
fn by_reason(counts: &[u64; Reason::COUNT]) -> Value {
    let pairs = Reason::ALL
        .into_iter()
        .zip(counts)
        .filter(|(_, count)| **count != 0);
    let named = pairs.map(|(reason, count)| {
        let name = match reason {
            Reason::Complete => "not_ip",
            reason => reason.name(),
        };
        (name.to_owned(), (*count).into())
    });
    Value::Object(named.collect::<Map<String, Value>>())
}

fn summary(report: &Report, name: &str, memory: &Memory) -> Value {
    let total = QueueStatus::total(&report.queues);
    let (meter, table) = (&total.meter, &total.meter.table);
    let ended: Map<String, Value> = EndReason::ALL
        .into_iter()
        .map(|r| (r.name().to_owned(), table.ended[r as usize].into()))
        .collect();
    let rx = report.account.rx_total();
    json!({
        "type": "summary",
        "port": name,
        "elapsed_s": report.elapsed.as_secs_f64(),
        "packets": meter.packets,
        "wire_bytes": total.wire_bytes,
        "flows": table.flows,
        "records": report.records,
        "packets_in_records": report.packets_in_records,
        "halves_merged": report.merged,
        "ended": ended,
        "refused": by_reason(&meter.refused),
        "without_ports": by_reason(&meter.without_ports),
        "fragments": {
            "first": meter.fragments.first, "followed": meter.fragments.followed,
            "joined": meter.fragments.joined, "orphans": meter.fragments.orphans,
            "evicted": meter.fragments.evicted,
        },
        "late": table.late,
        "crowded": table.crowded,
        "unmetered": total.unmetered,
        "lost": rx.lost(),
        "imbalance": report.imbalance(),
        "memory_bytes": memory.total(),
        "account": account_json(&report.account),
        "error": report.error.as_ref().map(ToString::to_string),
    })
}
