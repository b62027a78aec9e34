//! Expressions on 802.11 frames and on other link types, compared with the installed libpcap on
//! random frames, at every length.

use lab::random::Random;

use super::filter_expression::compare;

pub(super) const EXPRESSIONS: &str = include_str!("../../../testdata/filter/links.txt");

/// 802.11 alone and behind Prism or AVS, radiotap, and AVS; Token Ring, FDDI, ATM (RFC 1483), IP
/// over Fibre Channel, ARCNET of BSD and of Linux.
const LINK_TYPES: [u16; 10] = [105, 119, 127, 163, 6, 10, 100, 122, 7, 129];

pub(super) fn of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

pub(super) fn network(random: &mut Random, ethertype: [u8; 2]) -> Vec<u8> {
    let mut out = Vec::new();
    match ethertype {
        [0x88, 0x47] => out.extend([0, 0, of(random, &[0x50, 0x51]), 64]),
        [0x88, 0x64] => out.extend([0x11, 0, 0, 9, 0, 50, 0, of(random, &[0x21, 0x57])]),
        [0x81, 0] => out.extend([0, of(random, &[5, 6]), 8, 0]),
        [8, 6] => {
            out.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2]);
            out.extend([10, 0, 0, of(random, &[1, 2]), 3, 3, 3, 3, 3, 3]);
            out.extend([10, 0, 0, of(random, &[1, 2])]);
            return out;
        }
        _ => {}
    }
    let protocol = of(random, &[6, 17, 1, 58, 132]);
    if random.below(2) == 0 {
        let words = of(random, &[5, 5, 6]);
        let flags = of(random, &[0, 0x40, 0x20]);
        out.extend([0x40 + words, 0, 0, 90, 0, 1, flags, of(random, &[0, 0, 1])]);
        out.extend([64, protocol, 0, 0, 10, 0, 0, of(random, &[1, 2])]);
        out.extend([of(random, &[10, 255, 224]), 0, 0, of(random, &[1, 2])]);
        out.extend(vec![1; usize::from(words - 5) * 4]);
    } else {
        out.extend([
            0x60,
            0,
            0,
            0,
            0,
            60,
            of(random, &[protocol, protocol, 44]),
            64,
        ]);
        for _ in 0..2 {
            out.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            out.push(of(random, &[1, 2]));
        }
    }
    let port = |random: &mut Random| of(random, &[53, 80, 7, 1]);
    out.extend([
        0,
        port(random),
        0,
        port(random),
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0x50,
    ]);
    out.extend([of(random, &[2, 0x12]), 1, 0, 0, 0, 0, 0]);
    out
}

pub(super) fn llc(random: &mut Random) -> Vec<u8> {
    let mut out = vec![];
    match random.below(7) {
        0 => out.extend([0x42, 0x42, of(random, &[3, 0xaf, 5]), 0, 0, 0, 0]),
        1 => out.extend([0xfe, 0xfe, 3, 0x83, 0, 0, 0, 0]),
        2 => out.extend([0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b, 0, 0]),
        _ => {
            let kinds = [
                [8, 0],
                [8, 0],
                [0x86, 0xdd],
                [8, 6],
                [0x88, 0x47],
                [0x88, 0x64],
                [0x81, 0],
            ];
            let kind = of(random, &kinds);
            out.extend([0xaa, 0xaa, 3, 0, 0, 0]);
            out.extend(kind);
            out.extend(network(random, kind));
        }
    }
    out
}

pub(super) fn mac(random: &mut Random) -> [u8; 6] {
    match random.below(3) {
        0 => [0xff; 6],
        _ => [of(random, &[0, 0, 1]), 0, 0, 0, 0, of(random, &[1, 2])],
    }
}

pub(super) fn wlan(random: &mut Random) -> Vec<u8> {
    let kind = of(random, &[0, 1, 2, 2, 2, 3]);
    let subtype = of(random, &[0, 0, 4, 8, 8, 10, 11, 12, 13, 14, 15]);
    let direction = of(random, &[0, 1, 2, 3]);
    let mut out = vec![
        subtype << 4 | kind << 2,
        direction | of(random, &[0, 0x40, 0x80]),
    ];
    out.extend([0, 0]);
    for _ in 0..3 {
        out.extend(mac(random));
    }
    out.extend([0x10, 0]);
    if direction == 3 {
        out.extend(mac(random));
    }
    if kind == 2 && subtype & 8 != 0 {
        out.extend([of(random, &[0, 7]), 0]);
    }
    while !out.len().is_multiple_of(4) && random.below(2) == 0 {
        out.push(0);
    }
    out.extend(llc(random));
    out
}

fn avs(random: &mut Random) -> Vec<u8> {
    let len = of(random, &[64, 68]);
    let mut out = vec![0x80, 0x21, 0x10, of(random, &[1, 2]), 0, 0, 0, len];
    out.resize(len.into(), 0);
    out
}

fn frame(random: &mut Random, link_type: u16) -> Vec<u8> {
    let (mut out, rest) = match link_type {
        119 if random.below(2) == 0 => {
            let mut prism = vec![0, 0, 0, 0x41];
            prism.resize(144, 0);
            (prism, wlan(random))
        }
        119 | 163 => (avs(random), wlan(random)),
        127 => {
            let pad = of(random, &[0, 8, 13]);
            let present = of(random, &[0, 2, 3]);
            let mut radiotap = vec![0, 0, 9 + pad, 0, present, 0, 0, of(random, &[0, 0, 0x80])];
            radiotap.extend(vec![of(random, &[0, 0x20]); usize::from(pad) + 1]);
            (radiotap, wlan(random))
        }
        105 => (Vec::new(), wlan(random)),
        6 => (
            [&[0x10, 0x40], &mac(random)[..], &mac(random)].concat(),
            llc(random),
        ),
        10 => (
            [&[0x50], &mac(random)[..], &mac(random)].concat(),
            llc(random),
        ),
        100 => (Vec::new(), llc(random)),
        122 => {
            let header = [&[0, 0], &mac(random)[..], &[0, 0], &mac(random)].concat();
            (header, llc(random))
        }
        _ => {
            let kind = of(random, &[212, 240, 196, 213, 241, 214, 221]);
            let ends = [1, of(random, &[0, 2])];
            let middle: &[u8] = if link_type == 129 { &[0, 0] } else { &[] };
            let ethertype = if kind == 213 { [8, 6] } else { [8, 0] };
            let header = [&ends[..], middle, &[kind, 0, 0, 0]].concat();
            (header, network(random, ethertype))
        }
    };
    out.extend(rest);
    if random.below(4) == 0 {
        let at = random.below(out.len() as u64) as usize;
        out[at] ^= 1 << random.below(8);
    }
    out
}

#[test]
fn verdicts_on_other_link_types_equal_those_of_libpcap() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let mut random = Random::seeded("filter, link types");
    let mut found = Vec::new();
    for link_type in LINK_TYPES {
        let frames: Vec<_> = (0..200).map(|_| frame(&mut random, link_type)).collect();
        // libpcap's programs match nothing: behind a radio header they read the offset of the
        // inner packet where they have stored another one.
        let has_radio = [119, 127, 163].contains(&link_type);
        let is_sound = |text: &&str| !(has_radio && text.starts_with("pppoes"));
        for text in EXPRESSIONS.lines().filter(is_sound) {
            found.extend(compare(text, link_type, &frames, &mut (0, 0)));
        }
    }
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}
