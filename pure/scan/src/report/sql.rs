//! SQL statements for SQLite (`sqlite3 scan.db < scan.sql`): the tables `answers` and `banners`, in
//! one transaction.
//!
//! A row that is already in the database is ignored, so several files, and the same file twice, may
//! be read into one.

use wire::Timestamp;

use super::text::service;
use super::{Cut, Ending, Format, Found, Run, after_last_line, last, put, title};
use crate::grab::Banner;

/// The first line of a file.
const HEADING: &str = "-- barewire scan, for SQLite\n";
const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS answers (time TEXT, address TEXT, protocol TEXT, port INTEGER, \
state TEXT, reason TEXT, ttl INTEGER, sender TEXT, rtt_ms REAL, mac TEXT, vendor TEXT, \
UNIQUE (address, protocol, port, state));
CREATE TABLE IF NOT EXISTS banners (time TEXT, address TEXT, protocol TEXT, port INTEGER, \
application TEXT, fields TEXT, title TEXT, start BLOB, bytes INTEGER, ending TEXT, \
UNIQUE (address, protocol, port, application, start));
";
const END: &[u8] = b"COMMIT;\n";

pub(super) static FORMAT: Format = Format {
    word: "sql",
    letter: 'Q',
    extension: "sql",
    about: "SQL statements for SQLite, in one transaction",
    begin: |_: &Run, out| put!(out, "{HEADING}BEGIN;\n{SCHEMA}"),
    answer,
    banner,
    note: None,
    between: b"",
    end: |_: &Run, _: u64, _: &Ending<'_>, out| out.extend(END),
    closing: |end| last(end, END).map(|at| (at, true)),
    cut: Some(Cut {
        is_own: |start| start.starts_with(HEADING.as_bytes()),
        last_row: after_last_line,
    }),
};

/// Appends a text in quotes: lines must stay lines, so control characters are left out.
fn text(text: &str, out: &mut Vec<u8>) {
    out.push(b'\'');
    for letter in text
        .chars()
        .filter(|letter| !inspect::is_unprintable(*letter))
    {
        match letter {
            '\'' => out.extend(b"\'\'"),
            _ => super::text::as_is(letter, out),
        }
    }
    out.push(b'\'');
}

fn optional(value: Option<&str>, out: &mut Vec<u8>) {
    match value {
        Some(value) => text(value, out),
        None => out.extend(b"NULL"),
    }
}

fn answer(found: &Found, out: &mut Vec<u8>) {
    let answer = &found.answer;
    let target = &answer.target;
    put!(
        out,
        "INSERT OR IGNORE INTO answers VALUES (\'{:.6}\',\'{}\',\'{}\',{},\'{}\',\'{}\',{},\'{}\',",
        found.time,
        target.addr,
        target.protocol().word(),
        target.port,
        answer.state.word(),
        answer.evidence.word(),
        answer.ttl,
        answer.from
    );
    match found.rtt {
        Some(rtt) => put!(out, "{:.3}", rtt.as_secs_f64() * 1e3),
        None => out.extend(b"NULL"),
    }
    out.push(b',');
    optional(found.mac().map(|mac| mac.to_string()).as_deref(), out);
    out.push(b',');
    optional(found.vendor.as_deref(), out);
    out.extend(b");\n");
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    put!(
        out,
        "INSERT OR IGNORE INTO banners VALUES (\'{time:.6}\',\'{}\',\'{}\',{},",
        target.addr,
        target.protocol().word(),
        target.port
    );
    text(&service(banner), out);
    out.push(b',');
    let mut fields = Vec::new();
    match banner.json(&mut fields) {
        true => text(&String::from_utf8_lossy(&fields), out),
        false => out.extend(b"NULL"),
    }
    out.push(b',');
    optional(title(banner).as_deref(), out);
    out.extend(b",x\'");
    banner.start.iter().for_each(|byte| put!(out, "{byte:02x}"));
    put!(
        out,
        "\',{},\'{}\');\n",
        banner.byte_count,
        banner.ending.word()
    );
}
