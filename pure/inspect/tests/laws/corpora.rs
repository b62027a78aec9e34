//! The fuzz corpora are generated here, and obey the laws.

use super::*;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

/// Initial inputs of each fuzz target.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for sample in samples::all() {
        let ports = match sample.transport {
            Transport::Tcp => [443, 53, 25, 21, 5060, 9999].to_vec(),
            Transport::Udp => [443, 53, 123, 67, 5060, 5353, 9999, 137].to_vec(),
        };
        let choice = ports.iter().position(|port| *port == sample.ports[1]);
        let choice = choice.unwrap_or(5) as u8;
        let input = [&[choice | 3 << 3][..], &laws::input_of(&sample.pieces())].concat();
        let target = match (sample.name.split('-').next(), sample.transport) {
            (Some("tls"), _) => "tls",
            (Some("http" | "http2"), _) => "http",
            (Some("dns" | "mdns"), Transport::Udp) => "dns",
            (Some("quic"), _) => "quic",
            (_, Transport::Udp) => "dns",
            _ => "stream",
        };
        seeds.push((target, sample.name.to_owned(), input));
    }
    for (name, frames) in samples::quic_frame_orders() {
        let pieces: Vec<_> = frames
            .iter()
            .map(|(from, bytes)| (*from, &bytes[..]))
            .collect();
        seeds.push(("quic", name.into(), laws::input_of(&pieces)));
    }
    seeds
}

#[test]
fn the_fuzz_corpora_obey_the_laws() {
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        for (target, name, bytes) in seeds() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(corpus(target).join(name), bytes).unwrap();
        }
    }
    for (target, law) in [
        ("tls", laws::stream as fn(&[u8])),
        ("http", laws::stream),
        ("stream", laws::stream),
        ("dns", laws::datagrams),
        ("quic", laws::quic),
    ] {
        for entry in fs::read_dir(corpus(target)).unwrap() {
            law(&fs::read(entry.unwrap().path()).unwrap());
        }
        for (_, name, bytes) in seeds().iter().filter(|(of, ..)| *of == target) {
            let there = fs::read(corpus(target).join(name)).unwrap_or_default();
            assert!(
                there == *bytes,
                "{target}/{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
            );
        }
    }
}
