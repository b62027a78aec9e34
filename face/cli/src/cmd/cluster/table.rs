//! Prints the status of clusters, once or every second.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use runtime::Stop;
use runtime::cluster::{self, ApplicationStatus, InputPort, OutputStatus, QueueStatus, Status};
use serde_json::{Value, json};
use sys::{Error, Result};

use super::picture;
use crate::report::{counted, si};

pub(super) fn print_now(text: String) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let done = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    done.map_err(|error| Error::from_io("write to standard output", error))
}

/// The queues, as a table.
pub(super) fn queues(queues: &[QueueStatus]) -> String {
    let names = queues.iter().map(|queue| queue.application.len());
    let width = names.max().unwrap_or(0).max("application".len());
    let mut out = format!(
        "queue {:<width$} {:>9} {:>12} {:>13} {:>13} {:>10} {:>8}\n",
        "application", "reader", "depth", "delivered", "dropped", "waiting", "lost"
    );
    for queue in queues {
        let exited = if queue.has_reader_exited {
            "child of "
        } else {
            ""
        };
        let reader = queue
            .reader
            .map_or_else(|| "-".to_owned(), |pid| format!("{exited}{pid}"));
        let depth = format!("{}/{}", queue.depth, queue.len);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:>5} {:<width$} {reader:>9} {depth:>12} {:>13} {:>13} {:>10} {:>8}",
            queue.index,
            queue.application,
            queue.counts.returned,
            queue.counts.dropped,
            queue.counts.waiting(),
            queue.counts.lost,
        );
    }
    out
}

/// A queue as JSON.
pub(super) fn queue_json(queue: &QueueStatus) -> Value {
    let counts = &queue.counts;
    json!({
        "queue": queue.index,
        "application": queue.application,
        "reader": queue.reader,
        "reader_exited": queue.has_reader_exited,
        "readers": queue.readers,
        "depth": queue.depth,
        "ring": queue.len,
        "handed": counts.handed,
        "delivered": counts.returned,
        "waiting": counts.waiting(),
        "lost": counts.lost,
        "dropped": counts.dropped,
        "refused": counts.refused,
        "sent": {
            "packets": queue.sent.sent,
            "passed": queue.sent.passed,
            "copied": queue.sent.copied,
            "dropped": queue.sent.dropped,
            "refused": queue.sent.refused,
        },
    })
}

/// The inputs as JSON.
pub(super) fn inputs_json(inputs: &[InputPort]) -> Value {
    let inputs = inputs.iter().map(|input| {
        json!({
            "port": input.port,
            "state": input.state(),
            "losses": input.losses,
        })
    });
    inputs.collect()
}

/// The inputs that are gone, or were.
fn losses(inputs: &[InputPort]) -> String {
    let mut out = String::new();
    for input in inputs.iter().filter(|it| it.losses != 0) {
        let times = counted(input.losses, "time");
        // Writing to a String cannot fail.
        let _ = match input.is_gone {
            true => writeln!(
                out,
                "{}: its device is gone ({times} so far); it is opened again when that is back",
                input.port
            ),
            false => writeln!(out, "{}: open, its device was gone {times}", input.port),
        };
    }
    out
}

/// A port that sends as JSON.
pub(super) fn output_json(output: &OutputStatus) -> Value {
    json!({
        "port": output.port,
        "of": output.of,
        "senders": output.senders,
        "reader_of": output.reader_of,
        "given": output.given,
        "sent": output.sent,
        "copied": output.copied,
        "dropped": output.dropped,
        "failed": output.failed,
    })
}

/// What readers have sent, and the ports that send.
pub(super) fn sending(queues: &[QueueStatus], outputs: &[OutputStatus]) -> String {
    let mut out = String::new();
    for queue in queues {
        let sent = &queue.sent;
        if sent.sent == 0 {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "queue {}: its readers sent {} ({} copied), {} dropped, {} refused",
            queue.index,
            counted(sent.sent, "packet"),
            sent.copied,
            sent.dropped,
            sent.refused,
        );
    }
    for output in outputs {
        let _ = writeln!(
            out,
            "{} ({}): {} sent ({} copied), {} dropped, {} failed",
            output.port,
            output.of,
            counted(output.sent, "packet"),
            output.copied,
            output.dropped,
            output.failed,
        );
    }
    out
}

/// An application as JSON.
pub(super) fn application_json(application: &ApplicationStatus) -> Value {
    let counts = &application.counts;
    json!({
        "application": application.name,
        "filter": application.filter,
        "balance": application.balance,
        "when_full": application.when_full,
        "when_gone": application.when_gone,
        "shunt": application.shunt,
        "deduplicate_ms": application.deduplicate_ms,
        "detunnel": application.detunnel,
        "filtered": counts.filtered,
        "duplicates": counts.duplicates,
        "shunted": counts.shunted,
        "spilled": counts.spilled,
        "untracked": counts.untracked,
        "detunnelled": counts.detunnelled,
        "copied": counts.copied,
        "source": application.source,
        "port": application.port,
    })
}

/// The packets of applications that were left out, and what happened to others.
pub(super) fn left_out(applications: &[ApplicationStatus]) -> String {
    let mut out = String::new();
    for application in applications {
        let name = &application.name;
        for (key, count) in application.counts.named() {
            let means = match key {
                "filtered" => "not selected",
                "duplicates" => "received twice",
                "shunted" => "behind the start of their flows",
                "spilled" => "in another queue, which had room",
                "untracked" => "of flows for which the table had no place",
                "detunnelled" => "without tunnel headers",
                _ => "copied, because other applications received them",
            };
            if count != 0 {
                let packets = counted(count, "packet");
                // Writing to a String cannot fail.
                let _ = writeln!(out, "{name}: {packets} {means} ({key})");
            }
        }
    }
    out
}

pub(super) fn status_json(status: &Status) -> Value {
    let queues: Vec<Value> = status.queues.iter().map(queue_json).collect();
    let applications = status.applications.iter().map(application_json);
    let outputs: Vec<Value> = status.outputs.iter().map(output_json).collect();
    json!({
        "type": "cluster",
        "outputs": outputs,
        "name": status.name,
        "process": status.process,
        "seconds": status.seconds,
        "applications": applications.collect::<Vec<Value>>(),
        "input": {
            "ports": status.input.ports,
            "filter": status.input.filter,
            "zero_copy": status.input.is_zero_copy,
            "received": status.input.received,
            "copied": status.input.copied,
            "dropped": status.input.dropped,
            "merge_ms": status.input.merge_ms,
            "late": status.input.late,
        },
        "inputs": inputs_json(&status.input.each),
        "queues": queues,
    })
}

/// Whether packets of the input are copied, in words.
pub(super) fn means(is_zero_copy: bool) -> &'static str {
    match is_zero_copy {
        true => "zero-copy",
        false => "copied once",
    }
}

fn heading(status: &Status) -> String {
    let input = &status.input;
    let merged = match input.merge_ms {
        0 => String::new(),
        ms => format!(", in order of time within {ms} ms, {} late", input.late),
    };
    format!(
        "{} (process {}): {}, {} received, {} dropped before the queues{merged}\n",
        status.name,
        status.process,
        means(input.is_zero_copy),
        input.received,
        input.dropped,
    )
}

/// Prints clusters.
///
/// # Errors
/// If it cannot be written.
pub(super) fn print(found: &[Status], as_json: bool) -> Result<()> {
    if as_json {
        let all: Vec<Value> = found.iter().map(status_json).collect();
        return print_now(format!("{:#}\n", Value::Array(all)));
    }
    let texts: Vec<String> = found
        .iter()
        .map(|status| {
            [
                heading(status),
                picture::tree(status),
                losses(&status.input.each),
                queues(&status.queues),
                left_out(&status.applications),
                sending(&status.queues, &status.outputs),
            ]
            .concat()
        })
        .collect();
    print_now(texts.join("\n"))
}

/// Prints rates every second until Ctrl-C or the end of the cluster.
///
/// # Errors
/// As [`cluster::status`]; if it cannot be written.
pub(super) fn top(name: &str, count: Option<u64>, as_json: bool) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut before = cluster::status(name)?;
    let mut at = Instant::now();
    let mut left = count.unwrap_or(u64::MAX);
    while left != 0 {
        let next = at + Duration::from_secs(1);
        while Instant::now() < next {
            if stop.is_set() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = cluster::status(name)?;
        let seconds = at.elapsed().as_secs_f64().max(1e-3);
        at = Instant::now();
        print_now(rates(&before, &status, seconds, as_json))?;
        before = status;
        left -= 1;
    }
    Ok(())
}

/// The names of applications, and the rates of packets that they did not receive, by reason.
fn left_out_rates<'a>(
    before: &Status,
    status: &'a Status,
    seconds: f64,
) -> Vec<(&'a str, [(&'static str, f64); 3])> {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let pairs = status.applications.iter().zip(&before.applications);
    let rates = pairs.map(|(application, before)| {
        let (now, before) = (&application.counts, &before.counts);
        let rates = [
            ("filtered", rate(now.filtered, before.filtered)),
            ("duplicates", rate(now.duplicates, before.duplicates)),
            ("shunted", rate(now.shunted, before.shunted)),
        ];
        (application.name.as_str(), rates)
    });
    rates.collect()
}

/// The same as lines, without rates of 0.
fn left_out_text(applications: &[(&str, [(&'static str, f64); 3])]) -> String {
    let mut text = String::new();
    for (name, rates) in applications {
        let rates = rates.iter().filter(|(_, rate)| *rate > 0.0);
        let rates: Vec<String> = rates
            .map(|(means, rate)| format!("{} {means}", si(rate.round(), "pps")))
            .collect();
        if !rates.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {name}: {}", rates.join(", "));
        }
    }
    text
}

fn rates(before: &Status, status: &Status, seconds: f64, as_json: bool) -> String {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let received = rate(status.input.received, before.input.received);
    let pairs = status.queues.iter().zip(&before.queues);
    let rows = pairs.map(|(queue, before)| {
        let (now, before) = (&queue.counts, &before.counts);
        let delivered = rate(now.returned, before.returned);
        (queue, delivered, rate(now.dropped, before.dropped))
    });
    let left_out = left_out_rates(before, status, seconds);
    if as_json {
        let applications = left_out.into_iter();
        let applications = applications.map(|(name, [filtered, duplicates, shunted])| {
            json!({
                "application": name,
                "filtered_pps": filtered.1,
                "duplicates_pps": duplicates.1,
                "shunted_pps": shunted.1,
            })
        });
        let rows = rows.map(|(queue, delivered, dropped)| {
            json!({
                "queue": queue.index,
                "application": queue.application,
                "reader": queue.reader,
                "depth": queue.depth,
                "delivered_pps": delivered,
                "dropped_pps": dropped,
            })
        });
        let rows: Vec<Value> = rows.collect();
        let line = json!({
            "type": "rates",
            "name": status.name,
            "seconds": status.seconds,
            "received_pps": received,
            "inputs": inputs_json(&status.input.each),
            "applications": applications.collect::<Vec<Value>>(),
            "queues": rows,
        });
        return format!("{line}\n");
    }
    let mut text = format!(
        "{}: {} received\n",
        status.name,
        si(received.round(), "pps")
    );
    for input in status.input.each.iter().filter(|it| it.is_gone) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: its device is gone", input.port);
    }
    text += &left_out_text(&left_out);
    for (queue, delivered, dropped) in rows {
        let reader = queue
            .reader
            .map_or_else(|| "no reader".to_owned(), |pid| format!("process {pid}"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  queue {} ({}), {reader}: {} delivered, {} dropped, {} of {} waiting",
            queue.index,
            queue.application,
            si(delivered.round(), "pps"),
            si(dropped.round(), "pps"),
            queue.depth,
            queue.len,
        );
    }
    text
}
