//! nmap's XML format (`nmap.dtd`, version 1.05), for tools that read it. A host has one element for
//! each answer, because answers are written as they arrive. A banner is the result of a script.

use inspect::{DateTime, FIELDS, Field, Kind, Value, tls_version};
use wire::Timestamp;

use super::text::{escaped, first_line, safe, service, title};
use super::{Cut, Ending, Format, Found, Run, last, put};
use crate::answer::State;
use crate::cookie::ProbeTarget;
use crate::grab::Banner;
use crate::port::Protocol;
use crate::probe::Probe;

pub(super) static FORMAT: Format = Format {
    word: "xml",
    letter: 'X',
    extension: "xml",
    about: "XML that nmap's tools read",
    begin,
    answer,
    banner,
    note: None,
    between: b"",
    end,
    closing,
    cut: Some(Cut { is_own, last_row }),
};

/// Finds the closing part, which has to be whole.
fn closing(end: &[u8]) -> Option<(usize, bool)> {
    let at = last(end, b"<runstats>")?;
    let is_whole = end.trim_ascii_end().ends_with(b"</nmaprun>");
    is_whole.then_some((at, true))
}

fn is_own(start: &[u8]) -> bool {
    last(start, b"\n<nmaprun scanner=\"barewire\"").is_some()
}

/// Finds the end of the last element: text in attributes has no angle bracket.
fn last_row(end: &[u8]) -> Option<(usize, bool)> {
    let ends: [&[u8]; 3] = [b"</host>\n", b"\"/>\n", b"xmloutputversion=\"1.05\">\n"];
    let ends = ends
        .into_iter()
        .filter_map(|row| Some(last(end, row)? + row.len()));
    ends.max().map(|at| (at, true))
}

/// Appends text as an attribute value.
fn attribute(text: &[u8], out: &mut Vec<u8>) {
    escaped(text, out, |letter, out| match letter {
        '&' => out.extend(b"&amp;"),
        '<' => out.extend(b"&lt;"),
        '>' => out.extend(b"&gt;"),
        '"' => out.extend(b"&quot;"),
        _ => super::text::as_is(letter, out),
    });
}

/// Returns nmap's name for a type of probe, if its XML has one.
fn scan_type(probe: Probe) -> Option<&'static str> {
    match probe {
        Probe::Syn => Some("syn"),
        Probe::Udp => Some("udp"),
        Probe::Ack => Some("ack"),
        Probe::Fin => Some("fin"),
        Probe::Xmas => Some("xmas"),
        Probe::Null => Some("null"),
        Probe::SctpInit => Some("sctpinit"),
        Probe::Protocol => Some("ipproto"),
        Probe::Echo | Probe::Timestamp | Probe::Arp => None,
    }
}

fn begin(run: &Run, out: &mut Vec<u8>) {
    put!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE nmaprun>\n\
         <nmaprun scanner=\"barewire\" args=\""
    );
    attribute(run.arguments.as_bytes(), out);
    put!(
        out,
        "\" start=\"{}\" startstr=\"{:.0}\" version=\"",
        run.start.seconds(),
        run.start
    );
    attribute(run.version.as_bytes(), out);
    out.extend(b"\" xmloutputversion=\"1.05\">\n");
    for (probe, count, ports) in &run.services {
        if let Some(word) = scan_type(*probe) {
            put!(
                out,
                "<scaninfo type=\"{word}\" protocol=\"{}\" numservices=\"{count}\" \
                 services=\"{ports}\"/>\n",
                probe.protocol().word()
            );
        }
    }
}

/// Appends the start of a host element, up to its ports.
fn host(
    target: &ProbeTarget,
    time: Timestamp,
    (state, reason, ttl): (&str, &str, u8),
    out: &mut Vec<u8>,
) {
    let family = if target.addr.is_ipv6() {
        "ipv6"
    } else {
        "ipv4"
    };
    put!(
        out,
        "<host endtime=\"{}\"><status state=\"{state}\" reason=\"{reason}\" \
         reason_ttl=\"{ttl}\"/><address addr=\"{}\" addrtype=\"{family}\"/>",
        time.seconds(),
        target.addr
    );
}

fn answer(found: &Found, out: &mut Vec<u8>) {
    let answer = &found.answer;
    let target = &answer.target;
    let reason = answer.evidence.word();
    // An error from a router does not show the state of the host.
    let status = match (answer.state, answer.from == target.addr) {
        (State::Up, _) | (_, true) => "up",
        _ => "unknown",
    };
    host(target, found.time, (status, reason, answer.ttl), out);
    if let Some(mac) = found.mac() {
        put!(out, "<address addr=\"{mac}\" addrtype=\"mac\"");
        if let Some(vendor) = &found.vendor {
            out.extend(b" vendor=\"");
            attribute(vendor.as_bytes(), out);
            out.push(b'"');
        }
        out.extend(b"/>");
    }
    if !matches!(target.protocol(), Protocol::Icmp | Protocol::Link) {
        put!(
            out,
            "<ports><port protocol=\"{}\" portid=\"{}\"><state state=\"{}\" reason=\"{reason}\" \
             reason_ttl=\"{}\"",
            target.protocol().word(),
            target.port,
            answer.state.word(),
            answer.ttl
        );
        if answer.from != target.addr {
            put!(out, " reason_ip=\"{}\"", answer.from);
        }
        out.extend(b"/></port></ports>");
    }
    if let Some(rtt) = found.rtt {
        let rtt = rtt.as_micros();
        put!(out, "<times srtt=\"{rtt}\" rttvar=\"0\" to=\"{rtt}\"/>");
    }
    out.extend(b"</host>\n");
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    host(target, time, ("up", "syn-ack", 0), out);
    put!(
        out,
        "<ports><port protocol=\"{}\" portid=\"{}\"><state state=\"open\" reason=\"syn-ack\" \
         reason_ttl=\"0\"/>",
        target.protocol().word(),
        target.port
    );
    let (name, headline) = (service(banner), headline(banner));
    let (name, conf) = match name.as_str() {
        "" => ("unknown", 0),
        name => (name, 10),
    };
    out.extend(b"<service name=\"");
    attribute(name.as_bytes(), out);
    out.extend(b"\" extrainfo=\"");
    attribute(headline.as_bytes(), out);
    put!(out, "\" method=\"probed\" conf=\"{conf}\"/>");
    script(banner, &headline, out);
    out.extend(b"</port></ports></host>\n");
}

/// What a person looks for in a banner, on one line.
///
/// It is the script's output and part of the service: ndiff 7.9 ends with an exception if the
/// output of a port's script is the only difference between two files, or a port has two scripts.
fn headline(banner: &Banner) -> String {
    let mut parts: Vec<String> = first_line(&banner.start).into_iter().collect();
    for field in [Field::HttpServer, Field::TlsSubject] {
        if let Some(Value::Text { bytes, .. }) = banner.application.get(field) {
            parts.push(safe(&String::from_utf8_lossy(bytes)));
        }
    }
    parts.extend(title(banner));
    parts.join("; ")
}

/// Appends the decoded fields and the first bytes as nmap's scripts write theirs: an `elem` for
/// each value, in a `table` if the field may have several.
fn script(banner: &Banner, headline: &str, out: &mut Vec<u8>) {
    out.extend(b"<script id=\"banner\" output=\"");
    attribute(headline.as_bytes(), out);
    out.extend(b"\"><elem key=\"start\">");
    attribute(&banner.start, out);
    out.extend(b"</elem>");
    let certificate = banner.certificate.values();
    for row in FIELDS {
        // The certificate has its names whole.
        let is_certificates = certificate.iter().any(|(field, _)| *field == row.field);
        let found = banner.application.fields();
        let found = found.filter(|_| !is_certificates);
        let mut found = found
            .chain(certificate.iter().copied())
            .filter(|(field, _)| *field == row.field)
            .peekable();
        if found.peek().is_none() {
            continue;
        }
        if row.repeats {
            put!(out, "<table key=\"{}\">", row.name);
        }
        for (_, value) in found {
            match row.repeats {
                true => out.extend(b"<elem>"),
                false => put!(out, "<elem key=\"{}\">", row.name),
            }
            text(row.kind, value, out);
            out.extend(b"</elem>");
        }
        if row.repeats {
            out.extend(b"</table>");
        }
    }
    out.extend(b"</script>");
}

/// Appends the value of a field, as JSON has it.
fn text(kind: Kind, value: Value<'_>, out: &mut Vec<u8>) {
    match (value, kind) {
        (Value::Number(number), Kind::Version) => match tls_version(number) {
            Some(name) => out.extend(name.as_bytes()),
            None => put!(out, "{number:#06x}"),
        },
        (Value::Number(number), Kind::Hex) => put!(out, "{number:#06x}"),
        (Value::Number(number), Kind::Time) => put!(out, "{}Z", DateTime(number as i64)),
        (Value::Number(number), _) => put!(out, "{number}"),
        (Value::Text { bytes, .. }, _) => attribute(bytes, out),
        (Value::Digest(sum), _) => sum.iter().for_each(|byte| put!(out, "{byte:02x}")),
        (Value::Address(addr), _) => put!(out, "{addr}"),
    }
}

fn end(run: &Run, rows: u64, ending: &Ending<'_>, out: &mut Vec<u8>) {
    let now = ending.now;
    let since = now.since_ns(run.start) as f64 / 1e9;
    let (elapsed, error) = match ending.result {
        None => (since, Some("the scan has not ended")),
        Some(ended) => {
            let early = (!ended.is_complete).then_some("the scan was ended early");
            (ended.seconds, ended.error.or(early))
        }
    };
    put!(
        out,
        "<runstats><finished time=\"{}\" timestr=\"{now:.0}\" elapsed=\"{elapsed:.2}\" exit=\"{}\"",
        now.seconds(),
        if error.is_some() { "error" } else { "success" }
    );
    if let Some(error) = error {
        out.extend(b" errormsg=\"");
        attribute(error.as_bytes(), out);
        out.push(b'"');
    }
    put!(
        out,
        "/><hosts up=\"{rows}\" down=\"0\" total=\"{}\"/></runstats>\n</nmaprun>\n",
        run.target_count
    );
}
