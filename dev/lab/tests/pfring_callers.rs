//! `libpfring.so`: the calls of Snort's DAQ module and of Zeek's plugin, in their order and with
//! the results that they check.

use lab::dropin::Dropin;
use lab::packet::{Raw, Udp};
use lab::process::Process;
use lab::{Veth, require, skip};

use crate::cluster_live::LIMIT;

const COUNT: u64 = 50;

/// Receives as many packets as the last argument says: prints `ready` before, and what it found.
const START: &str = r#"
import ctypes, select, socket, struct, sys
lib = ctypes.CDLL(sys.argv[1])
device, count = sys.argv[2].encode(), int(sys.argv[3])
lib.pfring_open.restype = ctypes.c_void_p
header = ctypes.create_string_buffer(209)
place = ctypes.c_void_p()
stats = (ctypes.c_uint64 * 3)()
def opened(caplen, flags):
    ring = ctypes.c_void_p(lib.pfring_open(device, caplen, flags))
    assert ring.value
    return ring
def receive(ring):
    print("ready", flush=True)
    found = 0
    fd = lib.pfring_get_selectable_fd(ring)
    assert fd >= 0
    while found < count:
        code = lib.pfring_recv(ring, ctypes.byref(place), 0, header, 0)
        if code > 0:
            seconds, _, caplen, length = struct.unpack_from("=qqII", header)
            assert seconds > 0 and caplen == length
            found += ctypes.string_at(place.value, caplen)[12:14] == b"\x08\x00"
        else:
            assert select.select([fd], [], [], 60)[0], found
    assert lib.pfring_stats(ring, stats) == 0 and stats[0] >= count, stats[0]
    lib.pfring_close(ring)
    print("received", found)
"#;

const SNORT: &str = r#"
ring = opened(1518, 1 << 2 | 1 << 3)
index = ctypes.c_int()
assert lib.pfring_get_bound_device_ifindex(ring, ctypes.byref(index)) == 0
assert index.value == socket.if_nametoindex(sys.argv[2])
assert lib.pfring_set_filtering_mode(ring, 2) == 0
assert lib.pfring_set_socket_mode(ring, 2) == 0
assert lib.pfring_set_direction(ring, 1) == 0
# Its default clustermode.
assert lib.pfring_set_cluster(ring, 4712, 2) == 0
assert lib.pfring_set_application_name(ring, b"snort-cluster-4712-socket-0") == 0
assert lib.pfring_set_poll_watermark(ring, 128) == 0
settings = (ctypes.c_uint32 * 3)()
assert lib.pfring_get_card_settings(ring, settings) == 0
assert settings[0] == 1518, settings[0]
assert lib.pfring_enable_ring(ring) == 0
assert lib.pfring_enable_ring(ring) == 0
# What it asks for after a verdict, whose results it does not check; null is an error only. With
# rules: pfring_rules.rs.
for name in "handle_hash_filtering_rule", "add_filtering_rule":
    assert getattr(lib, "pfring_" + name)(ring, None, 1) < 0, name
assert lib.pfring_purge_idle_hash_rules(ring, 300) == 0
assert lib.pfring_parse_pkt(None, header, 4, 0, 0) < 0
assert lib.pfring_send_last_rx_packet(ring, 1) < 0
assert lib.pfring_send(ring, bytes(60), 60, 1) < 0
receive(ring)
"#;

/// It sets the cluster of a ring that is enabled already.
const ZEEK: &str = r#"
ring = opened(9056, 1 << 3 | 1 << 4)
assert lib.pfring_set_application_name(ring, b"bro") == 0
assert lib.pfring_set_socket_mode(ring, 2) == 0
assert lib.pfring_enable_ring(ring) == 0
# Packets that wait in the ring when it joins count as dropped.
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[2], 0))
for _ in range(7):
    out.send(b"\x02" * 12 + b"\x88\xb5" + bytes(50))
while stats[0] < 7:
    assert lib.pfring_stats(ring, stats) == 0
assert stats[1] == 0
assert lib.pfring_set_cluster(ring, 4713, 4) == 0
assert lib.pfring_stats(ring, stats) == 0 and stats[1] >= 7, list(stats)
receive(ring)
"#;

#[test]
fn calls_of_snort_s_module_and_of_zeek_s_plugin_have_the_results_they_expect() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    for (name, calls) in [("Snort", SNORT), ("Zeek", ZEEK)] {
        let pair = Veth::new().create().unwrap();
        let (left, right) = (&pair.left, &pair.right);
        let script = [START, calls].concat();
        let mut command = right.ns.command("python3");
        command.args(["-c", &script]).arg(dropin.library());
        command.args([&right.ifname, &COUNT.to_string()]);
        let mut process = Process::spawn(&mut command).unwrap();
        if let Err(error) = process.wait_stdout("ready", LIMIT) {
            panic!("{name}: {error:#}");
        }
        let out = left.ns.run(|| Raw::sender(&left.ifname)).unwrap().unwrap();
        let udp = Udp::between(left, right).flows(5);
        for number in 0..COUNT {
            out.send(&udp.build(number, 100)).unwrap();
        }
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        let expected = format!("received {COUNT}");
        assert!(finished.stdout.contains(&expected), "{name}: {finished:?}");
    }
}
