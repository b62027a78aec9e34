//! The table of the largest flows. On a terminal it fits the width: columns are omitted step by
//! step, IPv6 addresses are shortened, and numbers get larger units, until a line fits. Elsewhere
//! it is complete.

use std::io::{self, Write};

use flow::KnownFlows;
use flow::top::{Order, Total};
use probe::text::{duration, protocol_name};
use runtime::flows::Report;
use wire::Timestamp;

use crate::short::{End, IPV4_WIDTH, short, visible, words};

/// Names are cut to this width before anything else is omitted.
const NAME_WIDTH: usize = 24;

/// A column: heading and alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Start,
    Duration,
    Protocol,
    Source,
    Destination,
    Packets(usize),
    Bytes(usize),
    Name,
}

/// Columns dropped for lack of room.
#[derive(Clone, Copy, Debug, Default)]
struct Level(u8);

impl Level {
    /// The last level, at which the whole column is omitted.
    const LAST: u8 = 7;

    fn has(self, column: Column) -> bool {
        match column {
            Column::Start => self.0 < 2,
            Column::Duration => self.0 < 4,
            Column::Name => self.0 < 7,
            _ => true,
        }
    }

    fn end(self, end: End) -> String {
        match self.0 {
            0..3 => end.whole(),
            _ => end.fitted(IPV4_WIDTH.into()),
        }
    }

    fn number(self, value: u64, from: u8) -> String {
        match self.0 < from {
            true => value.to_string(),
            false => short(value),
        }
    }
}

const ALL: [Column; 10] = [
    Column::Start,
    Column::Duration,
    Column::Protocol,
    Column::Source,
    Column::Destination,
    Column::Packets(0),
    Column::Packets(1),
    Column::Bytes(0),
    Column::Bytes(1),
    Column::Name,
];

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Column::Start => "start",
            Column::Duration => "duration",
            Column::Protocol => "proto",
            Column::Source => "source",
            Column::Destination => "destination",
            Column::Packets(0) => "packets",
            Column::Bytes(0) => "bytes",
            Column::Packets(_) | Column::Bytes(_) => "back",
            Column::Name => "name",
        }
    }

    /// Numbers are aligned to the right, words to the left.
    fn is_number(self) -> bool {
        matches!(
            self,
            Column::Duration | Column::Packets(_) | Column::Bytes(_)
        )
    }
}

/// A flow with its decoded fields.
struct Flow {
    total: Total,
    /// The application, or the IP protocol.
    protocol: String,
    name: String,
}

impl Flow {
    fn cell(&self, column: Column, level: Level) -> String {
        let total = &self.total;
        let key = &total.key;
        let has_ports = matches!(key.protocol(), 6 | 17 | 132 | 136);
        let end = |side| {
            level.end(End {
                addr: key.addr(side),
                port: has_ports.then(|| key.port(side)),
            })
        };
        match column {
            Column::Start if !total.is_timed() => "-".to_owned(),
            Column::Start => format!("{:.6}", Timestamp(total.start_ns)),
            Column::Duration => duration(total.end_ns.saturating_sub(total.start_ns)),
            Column::Protocol => self.protocol.clone(),
            Column::Source => {
                let source = end(total.initiator);
                match key.icmp_type(total.initiator) {
                    Some(kind) if level.0 < 3 => format!("{source} type {kind}"),
                    _ => source,
                }
            }
            Column::Destination => end(total.initiator.other()),
            Column::Packets(way) => level.number(total.packets[way], 6),
            Column::Bytes(way) => level.number(total.bytes[way], 5),
            Column::Name if level.0 == 0 => self.name.clone(),
            Column::Name => words(&self.name, NAME_WIDTH),
        }
    }
}

/// Writes the largest flows, in at most `width` columns if there is a limit.
pub fn write(
    out: &mut impl Write,
    report: &Report,
    known: &KnownFlows,
    count: usize,
    order: Order,
    width: Option<usize>,
) -> io::Result<()> {
    // Sums were kept in the order given at the start; a view may have changed it since.
    let mut totals = report.top.largest(usize::MAX);
    flow::top::sort(&mut totals, order);
    totals.truncate(count);
    if totals.is_empty() {
        return writeln!(out, "no flows");
    }
    for line in lines(&totals, known, width) {
        writeln!(out, "{line}")?;
    }
    if !report.top.is_exact() {
        writeln!(
            out,
            "(flows of several records may be larger: sums of the smallest flows were discarded)"
        )?;
    }
    Ok(())
}

fn lines(totals: &[Total], known: &KnownFlows, width: Option<usize>) -> Vec<String> {
    let flows: Vec<Flow> = totals
        .iter()
        .map(|total| {
            let (protocol, name) = match known.get(&total.key) {
                Some((application, name)) => (application.to_string(), visible(name)),
                None => (protocol_name(total.key.protocol()), String::new()),
            };
            Flow {
                total: *total,
                protocol,
                name,
            }
        })
        .collect();
    let has_names = flows.iter().any(|flow| !flow.name.is_empty());
    let mut lines = Vec::new();
    for level in 0..=Level::LAST {
        let level = Level(level);
        let columns = ALL
            .into_iter()
            .filter(|column| level.has(*column) && (has_names || *column != Column::Name));
        lines = render(&flows, &columns.collect::<Vec<_>>(), level);
        let longest = lines.iter().map(|line| line.chars().count()).max();
        if width.is_none_or(|width| longest <= Some(width)) {
            break;
        }
    }
    lines
}

fn render(flows: &[Flow], columns: &[Column], level: Level) -> Vec<String> {
    let mut table = vec![
        columns
            .iter()
            .map(|column| column.heading().to_owned())
            .collect::<Vec<_>>(),
    ];
    table.extend(flows.iter().map(|flow| {
        let cells = columns.iter().map(|column| flow.cell(*column, level));
        cells.collect()
    }));
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| table.iter().map(|row| row[at].chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    // Two spaces are more readable; one is enough.
    let gap = if level.0 < 5 { "  " } else { " " };
    let line = |row: Vec<String>| {
        let cells = row.into_iter().zip(columns).zip(&widths);
        let cells = cells.map(|((cell, column), &width)| match column.is_number() {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        cells.collect::<Vec<_>>().join(gap).trim_end().to_owned()
    };
    table.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests;
