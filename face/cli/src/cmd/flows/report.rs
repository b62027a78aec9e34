//! The end: the largest flows on standard output; totals and the account on standard error.

use std::io::{self, Write};

use export::Account;
use flow::EndReason;
use flow::top::{Order, Total};
use runtime::flows::{QueueStatus, Report};
use sys::Result;
use wire::{Reason, Timestamp};

use super::export::write_accounts;
use super::{ended_early, write_error};
use crate::report::{bytes, si, write_account};

/// Memory reserved, in bytes.
pub struct Memory {
    /// Tables, buffers.
    pub tables: usize,
    /// The port's rings.
    pub port: usize,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.tables + self.port
    }
}

/// Tells the end of a probe.
///
/// # Errors
/// What ended it early, once everything else is told; or that standard output cannot be written.
pub fn tell(
    report: Report,
    count: usize,
    order: Order,
    memory: &Memory,
    exports: &[(String, Account)],
) -> Result<()> {
    let mut out = Vec::new();
    let listed = match count {
        0 => Ok(()),
        _ => write_top(&mut out, &report, count, order),
    };
    let written = listed
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(write_error);
    let mut err = Vec::new();
    // Writing into a vector cannot fail; that nobody reads standard error is no reason to fail.
    drop(write_totals(&mut err, &report, memory));
    drop(write_accounts(&mut err, exports));
    drop(io::stderr().write_all(&err));
    ended_early(report.error).and(written)
}

/// The IP protocol's name, or its number.
pub fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".into(),
        2 => "igmp".into(),
        4 => "ipip".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        41 => "ipv6".into(),
        47 => "gre".into(),
        50 => "esp".into(),
        51 => "ah".into(),
        58 => "icmp6".into(),
        89 => "ospf".into(),
        103 => "pim".into(),
        112 => "vrrp".into(),
        132 => "sctp".into(),
        136 => "udpl".into(),
        other => other.to_string(),
    }
}

/// Source and destination of a flow: address and, where there are ports, port.
pub fn ends(total: &Total) -> (String, String) {
    let key = &total.key;
    let end = |side| {
        let addr = key.addr(side);
        match key.protocol() {
            6 | 17 | 132 | 136 if key.ip_version() == 6 => format!("[{addr}]:{}", key.port(side)),
            6 | 17 | 132 | 136 => format!("{addr}:{}", key.port(side)),
            _ => addr.to_string(),
        }
    };
    let mut source = end(total.initiator);
    if key.is_icmp() {
        source += &format!(" type {}", key.port(total.initiator));
    }
    (source, end(total.initiator.other()))
}

/// A duration, as short as it can be said.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{}.{:03} s", seconds, ns / 1_000_000 % 1000),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!(
            "{}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        ),
    }
}

/// The table of the largest flows.
pub fn write_top(
    out: &mut impl Write,
    report: &Report,
    count: usize,
    order: Order,
) -> io::Result<()> {
    // Sums were kept by the order given at the start; a view may have changed it since.
    let mut totals = report.top.largest(usize::MAX);
    flow::top::sort(&mut totals, order);
    totals.truncate(count);
    if totals.is_empty() {
        return writeln!(out, "no flows");
    }
    let rows: Vec<[String; 9]> = totals.iter().map(row).collect();
    let head = [
        "start",
        "duration",
        "proto",
        "source",
        "destination",
        "packets",
        "back",
        "bytes",
        "back",
    ];
    let mut widths = head.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut line = |cells: &[&str]| {
        let mut text = String::new();
        for (at, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            // Words to the left, numbers to the right.
            text += &match at {
                0 | 2 | 3 | 4 => format!("{cell:width$}  "),
                _ => format!("{cell:>width$}  "),
            };
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&head)?;
    for row in &rows {
        line(&row.each_ref().map(String::as_str))?;
    }
    if !report.top.is_exact() {
        writeln!(
            out,
            "(flows told in several records may be larger: the sums of small ones were forgotten)"
        )?;
    }
    Ok(())
}

fn row(total: &Total) -> [String; 9] {
    let (source, destination) = ends(total);
    [
        format!("{:.6}", Timestamp(total.start_ns)),
        duration(total.end_ns.saturating_sub(total.start_ns)),
        protocol_name(total.key.protocol()),
        source,
        destination,
        total.packets[0].to_string(),
        total.packets[1].to_string(),
        total.bytes[0].to_string(),
        total.bytes[1].to_string(),
    ]
}

/// Totals, where packets went that are in no flow, and the port's account.
pub fn write_totals(out: &mut impl Write, report: &Report, memory: &Memory) -> io::Result<()> {
    let total = QueueStatus::total(&report.queues);
    let (meter, table) = (&total.meter, &total.meter.table);
    let seconds = report.elapsed.as_secs_f64();
    writeln!(
        out,
        "\n{} packets ({}) in {:.3} s: {}; {} flows in {} records",
        meter.packets,
        bytes(total.wire_bytes),
        seconds,
        si(meter.packets as f64 / seconds.max(1e-9), "pps"),
        table.flows - report.merged,
        report.records,
    )?;
    let reasons: Vec<String> = EndReason::ALL
        .into_iter()
        .filter(|&r| table.ended[r as usize] != 0)
        .map(|r| format!("{} {}", table.ended[r as usize], r.name()))
        .collect();
    if !reasons.is_empty() {
        writeln!(out, "ended: {}", reasons.join(", "))?;
    }
    if report.merged != 0 {
        writeln!(
            out,
            "{} flows had their two directions in different queues; their halves are one record",
            report.merged
        )?;
    }
    let full = table.ended[EndReason::Resources as usize];
    if full != 0 {
        writeln!(
            out,
            "the table of {} flows was full {full} times: the flow nearest to its timeout ended \
             early; --table-size makes it larger",
            total.capacity
        )?;
    }
    let refused: Vec<String> = Reason::ALL
        .into_iter()
        .filter(|&r| meter.refused[r as usize] != 0)
        .map(|r| match r {
            Reason::Complete => format!("{} not IP", meter.refused[r as usize]),
            r => format!(
                "{} {}",
                meter.refused[r as usize],
                r.name().replace('_', " ")
            ),
        })
        .collect();
    if !refused.is_empty() {
        writeln!(out, "in no flow: {}", refused.join(", "))?;
    }
    let fragments = &meter.fragments;
    if fragments.first + fragments.followed + fragments.orphans != 0 {
        writeln!(
            out,
            "fragments: {} first, {} later ones in their flows, {} without a first one (ports 0), \
             {} overlap others",
            fragments.first,
            fragments.followed + fragments.joined,
            fragments.orphans,
            fragments.overlaps
        )?;
    }
    if meter.unsampled + report.unsampled_records != 0 {
        writeln!(
            out,
            "sampling left out {} packets, and {} records with {} packets",
            meter.unsampled, report.unsampled_records, report.unsampled_record_packets
        )?;
    }
    if meter.twice != 0 {
        writeln!(out, "{} packets in tunnels count in two flows", meter.twice)?;
    }
    if total.unselected != 0 {
        let count = total.unselected;
        writeln!(out, "the filter of --live-filter left out {count} packets")?;
    }
    if total.unmetered != 0 {
        writeln!(
            out,
            "{} packets came after the count was reached, and are in no flow",
            total.unmetered
        )?;
    }
    writeln!(
        out,
        "memory: {} for tables, {} for the port's rings",
        bytes(memory.tables as u64),
        bytes(memory.port as u64)
    )?;
    writeln!(out)?;
    write_account(out, &report.account)?;
    if let Some(egress) = &report.egress {
        super::egress::write_account(out, egress)?;
    }
    match report.imbalance() {
        0 => {
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
                "delivered = {} in records + {elsewhere} in no flow{twice}: adds up",
                report.packets_in_records,
            )
        }
        missing => writeln!(
            out,
            "delivered and records differ by {missing} packets: this is a fault of this program"
        ),
    }
}
