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

/// Up to draft 21 of TLS 1.3, a server's hello had neither a session nor a compression method.
#[test]
fn server_hellos_of_drafts_have_their_own_form() {
    for (version, is_draft) in [(0x7f12_u16, true), (0x7f15, true), (0x0303, false)] {
        let fields = match is_draft {
            true => vec![0x13, 1],
            false => vec![0, 0x13, 1, 0],
        };
        let alpn = extension(16, &sized(b"\x02h2"));
        let body = [&version.to_be_bytes()[..], &[9; 32], &fields, &sized(&alpn)].concat();
        let hello = usual(&mut Rng(7)).hello();
        let found = laws::whole(
            &[(Forward, &hello), (Reverse, &record(2, &body))],
            [40_000, 443],
        );
        let reported = [Field::TlsVersion, Field::TlsCipher, Field::TlsAlpnChosen];
        let reported = reported.map(|field| text(&found, field));
        let expected = [version.to_string(), "4865".to_owned(), "h2".to_owned()];
        assert_eq!(reported, expected, "{version:#x}");
    }
}

/// A client's hello with a session of 32 bytes and these bytes of extensions, and after them.
fn hello_of(extensions: &[u8], after: &[u8]) -> Vec<u8> {
    let name = sized(&[&[0][..], &sized(b"a.example")].concat());
    let extensions = [extension(0, &name), extensions.to_vec()].concat();
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[32],
        &[8; 32],
        &sized(&words(&[0x1301])),
        &[1, 0],
        &sized(&extensions),
        after,
    ];
    record(1, &body.concat())
}

/// The hello ends with its extensions; what follows them has no meaning, and a part of one is not
/// complete.
#[test]
fn hellos_do_not_end_within_an_extension() {
    for (extensions, after, name) in [
        (vec![], &[][..], "a.example"),
        (vec![], &[1, 2, 3][..], "a.example"),
        (vec![0], &[], "-"),
        (vec![0, 99], &[], "-"),
        (vec![0, 99, 0], &[], "-"),
        (vec![0, 99, 0, 0], &[], "a.example"),
        (vec![0, 99, 0, 1], &[], "-"),
        (vec![0, 99, 0, 1, 7], &[], "a.example"),
        (vec![0, 99, 0, 200, 7], &[], "-"),
    ] {
        let hello = hello_of(&extensions, after);
        let found = laws::whole(&[(Forward, &hello)], [40_000, 443]);
        assert_eq!(
            text(&found, Field::TlsSni),
            name,
            "{extensions:?} {after:?}"
        );
    }
}

/// The random, the session and the content of unknown extensions may be missing, whole or in part,
/// but not a byte more.
#[test]
fn gaps_in_hellos_that_need_not_be_read() {
    // Something follows, by which the gap is seen.
    let alpn = extension(16, &sized(b"\x02h2"));
    let hello = hello_of(&[extension(99, &[7; 40]), alpn.clone()].concat(), &[]);
    let whole = laws::whole(&[(Forward, &hello)], [40_000, 443]);
    let (random, session) = (5 + 4 + 2, 5 + 4 + 2 + 32 + 1);
    let unknown = hello.len() - alpn.len() - 40;
    for (at, len) in [(random, 32), (session, 32), (unknown, 40)] {
        for (from, count) in [
            (at, len),
            (at, 1),
            (at + 1, len - 1),
            (at + 5, 3),
            (at, len - 1),
        ] {
            let mut tried = Laws::default();
            let found = tried.with_gap(&[(Forward, &hello)], [40_000, 443], from, count);
            assert_eq!(found.bytes(), whole.bytes(), "{count} from {from}");
        }
        let found = Laws::default().with_gap(&[(Forward, &hello)], [40_000, 443], at, len + 1);
        assert!(!found.has(Field::TlsSni), "{len} and one more from {at}");
    }
}

/// A HelloRetryRequest has the hash of its name for its random, wherever the segments end (RFC 8446
/// section 4.1.3).
#[test]
fn retries_are_known_by_all_bytes_of_their_random() {
    let random = Sha256::digest("HelloRetryRequest");
    let answer = |random: &[u8]| {
        let version = extension(43, &[3, 4]);
        let body = [&[3, 3][..], random, &[0, 0x13, 1, 0], &sized(&version)];
        record(2, &body.concat())
    };
    let hello = usual(&mut Rng(7)).hello();
    let mut tried = Laws::default();
    let mut is_retry = |random: &[u8]| {
        let answer = answer(random);
        let pieces = [(Forward, &hello[..]), (Reverse, &answer[..])];
        let whole = tried.whole(&pieces, [40_000, 443]);
        for step in [1, 5, 13] {
            assert_eq!(tried.cut(&pieces, [40_000, 443], step), whole, "{step}");
        }
        whole.application.has(Field::TlsRetry)
    };
    assert!(is_retry(&random));
    for at in 0..random.len() {
        let mut other = random;
        other[at] ^= 1;
        assert!(!is_retry(&other), "{at}");
    }
}
