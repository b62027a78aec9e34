//! masscan's list format: lines of state, protocol, port, address and time.

use wire::Timestamp;

use super::text::{as_is, certificate, escaped, service};
use super::{Ending, Format, Found, Run, after_last_line, put};
use crate::grab::Banner;

pub(super) static FORMAT: Format = Format {
    word: "list",
    letter: 'L',
    extension: "list",
    about: "lines of state, protocol, port, address and time, as masscan's",
    begin: |_: &Run, out| out.extend(b"#barewire\n"),
    answer,
    banner,
    note: None,
    between: b"",
    end,
    closing: after_last_line,
    cut: None,
};

fn answer(found: &Found, out: &mut Vec<u8>) {
    let target = &found.answer.target;
    put!(
        out,
        "{} {} {} {} {}\n",
        found.answer.state.word(),
        target.protocol().word(),
        target.port,
        target.addr,
        found.time.seconds()
    );
}

fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    let name = service(banner);
    put!(
        out,
        "banner {} {} {} {} {} ",
        target.protocol().word(),
        target.port,
        target.addr,
        time.seconds(),
        if name.is_empty() { "unknown" } else { &name }
    );
    escaped(&banner.start, out, as_is);
    let certificate = certificate(banner);
    if !certificate.is_empty() {
        out.push(b' ');
        escaped(certificate.as_bytes(), out, as_is);
    }
    out.push(b'\n');
}

fn end(_: &Run, _: u64, ending: &Ending<'_>, out: &mut Vec<u8>) {
    if ending.result.is_some() {
        out.extend(b"# end\n");
    }
}
