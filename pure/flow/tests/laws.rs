//! The laws of `flow::laws` on generated messages: complete, truncated at each byte, with each bit
//! flipped; and on the fuzz corpus, which is generated here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-flow --test laws` rewrites the corpus.

use std::fs;
use std::path::Path;

use barewire_flow::decode::ipfix::{Decoder, Header};
use barewire_flow::element::Column;
use barewire_flow::encode::ipfix::{Config, Encoder};
use barewire_flow::encode::{Encode, Statistics};
use barewire_flow::{EndReason, HashKey, Input, Meter, MeterConfig, Record, laws};
use wire::LinkType;

fn records() -> Vec<(Record, EndReason)> {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    let mut meter = Meter::new(&config).unwrap();
    let mut records = Vec::new();
    let mut sink = |record: &Record, reason| records.push((*record, reason));
    for n in 0..6_u8 {
        for (source, destination) in [(1, 2), (2, 1)] {
            if n % 2 == 0 && source == 2 {
                continue;
            }
            let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
            bytes.extend([
                10,
                0,
                n,
                source,
                10,
                0,
                n,
                destination,
                0,
                53,
                0,
                53,
                0,
                8,
                0,
                0,
            ]);
            if n > 3 {
                bytes.splice(..12, [0x60, 0, 0, 0, 0, 8, 17, 64]);
                bytes.splice(8..8, [0x20; 24]);
            }
            let input = Input {
                link: LinkType::RAW,
                bytes: &bytes,
                wire_len: bytes.len() as u32,
                time_ns: 1_700_000_000_000_000_000,
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
    }
    meter.finish(&mut sink);
    records
}

/// Streams of messages, each with a name.
fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let extra = [
        "payloadOctetDeltaCount",
        "ipVersion",
        "flowStartNanoseconds",
    ];
    let kinds = [
        ("biflow", true, Vec::new(), 1400),
        ("uniflow", false, Vec::new(), 256),
        (
            "own",
            true,
            extra.into_iter().filter_map(Column::find).collect(),
            512,
        ),
    ];
    kinds
        .into_iter()
        .map(|(name, is_biflow, extra, message_len_max)| {
            let mut encoder = Encoder::new(Config {
                is_biflow,
                extra,
                message_len_max,
                interfaces: vec![(1, "eth0".into())],
                withdraws: true,
                ..Config::default()
            });
            let mut stream = encoder.begin_session(0).concat();
            let records = records();
            let mut rest = &records[..];
            while !rest.is_empty() {
                rest = &rest[encoder.take(rest)..];
                stream.extend_from_slice(encoder.message(1));
                encoder.next();
            }
            stream.extend(encoder.refresh(2, &Statistics::default()).concat());
            stream.extend(encoder.end_session(3, &Statistics::default()).concat());
            (name, stream)
        })
        .collect()
}

#[test]
fn laws_hold_for_damaged_messages() {
    for (_, stream) in streams() {
        laws::ipfix_input(&stream);
        for at in 0..stream.len() {
            laws::ipfix_input(&stream[..at]);
            for bit in 0..8 {
                let mut damaged = stream.clone();
                damaged[at] ^= 1 << bit;
                laws::ipfix_input(&damaged);
            }
        }
    }
}

/// A set: its number, its length, its contents.
fn set(id: u16, body: &[u16]) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend((4 + 2 * body.len() as u16).to_be_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_be_bytes()));
    bytes
}

/// A message with these sets.
fn message(sequence: u32, sets: &[Vec<u8>]) -> Vec<u8> {
    let body = sets.concat();
    let mut bytes = vec![0, 10];
    bytes.extend((16 + body.len() as u16).to_be_bytes());
    bytes.extend([0x65, 0, 0, 0]);
    bytes.extend(sequence.to_be_bytes());
    bytes.extend([0, 0, 0, 7]);
    bytes.extend(body);
    bytes
}

const VARIABLE: u16 = 0xffff;

/// Template 256: source address, a variable-length name, an element of an enterprise.
fn template() -> Vec<u8> {
    set(2, &[256, 3, 8, 4, 82, VARIABLE, 0x8001, 2, 0, 9999])
}

/// Two records of it: a name of three bytes, then one with a three-byte length.
fn data() -> Vec<u8> {
    let first = [0x0a00, 1, 0x0361, 0x6263, 7];
    let second = [0x0a00, 2, 0xff00, 0x0261, 0x6200, 8];
    set(256, &[&first[..], &second].concat())
}

/// Messages that barewire's encoder never writes (RFC 7011 and 6313), valid and hostile.
fn foreign() -> Vec<(&'static str, Vec<u8>)> {
    [foreign_sound(), foreign_odd(), foreign_broken()].concat()
}

fn foreign_sound() -> Vec<(&'static str, Vec<u8>)> {
    let one = |sets: &[Vec<u8>]| message(0, sets);
    let options = set(3, &[257, 2, 1, 149, 4, 41, 8]);
    let again = [template(), data(), set(2, &[256, 1, 4, 1]), data()];
    let withdrawn = [template(), set(2, &[256, 0]), data(), set(2, &[2, 0])];
    let list = [
        set(2, &[256, 1, 292, VARIABLE]),
        set(256, &[0x0703, 0x0100, 8, 0x0102]),
    ];
    vec![
        ("variable-lengths", one(&[template(), data()])),
        (
            "data-before-template",
            [one(&[data()]), one(&[template(), data()])].concat(),
        ),
        ("options", one(&[options, set(257, &[0, 1, 0, 0, 0, 9])])),
        ("template-again", one(&again)),
        ("withdrawn", one(&withdrawn)),
        ("padding", one(&[template(), data(), set(256, &[0])])),
        (
            "gap-in-the-sequence",
            [message(0, &[template(), data()]), message(99, &[data()])].concat(),
        ),
        ("list-of-templates", one(&list)),
    ]
}

/// Templates that no encoder should write.
fn foreign_odd() -> Vec<(&'static str, Vec<u8>)> {
    let one = |sets: &[Vec<u8>]| message(0, sets);
    let many: Vec<u16> = (0..200).flat_map(|n| [300 + n, 1, 4, 4]).collect();
    let wide: Vec<u16> = [256, 500].into_iter().chain([4, 1].repeat(500)).collect();
    vec![
        (
            "element-of-no-length",
            one(&[set(2, &[256, 1, 8, 0]), set(256, &[1, 2, 3])]),
        ),
        (
            "template-of-no-fields",
            one(&[set(2, &[300, 0, 301, 0]), set(300, &[1, 2])]),
        ),
        (
            "template-of-many-fields",
            one(&[set(2, &wide), set(256, &[7; 250])]),
        ),
        ("many-templates", one(&[set(2, &many)])),
        (
            "scope-beyond-fields",
            one(&[set(3, &[257, 1, 2, 149, 4]), set(257, &[0, 1])]),
        ),
        (
            "number-below-256",
            one(&[set(2, &[255, 1, 8, 4]), set(255, &[0, 1])]),
        ),
    ]
}

/// Invalid lengths.
fn foreign_broken() -> Vec<(&'static str, Vec<u8>)> {
    let one = |sets: &[Vec<u8>]| message(0, sets);
    let mut cut = one(&[template(), data()]);
    cut.truncate(cut.len() - 3);
    let mut long_set = one(&[template(), data()]);
    long_set[18] = 0xff;
    vec![
        ("set-of-no-length", one(&[vec![0, 2, 0, 0], template()])),
        ("set-too-long", long_set),
        ("cut", cut),
        (
            "length-below-the-header",
            [&[0, 10, 0, 15][..], &[0; 12]].concat(),
        ),
    ]
}

#[test]
fn the_laws_hold_for_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ipfix");
    let seeds = [streams(), foreign()].concat();
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, stream) in &seeds {
            fs::write(folder.join(name), stream).unwrap();
        }
    }
    for entry in fs::read_dir(&folder).unwrap() {
        laws::ipfix_input(&fs::read(entry.unwrap().path()).unwrap());
    }
    // What our encoder writes may change from version to version; the rest does not.
    for (name, stream) in foreign() {
        let there = fs::read(folder.join(name)).unwrap_or_default();
        assert!(
            there == stream,
            "{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
        );
    }
}

/// The valid ones are decoded: a seed that ends at its first byte would be useless to a fuzzer.
#[test]
fn valid_foreign_messages_are_decoded() {
    for (name, expected) in [
        ("variable-lengths", 2),
        ("data-before-template", 2),
        ("options", 1),
        ("gap-in-the-sequence", 4),
        ("list-of-templates", 1),
    ] {
        let all = foreign();
        let (_, bytes) = all.iter().find(|(of, _)| *of == name).unwrap();
        let (mut decoder, mut rest, mut count) = (Decoder::new(), &bytes[..], 0);
        while let Ok(header) = Header::parse(rest) {
            let (message, behind) = rest.split_at(header.len);
            decoder.message(message, &mut |_| count += 1).unwrap();
            rest = behind;
        }
        assert_eq!(count, expected, "{name}");
    }
}
