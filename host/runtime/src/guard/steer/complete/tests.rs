//! Checksums and segments, compared with an independent computation.

use super::*;

/// One's complement sum as in RFC 1071, byte by byte.
fn plain_sum(pieces: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = pieces.concat();
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn is_valid(packet: &[u8], ip: usize, is_ipv6: bool) -> bool {
    let (transport, addresses, len) = match is_ipv6 {
        true => (ip + 40, &packet[ip + 8..ip + 40], packet.len() - ip - 40),
        false => (ip + 20, &packet[ip + 12..ip + 20], packet.len() - ip - 20),
    };
    let protocol = packet[if is_ipv6 { ip + 6 } else { ip + 9 }];
    let length = (len as u16).to_be_bytes();
    let sum = plain_sum(&[addresses, &[0, protocol], &length, &packet[transport..]]);
    let header_is_valid = is_ipv6 || plain_sum(&[&packet[ip..ip + 20]]) == 0xffff;
    sum == 0xffff && header_is_valid
}

/// A TCP segment with a partial checksum, as a veth delivers it.
fn segment(is_ipv6: bool, tags: usize, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    for _ in 0..tags {
        packet.extend([0x81, 0, 0, 5]);
    }
    let tcp_len = 32 + payload.len();
    if is_ipv6 {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        packet.extend((tcp_len as u16).to_be_bytes());
        packet.extend([6, 64]);
        packet.extend((0..32).map(|byte| 0x20 + byte));
    } else {
        packet.extend([0x08, 0, 0x45, 0]);
        packet.extend((20 + tcp_len as u16).to_be_bytes());
        packet.extend([0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let ip = packet.len() - 20;
        let sum = !plain_sum(&[&packet[ip..]]);
        packet[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let tcp = packet.len();
    packet.extend([0x9c, 0x40, 0, 80, 0xff, 0xff, 0xfc, 0, 0, 0, 0, 1]);
    // CWR, PSH, ACK and FIN.
    packet.extend([
        0x80, 0x99, 0x20, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2,
    ]);
    packet.extend(payload);
    let addresses = if is_ipv6 { tcp - 32..tcp } else { tcp - 8..tcp };
    let length = (tcp_len as u16).to_be_bytes();
    let sum = plain_sum(&[&packet[addresses], &[0, 6], &length]);
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn passed(completer: &mut Completer, packet: &[u8]) -> Result<Vec<Vec<u8>>, Failed<()>> {
    let mut parts = Vec::new();
    completer.pass(packet, |part| {
        parts.push(part.to_vec());
        Ok(())
    })?;
    Ok(parts)
}

#[test]
fn partial_checksums_are_completed_and_valid_ones_stay() {
    let mut completer = Completer::new(1500, true);
    for is_ipv6 in [false, true] {
        for tags in 0..3 {
            for len in [0, 1, 7, 1000] {
                let packet = segment(is_ipv6, tags, &vec![0x5a; len]);
                let ip = 14 + 4 * tags;
                assert!(!is_valid(&packet, ip, is_ipv6));
                let parts = passed(&mut completer, &packet).unwrap();
                assert_eq!(parts.len(), 1);
                assert!(is_valid(&parts[0], ip, is_ipv6), "{is_ipv6} {tags} {len}");
                // A packet with a valid checksum is the same afterwards.
                assert_eq!(passed(&mut completer, &parts[0]).unwrap(), parts);
                // One with a wrong checksum keeps it, so that the host drops it.
                let mut wrong = parts[0].clone();
                wrong[ip + if is_ipv6 { 40 } else { 20 } + 17] ^= 1;
                let wrong = passed(&mut completer, &wrong).unwrap().remove(0);
                assert!(!is_valid(&wrong, ip, is_ipv6));
                // A card's packets are not looked at.
                let mut card = Completer::new(1500, false);
                assert_eq!(passed(&mut card, &packet).unwrap(), [packet]);
            }
        }
    }
}

#[test]
fn long_tcp_segments_are_divided_and_keep_every_byte() {
    let payload: Vec<u8> = (0..60_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    for is_ipv6 in [false, true] {
        for (mtu, tags) in [(1500, 0), (1500, 1), (576, 2), (9000, 0)] {
            let packet = segment(is_ipv6, tags, &payload);
            let parts = passed(&mut Completer::new(mtu, true), &packet).unwrap();
            let ip = 14 + 4 * tags;
            let tcp = ip + if is_ipv6 { 40 } else { 20 };
            let mut bytes = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                assert!(part.len() - ip <= mtu as usize);
                assert!(is_valid(part, ip, is_ipv6), "{number}");
                let sequence = u32::from_be_bytes(part[tcp + 4..tcp + 8].try_into().unwrap());
                let expected = 0xffff_fc00_u32.wrapping_add(bytes.len() as u32);
                assert_eq!(sequence, expected);
                let first = if number == 0 { 0x80 } else { 0 };
                let last = if number + 1 == parts.len() { 0x09 } else { 0 };
                assert_eq!(part[tcp + 13], 0x10 | first | last);
                if !is_ipv6 {
                    let id = u16::from_be_bytes([part[ip + 4], part[ip + 5]]);
                    assert_eq!(id, 0xffff_u16.wrapping_add(number as u16));
                }
                bytes.extend_from_slice(&part[tcp + 32..]);
            }
            assert_eq!(bytes, payload);
        }
    }
}

#[test]
fn whatever_cannot_be_divided_is_refused_and_nothing_panics() {
    let mut completer = Completer::new(1500, true);
    let mut packet = segment(false, 0, &[1; 3000]);
    packet[14 + 9] = 17;
    assert_eq!(passed(&mut completer, &packet), Err(Failed::TooLong));
    // Every truncation and every damaged byte of the headers.
    for packet in [segment(false, 1, &[1; 3000]), segment(true, 0, &[1; 40])] {
        for len in 0..packet.len().min(100) {
            let _ = passed(&mut completer, &packet[..len]);
        }
        for at in 0..80 {
            for value in [0, 0x0f, 0x4f, 0x50, 0xf0, 0xff] {
                let mut damaged = packet.clone();
                damaged[at] = value;
                let _ = passed(&mut completer, &damaged);
            }
        }
    }
    // An MTU too small for the headers.
    let long = segment(false, 0, &[1; 3000]);
    assert_eq!(
        passed(&mut Completer::new(40, true), &long),
        Err(Failed::TooLong)
    );
}

#[test]
fn addresses_are_those_of_the_outermost_header() {
    let (from, to) = addresses(&segment(false, 2, &[])).unwrap();
    assert_eq!(
        (from.to_string(), to.to_string()),
        ("10.0.0.1".into(), "10.0.0.2".into())
    );
    let six = segment(true, 1, &[]);
    assert!(addresses(&six).unwrap().0.is_ipv6());
    assert_eq!(addresses(&six[..50]), None);
    assert_eq!(addresses(&[0; 13]), None);
}
