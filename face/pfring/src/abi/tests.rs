//! Calls as programs make them, and as they should not.

use std::ffi::CString;
use std::ptr::null_mut;

use super::facts::{pfring_stats, pfring_version_noring};
use super::open::{
    pfring_breakloop, pfring_close, pfring_disable_ring, pfring_enable_ring, pfring_open,
};
use super::receive::{pfring_loop, pfring_poll, pfring_recv, pfring_recv_parsed};
use super::rules::{
    pfring_get_hash_filtering_rule_stats, pfring_handle_hash_filtering_rule,
    pfring_purge_idle_hash_rules,
};
use super::send::pfring_send;
use super::settings::{
    pfring_set_application_name, pfring_set_bpf_filter, pfring_set_cluster, pfring_set_direction,
};
use crate::header::LONG_LEN;
use crate::ring::{Ring, Statistics};
use crate::status::{
    GENERIC, INVALID_ARGUMENT, NO_MEMORY, NO_PACKET, NOT_ENABLED, NOT_SUPPORTED, UNKNOWN_ADAPTER,
};

/// A capture of three Ethernet packets of 60, 61 and 62 bytes, the second of UDP over IPv4.
fn capture(name: &str) -> (CString, std::path::PathBuf) {
    let mut packets: Vec<_> = (0..3_u8).map(|at| vec![at; 60 + usize::from(at)]).collect();
    packets[1][12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 47, 0, 0, 0, 0, 64, 17]);
    stored(name, 1, &packets)
}

/// A capture of packets of this link type, one in each of the first seconds of 1970.
fn stored(name: &str, link_type: u8, packets: &[Vec<u8>]) -> (CString, std::path::PathBuf) {
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0, 0, 4, 0, link_type, 0, 0, 0]);
    for (at, packet) in packets.iter().enumerate() {
        let (at, len) = (at as u8, packet.len() as u8);
        bytes.extend([at, 0, 0, 0, 7, 0, 0, 0, len, 0, 0, 0, len, 0, 0, 0]);
        bytes.extend(packet);
    }
    let file = format!("pfring-{name}-{}.pcap", std::process::id());
    let path = std::env::temp_dir().join(file);
    std::fs::write(&path, bytes).unwrap();
    let device = format!("pcap:{}", path.display());
    (CString::new(device).unwrap(), path)
}

fn open(name: &str) -> *mut Ring {
    let (device, path) = capture(name);
    // SAFETY: a text.
    let ring = unsafe { pfring_open(device.as_ptr(), 1500, 1 << 2) };
    assert!(!ring.is_null());
    // SAFETY: open.
    assert_eq!(unsafe { pfring_enable_ring(ring) }, 0);
    std::fs::remove_file(path).unwrap();
    ring
}

/// Receives into `buffer`, or without a copy if it is empty: the result, the captured length, and
/// the bytes.
fn receive(ring: *mut Ring, buffer: &mut [u8], may_wait: u8) -> (i32, u32, Vec<u8>) {
    let mut header = [0xff; LONG_LEN];
    let mut place = if buffer.is_empty() {
        null_mut()
    } else {
        buffer.as_mut_ptr()
    };
    let len = buffer.len() as u32;
    // SAFETY: places for the header and a pointer, at which there are so many bytes.
    let code = unsafe { pfring_recv(ring, &mut place, len, header.as_mut_ptr(), may_wait) };
    let cap_len = u32::from_ne_bytes(header[16..20].try_into().unwrap());
    let bytes = match cap_len {
        0 => Vec::new(),
        // SAFETY: what was received.
        _ => unsafe { std::slice::from_raw_parts(place, cap_len as usize) }.to_vec(),
    };
    (code, cap_len, bytes)
}

#[test]
fn packets_of_a_file_are_received_with_and_without_a_copy() {
    let ring = open("copy");
    assert_eq!(receive(ring, &mut [], 1), (1, 60, vec![0; 60]));
    let mut buffer = [0xaa; 50];
    let (code, cap_len, bytes) = receive(ring, &mut buffer, 1);
    assert_eq!((code, cap_len, &bytes[..12]), (1, 50, &[1; 12][..]));
    assert_eq!(receive(ring, &mut [], 1), (1, 62, vec![2; 62]));
    // The end of the file.
    assert_eq!(receive(ring, &mut [], 1), (UNKNOWN_ADAPTER, 0, vec![]));
    // SAFETY: open.
    unsafe { pfring_close(ring) };
}

#[test]
fn masscan_gets_zero_for_a_packet() {
    let ring = open("masscan");
    // SAFETY: open, and a text.
    let code = unsafe { pfring_set_application_name(ring, c"masscan".as_ptr()) };
    assert_eq!(code, 0);
    for len in 60..63 {
        let (code, cap_len, _) = receive(ring, &mut [], 0);
        assert_eq!((code, cap_len), (0, len));
    }
    assert_eq!(receive(ring, &mut [], 0), (NO_PACKET, 0, vec![]));
    // SAFETY: open.
    unsafe { pfring_close(ring) };
}

#[test]
fn a_filter_selects_before_and_after_enabling() {
    for is_enabled in [false, true] {
        let (device, path) = capture(if is_enabled {
            "filter-after"
        } else {
            "filter-before"
        });
        // SAFETY: texts, and rings that are open.
        unsafe {
            let ring = pfring_open(device.as_ptr(), 0, 0);
            assert!(!ring.is_null());
            if is_enabled {
                assert_eq!(pfring_enable_ring(ring), 0);
            }
            let set = |text: &std::ffi::CStr| pfring_set_bpf_filter(ring, text.as_ptr());
            assert_eq!(set(c"udp and and"), INVALID_ARGUMENT);
            let code = set(c"udp");
            assert_eq!(pfring_enable_ring(ring), 0);
            if code == 0 {
                let (code, cap_len, _) = receive(ring, &mut [], 0);
                assert_eq!((code, cap_len), (1, 61));
            } else {
                // Files keep the filter with which they were opened.
                assert!(is_enabled && code == NOT_SUPPORTED, "{code}");
            }
            pfring_close(ring);
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn rules_of_a_capture_stay_and_what_they_drop_counts_for_the_open_port() {
    let (device, path) = capture("rules");
    // The UDP packet: its addresses and ports are ones.
    let mut rule = [1_u8; 70];
    rule[2..6].copy_from_slice(&[0, 0, 4, 17]);
    rule[10..22].fill(0);
    rule[26..38].fill(0);
    rule[42..46].copy_from_slice(&1_u32.to_ne_bytes());
    let rule = rule.as_ptr().cast();
    let (mut counts, mut len) = ([0_u8; 28], 27);
    let place = counts.as_mut_ptr().cast();
    // SAFETY: texts, a ring that is open, a rule and places.
    unsafe {
        let ring = pfring_open(device.as_ptr(), 1500, 1 << 2);
        let get = |place, len| pfring_get_hash_filtering_rule_stats(ring, rule, place, len);
        assert_eq!(get(null_mut(), &mut len), INVALID_ARGUMENT);
        assert_eq!(get(place, null_mut()), INVALID_ARGUMENT);
        assert_eq!((get(place, &mut len), len), (NO_MEMORY, 28));
        assert_eq!(get(place, &mut len), GENERIC);
        assert_eq!(pfring_handle_hash_filtering_rule(ring, rule, 1), 0);
        for _ in 0..2 {
            assert_eq!(pfring_enable_ring(ring), 0);
            assert_eq!(receive(ring, &mut [], 0).1, 60);
            assert_eq!(receive(ring, &mut [], 0).1, 62);
            assert_eq!(pfring_purge_idle_hash_rules(ring, 300), 0);
            let mut found = Statistics::default();
            assert_eq!(pfring_stats(ring, &mut found), 0);
            let expected = Statistics {
                received: 2,
                dropped: 0,
                shunted: 1,
            };
            assert_eq!(found, expected);
            assert_eq!(pfring_disable_ring(ring), 0);
        }
        assert_eq!((get(place, &mut len), len), (0, 28));
        pfring_close(ring);
    }
    assert_eq!(counts[..8], 2_u64.to_ne_bytes());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn packets_are_parsed_by_the_link_type_of_the_ring() {
    const RAW: u8 = 101;
    let mut packet = vec![
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    let (device, path) = stored("raw", RAW, &[packet]);
    let (mut place, mut header) = (null_mut(), [0xff; LONG_LEN]);
    // SAFETY: a text, a ring that is open, and places for a pointer and the header.
    let code = unsafe {
        let ring = pfring_open(device.as_ptr(), 1500, 0);
        assert_eq!(pfring_enable_ring(ring), 0);
        let code = pfring_recv_parsed(ring, &mut place, 0, header.as_mut_ptr(), 0, 4, 0, 0);
        pfring_close(ring);
        code
    };
    assert_eq!((code, &header[86..88]), (1, &[4, 17][..]));
    let ports = [7_u16.to_ne_bytes(), 9_u16.to_ne_bytes()].concat();
    assert_eq!(header[121..125], ports[..]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_loop_ends_when_its_function_asks_for_it() {
    use std::sync::atomic::{AtomicU32, Ordering};

    struct User(*mut Ring, AtomicU32);

    unsafe extern "C-unwind" fn handler(header: *const u8, packet: *const u8, user: *const u8) {
        // SAFETY: the arguments of the loop below.
        unsafe {
            let user = &*user.cast::<User>();
            let cap_len = header.add(16).cast::<u32>().read_unaligned();
            assert_eq!(u32::from(*packet), cap_len - 60);
            if user.1.fetch_add(1, Ordering::Relaxed) == 1 {
                pfring_breakloop(user.0);
            }
        }
    }

    let ring = open("loop");
    let user = User(ring, AtomicU32::new(0));
    // SAFETY: open; the function gets what it expects.
    let code = unsafe { pfring_loop(ring, Some(handler), std::ptr::from_ref(&user).cast(), 1) };
    assert_eq!((code, user.1.load(Ordering::Relaxed)), (0, 2));
    // SAFETY: open.
    unsafe { pfring_close(ring) };
}

#[test]
fn calls_in_the_wrong_order_and_null_are_errors() {
    let (mut place, mut header) = (null_mut(), [0; LONG_LEN]);
    // SAFETY: null pointers, texts, and a ring that is open.
    unsafe {
        assert!(pfring_open(std::ptr::null(), 0, 0).is_null());
        assert!(pfring_open(c"no-such-interface".as_ptr(), 0, 0).is_null());
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        pfring_close(null_mut());
        assert_eq!(pfring_enable_ring(null_mut()), INVALID_ARGUMENT);
        let ring = pfring_open(c"lo".as_ptr(), 0, 0);
        let code = pfring_recv(ring, &mut place, 0, header.as_mut_ptr(), 1);
        assert_eq!(code, NOT_ENABLED);
        assert_eq!(
            pfring_recv(ring, null_mut(), 0, null_mut(), 1),
            INVALID_ARGUMENT
        );
        assert_eq!(pfring_poll(ring, 1), NOT_ENABLED);
        assert_eq!(pfring_send(ring, c"x".as_ptr(), 1, 1), NOT_ENABLED);
        assert_eq!(pfring_send(ring, std::ptr::null(), 60, 1), INVALID_ARGUMENT);
        assert_eq!(pfring_stats(ring, &mut Statistics::default()), NOT_ENABLED);
        assert_eq!(pfring_set_direction(ring, 3), INVALID_ARGUMENT);
        assert_eq!(pfring_set_cluster(ring, 1 << 16, 0), INVALID_ARGUMENT);
        assert_eq!(pfring_set_cluster(ring, 7, -1), NOT_SUPPORTED);
        assert_eq!(pfring_set_cluster(ring, 7, 4), 0);
        assert_eq!(pfring_version_noring(null_mut()), INVALID_ARGUMENT);
        pfring_close(ring);
    }
}
