//! `libpcap.so`: networks of devices, and the errors of devices of other kinds, as with the
//! original.

use std::path::Path;

use lab::dropin::Dropin;
use lab::process::Process;
use lab::{Netns, require, skip};

use crate::cluster_live::LIMIT;
use crate::pcap_dropin_calls::original;

/// Prints for each name what `pcap_lookupnet` and `pcap_activate` return.
const PROGRAM: &str = r#"
import ctypes as c, sys
lib = c.CDLL(sys.argv[1])
lib.pcap_create.restype = lib.pcap_geterr.restype = c.c_void_p
for name in sys.argv[2:]:
    errors = c.create_string_buffer(256)
    net, mask = c.c_uint32(7), c.c_uint32(7)
    code = lib.pcap_lookupnet(name.encode(), c.byref(net), c.byref(mask), errors)
    print(repr(name), code, hex(net.value), hex(mask.value), errors.value)
    p = c.c_void_p(lib.pcap_create(name.encode(), errors))
    print(lib.pcap_activate(p), c.string_at(lib.pcap_geterr(p)))
    lib.pcap_close(p)
"#;

fn run(ns: &Netns, library: &Path, names: &[&str]) -> String {
    let mut command = ns.command("python3");
    command.args(["-c", PROGRAM]).arg(library).args(names);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap().stdout
}

/// An interface with addresses that have labels, and one without an address.
fn network() -> Netns {
    let ns = Netns::new().unwrap();
    let add = |address: &str, label: &str| {
        let args = ["address", "add", address, "dev", "lo", "label", label];
        ns.ip(args).unwrap();
    };
    ns.ip(["link", "set", "lo", "up"]).unwrap();
    add("192.0.2.5/27", "lo:1");
    add("198.51.100.9/32", "lo:web");
    ns.ip(["link", "add", "silent", "type", "veth"]).unwrap();
    ns.ip(["link", "set", "silent", "up"]).unwrap();
    ns
}

#[test]
fn networks_and_errors_are_those_of_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    require!(original());
    let dropin = Dropin::new().unwrap();
    let ns = network();
    let names = [
        "lo",
        "lo:1",
        "lo:web",
        "lo:2",
        "silent",
        "silent:1",
        "any",
        "nosuch9",
        "nosuch9:1",
        ":1",
        "no:such:one",
        "usbmon0",
        "usbmon1",
        "usbmon77777",
        "usbmon",
        "usbmonX",
        "bluetooth0",
        "bluetooth12",
        "bluetooth",
        "bluetooth-monitor",
        "bluetooth-monitor0",
        "bluetoothX",
    ];
    let ours = run(&ns, &dropin.library(), &names);
    assert_eq!(ours, run(&ns, &original().unwrap(), &names));
    assert!(ours.contains("'lo:1' 0 0x200c0 0xe0ffffff"), "{ours}");
    // Names of ports: the interface's network, and errors with the whole name.
    let ports = [
        "afpacket:lo",
        "afxdp:silent",
        "afpacket:nosuch9",
        "afpacket:",
        "ring:x/0",
    ];
    let ours = run(&ns, &dropin.library(), &ports);
    let networks: Vec<_> = ours.lines().step_by(2).collect();
    assert_eq!(
        networks,
        [
            "'afpacket:lo' 0 0x7f 0xff b''",
            "'afxdp:silent' -1 0x7 0x7 b'afxdp:silent: no IPv4 address assigned'",
            "'afpacket:nosuch9' -1 0x7 0x7 b'SIOCGIFADDR: afpacket:nosuch9: No such device'",
            "'afpacket:' -1 0x7 0x7 b'SIOCGIFADDR: afpacket:: No such device'",
            "'ring:x/0' 0 0x0 0x0 b''",
        ]
    );
}
