//! masscan's JSON format: an array (RFC 8259) of objects with address, time, and a list of one
//! port.

use wire::Timestamp;

use super::text::service;
use super::{Ending, Format, Found, Run, last, put};
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
    rate: None,
    between: b",\n",
    end: |_: &Run, _: u64, _: &Ending<'_>, out| out.extend(b"\n]\n"),
    closing,
};

/// Finds the closing part. An array without objects is `[`, an empty line, and `]`.
fn closing(end: &[u8]) -> Option<(usize, bool)> {
    let at = last(end, b"\n]")?;
    let is_last = end[at + 2..].iter().all(u8::is_ascii_whitespace);
    is_last.then(|| (at, end[..at].ends_with(b"}")))
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
    out.extend(b"}}]}");
}
