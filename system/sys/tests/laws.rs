//! Checks the property of `netlink::laws` for answers made here: complete, truncated at each byte,
//! and with each bit flipped; and for the fuzz corpus, which is generated here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-sys --test laws` regenerates the corpus.

use std::fs;
use std::path::Path;

use barewire_sys::netlink::laws::reply_input;

/// Builds a message from type, flags, and what follows the header.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend([7, 0, 0, 0, 1, 2, 0, 0]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute, padded.
fn attr(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

const NEW_LINK: u16 = 16;
const NEW_ROUTE: u16 = 24;
const ERROR: u16 = 2;
const NESTED: u16 = 0x8000;

fn number(kind: u16, value: u32) -> Vec<u8> {
    attr(kind, &value.to_le_bytes())
}

/// A link and its attributes.
fn link() -> Vec<u8> {
    let xdp = [attr(2, &[1]), number(4, 77), number(5, 77)].concat();
    [
        vec![0, 0, 1, 0, 5, 0, 0, 0, 0x43, 0x10, 1, 0, 0, 0, 0, 0],
        attr(3, b"veth0\0"),
        attr(1, &[2, 0, 0, 0, 0, 1]),
        number(4, 1500),
        number(5, 6),
        number(31, 4),
        attr(23, &[9; 200]),
        attr(18 | NESTED, &attr(1, b"veth\0")),
        attr(43 | NESTED, &xdp),
    ]
    .concat()
}

/// A route with two hops, and one whose hops have wrong lengths.
fn routes() -> [Vec<u8>; 2] {
    let hop = |len: u16, index: u32| {
        let mut hop = len.to_le_bytes().to_vec();
        hop.extend([0, 0]);
        hop.extend(index.to_le_bytes());
        hop
    };
    let route = [
        vec![2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0],
        number(15, 254),
        number(4, 5),
        attr(9, &[hop(8, 5), hop(8, 6)].concat()),
    ]
    .concat();
    let odd_hops = [
        vec![2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0],
        attr(9, &[hop(0, 5), hop(3, 6), hop(u16::MAX, 7)].concat()),
    ]
    .concat();
    [route, odd_hops]
}

/// Answers, each with a name (`rtnetlink(7)`, `if_link.h`, `rtnetlink.h` and `genetlink.h` of
/// `include/uapi/linux`).
fn answers() -> Vec<(&'static str, Vec<u8>)> {
    let (link, [route, odd_hops]) = (link(), routes());
    let group = [attr(1, b"notify\0"), number(2, 16)].concat();
    let family = [
        vec![1, 2, 0, 0],
        attr(2, b"nlctrl\0"),
        attr(1, &[16, 0]),
        attr(7 | NESTED, &attr(1 | NESTED, &group)),
    ]
    .concat();
    let refusal = |code: i32, behind: &[u8]| {
        let mut body = code.to_le_bytes().to_vec();
        body.extend([16, 0, 0, 0, 18, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        body.extend(behind);
        body
    };
    let words = attr(1, b"Device does not exist\0");
    vec![
        ("link", message(NEW_LINK, 2, &link)),
        ("route", message(NEW_ROUTE, 2, &route)),
        ("route-odd-hops", message(NEW_ROUTE, 2, &odd_hops)),
        ("family", message(16, 0, &family)),
        ("refusal", message(ERROR, 0x100, &refusal(-19, &[]))),
        (
            "refusal-in-words",
            message(ERROR, 0x300, &refusal(-19, &words)),
        ),
        (
            "refusal-least-number",
            message(ERROR, 0x200, &refusal(i32::MIN, &words)),
        ),
        (
            "dump",
            [
                message(NEW_LINK, 2, &link),
                message(NEW_LINK, 0x12, &link),
                message(3, 2, &[0; 4]),
            ]
            .concat(),
        ),
        ("no-length", vec![0; 32]),
        ("attribute-of-no-length", message(16, 0, &[0; 12])),
    ]
}

#[test]
fn laws_hold_for_damaged_answers() {
    for (_, bytes) in answers() {
        reply_input(&bytes);
        for at in 0..bytes.len() {
            reply_input(&bytes[..at]);
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                reply_input(&damaged);
            }
        }
    }
}

#[test]
fn the_laws_hold_for_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/netlink");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in answers() {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    for entry in fs::read_dir(&folder).unwrap() {
        reply_input(&fs::read(entry.unwrap().path()).unwrap());
    }
    for (name, bytes) in answers() {
        let there = fs::read(folder.join(name)).unwrap_or_default();
        assert!(
            there == bytes,
            "{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
        );
    }
}
