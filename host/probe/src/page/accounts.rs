//! The parts of the page that account for packets, flows and exports.

use std::fmt::Write as _;

use export::Account;
use flow::EndReason;
use flow::digest::Digest;
use port::DropReason;
use runtime::flows::{QueueStatus, Report};
use wire::Reason;

use super::parts::safe;
use super::{Run, card, grouped};

/// All cards.
pub(super) fn cards(out: &mut String, run: &Run<'_>, digest: &Digest) {
    let total = QueueStatus::total(&run.report.queues);
    port(out, run.report);
    packets(out, run.report, &total);
    flows(out, run.report, &total, digest);
    if !run.exports.is_empty() {
        exports(out, run.exports);
    }
}

/// What the port did with the packets it saw.
fn port(out: &mut String, report: &Report) {
    let rx = report.account.rx_total();
    let mut rows = vec![
        ("seen".to_owned(), rx.seen),
        ("delivered".into(), rx.delivered),
    ];
    rows.push(("passed to the host".into(), rx.passed));
    for reason in DropReason::ALL {
        let count = rx.dropped[reason as usize];
        if count != 0 {
            rows.push((
                format!("dropped: {}", reason.name().replace('_', " ")),
                count,
            ));
        }
    }
    if rx.in_flight != 0 {
        rows.push(("in flight".into(), rx.in_flight));
    }
    let mut body = String::new();
    counts(&mut body, &rows);
    verdict(
        &mut body,
        rx.imbalance(),
        "seen = delivered + passed + dropped + in flight",
    );
    card(out, "Port account", "packets", false, &body);
}

/// Which records the delivered packets are in, or why they are in none.
fn packets(out: &mut String, report: &Report, total: &QueueStatus) {
    let meter = &total.meter;
    let mut rows = vec![("in records".to_owned(), report.packets_in_records)];
    rows.push((
        "in records that were dropped".into(),
        report.packets_in_dropped,
    ));
    for reason in Reason::ALL {
        let words = match reason {
            Reason::Complete => "not IP".to_owned(),
            reason => reason.name().replace('_', " "),
        };
        rows.push((
            format!("in no flow: {words}"),
            meter.refused[reason as usize],
        ));
    }
    let sampled = meter.unsampled + report.unsampled_record_packets;
    rows.push(("skipped by sampling".into(), sampled));
    rows.push(("after --count was reached".into(), total.unmetered));
    rows.push(("rejected by the filter".into(), total.unselected));
    rows.push(("counted in two flows, subtracted".into(), meter.twice));
    rows.retain(|(name, count)| *count != 0 || name == "in records");
    let mut body = String::new();
    counts(&mut body, &rows);
    verdict(&mut body, report.imbalance(), "delivered = all of these");
    card(
        out,
        "Packet account",
        "packets delivered by the port",
        false,
        &body,
    );
}

/// End reasons of flows, and merges.
fn flows(out: &mut String, report: &Report, total: &QueueStatus, digest: &Digest) {
    let meter = &total.meter;
    let table = &meter.table;
    let mut rows = vec![
        ("flows started".to_owned(), table.flows),
        ("records".to_owned(), digest.total.records),
    ];
    for reason in EndReason::ALL {
        let words = match reason {
            EndReason::Idle => "ended: idle",
            EndReason::Active => "ended: active timeout, the flow continues",
            EndReason::EndOfFlow => "ended: TCP FIN or RST",
            EndReason::Forced => "ended: end of input",
            EndReason::Resources => "ended early: the table was full",
        };
        rows.push((words.into(), table.ended[reason as usize]));
    }
    let fragments = &meter.fragments;
    rows.push((
        "fragments in their flows".into(),
        fragments.first + fragments.followed + fragments.joined,
    ));
    rows.push(("fragments without a first one".into(), fragments.orphans));
    rows.push(("halves from two queues, merged".into(), report.merged));
    rows.retain(|(_, count)| *count != 0);
    let mut body = String::new();
    counts(&mut body, &rows);
    card(out, "Flow account", "flows and records", false, &body);
}

/// Fate of exported records by destination.
fn exports(out: &mut String, exports: &[(String, Account)]) {
    let mut body = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>destination</th><th class=\"n\">exported\
         </th><th class=\"n\">not</th><th>last failure</th></tr></thead><tbody>\n",
    );
    for (name, account) in exports {
        let failure = account.last_failure.as_deref().unwrap_or_default();
        let _ = writeln!(
            body,
            "<tr><td class=\"w\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"w\">{}</td></tr>",
            safe(name),
            grouped(account.exported.flows),
            grouped(account.dropped_total().flows),
            safe(failure)
        );
    }
    body.push_str("</tbody></table></div>\n");
    card(out, "Exports", "flow records", false, &body);
}

/// A table of names and counts.
fn counts(out: &mut String, rows: &[(String, u64)]) {
    out.push_str("<table>\n");
    for (name, count) in rows {
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td class=\"n\">{}</td></tr>",
            grouped(*count)
        );
    }
    out.push_str("</table>\n");
}

/// Whether two counts of the same packets agree.
fn verdict(out: &mut String, imbalance: i64, sum: &str) {
    let (class, words) = match imbalance {
        0 => ("good", "adds up".to_owned()),
        missing => ("bad", format!("differs by {missing}")),
    };
    let _ = writeln!(
        out,
        "<p class=\"note\" style=\"margin-top:8px\">{sum}: <b class=\"{class}\">{words}</b></p>"
    );
}
