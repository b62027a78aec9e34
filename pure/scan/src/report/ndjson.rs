//! One JSON object per line: answers, banners, and the totals at the end.

use wire::Timestamp;

use super::{AskedRate, Ending, Format, Found, LinkChange, Note, Run, after_last_line, put, title};
use crate::adapt::RateChange;
use crate::grab::Banner;

pub(super) static FORMAT: Format = Format {
    word: "ndjson",
    letter: 'D',
    extension: "ndjson",
    about: "one JSON object a line, as --json prints them",
    begin: |_: &Run, _| {},
    answer,
    banner,
    note: Some(note),
    between: b"",
    end,
    closing: after_last_line,
    cut: None,
};

fn string(text: &str, out: &mut Vec<u8>) {
    inspect::json_string(text.as_bytes(), out);
}

fn answer(found: &Found, out: &mut Vec<u8>) {
    let answer = &found.answer;
    let target = &answer.target;
    put!(
        out,
        "{{\"type\":\"answer\",\"time\":\"{:.6}\",\"address\":\"{}\",\"protocol\":\"{}\",\
         \"port\":{},\"state\":\"{}\",\"reason\":\"{}\",\"ttl\":{},\"from\":\"{}\"",
        found.time,
        target.addr,
        target.protocol().word(),
        target.port,
        answer.state.word(),
        answer.evidence.word(),
        answer.ttl,
        answer.from
    );
    if let Some(rtt) = found.rtt {
        put!(out, ",\"rtt_ms\":{}", rtt.as_nanos() as f64 / 1e6);
    }
    if let Some(mac) = found.mac() {
        put!(out, ",\"mac\":\"{mac}\"");
    }
    if let Some(vendor) = &found.vendor {
        out.extend(b",\"vendor\":");
        string(vendor, out);
    }
    out.extend(b"}\n");
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    put!(
        out,
        "{{\"type\":\"banner\",\"time\":\"{time:.6}\",\"address\":\"{}\",\"protocol\":\"{}\",\
         \"port\":{}",
        target.addr,
        target.protocol().word(),
        target.port
    );
    if let Some(name) = &banner.name {
        out.extend(b",\"name\":");
        string(name, out);
    }
    out.extend(b",\"application\":");
    if !banner.json(out) {
        out.extend(b"{}");
    }
    out.extend(b",\"title\":");
    match title(banner) {
        Some(title) => string(&title, out),
        None => out.extend(b"null"),
    }
    out.extend(b",\"start\":");
    inspect::json_string(&banner.start, out);
    put!(
        out,
        ",\"bytes\":{},\"end\":\"{}\"}}\n",
        banner.byte_count,
        banner.ending.word()
    );
}

fn note(run: &Run, note: &Note, time: Timestamp, out: &mut Vec<u8>) {
    match note {
        Note::Rate(change) => rate(run, change, time, out),
        Note::Link(change) => link(change, time, out),
    }
}

fn link(change: &LinkChange, time: Timestamp, out: &mut Vec<u8>) {
    put!(
        out,
        "{{\"type\":\"link\",\"time\":\"{time:.6}\",\"state\":\"{}\",\"down_seconds\":",
        change.word()
    );
    match change {
        LinkChange::Down => out.extend(b"null}\n"),
        LinkChange::Up(lasted) => put!(out, "{:.3}}}\n", lasted.as_secs_f64()),
    }
}

fn rate(run: &Run, change: &RateChange, time: Timestamp, out: &mut Vec<u8>) {
    let unit = run.rate.unit;
    put!(
        out,
        "{{\"type\":\"rate\",\"time\":\"{time:.6}\",\"from_{unit}\":{},\"to_{unit}\":{},\"share\":",
        change.from,
        change.to
    );
    match change.share {
        Some(share) => put!(out, "{share:.4}}}\n"),
        None => out.extend(b"null}\n"),
    }
}

/// Appends a number, or a string if the number is too large for JSON parsers.
fn number(name: &str, value: u128, out: &mut Vec<u8>) {
    match u64::try_from(value) {
        Ok(value) => put!(out, ",\"{name}\":{value}"),
        Err(_) => put!(out, ",\"{name}\":\"{value}\""),
    }
}

fn end(run: &Run, _: u64, ending: &Ending<'_>, out: &mut Vec<u8>) {
    let Some(ended) = ending.result else {
        return;
    };
    let totals = ending.totals;
    let grabbed = &totals.grabbed;
    out.extend(b"{\"type\":\"totals\"");
    number("probes", totals.probes, out);
    number("before", totals.before, out);
    number("next", totals.next, out);
    number("unreachable", totals.unreachable, out);
    number("own", totals.own, out);
    for (name, value) in [
        ("sent", totals.sent),
        ("resent", totals.resent),
        ("sent_bytes", totals.sent_bytes),
        ("failed", totals.failed),
        ("received", totals.received),
        ("answers", totals.answers),
        ("unrelated", totals.unrelated()),
        ("open", totals.open),
        ("closed", totals.closed),
        ("filtered", totals.filtered),
        ("unfiltered", totals.unfiltered),
        ("up", totals.up),
        ("repeated", totals.repeated),
        ("maybe_repeated", totals.maybe_repeated),
        ("lost", totals.lost),
        ("connections", grabbed.connections),
        ("banners", grabbed.banners),
        ("silent", grabbed.silent),
        ("not_connected", grabbed.refused),
        ("rate_changes", totals.rate_changes),
        ("seed", run.seed),
        ("block", run.block),
    ] {
        put!(out, ",\"{name}\":{value}");
    }
    put!(out, ",\"scan\":\"{:016x}\"", run.fingerprint);
    let AskedRate { max, min, unit } = run.rate;
    put!(out, ",\"rate_asked_{unit}\":{max}");
    if let Some(min) = min {
        put!(out, ",\"rate_min_{unit}\":{min}");
    }
    let count = match unit {
        "bps" => totals.sent_bytes as f64 * 8.0,
        _ => totals.sent as f64,
    };
    let reached = count / ended.sending_seconds.max(1e-3);
    put!(out, ",\"rate_reached_{unit}\":{reached:.3}");
    put!(
        out,
        ",\"seconds\":{},\"complete\":{},\"error\":",
        ended.seconds,
        ended.is_complete
    );
    match ended.error {
        Some(error) => string(error, out),
        None => out.extend(b"null"),
    }
    out.extend(b"}\n");
}
