//! Output while a cluster runs, and at the end: text on standard error, JSON on standard output.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use port::PortEvent;
use runtime::Ended;
use runtime::cluster::{ApplicationStatus, Event, InputPort, Opened, Outcome, QueueStatus, Totals};
use runtime::output::{Output, Piece, Refused};
use serde_json::{Value, json};
use sys::{Error, Result};

use super::table::{
    application_json, inputs_json, left_out, means, output_json, queue_json, queues as table,
    sending,
};
use crate::out::{self, say, warning};
use crate::report::{account_json, counted, event_level, event_line, si, write_account};

/// Maximum number of JSON lines queued for the reader.
const LINES_MAX: usize = 16;

/// Output of one run.
pub(super) struct Show {
    name: String,
    ports: String,
    is_zero_copy: bool,
    json: bool,
    on_terminal: bool,
    is_drawn: bool,
    before: (Totals, Vec<QueueStatus>),
    began: Instant,
    at: Instant,
    stdout: Output,
    /// The error of standard output, if its reader has gone.
    error: Option<Error>,
}

impl Show {
    /// Prints the ports and queues.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn start(json: bool, opened: &Opened) -> Result<Self> {
        out::start()?;
        let status = opened.status();
        let name = &status.name;
        say!(
            "cluster {name}: {}, {}; {}",
            status.input.ports,
            means(status.input.is_zero_copy),
            counted(status.queues.len() as u64, "queue"),
        );
        let mut rest = status.queues.as_slice();
        while let Some(first) = rest.first() {
            let is_same = |queue: &&QueueStatus| queue.application == first.application;
            let count = rest.iter().take_while(is_same).count();
            let numbers = match count {
                1 => format!("queue {}", first.index),
                _ => format!(
                    "queues {} to {}",
                    first.index,
                    first.index + count as u32 - 1
                ),
            };
            let application = &first.application;
            let its = |it: &&ApplicationStatus| it.name == *application;
            match status
                .applications
                .iter()
                .find(its)
                .map(|it| it.port.as_str())
            {
                Some(port) if !port.is_empty() => {
                    say!("{application}: {numbers}, sent to {port}");
                }
                _ => say!("{application}: {numbers}, open ring:{name}/{application}"),
            }
            rest = &rest[count..];
        }
        for port in status
            .outputs
            .iter()
            .filter(|port| port.reader_of.is_empty())
        {
            say!("{}: sends {}", port.port, port.of);
        }
        let now = Instant::now();
        Ok(Self {
            stdout: out::stdout(LINES_MAX)?,
            name: status.name,
            ports: status.input.ports,
            is_zero_copy: status.input.is_zero_copy,
            json,
            on_terminal: io::stderr().is_terminal(),
            is_drawn: false,
            before: (Totals::default(), status.queues),
            began: now,
            at: now,
            error: None,
        })
    }

    /// Prints the rates of the last second.
    pub fn progress(&mut self, totals: &Totals, queues: &[QueueStatus], inputs: &[InputPort]) {
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        if self.json {
            let mut line = self.rates_json(totals, queues, seconds);
            line["inputs"] = inputs_json(inputs);
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
            let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds;
            let received = rate(totals.received, self.before.0.received);
            let dropped: u64 = queues.iter().map(|queue| queue.counts.dropped).sum();
            let readers = queues.iter().filter(|queue| queue.reader.is_some()).count();
            let gone = match inputs.iter().filter(|it| it.is_gone).count() {
                0 => String::new(),
                count => format!(", {} gone", counted(count as u64, "input")),
            };
            let line = format!(
                "\r{:6.0} s  {:>11}, {readers} of {} queues read, {dropped} dropped{gone}\x1b[K",
                self.began.elapsed().as_secs_f64(),
                si(received.round(), "pps"),
                queues.len(),
            );
            out::words(line.into_bytes());
            self.is_drawn = true;
        }
        self.before = (*totals, queues.to_vec());
    }

    fn rates_json(&self, totals: &Totals, queues: &[QueueStatus], seconds: f64) -> Value {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let (before, queues_before) = &self.before;
        let rows = queues.iter().zip(queues_before).map(|(queue, before)| {
            json!({
                "queue": queue.index,
                "application": queue.application,
                "reader": queue.reader,
                "depth": queue.depth,
                "delivered_pps": rate(queue.counts.returned, before.counts.returned),
                "dropped_pps": rate(queue.counts.dropped, before.counts.dropped),
            })
        });
        let rows: Vec<Value> = rows.collect();
        json!({
            "type": "rates",
            "seconds": self.began.elapsed().as_secs_f64(),
            "received_pps": rate(totals.received, before.received),
            "received_bps": rate(totals.received_bytes, before.received_bytes) * 8.0,
            "queues": rows,
        })
    }

    /// Prints the totals so far.
    pub fn so_far(&mut self, totals: &Totals, queues: &[QueueStatus]) {
        self.clear();
        let seconds = self.began.elapsed().as_secs_f64();
        say!(
            "{} received in {seconds:.3} s",
            counted(totals.received, "packet")
        );
        say!("{}", table(queues).trim_end());
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            say!("");
        }
    }

    /// Reports that a reader came or left, or was refused.
    pub fn reader(&mut self, event: &Event) {
        self.clear();
        match event {
            Event::Attached { queue, process } => {
                say!("queue {queue}: read by process {process}");
            }
            Event::Left {
                queue,
                process,
                lost,
                kept,
            } => {
                let lost = counted(u64::from(*lost), "packet");
                say!(
                    "queue {queue}: process {process} has ended; it held {lost}, {kept} wait for \
                     the next reader"
                );
            }
            Event::Refused(why) => warning!("{why}"),
            Event::Input {
                port,
                text,
                is_warning,
            }
            | Event::Output {
                port,
                text,
                is_warning,
            } => match is_warning {
                true => warning!("{port}: {text}"),
                false => say!("{port}: {text}"),
            },
        }
    }

    /// Reports an event of the input.
    pub fn event(&mut self, event: &PortEvent) {
        self.clear();
        out::line(event_level(event), event_line(&self.ports, event));
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
        let totals = &outcome.totals;
        let seconds = outcome.elapsed.as_secs_f64().max(1e-3);
        writeln!(
            out,
            "{}: {} received ({}), {} of them copied, {} dropped before the queues",
            self.name,
            counted(totals.received, "packet"),
            si(totals.received as f64 / seconds, "pps"),
            totals.copied,
            totals.pool_empty + totals.too_long,
        )?;
        let lines = [
            (totals.pool_empty, "no free frame (pool_empty)"),
            (totals.too_long, "too many frames (too_long)"),
            (
                totals.surplus,
                "received after --count was reached (surplus)",
            ),
            (totals.abandoned, "the run ended first (abandoned)"),
        ];
        for (count, why) in lines.iter().filter(|(count, _)| *count != 0) {
            writeln!(out, "  {count} not handed over: {why}")?;
        }
        if totals.late != 0 {
            let late = counted(totals.late, "packet");
            writeln!(out, "  {late} out of order: later than --merge (late)")?;
        }
        out.extend(table(&outcome.queues).into_bytes());
        out.extend(left_out(&outcome.applications).into_bytes());
        out.extend(sending(&outcome.queues, &outcome.outputs).into_bytes());
        match outcome.imbalance() {
            0 => {}
            missing => writeln!(out, "  {missing} unaccounted for, a bug in barewire")?,
        }
        writeln!(out, "{} received:", self.ports)?;
        write_account(out, &outcome.account)
    }

    fn json(&self, outcome: &Outcome) -> Value {
        let totals = &outcome.totals;
        let queues: Vec<Value> = outcome.queues.iter().map(queue_json).collect();
        let applications = outcome.applications.iter().map(application_json);
        let applications: Vec<Value> = applications.collect();
        json!({
            "type": "totals",
            "name": self.name,
            "seconds": outcome.elapsed.as_secs_f64(),
            "ended": match outcome.ended {
                Ended::Stopped => "stopped",
                Ended::Input => "input",
                Ended::Finished => "count",
            },
            "input": {
                "ports": self.ports,
                "zero_copy": self.is_zero_copy,
                "account": account_json(&outcome.account),
            },
            "received": totals.received,
            "received_bytes": totals.received_bytes,
            "adopted": totals.adopted,
            "copied": totals.copied,
            "dropped": {
                "pool_empty": totals.pool_empty,
                "too_long": totals.too_long,
                "abandoned": totals.abandoned,
            },
            "surplus": totals.surplus,
            "late": totals.late,
            "applications": applications,
            "queues": queues,
            "inputs": inputs_json(&outcome.inputs),
            "outputs": outcome.outputs.iter().map(output_json).collect::<Vec<Value>>(),
            "imbalance": outcome.imbalance(),
            "error": outcome.error.as_ref().map(ToString::to_string),
        })
    }
}
