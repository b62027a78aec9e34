//! Compiles names: the headers once, then one name after another, a word at a time. Letters are
//! compared with bit 0x20 set, so that case does not matter and no other bytes are confused.

use bpf::cbpf::INSN_COUNT_MAX;

use super::{Family, Name, Queries};
use crate::code::Explained;
use crate::code::emit::{
    ADD_X, Emit, JEQ, JGE, JGT, JSET, KEEP, LD_IND, LDB, LDB_IND, LDH, LDH_IND, LDX_IMM, LDX_MSH,
    OR, TAX, To,
};
use crate::p0f::Start;
use crate::{Error, Result};

/// Distance from the UDP header to the first question.
const QUESTION: u32 = 8 + 12;

/// Compiles a list of names.
///
/// # Errors
/// Without names, or with so many that the program would have over 4,096 instructions.
pub fn compile(queries: &Queries, family: Family, start: Start) -> Result<Explained> {
    if queries.names.is_empty() {
        return Err(Error::new(0..0, "no names"));
    }
    let too_long = |why: String| {
        let what = format!(
            "{} names make too long a program: {why}",
            queries.names.len()
        );
        Error::new(0..0, what).expected(
            "barewire guard --deny-names FILE and barewire filter test --dns-file FILE look names \
             up in a table; for a program, use fewer names, or a *. name for many",
        )
    };
    if queries.names.len() > INSN_COUNT_MAX {
        return Err(too_long(format!(
            "the limit is {INSN_COUNT_MAX} instructions"
        )));
    }
    if let Start::Link(number) = start {
        let what = format!("link type {number} is neither Ethernet nor raw IP");
        return Err(Error::unsupported(0..0, what));
    }
    let mut e = Emit::default();
    let ip = if start == Start::Ethernet { 14 } else { 0 };
    headers(&mut e, family, start, ip);
    query(&mut e, ip);
    let (below, exact): (Vec<&Name>, Vec<&Name>) = queries.names.iter().partition(|n| n.is_below());
    let base = ip + QUESTION;
    for (index, name) in exact.iter().enumerate() {
        let is_last = below.is_empty() && index + 1 == exact.len();
        one_name(&mut e, name, queries, base, is_last);
    }
    if !below.is_empty() {
        // X = the length of the first label plus the old X; the offsets include the length byte.
        let at = e.len();
        e.op(LDB_IND, base);
        e.jump_if(JEQ, 0, To::Reject, To::Next);
        e.jump_if(JSET, 0xc0, To::Reject, To::Next);
        e.op(ADD_X, 0);
        e.op(TAX, 0);
        e.note(at, vec!["skip the first label".into()]);
    }
    for (index, name) in below.iter().enumerate() {
        one_name(&mut e, name, queries, base + 1, index + 1 == below.len());
    }
    e.finish(KEEP).map_err(|why| too_long(why.to_string()))
}

/// Loads the length of the IP header into X.
fn headers(e: &mut Emit, family: Family, start: Start, ip: u32) {
    let (v6, udp) = (e.label(), e.label());
    let at = e.len();
    if start == Start::Ethernet {
        e.op(LDH, 12);
        match family {
            Family::V4 => e.jump_if(JEQ, 0x800, To::Next, To::Reject),
            Family::V6 => e.jump_if(JEQ, 0x86dd, To::Next, To::Reject),
            Family::Both => {
                e.jump_if(JEQ, 0x86dd, To::At(v6), To::Next);
                e.jump_if(JEQ, 0x800, To::Next, To::Reject);
            }
        }
        e.note(at, vec!["EtherType".into()]);
    }
    let at = e.len();
    if start == Start::Ip && family == Family::Both {
        e.op(LDB, 0);
        e.jump_if(JGE, 0x60, To::At(v6), To::Next);
    } else if family != Family::V6 {
        e.op(LDB, ip);
    }
    if family != Family::V6 {
        e.jump_if(JGT, 0x4f, To::Reject, To::Next);
        e.jump_if(JGE, 0x45, To::Next, To::Reject);
        e.op(LDB, ip + 9);
        e.jump_if(JEQ, 17, To::Next, To::Reject);
        e.op(LDH, ip + 6);
        e.jump_if(JSET, 0x3fff, To::Reject, To::Next);
        e.op(LDX_MSH, ip);
        e.note(at, vec!["IPv4, UDP, no fragment".into()]);
    }
    if family == Family::Both {
        e.jump(To::At(udp));
    }
    e.bind(v6);
    if family != Family::V4 {
        let at = e.len();
        e.op(LDB, ip);
        e.jump_if(JGT, 0x6f, To::Reject, To::Next);
        e.jump_if(JGE, 0x60, To::Next, To::Reject);
        e.op(LDB, ip + 6);
        e.jump_if(JEQ, 17, To::Next, To::Reject);
        e.op(LDX_IMM, 40);
        e.note(at, vec!["IPv6, UDP".into()]);
    }
    e.bind(udp);
}

fn query(e: &mut Emit, ip: u32) {
    let at = e.len();
    e.op(LDH_IND, ip + 2);
    e.jump_if(JEQ, 53, To::Next, To::Reject);
    e.op(LDB_IND, ip + 8 + 2);
    e.jump_if(JSET, 0x80, To::Reject, To::Next);
    e.op(LDH_IND, ip + 8 + 4);
    e.jump_if(JEQ, 0, To::Reject, To::Next);
    e.note(
        at,
        vec!["to port 53, a query, at least one question".into()],
    );
}

/// Compares a name and the type; returns, or continues with the next name.
fn one_name(e: &mut Emit, name: &Name, queries: &Queries, base: u32, is_last: bool) {
    let at = e.len();
    let next = e.label();
    let no = if is_last { To::Reject } else { To::At(next) };
    let wire = name.wire();
    let mut done = 0;
    while done < wire.len() {
        let (from, width) = match wire.len() - done {
            4.. => (done, 4),
            // A last word that overlaps the previous one takes one load instead of two.
            3 if wire.len() >= 4 => (wire.len() - 4, 4),
            2.. => (done, 2),
            _ => (done, 1),
        };
        part(e, base + from as u32, &wire[from..from + width], no);
        done = from + width;
    }
    // Names are compared one after another, and a load out of bounds would reject the packet for
    // all of them: none is out of bounds if type and class are present, which is checked here.
    e.op(LDB_IND, base + wire.len() as u32 + 3);
    let mut what = vec![format!("the name is {name}, type and class are there")];
    if !queries.types.is_empty() {
        let types: Vec<String> = queries.types.iter().map(ToString::to_string).collect();
        what.push(format!("the type is {}", types.join(" or ")));
        e.op(LDH_IND, base + wire.len() as u32);
    }
    for (index, kind) in queries.types.iter().enumerate() {
        let otherwise = if index + 1 == queries.types.len() {
            no
        } else {
            To::Next
        };
        e.jump_if(JEQ, kind.0.into(), To::Accept, otherwise);
    }
    if queries.types.is_empty() && !is_last {
        e.jump(To::Accept);
    }
    e.note(at, what);
    e.bind(next);
}

/// Compares one, two or four bytes.
fn part(e: &mut Emit, off: u32, bytes: &[u8], no: To) {
    let code = match bytes.len() {
        4 => LD_IND,
        2 => LDH_IND,
        _ => LDB_IND,
    };
    e.op(code, off);
    let join = |sum: u32, byte: u8| sum << 8 | u32::from(byte);
    let letters = |byte: &u8| if byte.is_ascii_lowercase() { 0x20 } else { 0 };
    let fold = bytes.iter().map(letters).fold(0, join);
    if fold != 0 {
        e.op(OR, fold);
    }
    let value = bytes.iter().copied().fold(0, join);
    e.jump_if(JEQ, value, To::Next, no);
}
