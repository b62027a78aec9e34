//! JSON lines: one per flow, and the summary.
//!
//! A separate thread writes, so that a slow or stalled reader does not delay packets: lines are
//! queued up to a bound, and records of a live port that do not fit are dropped and counted. A file
//! waits for its reader, until the run is to end.

use flow::encode::extra_fields::ExtraFields;
use flow::encode::json;
use flow::{EndReason, Extra, Record};
use inspect::InspectorStats;
use runtime::Stop;
use runtime::flows::{NdpiStats, Outlet, QueueStatus, RecordOutcome, Report, Status};
use runtime::output::{Output, Patience, Piece, Refused, blocked};
use serde_json::{Map, Value, json};
use sys::{Error, Result};
use wire::Reason;

use crate::Finished;
use crate::account::{account_json, accounts_json, egress_json};
use crate::text::json_line;

/// Size of a piece in bytes: it is written out when full, and ten times a second.
const PIECE_LEN: usize = 64 << 10;
/// Maximum number of queued pieces: 8 MiB, some twenty thousand records.
pub const PIECES_MAX: usize = 128;
/// Room for one more line in a piece, with its application.
const LINE_LEN: usize = 4096;

/// Maximum memory in bytes of the lines: the pieces queued, one being written, one being filled.
pub const MEMORY_LEN: usize = (PIECES_MAX + 2) * (PIECE_LEN + LINE_LEN);

/// The writer of lines.
pub struct Lines {
    out: Output,
    piece: Piece,
    /// Whether a record without room is dropped; otherwise it waits.
    may_drop: bool,
    /// How long to wait for the reader.
    patience: Patience,
    /// Fields added to the standard record.
    extra_fields: ExtraFields,
}

impl Lines {
    /// Writes lines to `out`. Records of a live port may be dropped; those of a file wait until
    /// `stop`.
    pub fn new(out: Output, may_drop: bool, stop: &Stop, extra_fields: ExtraFields) -> Self {
        Self {
            out,
            piece: Piece::default(),
            may_drop,
            patience: match may_drop {
                true => Patience::over(stop),
                false => Patience::until(stop),
            },
            extra_fields,
        }
    }

    /// Hands the piece to the writer thread; false if there is no room and `wait` is not set, or
    /// the wait timed out.
    fn hand_over(&mut self, wait: bool) -> Result<bool> {
        let piece = std::mem::take(&mut self.piece);
        let given = match wait {
            true => self.out.give(piece, &self.patience),
            false => self.out.try_give(piece),
        };
        match given {
            Ok(()) => {
                self.piece = self.out.empty();
                self.piece.bytes.reserve(PIECE_LEN + LINE_LEN);
                Ok(true)
            }
            Err(Refused::Full(piece) | Refused::Stalled(piece)) => {
                self.piece = piece;
                Ok(false)
            }
            Err(Refused::Failed(error)) => Err(write_error(error)),
        }
    }

    /// Waits until everything is written, as long as the reader makes progress.
    fn end(&mut self) -> Result<()> {
        let is_given = self.hand_over(true)?;
        let left = self.out.drain(&self.patience).map_err(write_error)?;
        if is_given && left.is_none() {
            return Ok(());
        }
        let left = left.unwrap_or_default();
        let records = left.records + self.piece.records;
        let packets = left.packets + self.piece.packets;
        Err(blocked(&format!(
            "the summary, and {records} records with {packets} packets,"
        )))
    }

    /// Writes the last line: totals and the account.
    ///
    /// # Errors
    /// If the lines cannot be written.
    pub fn summary(mut self, done: &Finished, name: &str, memory_len: usize) -> Result<()> {
        let report = &done.report;
        let mut line = summary(report, name, memory_len);
        line["exports"] = accounts_json(&done.exports);
        if let Some(egress) = &report.egress {
            line["egress"] = egress_json(egress);
        }
        if self.extra_fields.application {
            let total = QueueStatus::total(&report.queues);
            line["applications"] = applications(&total.applications);
            if total.ndpi != NdpiStats::default() {
                line["ndpi"] = ndpi(&total.ndpi);
            }
        }
        self.piece.bytes.extend(json_line(&line).as_bytes());
        self.piece.bytes.push(b'\n');
        self.end()
    }
}

impl Outlet for Lines {
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome> {
        // Waiting for room at the end delays nothing.
        let wait = !self.may_drop || reason == EndReason::Forced;
        if self.piece.bytes.len() >= PIECE_LEN && !self.hand_over(wait)? {
            return Ok(RecordOutcome::Dropped);
        }
        json::line_with_extra(
            record,
            extra,
            &self.extra_fields,
            reason,
            &mut self.piece.bytes,
        );
        self.piece.records += 1;
        self.piece.packets += record.packets();
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, _: &Status<'_>) -> Result<()> {
        // Small pieces would take the room of full ones.
        if !self.piece.bytes.is_empty() && self.out.is_idle() {
            self.hand_over(false)?;
        }
        Ok(())
    }
}

/// The error for failed writes.
fn write_error(error: std::io::Error) -> Error {
    Error::from_io("write the flows", error)
}

/// Nonzero counters by reason name.
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

/// Counts of the flows passed to decoders.
fn applications(stats: &InspectorStats) -> Value {
    let rejected: Map<String, Value> = inspect::decode::Reason::ALL
        .into_iter()
        .zip(stats.rejected)
        .filter(|(_, count)| *count != 0)
        .map(|(reason, count)| (reason.name().to_owned(), count.into()))
        .collect();
    json!({
        "packets": stats.packets,
        "flows": stats.flows,
        "done": stats.done,
        "rejected": rejected,
        "unfinished": stats.unfinished,
        "no_room_flow": stats.no_room_flow,
        "no_room_state": stats.no_room_state,
        "no_room_segment": stats.no_room_segment,
        "no_room_follow": stats.no_room_follow,
    })
}

/// Counts of the flows passed to libndpi.
fn ndpi(stats: &NdpiStats) -> Value {
    json!({
        "flows": stats.flows,
        "named": stats.named,
        "unnamed": stats.unnamed,
        "no_room": stats.no_room,
    })
}

fn summary(report: &Report, name: &str, memory_len: usize) -> Value {
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
        "records_dropped": report.records_dropped,
        "packets_in_dropped": report.packets_in_dropped,
        "halves_merged": report.merged,
        "ended": ended,
        "refused": by_reason(&meter.refused),
        "without_ports": by_reason(&meter.without_ports),
        "fragments": {
            "first": meter.fragments.first, "followed": meter.fragments.followed,
            "joined": meter.fragments.joined, "orphans": meter.fragments.orphans,
            "evicted": meter.fragments.evicted, "overlaps": meter.fragments.overlaps,
            "reassembled": meter.fragments.reassembled,
        },
        "unsampled": meter.unsampled,
        "unsampled_records": report.unsampled_records,
        "unsampled_record_packets": report.unsampled_record_packets,
        "counted_twice": meter.twice,
        "late": table.late,
        "crowded": table.crowded,
        "unmetered": total.unmetered,
        "unselected": total.unselected,
        "lost": rx.lost(),
        "imbalance": report.imbalance(),
        "memory_bytes": memory_len,
        "account": account_json(&report.account),
        "error": report.error.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    use flow::{HashKey, Input, Meter, MeterConfig};
    use wire::LinkType;

    use super::*;

    /// A reader that reads nothing until it is woken.
    struct Asleep {
        wake: Receiver<()>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Asleep {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // After an error it does not sleep again.
            let _ = self.wake.recv();
            self.read.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn asleep() -> (Asleep, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (wake, sleeping) = channel();
        let read = Arc::default();
        let asleep = Asleep {
            wake: sleeping,
            read: Arc::clone(&read),
        };
        (asleep, wake, read)
    }

    /// A record of one packet.
    fn record() -> Record {
        struct Keep(Vec<Record>);
        impl flow::RecordSink for Keep {
            fn ended(&mut self, record: &Record, _: EndReason) {
                self.0.push(*record);
            }
        }
        let mut config = MeterConfig::new(HashKey::from_bytes(&[1; 64]));
        config.table.flow_count_max = 16;
        let mut meter = Meter::new(&config).unwrap();
        let mut head = [0; wire::ipv4::HEADER_LEN];
        wire::ipv4::Header {
            src: Ipv4Addr::new(192, 0, 2, 1),
            dst: Ipv4Addr::new(192, 0, 2, 2),
            protocol: 253,
            ttl: 64,
            traffic_class: 0,
            id: 1,
            payload_len: 0,
        }
        .emit(&mut head);
        let input = Input {
            link: LinkType::RAW,
            bytes: &head,
            wire_len: 20,
            time_ns: 1,
            vlan: None,
            interface: 0,
        };
        let mut keep = Keep(Vec::new());
        meter.observe(&input, &mut keep);
        meter.flush(&mut keep);
        meter.finish(&mut keep);
        assert_eq!(keep.0.len(), 1);
        keep.0[0]
    }

    #[test]
    fn a_stalled_reader_loses_records_and_does_not_block() {
        let record = record();
        let (asleep, wake, read) = asleep();
        let out = Output::start("lines", PIECES_MAX, asleep).unwrap();
        let mut lines = Lines::new(out, true, &Stop::new(), ExtraFields::default());
        let (mut reported, mut dropped) = (0, 0);
        while dropped < 1000 {
            match lines
                .ended(&record, &Extra::default(), EndReason::Idle)
                .unwrap()
            {
                RecordOutcome::Reported => reported += 1,
                RecordOutcome::Dropped => dropped += 1,
            }
            assert!(reported < 1_000_000, "the queue has a bound");
        }
        drop(wake);
        // At the end nothing is dropped.
        for _ in 0..10_000 {
            let fate = lines
                .ended(&record, &Extra::default(), EndReason::Forced)
                .unwrap();
            assert_eq!(fate, RecordOutcome::Reported);
            reported += 1;
        }
        lines.end().unwrap();
        let read = read.lock().unwrap();
        assert_eq!(read.iter().filter(|&&byte| byte == b'\n').count(), reported);
    }

    #[test]
    fn a_closed_reader_is_reported_as_an_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(32))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let record = record();
        let out = Output::start("lines", PIECES_MAX, Gone).unwrap();
        let mut lines = Lines::new(out, true, &Stop::new(), ExtraFields::default());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let error = loop {
            match lines.ended(&record, &Extra::default(), EndReason::Idle) {
                Ok(_) => assert!(std::time::Instant::now() < until),
                Err(error) => break error,
            }
        };
        assert_eq!(error.os_code(), Some(32));
    }
}
