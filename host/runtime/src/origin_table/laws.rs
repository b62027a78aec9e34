//! Laws: properties that hold for every enrichment file. Called by a test and by a fuzz target,
//! which passes files directly to the readers; they panic if a law is broken.
//!
//! An input is: the kind of file, an address (16 bytes), and the file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::database::Database;
use super::ranges::{NAME_MAX, Ranges};
use super::vendors::Vendors;

/// Longer lists may have lines that exceed the limit with one more byte.
const LIST_MAX: usize = 4000;

/// Checks any bytes as a list of ranges (0), card vendors (1) or a MaxMind DB (2).
pub fn file_input(input: &[u8]) {
    let Some((&[kind, address @ ..], file)) = input.split_first_chunk::<17>() else {
        return;
    };
    match kind % 3 {
        0 => list(&address, file),
        1 => makers(&address, file),
        _ => database(&address, file),
    }
}

/// The input for a file, with an address to look up.
#[cfg(test)]
pub fn input_of(kind: u8, address: [u8; 16], file: &[u8]) -> Vec<u8> {
    [&[kind][..], &address, file].concat()
}

/// The address as IPv6 and IPv4.
fn addresses(address: &[u8; 16]) -> [IpAddr; 2] {
    let [a, b, c, d, ..] = *address;
    let six = Ipv6Addr::from(*address);
    [Ipv4Addr::new(a, b, c, d).into(), six.into()]
}

/// The file with Windows line endings.
fn with_returns(file: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = file.split(|byte| *byte == b'\n').collect();
    lines.join(&b"\r\n"[..])
}

/// A list is refused with a message, or read; line endings do not matter.
fn list(address: &[u8; 16], file: &[u8]) {
    let read = Ranges::parse(file);
    if let Err(why) = &read {
        assert!(!why.is_empty());
    }
    let again = Ranges::parse(&with_returns(&file[..file.len().min(LIST_MAX)]));
    for addr in addresses(address) {
        let found = read.as_ref().ok().and_then(|ranges| ranges.find(addr));
        if let Some(row) = found {
            let name = row.name.as_deref().unwrap_or_default();
            assert!(name.len() <= NAME_MAX);
            let is_code = row.country.iter().all(u8::is_ascii_alphabetic);
            assert!(is_code || row.country == [0; 2]);
        }
        if file.len() <= LIST_MAX {
            let again = again.as_ref().ok().and_then(|ranges| ranges.find(addr));
            assert_eq!(found, again);
        }
    }
}

/// A vendor file is refused with a message, or read; a second lookup finds the same.
fn makers(address: &[u8; 16], file: &[u8]) {
    let mac = *address.first_chunk::<6>().unwrap_or(&[0; 6]);
    let mut makers = Vendors::default();
    let Err(why) = makers.add(file) else {
        let found = makers.find(mac).cloned();
        assert!(found.as_ref().is_none_or(|name| name.len() <= NAME_MAX));
        makers.add(file).expect("read before");
        assert_eq!(makers.find(mac), found.as_ref());
        return;
    };
    assert!(!why.is_empty());
}

/// A database is refused with a message, or queried: results lie within the file.
fn database(address: &[u8; 16], file: &[u8]) {
    let is_one = Database::is_one(file);
    let database = match Database::new(file.to_vec()) {
        Ok(database) => database,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert!(is_one, "a file without the mark was opened");
    for addr in addresses(address) {
        let found = database.find(addr);
        assert!(found.network.len() <= file.len() && found.city.len() <= file.len());
        let is_code = found.country.iter().all(u8::is_ascii_alphabetic);
        assert!(is_code || found.country == [0; 2]);
    }
}
