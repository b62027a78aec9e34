//! Final output: the largest flows on standard output; totals and the account on standard error.

use export::Account;
use flow::KnownFlows;
use flow::top::Order;
use probe::Finished;
use runtime::flows::Status;
use runtime::output::Output;
use sys::Result;

use super::export::write_accounts;
use crate::out;
use crate::report::{bytes, counted, si};

mod table;
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
/// The error that ended it early, once everything else is reported; or that standard output cannot
/// be written.
pub fn report(
    stdout: &Output,
    done: Finished,
    known: &KnownFlows,
    count: usize,
    order: Order,
    memory: &Memory,
) -> Result<()> {
    let mut text = Vec::new();
    let mut err = Vec::new();
    // Writing to a vector cannot fail; a closed standard error is not an error.
    if count != 0 {
        let width = out::terminal_width();
        drop(table::write(
            &mut text,
            &done.report,
            known,
            count,
            order,
            width,
        ));
    }
    let written = out::print(stdout, text);
    drop(write_totals(&mut err, &done.report, memory));
    drop(write_accounts(&mut err, &done.exports));
    out::last_words(err);
    done.check().and(written)
}

/// The totals of a running probe, and counts of each export, one line each.
pub fn so_far(status: &Status<'_>, exports: &[(String, Account)]) -> Vec<u8> {
    let total = status.total();
    let (table, seconds) = (&total.meter.table, status.elapsed.as_secs_f64());
    let mut text = format!(
        "{} ({}) in {seconds:.3} s: {}; {} in the table, {} ended, {} lost\n",
        counted(total.meter.packets, "packet"),
        bytes(total.wire_bytes),
        si(total.meter.packets as f64 / seconds.max(1e-9), "pps"),
        counted(table.live, "flow"),
        table.flows - table.live,
        counted(status.account.rx_total().lost(), "packet"),
    );
    for (name, account) in exports {
        text += &format!(
            "export {name}: {} exported, {} dropped, {} waiting\n",
            counted(account.exported.flows, "flow"),
            account.dropped_total().flows,
            account.waiting(),
        );
    }
    text.into_bytes()
}
