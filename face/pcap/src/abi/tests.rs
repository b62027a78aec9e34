//! Tests with calls as a C program makes them, above all invalid ones.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};

use super::datalink::*;
use super::dump::*;
use super::filter::*;
use super::open::*;
use super::raw::{Handle, PacketHeader, ProgramRaw};
use super::read::*;
use super::{devices, live, names, texts};
use crate::failure::{BREAK, ERROR, NOT_ACTIVATED};

const EMPTY: ProgramRaw = ProgramRaw {
    len: 0,
    insns: null_mut(),
};

fn error_of(p: *mut Handle) -> String {
    // SAFETY: a handle of this test.
    let text = unsafe { CStr::from_ptr(pcap_geterr(p)) };
    text.to_str().unwrap().to_owned()
}

/// A file of three packets, of 60, 61 and 62 bytes.
fn file(name: &str) -> CString {
    let path = std::env::temp_dir().join(format!("barewire-abi-{}-{name}", std::process::id()));
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: handles and memory of this test.
    unsafe {
        let dead = pcap_open_dead(1, 96);
        let to = pcap_dump_open(dead, path.as_ptr());
        assert!(!to.is_null(), "{}", error_of(dead));
        for len in 60..63 {
            let header = PacketHeader {
                seconds: 1,
                fraction: 2,
                cap_len: len,
                wire_len: len,
            };
            pcap_dump(to.cast(), &raw const header, [0x11; 64].as_ptr());
        }
        assert_eq!(pcap_dump_ftell64(to), 24 + 3 * 16 + 60 + 61 + 62);
        assert_eq!(pcap_dump_ftell(to), 24 + 3 * 16 + 60 + 61 + 62);
        assert_eq!(pcap_dump_flush(to), 0);
        pcap_dump_close(to);
        pcap_close(dead);
    }
    path
}

unsafe extern "C-unwind" fn count(user: *mut u8, header: *const PacketHeader, _: *const u8) {
    // SAFETY: as `pcap_loop` calls it here.
    unsafe { *user.cast::<u32>() += (*header).cap_len };
}

#[test]
fn null_is_refused_everywhere() {
    let none = null_mut::<Handle>();
    let mut errors = [0 as c_char; 256];
    let errors = errors.as_mut_ptr();
    // SAFETY: what is null is what is tried.
    unsafe {
        assert!(pcap_open_offline(null(), errors).is_null());
        assert!(pcap_open_offline(c"/nowhere".as_ptr(), null_mut()).is_null());
        assert!(pcap_fopen_offline(null_mut(), errors).is_null());
        pcap_close(none);
        for number in [
            pcap_snapshot(none),
            pcap_is_swapped(none),
            pcap_fileno(none),
            pcap_datalink(none),
            pcap_list_datalinks(none, null_mut()),
            pcap_dispatch(none, 1, None, null_mut()),
            pcap_loop(none, 1, Some(count), null_mut()),
            pcap_next_ex(none, null_mut(), null_mut()),
            pcap_setfilter(none, null_mut()),
            pcap_compile(none, null_mut(), null(), 1, 0),
            pcap_compile_nopcap(96, 1, null_mut(), null(), 1, 0),
            live::pcap_activate(none),
            live::pcap_set_snaplen(none, 1),
            live::pcap_stats(none, null_mut()),
            live::pcap_inject(none, null(), 1),
            live::pcap_setnonblock(none, 1, null_mut()),
            live::pcap_get_selectable_fd(none),
            devices::pcap_findalldevs(null_mut(), null_mut()),
        ] {
            assert_eq!(number, ERROR);
        }
        assert!(pcap_next(none, null_mut()).is_null());
        assert!(pcap_dump_open(none, null()).is_null());
        assert!(pcap_file(none).is_null());
        pcap_breakloop(none);
        pcap_freecode(null_mut());
        pcap_free_datalinks(null_mut());
        pcap_dump(null_mut(), null(), null());
        pcap_dump_close(null_mut());
        assert_eq!(bpf_validate(null(), 3), 0);
        assert_eq!(bpf_filter(null(), null(), 0, 0), u32::MAX);
        assert_eq!(pcap_offline_filter(null(), null(), null()), 0);
        assert!(bpf_image(null(), 0).is_null());
        bpf_dump(null(), 1);
        assert_eq!(names::pcap_nametoport(null(), null_mut(), null_mut()), 0);
        assert_eq!(names::pcap_nametoproto(null()), -1);
        assert!(names::pcap_ether_aton(null()).is_null());
        assert_eq!(texts::pcap_tstamp_type_name_to_val(null()), -1);
    }
}

#[test]
fn calls_in_the_wrong_order_are_errors() {
    let mut program = EMPTY;
    // SAFETY: handles and memory of this test.
    unsafe {
        let p = live::pcap_create(c"none0".as_ptr(), null_mut());
        assert_eq!(pcap_datalink(p), NOT_ACTIVATED);
        let mut total = 0u32;
        let user = (&raw mut total).cast();
        assert_eq!(pcap_loop(p, -1, Some(count), user), NOT_ACTIVATED);
        assert_eq!(error_of(p), "This handle hasn't been activated yet");
        assert_eq!(
            pcap_compile(p, &raw mut program, c"ip".as_ptr(), 1, 0),
            ERROR
        );
        assert!(pcap_dump_open(p, c"/dev/null".as_ptr()).is_null());
        pcap_close(p);
        let dead = pcap_open_dead(1, 96);
        assert_eq!(pcap_snapshot(dead), 96);
        assert!(pcap_next(dead, null_mut()).is_null());
        assert_eq!(live::pcap_set_snaplen(dead, 9), -4);
        assert_eq!(
            pcap_compile(dead, &raw mut program, c"ip".as_ptr(), 1, 0),
            0
        );
        assert_eq!(pcap_setfilter(dead, &raw mut program), ERROR);
        pcap_freecode(&raw mut program);
        pcap_freecode(&raw mut program);
        assert_eq!(pcap_setfilter(dead, &raw mut program), ERROR);
        pcap_close(dead);
    }
}

#[test]
fn packets_are_read_by_every_function() {
    let path = file("read.pcap");
    let mut total = 0u32;
    let user: *mut u8 = (&raw mut total).cast();
    // SAFETY: handles and memory of this test.
    unsafe {
        let open = || pcap_open_offline(path.as_ptr(), null_mut());
        let p = open();
        assert_eq!(pcap_loop(p, 2, Some(count), user), 0);
        assert_eq!(pcap_dispatch(p, -1, Some(count), user), 1);
        assert_eq!(pcap_dispatch(p, -1, Some(count), user), 0);
        assert_eq!(total, 60 + 61 + 62);
        pcap_close(p);

        let p = open();
        pcap_breakloop(p);
        assert_eq!(pcap_loop(p, -1, Some(count), user), BREAK);
        let mut header = PacketHeader::default();
        assert!(!pcap_next(p, &raw mut header).is_null());
        assert_eq!(header.wire_len, 60);
        let (mut place, mut data): (*mut PacketHeader, *const u8) = (null_mut(), null());
        for len in [61, 62] {
            assert_eq!(pcap_next_ex(p, &raw mut place, &raw mut data), 1);
            assert_eq!(((*place).cap_len, *data), (len, 0x11));
        }
        assert_eq!(pcap_next_ex(p, &raw mut place, &raw mut data), BREAK);
        pcap_close(p);

        let p = open();
        let mut program = EMPTY;
        let text = c"greater 62".as_ptr();
        assert_eq!(pcap_compile(p, &raw mut program, text, 1, 0), 0);
        assert_eq!(pcap_setfilter(p, &raw mut program), 0);
        let insns = program.insns;
        assert_eq!(bpf_validate(insns, program.len as c_int), 1);
        assert_ne!(bpf_filter(insns, [0; 62].as_ptr(), 62, 62), 0);
        assert_eq!(bpf_filter(insns, [0; 61].as_ptr(), 61, 61), 0);
        pcap_freecode(&raw mut program);
        total = 0;
        assert_eq!(pcap_loop(p, 0, Some(count), user), 0);
        assert_eq!(total, 62);
        pcap_close(p);
    }
    std::fs::remove_file(path.to_str().unwrap()).unwrap();
}

#[test]
fn only_a_file_of_the_same_kind_is_appended_to() {
    let path = file("append.pcap");
    // SAFETY: handles and memory of this test.
    unsafe {
        for (dlt, snaplen, why) in [
            (1, 96, None),
            (12, 96, Some("different linktype, cannot append to file")),
            (1, 97, Some("different snaplen, cannot append to file")),
        ] {
            let dead = pcap_open_dead(dlt, snaplen);
            let to = pcap_dump_open_append(dead, path.as_ptr());
            assert_eq!(to.is_null(), why.is_some());
            if let Some(why) = why {
                assert!(error_of(dead).ends_with(why), "{}", error_of(dead));
            }
            pcap_dump_close(to);
            pcap_close(dead);
        }
    }
    std::fs::remove_file(path.to_str().unwrap()).unwrap();
}

#[test]
fn names_are_converted_to_numbers() {
    // SAFETY: texts, and memory of this test.
    unsafe {
        assert_eq!(names::pcap_nametollc(c"stp".as_ptr()), 0x42);
        assert_eq!(names::pcap_nametoeproto(c"ip6".as_ptr()), 0x86dd);
        let (mut first, mut last, mut protocol) = (0, 0, 0);
        let range = c"20-80".as_ptr();
        let found =
            names::pcap_nametoportrange(range, &raw mut first, &raw mut last, &raw mut protocol);
        assert_eq!((found, first, last, protocol), (1, 20, 80, -1));
        let address = names::pcap_ether_aton(c"8:0:20:a:b:ff".as_ptr());
        let bytes = std::slice::from_raw_parts(address, 6);
        assert_eq!(bytes, [8, 0, 0x20, 10, 11, 255]);
        libc::free(address.cast());
        assert_eq!(pcap_datalink_name_to_val(c"EN10MB".as_ptr()), 1);
    }
}

/// A handle's address for another thread.
struct Address(*mut Handle);

// SAFETY: the thread only calls `pcap_breakloop`, which any thread may.
unsafe impl Send for Address {}

#[test]
fn a_break_requested_by_another_thread_ends_the_loop() {
    // SAFETY: handles and memory of this test; the thread ends before the handle is closed.
    unsafe {
        let p = live::pcap_create(c"memory:dropin".as_ptr(), null_mut());
        assert_eq!(live::pcap_activate(p), 0, "{}", error_of(p));
        assert_eq!(live::pcap_activate(p), -4);
        assert_eq!(pcap_datalink(p), 1);
        let address = Address(p);
        let thread = std::thread::spawn(move || {
            let address = address;
            pcap_breakloop(address.0);
        });
        // Before the loop: nothing is sent to this port, so the loop ends as soon as the flag is
        // read.
        thread.join().unwrap();
        let mut total = 0u32;
        let user = (&raw mut total).cast();
        assert_eq!(pcap_loop(p, -1, Some(count), user), BREAK);
        assert_eq!(live::pcap_setnonblock(p, 1, null_mut()), 0);
        assert_eq!(live::pcap_getnonblock(p, null_mut()), 1);
        assert_eq!(pcap_dispatch(p, -1, Some(count), user), 0);
        let mut counters = super::raw::Statistics::default();
        assert_eq!(live::pcap_stats(p, &raw mut counters), 0);
        assert_eq!((counters.received, counters.dropped), (0, 0));
        pcap_close(p);
    }
}

#[test]
fn a_break_that_was_reported_does_not_end_the_next_wait() {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_millis(150);
    let (mut header, mut data) = (null_mut(), null());
    // SAFETY: a handle and memory of this test.
    unsafe {
        let p = live::pcap_create(c"memory:dropin-broken".as_ptr(), null_mut());
        assert_eq!(live::pcap_set_timeout(p, 150), 0);
        assert_eq!(live::pcap_activate(p), 0, "{}", error_of(p));
        pcap_breakloop(p);
        assert_eq!(pcap_next_ex(p, &raw mut header, &raw mut data), BREAK);
        let start = std::time::Instant::now();
        assert_eq!(pcap_next_ex(p, &raw mut header, &raw mut data), 0);
        assert!(start.elapsed() >= TIMEOUT);
        pcap_close(p);
    }
}

/// A port by barewire's name: here a capture file, read as a device.
#[test]
fn port_names_work_as_devices() {
    let path = file("port.pcap");
    let name = CString::new(format!("file:{}", path.to_str().unwrap())).unwrap();
    let mut total = 0u32;
    // SAFETY: handles and memory of this test.
    unsafe {
        let p = live::pcap_open_live(name.as_ptr(), 96, 0, 0, null_mut());
        assert!(!p.is_null());
        assert_eq!(pcap_loop(p, -1, Some(count), (&raw mut total).cast()), 0);
        pcap_close(p);
    }
    assert_eq!(total, 60 + 61 + 62);
    std::fs::remove_file(path.to_str().unwrap()).unwrap();
}
