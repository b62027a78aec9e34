//! Files that are truncated, damaged, hostile, or change while they are read.

use super::*;

/// Bytes after the last member of a gzip file are reported as such, and all packets are delivered.
#[test]
fn trailing_garbage_after_gzip_is_reported_and_no_packet_is_lost() {
    let (file, _) = pcap_file(100);
    let expected = expected(100, false);
    let half = file.len() / 2;
    let members = [gzip(&file[..half]), gzip(&file[half..])].concat();
    for packed in [gzip(&file), members] {
        for garbage in [
            &b"garbage"[..],
            &[0, 0, 7],
            &[0x1f, 0x8c, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let bytes = [&packed[..], garbage].concat();
            let temp = Temp::new(&bytes);
            for (rows, result) in [read_all(&temp.name()), read_pipe(bytes, 61)] {
                let error = result.unwrap_err();
                assert!(rows == expected, "{garbage:?}: {} packets", rows.len());
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                let text = error.to_string();
                assert!(text.contains("trailing garbage"), "{garbage:?}: {text}");
                assert!(text.contains("after 100 packets"), "{text}");
            }
        }
        // Zeros are padding, as for gzip(1).
        let (rows, result) = read_pipe([&packed[..], &[0; 700]].concat(), 61);
        result.unwrap();
        assert!(rows == expected);
        // A member that is cut is cut, the first or a later one.
        let (_, result) = read_pipe(packed[..packed.len() - 9].to_vec(), 61);
        let text = result.unwrap_err().to_string();
        assert!(!text.contains("garbage"), "{text}");
    }
}

#[test]
fn a_truncated_file_gives_its_whole_packets_then_an_error_with_the_offset() {
    for (is_pcapng, (file, ends)) in [(false, pcap_file(12)), (true, pcapng_file(12))] {
        let expected = expected(12, is_pcapng);
        let first = ends[0] - if is_pcapng { 28 + 12 + 4 } else { 16 } - 1;
        for cut in 0..file.len() {
            let temp = Temp::new(&file[..cut]);
            let (rows, result) = read_all(&temp.name());
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            assert!(
                rows == expected[..whole],
                "cut at {cut}: {} of {whole}",
                rows.len()
            );
            let (piped, piped_result) = read_pipe(file[..cut].to_vec(), 4096);
            assert!(piped == rows, "cut at {cut}, through a pipe");
            let text = result.as_ref().map_err(ToString::to_string);
            let piped_text = piped_result.as_ref().map_err(ToString::to_string);
            assert_eq!(text.is_ok(), piped_text.is_ok(), "cut at {cut}");
            match result {
                Ok(()) => assert!(cut <= first || ends.contains(&cut), "cut at {cut}"),
                Err(error) => {
                    assert!(!ends.contains(&cut), "cut at {cut}: {error}");
                    let start = ends.iter().rev().find(|&&end| end <= cut);
                    if let Some(start) = start {
                        let place = format!("byte {start}, after {whole} packets");
                        assert!(error.to_string().contains(&place), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Damaged);
                    }
                }
            }
        }
    }
}

#[test]
fn a_truncated_compressed_file_gives_all_packets_that_decompress() {
    let (file, ends) = pcap_file(12);
    let expected = expected(12, false);
    for packed in [gzip(&file), zstd(&file)] {
        for cut in 0..packed.len() {
            let temp = Temp::new(&packed[..cut]);
            let (rows, result) = read_all(&temp.name());
            assert!(rows == expected[..rows.len()]);
            let error = result.unwrap_err();
            let is_damage = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::InvalidInput);
            assert!(is_damage, "cut at {cut}: {error}");
            if let Some(last) = rows.len().checked_sub(1) {
                let place = format!("byte {} of the uncompressed file", ends[last]);
                assert!(error.to_string().contains(&place), "{error}");
            }
        }
    }
}

#[test]
fn a_damaged_checksum_is_reported_after_the_packets() {
    let (file, _) = pcap_file(50);
    let mut packed = gzip(&file);
    let crc = packed.len() - 8;
    packed[crc] ^= 1;
    let (rows, result) = read_all(&Temp::new(&packed).name());
    assert_eq!(rows.len(), 50);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn files_that_are_not_captures_are_refused_with_a_reason() {
    for (bytes, part) in [
        (&b""[..], "empty"),
        (
            b"\x7fELF and more of it, for a header's length",
            "7f 45 4c 46",
        ),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"BZh91AY", "compressed with bzip2"),
        (b"\xd4\xc3\xb2", "ends after 3"),
    ] {
        let temp = Temp::new(bytes);
        let error = open(&temp.name(), &PortOptions::default()).err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = open("file:/no/such/file", &PortOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = open("file:/tmp", &PortOptions::default()).err().unwrap();
    assert!(
        error.to_string().contains("directory") && error.hint().is_some(),
        "{error}"
    );
}

#[test]
fn hostile_lengths_are_refused_without_memory() {
    let (mut file, ends) = pcap_file(3);
    // The captured length of the third packet.
    let at = ends[1] + 8;
    for len in [262_145u32, 0x7fff_ffff, u32::MAX] {
        file[at..at + 4].copy_from_slice(&len.to_le_bytes());
        for bytes in [file.clone(), gzip(&file)] {
            let (rows, result) = read_all(&Temp::new(&bytes).name());
            assert_eq!(rows.len(), 2);
            let text = result.unwrap_err().to_string();
            assert!(
                text.contains(&len.to_string()) && text.contains("262144"),
                "{text}"
            );
        }
    }
}

#[test]
fn the_longest_packet_fits_the_buffer() {
    let mut file = pcap_file(1).0;
    let mut big = [0; pcap::RECORD_LEN];
    pcap::emit_record(
        &mut big,
        Timestamp(5),
        262_144,
        300_000,
        Precision::Nanoseconds,
    );
    for _ in 0..5 {
        file.extend(big);
        file.extend(std::iter::repeat_n(3, 262_144));
    }
    for bytes in [file.clone(), zstd(&file)] {
        let (rows, result) = read_all(&Temp::new(&bytes).name());
        result.unwrap();
        assert_eq!(rows.len(), 6);
        assert!(
            rows[1..]
                .iter()
                .all(|row| row.1 == vec![3; 262_144] && row.2 == 300_000)
        );
    }
    let (rows, result) = read_pipe(file, 100_000);
    result.unwrap();
    assert_eq!(rows.len(), 6);
}

#[test]
fn a_file_truncated_while_it_is_read_ends_without_a_crash() {
    let (file, ends) = pcap_file(5000);
    let temp = Temp::new(&file);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    assert_eq!(first, 64);
    let cut = ends[1000] + 5;
    File::options()
        .write(true)
        .open(&temp.0)
        .unwrap()
        .set_len(cut as u64)
        .unwrap();
    let mut rows = Vec::new();
    let error = drain(&mut port, &mut rows).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(first + rows.len(), 1001);
    assert!(rows == expected(1001, false)[64..]);

    // Cut while a batch is out: its packets read as zeros, and the next call reports it.
    let temp = Temp::new(&file);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    for _ in 0..20 {
        drop(port.rx[0].receive().unwrap());
    }
    let batch = port.rx[0].receive().unwrap();
    File::options()
        .write(true)
        .open(&temp.0)
        .unwrap()
        .set_len(0)
        .unwrap();
    let sum: u64 = batch
        .iter()
        .flat_map(|p| p.bytes().to_vec())
        .map(u64::from)
        .sum();
    assert_eq!(sum, 0);
    drop(batch);
    let error = port.rx[0].receive().err().unwrap();
    assert!(error.to_string().contains("may read as zeros"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn a_growing_file_is_read_to_its_new_end() {
    let (file, ends) = pcap_file(3000);
    let temp = Temp::new(&file[..ends[999]]);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    let mut writer = File::options().append(true).open(&temp.0).unwrap();
    writer.write_all(&file[ends[999]..]).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert!(rows == expected(3000, false)[first..]);
}

/// The packet that is written while the file is opened begins before the last mebibyte's end and
/// before the position of the next check.
#[test]
fn a_large_file_growing_within_a_packet_is_read_to_its_end() {
    const LOOK_LEN: usize = 1 << 20;
    const LEN: usize = 60_000;
    let (mut file, ends) = pcap_file(20_000);
    let count = ends.partition_point(|end| end + LEN / 2 <= LOOK_LEN);
    file.truncate(ends[count - 1]);
    let mut record = [0; pcap::RECORD_LEN];
    let (time, len) = (Timestamp(7), LEN as u32);
    pcap::emit_record(&mut record, time, len, len, Precision::Nanoseconds);
    file.extend(record);
    file.extend([9; LEN]);
    let there = LOOK_LEN + LEN / 4;
    let temp = Temp::new(&file[..there]);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    let mut writer = File::options().append(true).open(&temp.0).unwrap();
    writer.write_all(&file[there..]).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert_eq!(first + rows.len(), count + 1);
    assert_eq!(rows.last().unwrap().1, [9; LEN]);
}
