//! Tests of fields and positions; damaged files are compared with libpcap itself in
//! `dev/lab/tests/pcap_dropin.rs`.

use std::io::{Cursor, Read};
use std::sync::{Arc, Mutex};

use super::*;

/// Bytes, and how many of them were read.
struct Bytes(Cursor<Vec<u8>>, Arc<Mutex<u64>>);

impl Input for Bytes {
    fn read(&mut self, into: &mut [u8]) -> std::result::Result<usize, i32> {
        let mut count = 0;
        while count < into.len() {
            match self.0.read(&mut into[count..]) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(_) => return Err(5),
            }
        }
        *self.1.lock().unwrap() = self.0.position();
        Ok(count)
    }
}

fn reader(bytes: Vec<u8>, nanoseconds: bool) -> (Reader, Arc<Mutex<u64>>) {
    let position = Arc::default();
    let input = Bytes(Cursor::new(bytes), Arc::clone(&position));
    (Reader::new(Box::new(input), nanoseconds).unwrap(), position)
}

/// A file of version 2.`minor` with a snaplen of 4 and one packet, and bytes of a second one.
fn classic(minor: u32, lengths: [u32; 2]) -> Vec<u8> {
    let words = [0xa1b2_c3d4, 2 << 16 | minor, 0, 0, 4, 1];
    let packet = [7, 2_000_000, lengths[0], lengths[1]];
    let mut file: Vec<u8> = words
        .iter()
        .chain(&packet)
        .flat_map(|word| word.to_be_bytes())
        .collect();
    file.extend_from_slice(&[1, 2, 3, 4, 5, 6, 0, 0]);
    file
}

#[test]
fn fields_are_unchanged_and_no_extra_byte_is_read() {
    // The wire length is too short, and the fraction is two seconds.
    let (mut reader, position) = reader(classic(4, [6, 3]), true);
    assert!(reader.facts().is_swapped);
    let mut data = Vec::new();
    let header = reader.next(&mut data).unwrap().unwrap();
    assert_eq!((header.seconds, header.fraction), (7, 2_000_000_000));
    assert_eq!((header.cap_len, header.wire_len), (4, 3));
    assert_eq!(data, [1, 2, 3, 4]);
    assert_eq!(*position.lock().unwrap(), 24 + 16 + 6);
    let error = reader.next(&mut data).unwrap_err();
    assert_eq!(
        error.text,
        "truncated dump file; tried to read 16 header bytes, only got 2"
    );
}

#[test]
fn old_versions_have_their_lengths_swapped() {
    for (minor, lengths) in [(2, [9, 4]), (3, [9, 4]), (3, [4, 9]), (4, [4, 9])] {
        let (mut reader, _) = reader(classic(minor, lengths), false);
        let header = reader.next(&mut Vec::new()).unwrap().unwrap();
        assert_eq!((header.cap_len, header.wire_len), (4, 9), "{minor}");
    }
}
