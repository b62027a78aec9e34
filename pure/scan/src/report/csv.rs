//! Comma-separated values (RFC 4180) with a header line. Text that a spreadsheet would run as a
//! formula is escaped.

use flow::encode::csv::safe_cell;
use wire::Timestamp;

use super::text::service;
use super::{Ending, Format, Found, Run, after_last_line, put};
use crate::grab::Banner;

const HEADING: &str = "type,time,address,protocol,port,state,reason,ttl,from,rtt_ms,application,\
    banner,mac,vendor,fields";

pub(super) static FORMAT: Format = Format {
    word: "csv",
    letter: 'C',
    extension: "csv",
    about: "comma-separated values with a heading",
    begin: |_: &Run, out| put!(out, "{HEADING}\n"),
    answer,
    banner,
    note: None,
    between: b"",
    end: |_: &Run, _: u64, _: &Ending<'_>, _| {},
    closing: after_last_line,
    cut: None,
};

fn answer(found: &Found, out: &mut Vec<u8>) {
    let answer = &found.answer;
    let target = &answer.target;
    put!(
        out,
        "answer,{:.6},{},{},{},{},{},{},{},",
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
        put!(out, "{:.3}", rtt.as_secs_f64() * 1e3);
    }
    out.extend(b",,,");
    if let Some(mac) = found.mac() {
        put!(out, "{mac}");
    }
    out.push(b',');
    if let Some(vendor) = &found.vendor {
        safe_cell(vendor.as_bytes(), out);
    }
    out.extend(b",\n");
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    put!(
        out,
        "banner,{time:.6},{},{},{},open,,,,,",
        target.addr,
        target.protocol().word(),
        target.port
    );
    safe_cell(service(banner).as_bytes(), out);
    out.push(b',');
    safe_cell(&banner.start, out);
    out.extend(b",,,");
    let mut fields = Vec::new();
    if banner.json(&mut fields) {
        safe_cell(&fields, out);
    }
    out.push(b'\n');
}
