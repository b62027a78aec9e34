//! Names and validity of certificates compared with OpenSSL: the first certificate that tshark
//! finds in each connection of the corpus, read by `openssl x509`.

#[path = "inspect/flows.rs"]
#[allow(dead_code)]
mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use self::flows::{AND, ENDS, Found, Pair, decode, ends, show};
use inspect::{DateTime, Field};
use lab::oracle::{TempFile, cache, tshark};
use lab::{corpus, require, skip};

/// The fields of a certificate, lists joined by commas.
type Reported = BTreeMap<&'static str, String>;

/// Bytes of a number in hexadecimal.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

/// The first certificate of each pair of endpoints, in DER, as found by tshark.
fn certificates(path: &Path, known: &BTreeSet<Pair>) -> Option<BTreeMap<Pair, Vec<u8>>> {
    let names = [&ENDS[..], &["tls.handshake.certificate"]].concat();
    let options = ["-E", &format!("aggregator={AND}")];
    let mut found = BTreeMap::new();
    for row in tshark::fields(path, &names, &options).ok()? {
        let first = row[8].split(AND).next().filter(|text| !text.is_empty());
        if let (Some(ends), Some(der)) = (ends(&row, known), first.and_then(bytes_of)) {
            found.entry(ends).or_insert(der);
        }
    }
    Some(found)
}

/// OpenSSL's fields of a certificate; `None` if it cannot read it.
fn openssl(der: &[u8]) -> Option<Reported> {
    let file = TempFile::new(".der");
    std::fs::write(file.path(), der).expect("a file");
    let mut command = Command::new("openssl");
    command
        .args(["x509", "-inform", "DER", "-noout", "-subject", "-issuer"])
        .args(["-startdate", "-enddate", "-dateopt", "iso_8601"])
        .args(["-serial", "-fingerprint", "-sha256"])
        .args(["-ext", "subjectAltName", "-nameopt"])
        .arg("esc_2253,esc_ctrl,use_quote,utf8,dump_nostr,dump_der,sep_comma_plus_space,sname")
        .arg("-in")
        .arg(file.path());
    let output = cache::output(&mut command, file.path()).expect("openssl");
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut reported = Reported::new();
    for line in text.lines() {
        let time = |text: &str| text.trim_end_matches('Z').replace(' ', "T");
        match line.split_once('=') {
            Some(("subject", name)) => drop(reported.insert("subject", name.to_owned())),
            Some(("issuer", name)) => drop(reported.insert("issuer", name.to_owned())),
            Some(("serial", number)) => drop(reported.insert("serial", number.to_owned())),
            Some(("sha256 Fingerprint", sum)) => {
                let sum = sum.replace(':', "").to_ascii_lowercase();
                reported.insert("fingerprint", sum);
            }
            Some(("notBefore", at)) => drop(reported.insert("before", time(at))),
            Some(("notAfter", at)) => drop(reported.insert("after", time(at))),
            _ => {
                let names = line.trim().split(", ").filter_map(|name| {
                    let kinds = ["DNS:", "IP Address:", "email:", "URI:"];
                    kinds.iter().find_map(|kind| name.strip_prefix(kind))
                });
                let names: Vec<&str> = names.collect();
                if !names.is_empty() {
                    reported.insert("count", names.len().to_string());
                    reported.insert("names", names.join(","));
                }
            }
        }
    }
    Some(reported)
}

/// barewire's fields of a certificate.
fn ours(flow: &Found) -> Reported {
    let mut reported = Reported::new();
    for (name, field) in [
        ("subject", Field::TlsSubject),
        ("issuer", Field::TlsIssuer),
        ("before", Field::TlsNotBefore),
        ("after", Field::TlsNotAfter),
        ("names", Field::TlsSan),
        ("count", Field::TlsSanCount),
        ("serial", Field::TlsSerial),
        ("fingerprint", Field::TlsCertificateSha256),
    ] {
        let values = flow.application.fields().filter(|(of, _)| *of == field);
        let values = values.map(|(_, value)| match value {
            inspect::Value::Number(at) if field.row().kind == inspect::Kind::Time => {
                DateTime(at as i64).to_string()
            }
            value => show(value),
        });
        let values: Vec<String> = values.collect();
        if !values.is_empty() {
            reported.insert(name, values.join(","));
        }
    }
    reported
}

/// Whether they are equal, or the first a prefix if it is truncated.
fn are_same(name: &str, ours: Option<&String>, theirs: Option<&String>) -> bool {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours.contains("...") => {
            let parts = ours.split(',').zip(theirs.split(','));
            parts.into_iter().all(|(ours, theirs)| {
                let start = ours.strip_suffix("...");
                ours == theirs || start.is_some_and(|start| theirs.starts_with(start))
            })
        }
        // OpenSSL shortens addresses differently.
        (Some(ours), Some(theirs)) if name == "names" => {
            let one = |text: &str| match text.parse::<std::net::IpAddr>() {
                Ok(address) => address.to_string(),
                Err(_) => text.to_owned(),
            };
            let all = |text: &str| text.split(',').map(one).collect::<Vec<_>>();
            // Names for which the record of a flow has no room are missing.
            all(theirs).starts_with(&all(ours))
        }
        _ => ours == theirs,
    }
}

/// Files in which connections differ, how many, and why.
const EXCEPTIONS: &[(&str, usize, &str)] = &[
    (
        "nDPI__doq.pcapng",
        1,
        "TLS 1.3, decrypted by tshark with keys in the file",
    ),
    (
        "nDPI__ja3_lots_of_cipher_suites.pcap",
        1,
        "a directory name among the alternative names, which openssl prints with commas of its own",
    ),
    (
        "nDPI__quic-v2.pcapng",
        1,
        "TLS 1.3, decrypted by tshark with keys in the file",
    ),
    (
        "wireshark__quic-fragmented-handshakes.pcapng",
        1,
        "TLS 1.3, decrypted by tshark with keys in the file",
    ),
];

/// The fields compared.
const NAMES: [&str; 8] = [
    "subject",
    "issuer",
    "before",
    "after",
    "names",
    "count",
    "serial",
    "fingerprint",
];

#[test]
fn certificates_equal_those_of_openssl() {
    require!(
        skip::program("tshark", "tshark"),
        skip::program("openssl", "openssl"),
        corpus::large()
    );
    let only = std::env::var("BAREWIRE_ONLY").unwrap_or_default();
    let mut same = BTreeMap::new();
    let mut differ = BTreeMap::new();
    for path in corpus::captures().files {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if !file.contains(&only) {
            continue;
        }
        let Some((found, _)) = decode(&path) else {
            continue;
        };
        if !found
            .iter()
            .any(|flow| flow.application.has(Field::TlsVersion))
        {
            continue;
        }
        let known = found.iter().map(|flow| flow.pair).collect();
        let Some(theirs) = certificates(&path, &known) else {
            continue;
        };
        for (ends, der) in theirs {
            let ours = found.iter().filter(|flow| flow.pair == ends).map(ours);
            let ours = ours.max_by_key(Reported::len).unwrap_or_default();
            let theirs = openssl(&der).unwrap_or_default();
            let wrong: Vec<&str> = NAMES
                .into_iter()
                .filter(|name| !are_same(name, ours.get(name), theirs.get(name)))
                .collect();
            if wrong.is_empty() {
                for name in ours.keys() {
                    *same.entry(*name).or_insert(0) += 1;
                }
            } else {
                println!("{file} {ends:?} {wrong:?}\n   ours {ours:?}\n   them {theirs:?}");
                *differ.entry(file.to_string()).or_insert(0) += 1;
            }
        }
    }
    println!("same {same:?}");
    if !only.is_empty() {
        return;
    }
    let listed: BTreeMap<String, usize> = EXCEPTIONS
        .iter()
        .map(|(name, count, _)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(differ, listed, "files that differ, and those known to");
    for name in NAMES {
        let count = same.get(name).copied().unwrap_or(0);
        assert!(count >= 40, "{name}: {same:?}");
    }
}
