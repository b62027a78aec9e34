//! Output of `barewire capture` on standard error: a line at the start, the progress while a file
//! is written, the totals at the end; and the totals as JSON.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use port::file::{FileNames, Written};
use port::{Port, PortAccount, PortDescription, PortEvent};
use probe::text::json_line;
use runtime::capture::{Outcome, Totals};
use runtime::filter::Compiler;
use runtime::output::is_closed;
use serde_json::{Value, json};
use sys::Result;
use wire::{LinkType, Timestamp};

use super::Args;
use crate::inputs::Inputs;
use crate::out::{self, say};
use crate::report::counted;
use crate::report::{self, account_json, bytes, event_level, si, write_account, write_file_notes};

impl Args {
    /// Prints what is captured, as tcpdump does, so that scripts can wait for this line.
    pub(super) fn print_start(&self, name: &str, port: &Port, is_live: bool, filter: &str) {
        let text = port.control.describe();
        let one = text.target.as_str();
        let is_one = !one.is_empty() && !text.facts.iter().any(|(fact, _)| *fact == "inputs");
        let target = if is_one { one } else { name };
        let (verb, target) = match is_live {
            true => ("listening on", target),
            false if target == "-" => ("reading from", "standard input"),
            false if !is_one => ("reading from files", target),
            false => ("reading from file", target),
        };
        // The smallest of the limits of user, file and port; 0 is unlimited.
        let limits = [
            self.snaplen,
            snaplen_of(&text),
            port.capabilities.packet_len_max,
        ];
        let limits = limits.into_iter().filter(|limit| *limit != 0);
        let snaplen = limits.min().unwrap_or(wire::file::MAX_PACKET_LEN);
        let mut line = format!(
            "{verb} {target} ({}), link-type {}, snapshot length {snaplen} bytes",
            text.scheme,
            LinkType(text.link_type)
        );
        if port.rx.len() > 1 {
            line.push_str(&format!(", {} queues", port.rx.len()));
        }
        for key in ["attach mode", "bind mode", "time"] {
            if let Some((_, value)) = text.facts.iter().find(|(fact, _)| *fact == key) {
                line.push_str(&format!(", {key}: {value}"));
            }
        }
        if !filter.trim().is_empty() {
            let place = report::filter_place(&text);
            let compiler = Compiler::from(self.filter_compiler).name();
            line.push_str(&format!(", filter {place}, compiled by {compiler}"));
        }
        say!("{line}");
    }

    /// Prints the totals.
    pub(super) fn print_end(
        &self,
        (inputs, is_live): (&Inputs, bool),
        outcome: &Outcome,
        files: &FileNames,
    ) -> Result<()> {
        let mut text = Vec::new();
        let totals = &outcome.totals;
        let rx = outcome.account.rx_total();
        let rejected = rx.dropped[port::DropReason::Filter as usize];
        // Writing to a Vec cannot fail.
        let _ = writeln!(text, "{} captured", counted(totals.packets, "packet"));
        if is_live {
            let _ = writeln!(
                text,
                "{} received by filter",
                counted(rx.seen.saturating_sub(rejected), "packet")
            );
            let _ = writeln!(text, "{} dropped by kernel", counted(rx.lost(), "packet"));
        } else if rejected != 0 {
            let _ = writeln!(text, "{} rejected by filter", counted(rejected, "packet"));
        }
        write_remarks(&mut text, outcome, is_live);
        if let Some(written) = outcome.written {
            let _ = writeln!(text, "{}", self.written(&written, files));
        }
        if outcome.stdout_closed {
            let _ = writeln!(text, "standard output was closed; the file is complete");
        } else if outcome.error.as_ref().is_some_and(is_closed) {
            let _ = writeln!(text, "{}", inputs.unread(&outcome.account, !is_live));
        }
        let _ = match is_live {
            true => write_account(&mut text, &outcome.account),
            false => write_file_notes(&mut text, &outcome.account, &outcome.description),
        };
        out::last_words(text);
        self.print_totals(&inputs.label(), outcome, files)
    }

    /// Prints what is requested on standard output.
    fn print_totals(&self, name: &str, outcome: &Outcome, files: &FileNames) -> Result<()> {
        if self.print.counts() && !self.json {
            let line = format!("{}\n", counted(outcome.totals.packets, "packet"));
            out::print(&out::stdout(1)?, line.into_bytes())?;
        }
        // A call that has not returned blocks standard output if packets are written there.
        if self.json && !(outcome.is_stuck && self.write.write.is_none()) {
            let line = format!("{}\n", json_line(&self.json(name, outcome, files)));
            out::print(&out::stdout(1)?, line.into_bytes())?;
        }
        Ok(())
    }

    /// How much was written to which files.
    fn written(&self, written: &Written, files: &FileNames) -> String {
        let (packets, len) = (counted(written.packets, "packet"), bytes(written.bytes));
        let path = |path: Option<PathBuf>| {
            let path = path.or_else(|| self.write.write.clone());
            path.unwrap_or_default().display().to_string()
        };
        let (first, last) = (path(files.first()), path(files.last()));
        let count = written.files;
        let mut text = format!("{packets} written to ");
        text += &match count {
            0 | 1 => format!("{last} ({len})"),
            _ if first == last => format!("{count} files ({len}), one after the other in {last}"),
            _ => match files.kept_count() {
                Some(kept) if kept < count as usize => {
                    format!("{count} files ({len}); the last {kept} are kept: {first} to {last}")
                }
                _ => format!("{count} files ({len}): {first} to {last}"),
            },
        };
        text
    }

    fn json(&self, name: &str, outcome: &Outcome, files: &FileNames) -> Value {
        let Outcome {
            totals,
            account,
            description,
            ..
        } = outcome;
        let time = |ns: Option<u64>| ns.map(|ns| Timestamp(ns).to_string());
        let facts: serde_json::Map<String, Value> = description
            .facts
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone().into()))
            .collect();
        json!({
            "type": "totals",
            "port": name,
            "scheme": description.scheme,
            "target": description.target,
            "link_type": description.link_type,
            "interfaces": description.interfaces.iter()
                .map(|(link, name)| json!({ "link_type": link, "name": name }))
                .collect::<Vec<_>>(),
            "facts": facts,
            "captured": totals.packets,
            "captured_bytes": totals.bytes,
            "other_way": totals.other_way,
            "surplus": totals.surplus,
            "unwritten": totals.unwritten,
            "late": totals.late,
            "times_clamped": totals.times_clamped,
            "blocks_left_out": outcome.blocks_left_out,
            "lost": account.rx_total().lost(),
            "first_time": time(totals.first_ns),
            "last_time": time(totals.last_ns),
            "written": outcome.written.map(|written| json!({
                "packets": written.packets, "bytes": written.bytes, "files": written.files,
                "first_file": name_of(files.first()), "last_file": name_of(files.last()),
            })),
            "account": account_json(account),
            "error": outcome.error.as_ref().map(ToString::to_string),
        })
    }
}

/// A file name as text, which it need not be.
fn name_of(path: Option<PathBuf>) -> Option<String> {
    path.map(|path| path.to_string_lossy().into_owned())
}

/// The totals of a running capture in one line, as tcpdump prints them on SIGUSR1; with the account
/// of a live port.
pub(super) fn so_far(totals: &Totals, account: Option<&PortAccount>) -> String {
    let mut line = format!("{} captured", counted(totals.packets, "packet"));
    if let Some(account) = account {
        let rx = account.rx_total();
        let rejected = rx.dropped[port::DropReason::Filter as usize];
        let seen = rx.seen.saturating_sub(rejected);
        let (seen, lost) = (counted(seen, "packet"), counted(rx.lost(), "packet"));
        line += &format!(", {seen} received by filter, {lost} dropped by kernel");
    }
    line
}

/// The snapshot length in a file's header; 0 if it has none.
pub(super) fn snaplen_of(port: &PortDescription) -> u32 {
    let fact = port
        .facts
        .iter()
        .find(|(fact, _)| *fact == "snapshot length");
    fact.and_then(|(_, len)| len.parse().ok()).unwrap_or(0)
}

/// Progress line on the terminal while a file is written.
pub(super) struct Progress {
    is_on: bool,
    packets: u64,
    at: Instant,
    shown: bool,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            is_on: wanted && io::stderr().is_terminal(),
            packets: 0,
            at: Instant::now(),
            shown: false,
        }
    }

    pub(super) fn report(&mut self, totals: &Totals, lost: u64) {
        if !self.is_on {
            return;
        }
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        let rate = (totals.packets - self.packets) as f64 / seconds;
        (self.packets, self.at) = (totals.packets, Instant::now());
        // Returns to the start of the line, and clears it.
        let line = format!(
            "\r\x1b[K{} packets, {}, {}, {lost} lost",
            totals.packets,
            bytes(totals.bytes),
            si(rate, "pps")
        );
        out::words(line.into_bytes());
        self.shown = true;
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            say!("");
        }
    }

    pub(super) fn event(&mut self, name: &str, event: &PortEvent) {
        self.clear();
        out::line(event_level(event), report::event_line(name, event));
    }
}

/// Counts of packets that were treated unlike the others, if there are any.
fn write_remarks(text: &mut Vec<u8>, outcome: &Outcome, is_live: bool) {
    let totals = &outcome.totals;
    let after = match outcome.error {
        None => "received after the last one to capture",
        Some(_) => "received after the failure",
    };
    let surplus = if is_live { totals.surplus } else { 0 };
    let late = "written out of order: arrived too late to be merged";
    let clamped = "written with a wrong time: pcap times end on 2106-02-07, write .pcapng";
    let blocks = "not copied: longer than 16 MiB, or too many at once";
    for (count, noun, what) in [
        (totals.other_way, "packet", "of the other direction"),
        (surplus, "packet", after),
        (totals.unwritten, "packet", "lost at the output"),
        (totals.late, "packet", late),
        (totals.times_clamped, "packet", clamped),
        (outcome.blocks_left_out, "block", blocks),
    ] {
        if count != 0 {
            // Writing to a Vec cannot fail.
            let _ = writeln!(text, "{} {what}", counted(count, noun));
        }
    }
}
