//! Fingerprints of TLS hellos with lists of any length, compared with a plain statement of JA3 and
//! JA4: strings that are hashed as a whole.

use super::*;
use Direction::{Forward, Reverse};
use md5::{Digest as _, Md5};
use sha2::Sha256;

/// Lengths of the lists that are kept; a hello with a longer one has no fingerprint.
const CIPHERS_MAX: usize = 400;
const EXTENSIONS_MAX: usize = 64;
const GROUPS_MAX: usize = 40;
const FORMATS_MAX: usize = 8;
const SIGNATURES_MAX: usize = 48;

/// Lists of a client's hello. Extensions are those beside the names, groups, formats and signature
/// algorithms, which come first.
#[derive(Clone, Default)]
struct Lists {
    ciphers: Vec<u16>,
    others: Vec<u16>,
    groups: Vec<u16>,
    formats: Vec<u8>,
    signatures: Vec<u16>,
}

fn words(list: &[u16]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &sized(content)].concat()
}

/// A handshake message in one record.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let message = [&[kind][..], &(body.len() as u32).to_be_bytes()[1..], body].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

impl Lists {
    fn extensions(&self) -> Vec<u16> {
        [&[0, 10, 11, 13][..], &self.others].concat()
    }

    fn hello(&self) -> Vec<u8> {
        let name = sized(&[&[0][..], &sized(b"a.example")].concat());
        let formats = [&[self.formats.len() as u8][..], &self.formats].concat();
        let mut extensions = [
            extension(0, &name),
            extension(10, &sized(&words(&self.groups))),
            extension(11, &formats),
            extension(13, &sized(&words(&self.signatures))),
        ]
        .concat();
        for (at, kind) in self.others.iter().enumerate() {
            extensions.extend(extension(*kind, &vec![0; at % 3]));
        }
        let body = [
            &[3, 3][..],
            &[9; 32],
            &[0],
            &sized(&words(&self.ciphers)),
            &[1, 0],
            &sized(&extensions),
        ];
        record(1, &body.concat())
    }

    fn ja3(&self) -> String {
        let join = |list: &[u16]| {
            let kept = list.iter().filter(|item| !is_grease(**item));
            kept.map(u16::to_string).collect::<Vec<_>>().join("-")
        };
        let formats: Vec<u16> = self.formats.iter().map(|f| u16::from(*f)).collect();
        let lists = [&self.ciphers, &self.extensions(), &self.groups];
        let lists = lists.map(|list| join(list)).join(",");
        hex(&Md5::digest(format!("771,{lists},{}", join(&formats))))
    }

    fn ja4(&self) -> String {
        let kept = |list: &[u16]| -> Vec<u16> {
            let kept = list.iter().filter(|item| !is_grease(**item));
            kept.copied().collect()
        };
        let (mut ciphers, mut extensions) = (kept(&self.ciphers), kept(&self.extensions()));
        let counts = [ciphers.len(), extensions.len()].map(|count| count.min(99));
        ciphers.sort_unstable();
        extensions.sort_unstable();
        extensions.retain(|kind| !matches!(kind, 0 | 16));
        let mut hashed = hexes(&extensions);
        if !self.signatures.is_empty() {
            hashed += &format!("_{}", hexes(&kept(&self.signatures)));
        }
        let ciphers = match ciphers.is_empty() {
            true => "0".repeat(12),
            false => twelve(&hexes(&ciphers)),
        };
        let [count, more] = counts;
        format!("t12d{count:02}{more:02}00_{ciphers}_{}", twelve(&hashed))
    }
}

fn is_grease(item: u16) -> bool {
    (0..16).any(|high| item == high << 12 | 0xa00 | high << 4 | 0xa)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hexes(list: &[u16]) -> String {
    let words: Vec<String> = list.iter().map(|item| format!("{item:04x}")).collect();
    words.join(",")
}

fn twelve(hashed: &str) -> String {
    hex(&Sha256::digest(hashed))[..12].to_owned()
}

/// Numbers of one to five digits, some of them GREASE.
fn numbers(rng: &mut Rng, count: usize) -> Vec<u16> {
    let number = |rng: &mut Rng| match rng.below(9) {
        0 => 0x0a0a | (rng.below(16) as u16 * 0x1010),
        1 => rng.below(10) as u16,
        2 => rng.below(100) as u16,
        3 => rng.below(1000) as u16,
        4 => rng.below(10_000) as u16,
        _ => rng.next() as u16,
    };
    (0..count).map(|_| number(rng)).collect()
}

/// Extensions whose content is not read.
fn others(rng: &mut Rng, count: usize) -> Vec<u16> {
    let read = [0, 10, 11, 13, 16, 43];
    let mut list = Vec::new();
    while list.len() < count {
        list.extend(numbers(rng, 1).iter().filter(|kind| !read.contains(*kind)));
    }
    list
}

fn usual(rng: &mut Rng) -> Lists {
    Lists {
        ciphers: numbers(rng, 17),
        others: others(rng, 9),
        groups: numbers(rng, 5),
        formats: vec![0],
        signatures: numbers(rng, 8),
    }
}

fn check(lists: &Lists, is_kept: bool, what: &str) {
    let hello = lists.hello();
    let ports = [40_000, 443];
    let found = laws::whole(&[(Forward, &hello)], ports);
    let expected = match is_kept {
        true => [lists.ja3(), lists.ja4()],
        false => ["-".to_owned(), "-".to_owned()],
    };
    let values = [text(&found, Field::Ja3), text(&found, Field::Ja4)];
    assert_eq!(values, expected, "{what}");
    // Everything else is reported of any hello.
    assert_eq!(text(&found, Field::TlsSni), "a.example", "{what}");
    assert_eq!(text(&found, Field::TlsVersionOffered), "771", "{what}");
}

#[test]
fn fingerprints_of_hellos_with_any_number_of_ciphers() {
    let mut rng = Rng(0x5eed_ca11);
    for count in 1..=CIPHERS_MAX + 2 {
        let mut lists = usual(&mut rng);
        lists.ciphers = numbers(&mut rng, count);
        check(&lists, count <= CIPHERS_MAX, &format!("{count} ciphers"));
        // Of equal width: each length of what is hashed is met from both sides.
        lists.ciphers = vec![[7, 49_195, 255][count % 3]; count];
        check(
            &lists,
            count <= CIPHERS_MAX,
            &format!("{count} equal ciphers"),
        );
    }
    for count in [1000, 20_000] {
        let mut lists = usual(&mut rng);
        lists.ciphers = numbers(&mut rng, count.min(7000));
        check(&lists, false, &format!("{count} ciphers"));
    }
}

#[test]
fn fingerprints_of_hellos_with_other_lists_of_any_length() {
    let mut rng = Rng(0x5eed_1157);
    for many in [1, 200, CIPHERS_MAX] {
        for count in 0..=EXTENSIONS_MAX + 1 {
            let mut lists = usual(&mut rng);
            lists.ciphers = numbers(&mut rng, many);
            lists.others = others(&mut rng, count);
            // Beside the four that come first.
            check(
                &lists,
                count + 4 <= EXTENSIONS_MAX,
                &format!("{count} extensions"),
            );
        }
        for count in 0..=GROUPS_MAX + 1 {
            let mut lists = usual(&mut rng);
            lists.ciphers = numbers(&mut rng, many);
            lists.groups = numbers(&mut rng, count);
            check(&lists, count <= GROUPS_MAX, &format!("{count} groups"));
        }
        for count in 0..=FORMATS_MAX + 1 {
            let mut lists = usual(&mut rng);
            lists.formats = (0..count).map(|_| rng.next() as u8).collect();
            check(&lists, count <= FORMATS_MAX, &format!("{count} formats"));
        }
        for count in 0..=SIGNATURES_MAX + 1 {
            let mut lists = usual(&mut rng);
            lists.ciphers = numbers(&mut rng, many);
            lists.signatures = numbers(&mut rng, count);
            check(
                &lists,
                count <= SIGNATURES_MAX,
                &format!("{count} algorithms"),
            );
        }
    }
}

#[test]
fn fingerprints_of_server_hellos_with_any_number_of_extensions() {
    let mut rng = Rng(0x5eed_5e4e);
    for count in 0..=EXTENSIONS_MAX + 1 {
        let list = others(&mut rng, count);
        let extensions: Vec<u8> = list
            .iter()
            .flat_map(|kind| extension(*kind, &[1]))
            .collect();
        let body = [
            &[3, 3][..],
            &[9; 32],
            &[0, 0xc0, 0x2b, 0],
            &sized(&extensions),
        ]
        .concat();
        let hello = usual(&mut rng).hello();
        let pieces = [(Forward, &hello[..]), (Reverse, &record(2, &body))];
        let found = laws::whole(&pieces, [40_000, 443]);
        let joined = list
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join("-");
        let ja3s = hex(&Md5::digest(format!("771,49195,{joined}")));
        let hashed = match list.is_empty() {
            true => "0".repeat(12),
            false => twelve(&hexes(&list)),
        };
        let expected = match count <= EXTENSIONS_MAX {
            true => [ja3s, format!("t12{count:02}00_c02b_{hashed}")],
            false => ["-".to_owned(), "-".to_owned()],
        };
        let values = [text(&found, Field::Ja3s), text(&found, Field::Ja4s)];
        assert_eq!(values, expected, "{count}");
        assert_eq!(text(&found, Field::TlsCipher), "49195", "{count}");
    }
}

/// A list that says to be longer than it is, or than its extension, ends the hello or is read as
/// far as it goes; never beyond.
#[test]
fn lists_that_are_longer_than_their_hello_are_refused_or_cut() {
    let mut rng = Rng(0x5eed_10c6);
    let lists = usual(&mut rng);
    let whole = lists.hello();
    for at in 5..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut hello = whole.clone();
            hello[at] = value;
            let found = laws::whole(&[(Forward, &hello)], [40_000, 443]);
            let cut = Laws::default().cut(&[(Forward, &hello)], [40_000, 443], 1);
            assert_eq!(found.bytes(), cut.application.bytes(), "{value:#x} at {at}");
        }
    }
}
