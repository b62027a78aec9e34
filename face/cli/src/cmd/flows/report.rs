//! Final output: the largest flows on standard output; totals and the account on standard error.

use std::io::{self, Write};

use flow::top::{Order, Total};
use probe::Finished;
use probe::text::{duration, ends, protocol_name};
use runtime::flows::Report;
use runtime::output::Output;
use sys::Result;
use wire::Timestamp;

use super::export::write_accounts;
use crate::out;

mod totals;

pub use totals::write_totals;

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

/// Prints the final output of a probe.
///
/// # Errors
/// What ended it early, once everything else is told; or that standard output cannot be written.
pub fn tell(
    stdout: &Output,
    done: Finished,
    count: usize,
    order: Order,
    memory: &Memory,
) -> Result<()> {
    let mut text = Vec::new();
    let mut err = Vec::new();
    // Writing into a vector cannot fail; that nobody reads standard error is no reason to fail.
    if count != 0 {
        drop(write_top(&mut text, &done.report, count, order));
    }
    let written = out::print(stdout, text);
    drop(write_totals(&mut err, &done.report, memory));
    drop(write_accounts(&mut err, &done.exports));
    out::last_words(err);
    done.check().and(written)
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
            "(flows of several records may be larger: sums of the smallest flows were discarded)"
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
