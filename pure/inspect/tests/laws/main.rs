//! The laws of `inspect::laws` on generated conversations: complete, cut at every byte, out of
//! order, with gaps, damaged; and on the fuzz corpora, which are generated here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-inspect --test laws` rewrites the corpora.

mod bounds;
mod cases;
mod corpora;
mod edges;
mod ends;
mod hellos;
mod reported;
#[path = "../samples/mod.rs"]
mod samples;
mod transactions;

use std::fs;
use std::path::{Path, PathBuf};

use barewire_inspect::{
    Application, DONE, Direction, Field, Inspector, InspectorConfig, NONE, Protocol, Reason,
    Segment, Transactions, Transport, Value, laws,
};
use laws::Laws;
use samples::Sample;

/// xorshift64*: sufficient for choices and damage.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

fn datagrams(sample: &Sample) -> Application {
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 1,
        page_count: 1,
        ..InspectorConfig::default()
    });
    let mut number = NONE;
    for (at, (from, bytes)) in sample.pieces().into_iter().enumerate() {
        let segment = Segment {
            transport: Transport::Udp,
            from,
            time_ns: 1000 + 250 * at as u64,
            ports: sample.ports,
            sequence: 0,
            is_syn: false,
            begins: None,
            payload: bytes,
            payload_len: bytes.len() as u32,
        };
        inspector.packet(&mut number, &segment);
    }
    inspector
        .end(&mut number, Application::clone)
        .unwrap_or(Application::EMPTY)
}

fn found(sample: &Sample) -> Application {
    match sample.transport {
        Transport::Tcp => laws::whole(&sample.pieces(), sample.ports),
        Transport::Udp => datagrams(sample),
    }
}

fn shown(application: &Application) -> String {
    format!("{application:?}").replace("\\\\", "\\")
}

fn by_name(name: &str) -> Application {
    let all = samples::all();
    let sample = all.iter().find(|sample| sample.name == name);
    found(sample.unwrap_or_else(|| panic!("no sample {name}")))
}

fn text(application: &Application, field: Field) -> String {
    match application.get(field) {
        Some(Value::Text { bytes, is_cut }) => {
            let end = if is_cut { "..." } else { "" };
            format!("{}{end}", bytes.escape_ascii())
        }
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Address(addr)) => addr.to_string(),
        Some(Value::Digest(sum)) => sum.iter().map(|byte| format!("{byte:02x}")).collect(),
        None => "-".into(),
    }
}

#[test]
fn results_do_not_depend_on_segmentation() {
    let mut tried = Laws::default();
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = tried.whole(&pieces, ports);
        let longest = pieces
            .iter()
            .map(|(_, bytes)| bytes.len())
            .max()
            .unwrap_or(0);
        for step in 1..=longest {
            let cut = tried.cut(&pieces, ports, step);
            assert_eq!(cut, expected, "{} every {step}", sample.name);
            // In two, of which the second comes first. Only what is short is kept.
            if longest <= 1500 || step > 500 {
                let turned = tried.turned(&pieces, ports, step);
                assert_eq!(turned, expected, "{} turned {step}", sample.name);
            }
        }
    }
}

#[test]
fn gaps_add_no_wrong_fields() {
    let mut tried = Laws::default();
    let mut absorbed = 0;
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = tried.whole(&pieces, ports).application;
        let total: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        for at in 1..total {
            for len in [1, 7, 100] {
                let found = tried.with_gap(&pieces, ports, at, len);
                for (field, value) in found.fields() {
                    let is_known = expected.fields().any(|other| other == (field, value));
                    let name = sample.name;
                    assert!(is_known, "{name} without {len} at {at}: {}", shown(&found));
                }
                absorbed += usize::from(found.has(Field::Ja4) && sample.name == "tls");
            }
        }
    }
    // The random, the session and the key shares of a hello may be missing.
    assert!(absorbed > 1000, "{absorbed}");
}

#[test]
fn damaged_input_obeys_the_laws() {
    let mut tried = Laws::default();
    let mut rng = Rng(0x5eed);
    for sample in samples::all() {
        let pieces = sample.pieces();
        let input = [&[3][..], &laws::input_of(&pieces)].concat();
        for round in 0..150 {
            let mut damaged = input.clone();
            for _ in 0..1 + round % 4 {
                let at = rng.below(damaged.len());
                damaged[at] = match rng.below(3) {
                    0 => rng.next() as u8,
                    1 => damaged[at] ^ 1 << rng.below(8),
                    _ => [0, 0xff, 0x7f, 0x80][rng.below(4)],
                };
            }
            damaged.truncate(damaged.len() - rng.below(damaged.len() / 4));
            match sample.transport {
                Transport::Tcp => tried.stream(&damaged),
                Transport::Udp => tried.datagrams(&damaged),
            }
        }
    }
    let frames = samples::quic_frames();
    let pieces: Vec<_> = frames
        .iter()
        .map(|(from, bytes)| (*from, &bytes[..]))
        .collect();
    let input = laws::input_of(&pieces);
    for _ in 0..300 {
        let mut damaged = input.clone();
        for _ in 0..3 {
            let at = rng.below(damaged.len());
            damaged[at] = rng.next() as u8;
        }
        tried.quic(&damaged);
    }
}
