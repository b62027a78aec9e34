//! nmap's grepable format: lines of a host and its ports, with seven fields each, separated by
//! slashes. A host has one line for each answer.

use wire::Timestamp;

use super::text::{as_is, certificate, escaped, service};
use super::{Ending, Format, Found, Run, after_last_line, put};
use crate::cookie::ProbeTarget;
use crate::grab::Banner;
use crate::port::Protocol;

pub(super) static FORMAT: Format = Format {
    word: "grepable",
    letter: 'G',
    extension: "gnmap",
    about: "lines for grep and awk, as nmap's",
    begin,
    answer,
    banner,
    note: None,
    between: b"",
    end,
    closing: after_last_line,
    cut: None,
};

/// Appends text; slashes, commas and tabs are escaped because they separate fields.
fn field(text: &[u8], out: &mut Vec<u8>) {
    escaped(text, out, |letter, out| match letter {
        '/' => out.push(b'|'),
        ',' => out.extend(b"\\x2c"),
        _ => as_is(letter, out),
    });
}

fn begin(run: &Run, out: &mut Vec<u8>) {
    out.extend(b"# barewire ");
    field(run.version.as_bytes(), out);
    put!(out, " scan initiated {:.0} as: ", run.start);
    // Slashes do not separate fields in a comment.
    escaped(run.arguments.as_bytes(), out, as_is);
    out.push(b'\n');
}

fn line(target: &ProbeTarget, state: &str, name: &str, version: &[u8], out: &mut Vec<u8>) {
    put!(
        out,
        "Host: {} ()\tPorts: {}/{state}/{}//",
        target.addr,
        target.port,
        target.protocol().word()
    );
    field(name.as_bytes(), out);
    out.extend(b"//");
    field(version, out);
    out.extend(b"/\n");
}

fn answer(found: &Found, out: &mut Vec<u8>) {
    let target = &found.answer.target;
    let state = found.answer.state.word();
    match target.protocol() {
        Protocol::Icmp | Protocol::Link => {
            // An error of a router does not show the state of the host.
            let state = if state == "up" { "Up" } else { "Unknown" };
            put!(out, "Host: {} ()\tStatus: {state}\n", target.addr);
        }
        _ => line(target, state, "", b"", out),
    }
}

fn banner(banner: &Banner, _: Timestamp, out: &mut Vec<u8>) {
    let certificate = certificate(banner);
    let gap: &[u8] = if certificate.is_empty() { b"" } else { b" " };
    let version = [&banner.start, gap, certificate.as_bytes()].concat();
    line(&banner.target, "open", &service(banner), &version, out);
}

fn end(run: &Run, _: u64, ending: &Ending<'_>, out: &mut Vec<u8>) {
    if let Some(ended) = ending.result {
        put!(
            out,
            "# barewire done at {:.0} -- {} addresses scanned in {:.2} seconds{}\n",
            ending.now,
            run.target_count,
            ended.seconds,
            if ended.is_complete {
                ""
            } else {
                " (ended early)"
            }
        );
    }
}
