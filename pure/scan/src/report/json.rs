//! masscan's JSON format: an array (RFC 8259) of objects with address, time, and a list of one
//! port.

use wire::Timestamp;

use super::text::service;
use super::{Cut, Ending, Format, Found, Run, last, put};
use crate::cookie::ProbeTarget;
use crate::grab::Banner;

pub(super) static FORMAT: Format = Format {
    word: "json",
    letter: 'J',
    extension: "json",
    about: "one JSON array, with masscan's objects",
    begin: |_: &Run, out| out.extend(b"[\n"),
    answer,
    banner,
    note: None,
    between: b",\n",
    end: |_: &Run, _: u64, _: &Ending<'_>, out| out.extend(b"\n]\n"),
    closing,
    cut: Some(Cut { is_own, last_row }),
};

/// Finds the closing part. An array without objects is `[`, an empty line, and `]`.
fn closing(end: &[u8]) -> Option<(usize, bool)> {
    let at = last(end, b"\n]")?;
    let is_last = end[at + 2..].iter().all(u8::is_ascii_whitespace);
    is_last.then(|| (at, end[..at].ends_with(b"}")))
}

fn is_own(start: &[u8]) -> bool {
    start == b"[\n" || start.starts_with(b"[\n{\"ip\":\"") || start.starts_with(b"[\n\n")
}

/// Finds the end of the last object: text in it has no line feed.
fn last_row(end: &[u8]) -> Option<(usize, bool)> {
    const END: &[u8] = b"}]}";
    if end.ends_with(END) {
        return Some((end.len(), true));
    }
    let separated = last(end, b"}]},\n").or_else(|| last(end, b"}]}\n"));
    let row = separated.map(|at| (at + END.len(), true));
    row.or_else(|| end.starts_with(b"[\n").then_some((2, false)))
}

fn begin(target: &ProbeTarget, time: Timestamp, out: &mut Vec<u8>) {
    put!(
        out,
        "{{\"ip\":\"{}\",\"timestamp\":\"{}\",\"ports\":[{{\"port\":{},\"proto\":\"{}\",",
        target.addr,
        time.seconds(),
        target.port,
        target.protocol().word()
    );
}

fn answer(found: &Found, out: &mut Vec<u8>) {
    let answer = &found.answer;
    begin(&answer.target, found.time, out);
    put!(
        out,
        "\"status\":\"{}\",\"reason\":\"{}\",\"ttl\":{}}}]}}",
        answer.state.word(),
        answer.evidence.word(),
        answer.ttl
    );
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    begin(&banner.target, time, out);
    out.extend(b"\"service\":{\"name\":");
    inspect::json_string(service(banner).as_bytes(), out);
    out.extend(b",\"banner\":");
    inspect::json_string(&banner.start, out);
    let mut fields = Vec::new();
    if banner.json(&mut fields) {
        out.extend(b",\"fields\":");
        out.append(&mut fields);
    }
    out.extend(b"}}]}");
}
