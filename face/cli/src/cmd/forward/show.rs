//! Output while packets are forwarded, and at the end: text on standard error, JSON on standard
//! output.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use port::{Port, PortEvent};
use runtime::Ended;
use runtime::forward::{Flow, Opened, Outcome};
use runtime::output::{Output, Piece, Refused};
use serde_json::{Map, Value, json};
use sys::{Error, Result};

use crate::out::{self, say, warning};
use crate::report::{account_json, counted, event_level, si, write_account};

/// Maximum number of JSON lines queued for the reader.
const LINES_MAX: usize = 16;

/// Output of one run.
pub struct Show<'a> {
    names: [&'a str; 2],
    json: bool,
    on_terminal: bool,
    is_drawn: bool,
    before: Vec<Flow>,
    began: Instant,
    at: Instant,
    stdout: Output,
    /// The error of standard output, if its reader has gone.
    error: Option<Error>,
}

impl<'a> Show<'a> {
    /// Prints the ports and options.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn start(names: [&'a str; 2], both: bool, json: bool, opened: &Opened) -> Result<Self> {
        out::start()?;
        let [a, b] = opened.sides.each_ref().map(|side| &side.port);
        let (arrow, lanes) = match both {
            true => (
                "and",
                a.rx.len().min(b.tx.len()) + b.rx.len().min(a.tx.len()),
            ),
            false => ("to", a.rx.len().min(b.tx.len())),
        };
        let means = match opened.is_shared {
            true => "zero-copy",
            false => "copying",
        };
        let threads = match lanes {
            1 => "1 thread".to_owned(),
            count => format!("{count} threads"),
        };
        let between = if both { "between" } else { "from" };
        say!(
            "forwarding {between} {} {arrow} {}, {threads}, {means}",
            names[0],
            names[1]
        );
        for (name, port) in names.iter().zip([a, b]) {
            if let Some(line) = facts(port) {
                say!("{name}: {line}");
            }
        }
        for warning in &opened.warnings {
            warning!("warning: {warning}");
        }
        let now = Instant::now();
        Ok(Self {
            stdout: out::stdout(LINES_MAX)?,
            names,
            json,
            on_terminal: io::stderr().is_terminal(),
            is_drawn: false,
            before: Vec::new(),
            began: now,
            at: now,
            error: None,
        })
    }

    /// The names of the direction's two ports.
    fn way(&self, index: usize) -> [&'a str; 2] {
        let [a, b] = self.names;
        if index == 0 { [a, b] } else { [b, a] }
    }

    /// Prints the rates of the last second.
    pub fn progress(&mut self, flows: &[Flow]) {
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        self.before.resize(flows.len(), Flow::default());
        if self.json {
            let line = self.rates_json(flows, seconds);
            let piece = Piece {
                bytes: format!("{line}\n").into_bytes(),
                ..Piece::default()
            };
            // A reader that is too slow misses rates.
            if let Err(Refused::Failed(error)) = self.stdout.try_give(piece) {
                self.error
                    .get_or_insert(Error::from_io("write to standard output", error));
            }
        } else if self.on_terminal {
            let mut line = String::new();
            for (flow, before) in flows.iter().zip(&self.before) {
                if !line.is_empty() {
                    line += " | ";
                }
                line += &rates_text(flow, before, seconds);
            }
            // Erases the rest of a longer previous line (ECMA-48 EL).
            let seconds = self.began.elapsed().as_secs_f64();
            out::words(format!("\r{seconds:6.0} s  {line}\x1b[K").into_bytes());
            self.is_drawn = true;
        }
        self.before = flows.to_vec();
    }

    /// Prints the totals so far.
    pub fn so_far(&mut self, flows: &[Flow]) {
        self.clear();
        let seconds = self.began.elapsed().as_secs_f64();
        for (index, flow) in flows.iter().enumerate() {
            let [from, to] = self.way(index);
            say!(
                "{from} to {to}: {} received, {} forwarded, {} dropped in {seconds:.3} s",
                counted(flow.received, "packet"),
                flow.forwarded,
                flow.dropped()
            );
        }
    }

    fn rates_json(&self, flows: &[Flow], seconds: f64) -> Value {
        let directions: Vec<Value> = flows
            .iter()
            .zip(&self.before)
            .enumerate()
            .map(|(index, (flow, before))| {
                let [from, to] = self.way(index);
                let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
                json!({
                    "from": from,
                    "to": to,
                    "received_pps": rate(flow.received, before.received),
                    "forwarded_pps": rate(flow.forwarded, before.forwarded),
                    "forwarded_bps": rate(flow.forwarded_bytes, before.forwarded_bytes) * 8.0,
                    "copied_pps": rate(flow.copied, before.copied),
                    "dropped_pps": rate(flow.dropped(), before.dropped()),
                })
            })
            .collect();
        json!({
            "type": "rates",
            "seconds": self.began.elapsed().as_secs_f64(),
            "directions": directions,
        })
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            say!("");
        }
    }

    /// Reports a device event.
    pub fn event(&mut self, index: usize, event: &PortEvent) {
        self.clear();
        let name = self.names[index];
        out::line(event_level(event), format!("{name}: {event}"));
    }

    /// Reports why sending fails.
    pub fn failing(&mut self, index: usize, why: &str) {
        self.clear();
        warning!(
            "{}: {why}; packets are dropped once its transmit ring is full",
            self.names[index]
        );
    }

    /// Reports that it works again.
    pub fn working(&mut self, index: usize) {
        self.clear();
        say!("{}: sending again", self.names[index]);
    }

    /// Prints the account.
    pub fn end(mut self, outcome: &Outcome) -> Result<()> {
        self.clear();
        let mut text = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = self.write_end(&mut text, outcome);
        out::over();
        out::last_words(text);
        if self.json {
            let line = format!("{}\n", self.json(outcome));
            out::print(&self.stdout, line.into_bytes())?;
        }
        self.error.map_or(Ok(()), Err)
    }

    fn write_end(&self, out: &mut Vec<u8>, outcome: &Outcome) -> io::Result<()> {
        for index in 0..outcome.flows.len() {
            self.write_flow(out, outcome, index)?;
        }
        for (index, account) in outcome.accounts.iter().enumerate() {
            if !account.rx.is_empty() && index < outcome.flows.len() {
                writeln!(out, "{} received:", self.names[index])?;
                write_account(out, account)?;
            }
        }
        Ok(())
    }

    /// Writes the counts of one direction.
    fn write_flow(&self, out: &mut Vec<u8>, outcome: &Outcome, index: usize) -> io::Result<()> {
        let flow = &outcome.flows[index];
        let seconds = outcome.elapsed.as_secs_f64().max(1e-3);
        let [from, to] = self.way(index);
        writeln!(
            out,
            "{from} to {to}: {} forwarded ({}, {}), {} of them copied, {} dropped",
            counted(flow.forwarded, "packet"),
            si(flow.forwarded as f64 / seconds, "pps"),
            si(flow.forwarded_bytes as f64 * 8.0 / seconds, "bps"),
            flow.copied,
            flow.dropped(),
        )?;
        write_reasons(out, flow, to)?;
        let failed = outcome.accounts[1 - index].tx_total().failed;
        if failed != 0 {
            writeln!(
                out,
                "  {failed} failed to send: refused by the device of {to}"
            )?;
        }
        match outcome.imbalance(index) {
            0 => {}
            missing => writeln!(out, "  {missing} unaccounted for, a bug in barewire")?,
        }
        let [unseen, unsent] = outcome.unknown_to_interfaces(index);
        if unseen != 0 {
            writeln!(
                out,
                "  {unseen} more were received than the interface counters of {from} show"
            )?;
        }
        if unsent != 0 {
            writeln!(
                out,
                "  {unsent} more were sent than the interface counters of {to} show"
            )?;
        }
        Ok(())
    }

    fn json(&self, outcome: &Outcome) -> Value {
        let directions: Vec<Value> = (0..outcome.flows.len())
            .map(|index| {
                let ([from, to], flow) = (self.way(index), &outcome.flows[index]);
                let tx = outcome.accounts[1 - index].tx_total();
                json!({
                    "from": from,
                    "to": to,
                    "received": flow.received,
                    "received_bytes": flow.received_bytes,
                    "forwarded": flow.forwarded,
                    "forwarded_bytes": flow.forwarded_bytes,
                    "copied": flow.copied,
                    "dropped": {
                        "tx_full": flow.tx_full,
                        "too_long": flow.too_long,
                        "cut": flow.cut,
                        "abandoned": flow.abandoned,
                    },
                    "outgoing": flow.outgoing,
                    "surplus": flow.surplus,
                    "sent": tx.sent,
                    "failed": tx.failed,
                    "imbalance": outcome.imbalance(index),
                    "unknown_to_interfaces": outcome.unknown_to_interfaces(index),
                })
            })
            .collect();
        let ports: Vec<Value> = (0..2)
            .map(|index| {
                let reported = &outcome.descriptions[index];
                let facts: Map<String, Value> = reported
                    .facts
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), value.clone().into()))
                    .collect();
                json!({
                    "name": self.names[index],
                    "scheme": reported.scheme,
                    "target": reported.target,
                    "facts": facts,
                    "account": account_json(&outcome.accounts[index]),
                })
            })
            .collect();
        json!({
            "type": "totals",
            "seconds": outcome.elapsed.as_secs_f64(),
            "ended": match outcome.ended {
                Ended::Stopped => "stopped",
                Ended::Input => "input",
                Ended::Finished => "count",
            },
            "directions": directions,
            "ports": ports,
            "error": outcome.error.as_ref().map(ToString::to_string),
        })
    }
}

/// Writes why packets were not forwarded.
fn write_reasons(out: &mut Vec<u8>, flow: &Flow, to: &str) -> io::Result<()> {
    let lines = [
        (
            flow.tx_full,
            format!("the transmit ring of {to} was full (tx_full)"),
        ),
        (
            flow.too_long,
            format!("longer than {to} can send (too_long)"),
        ),
        (
            flow.cut,
            "truncated by the capture's snapshot length (cut)".to_owned(),
        ),
        (
            flow.abandoned,
            "still queued when an error ended the run (abandoned)".to_owned(),
        ),
        (
            flow.outgoing,
            "sent by the host itself (outgoing)".to_owned(),
        ),
        (
            flow.surplus,
            "received after --count was reached (surplus)".to_owned(),
        ),
    ];
    for (count, why) in lines.iter().filter(|(count, _)| *count != 0) {
        writeln!(out, "  {count} not forwarded: {why}")?;
    }
    Ok(())
}

/// One line on how the port was opened.
fn facts(port: &Port) -> Option<String> {
    let reported = port.control.describe();
    let words: Vec<String> = ["attach mode", "bind mode", "filter"]
        .iter()
        .filter_map(|key| {
            let (_, value) = reported.facts.iter().find(|(fact, _)| fact == key)?;
            Some(format!("{key}: {value}"))
        })
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn rates_text(flow: &Flow, before: &Flow, seconds: f64) -> String {
    let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
    let mut line = format!(
        "{:>11} {:>11}",
        si(rate(flow.forwarded, before.forwarded).round(), "pps"),
        si(
            rate(flow.forwarded_bytes, before.forwarded_bytes) * 8.0,
            "bps"
        ),
    );
    if flow.copied != 0 {
        line += &format!(", {} copied", flow.copied);
    }
    if flow.dropped() != 0 {
        line += &format!(", {} dropped", flow.dropped());
    }
    line
}
