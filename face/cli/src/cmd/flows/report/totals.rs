//! Totals of a run, the packets that belong to no flow, and the port's account.

use std::io::{self, Write};

use flow::{EndReason, MeterStats};
use runtime::flows::{QueueStatus, Report};
use wire::Reason;

use super::Memory;
use crate::report::{bytes, counted, si, write_account};

/// Writes the totals, the packets that belong to no flow by reason, and the port's account.
///
/// # Errors
/// If they cannot be written.
pub fn write_totals(out: &mut impl Write, report: &Report, memory: &Memory) -> io::Result<()> {
    let total = QueueStatus::total(&report.queues);
    write_flows(out, report, &total)?;
    write_in_no_flow(out, &total.meter)?;
    write_left_out(out, report, &total)?;
    writeln!(
        out,
        "memory: {} for tables, {} for the port's rings",
        bytes(memory.tables as u64),
        bytes(memory.port as u64)
    )?;
    writeln!(out)?;
    write_account(out, &report.account)?;
    if let Some(egress) = &report.egress {
        super::super::egress::write_account(out, egress)?;
    }
    write_sum(out, report, &total)
}

/// Writes how much was metered, how fast, and why flows ended.
fn write_flows(out: &mut impl Write, report: &Report, total: &QueueStatus) -> io::Result<()> {
    let (meter, table) = (&total.meter, &total.meter.table);
    let seconds = report.elapsed.as_secs_f64();
    writeln!(
        out,
        "\n{} ({}) in {:.3} s: {}; {} in {}",
        counted(meter.packets, "packet"),
        bytes(total.wire_bytes),
        seconds,
        si(meter.packets as f64 / seconds.max(1e-9), "pps"),
        counted(table.flows - report.merged, "flow"),
        counted(report.records, "record"),
    )?;
    let ended = EndReason::ALL.map(|r| (table.ended[r as usize], r.name().to_owned()));
    write_counts(out, "ended", ended)?;
    if report.merged != 0 {
        writeln!(
            out,
            "{} with the two directions in different queues, merged",
            counted(report.merged, "flow")
        )?;
    }
    let full = table.ended[EndReason::Resources as usize];
    if full != 0 {
        writeln!(
            out,
            "the flow table ({} entries) was full {}: the flow nearest to its timeout \
             was ended early; increase --table-size",
            total.capacity,
            counted(full, "time")
        )?;
    }
    Ok(())
}

/// Writes packets for which there was no flow, and fragments.
fn write_in_no_flow(out: &mut impl Write, meter: &MeterStats) -> io::Result<()> {
    let refused = Reason::ALL.map(|r| {
        let name = match r {
            Reason::Complete => "not IP".to_owned(),
            r => r.name().replace('_', " "),
        };
        (meter.refused[r as usize], name)
    });
    write_counts(out, "in no flow", refused)?;
    let fragments = &meter.fragments;
    if fragments.first + fragments.followed + fragments.orphans != 0 {
        writeln!(
            out,
            "fragments: {} first, {} later ones matched to their flows, {} without a first one \
             (ports 0), {} overlapping",
            fragments.first,
            fragments.followed + fragments.joined,
            fragments.orphans,
            fragments.overlaps
        )?;
    }
    Ok(())
}

/// Writes the nonzero counts after a title; nothing if all are 0.
fn write_counts(
    out: &mut impl Write,
    title: &str,
    counts: impl IntoIterator<Item = (u64, String)>,
) -> io::Result<()> {
    let counts = counts.into_iter().filter(|(count, _)| *count != 0);
    let words: Vec<String> = counts.map(|(n, name)| format!("{n} {name}")).collect();
    match words.is_empty() {
        true => Ok(()),
        false => writeln!(out, "{title}: {}", words.join(", ")),
    }
}

/// Writes what was left out on request or for lack of room, and what counts twice.
fn write_left_out(out: &mut impl Write, report: &Report, total: &QueueStatus) -> io::Result<()> {
    let meter = &total.meter;
    if meter.unsampled + report.unsampled_records != 0 {
        writeln!(
            out,
            "sampling skipped {}, and {} with {}",
            counted(meter.unsampled, "packet"),
            counted(report.unsampled_records, "record"),
            counted(report.unsampled_record_packets, "packet")
        )?;
    }
    if meter.twice != 0 {
        writeln!(
            out,
            "counted in two flows: {}",
            counted(meter.twice, "tunnelled packet")
        )?;
    }
    if total.unselected != 0 {
        let count = counted(total.unselected, "packet");
        writeln!(out, "the filter (--live-filter) rejected {count}")?;
    }
    if report.records_dropped != 0 {
        writeln!(
            out,
            "dropped: {} with {}, because the reader was too slow",
            counted(report.records_dropped, "record"),
            counted(report.packets_in_dropped, "packet")
        )?;
    }
    if total.unmetered != 0 {
        writeln!(
            out,
            "{} arrived after --count was reached; in no flow",
            counted(total.unmetered, "packet")
        )?;
    }
    Ok(())
}

/// Writes whether delivered packets and packets in records are equal, or the difference.
fn write_sum(out: &mut impl Write, report: &Report, total: &QueueStatus) -> io::Result<()> {
    let missing = report.imbalance();
    if missing != 0 {
        return writeln!(
            out,
            "delivered packets and records differ by {missing} packets: a bug in barewire"
        );
    }
    let dropped = match report.packets_in_dropped {
        0 => String::new(),
        count => format!(" + {count} in dropped records"),
    };
    let meter = &total.meter;
    let elsewhere = meter.refused_total()
        + total.unmetered
        + total.unselected
        + meter.unsampled
        + report.unsampled_record_packets;
    let twice = match meter.twice {
        0 => String::new(),
        count => format!(" - {count} counted twice"),
    };
    writeln!(
        out,
        "delivered = {} in records{dropped} + {elsewhere} in no flow{twice}: adds up",
        report.packets_in_records,
    )
}
