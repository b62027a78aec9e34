//! The fuzz corpora match the generator here, and obey the laws.

use super::files::{pcap_seed, pcap_seeds, pcapng_seed, pcapng_seeds};
use super::*;

/// The seeds of a fuzz target: name, bytes.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "dissect" => {
            let mut all = Vec::new();
            for (kind, row) in rows() {
                for (i, (link, packet)) in ways_to(kind, row, row.sample).into_iter().enumerate() {
                    let index = LinkType::SUPPORTED.iter().position(|l| *l == link).unwrap();
                    let input = [&[index as u8, 0][..], &packet].concat();
                    all.push((format!("{}-{i}", row.name), input));
                }
            }
            all
        }
        "pcap" => named(pcap_seeds()),
        _ => named(pcapng_seeds()),
    }
}

fn named(seeds: Vec<(&str, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    seeds
        .into_iter()
        .map(|(n, bytes)| (n.into(), bytes))
        .collect()
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

fn replay(target: &str, law: fn(&[u8])) {
    let folder = corpus(target);
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in seeds(target) {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in seeds(target) {
        let there = fs::read(folder.join(&name)).unwrap_or_default();
        assert!(
            there == bytes,
            "{target}/{name} is not what the builder makes: see the head of laws.rs"
        );
    }
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(
            bytes.len() <= 4096,
            "{} is too large to commit",
            path.display()
        );
        println!("{}", path.display());
        law(&bytes);
        count += 1;
    }
    assert!(count >= seeds(target).len());
}

#[test]
fn corpus_of_the_dissector() {
    replay("dissect", laws::packet_input);
}

#[test]
fn corpus_of_the_pcap_reader() {
    replay("pcap", laws::file);
}

#[test]
fn corpus_of_the_pcapng_reader() {
    replay("pcapng", laws::pcapng_input);
}

/// Damaged files: no byte of a seed may lead to anything but packets and an error.
#[test]
fn files_with_each_byte_damaged() {
    for mut file in [pcap_seed(), pcapng_seed()] {
        laws::file(&file);
        for cut in (0..file.len()).step_by(3) {
            laws::file(&file[..cut]);
        }
        for index in 0..file.len() {
            let kept = file[index];
            for value in [0, 0xff, kept ^ 0x40, kept.wrapping_add(1)] {
                file[index] = value;
                laws::file(&file);
            }
            file[index] = kept;
        }
    }
}
