//! `libpfring.so`: packets that are sent on as they were received, and the calls of PF_RING's
//! examples around them.

use std::process::Command;

use lab::dropin::Dropin;
use lab::inline::{Inline, X, Y};
use lab::packet::{Raw, Udp, number_of};
use lab::process::Process;
use lab::{Veth, require, skip};

use crate::cluster_live::LIMIT;

const COUNT: u64 = 300;

const HEAD: &str = r#"
import ctypes as c, struct, sys
lib = c.CDLL(sys.argv[1])
lib.pfring_open.restype = c.c_void_p
x, y, count = sys.argv[2].encode(), sys.argv[3].encode(), int(sys.argv[4])
header, place = c.create_string_buffer(209), c.c_void_p()
index = c.c_int()
def opened(device, caplen, flags, mode=2):
    ring = c.c_void_p(lib.pfring_open(device, caplen, flags))
    assert ring.value
    assert lib.pfring_set_direction(ring, 1) == 0
    assert lib.pfring_set_socket_mode(ring, mode) == 0
    return ring
def receive(ring):
    return lib.pfring_recv(ring, c.byref(place), 0, header, 1)
def lengths():
    return struct.unpack_from("=II", header, 16)
"#;

/// As pfbridge without `-p`, but that packets are longer than the capture length.
const BRIDGE: &str = r#"
b = opened(y, 1536, 8, 1)
assert lib.pfring_get_bound_device_ifindex(b, c.byref(index)) == 0
lib.pfring_close(b)
a = opened(x, 80, 8 | 4 | 64)
truncating = opened(x, 80, 8 | 4)
assert lib.pfring_send_last_rx_packet(a, index) == -12
assert lib.pfring_enable_ring(a) == 0 and lib.pfring_enable_ring(truncating) == 0
assert lib.pfring_send_last_rx_packet(a, index) == -3
print("ready", flush=True)
found = 0
while found < count:
    if receive(a) > 0:
        assert lengths()[0] == min(lengths()[1], 80), lengths()
        assert lib.pfring_send_last_rx_packet(a, index) == 0
        found += 1
assert receive(truncating) == 1 and lengths()[0] == 80
assert lib.pfring_send_last_rx_packet(truncating, index) == -1
assert lib.pfring_send_last_rx_packet(a, 0x7fffffff) == -9
assert lib.pfring_send_last_rx_packet(a, -1) == -2
stats = (c.c_uint64 * 3)()
assert lib.pfring_stats(a, stats) == 0 and stats[0] >= count
lib.pfring_close(a)
print("done", found)
"#;

/// As pfcount with `-d` and `-B`: a reflector, and packets in bursts. Whole packets are sent on,
/// though the ring returns less of them.
const REFLECTOR: &str = r#"
a = opened(x, 80, 8)
assert lib.pfring_set_packet_slicing(a, 4, 12) == 0
assert lib.pfring_set_reflector_device(a, b"no-such-one") == -9
assert lib.pfring_set_reflector_device(a, y) == 0
assert lib.pfring_enable_ring(a) == 0
# struct __pfring: whether it is enabled, the MTU, and the function for bursts.
fields = c.string_at(a.value, 936)
assert fields[1] == 1 and struct.unpack_from("=H", fields, 714)[0] == 1500
function = c.cast(lib.pfring_recv_burst, c.c_void_p).value
assert struct.unpack_from("=Q", fields, 96 + 66 * 8)[0] == function
class Info(c.Structure):
    _fields_ = [("data", c.c_void_p), ("ts", c.c_long * 2), ("caplen", c.c_uint16),
                ("len", c.c_uint16), ("flags", c.c_uint32), ("hash", c.c_uint32)]
infos = (Info * 32)()
time = (c.c_long * 2)()
assert lib.pfring_next_pkt_time(a, time) == -3
print("ready", flush=True)
numbers = []
while len(numbers) < count:
    if lib.pfring_next_pkt_time(a, time) == 0:
        assert time[0] > 1600000000
        first = list(time)
    else:
        first = None
    found = lib.pfring_recv_burst(a, infos, 32, 1)
    assert 0 <= found <= 32
    if found and first:
        assert (infos[0].ts[0], infos[0].ts[1]) == (first[0], first[1] // 1000)
    # All packets of a burst are valid together.
    for info in infos[:found]:
        packet = c.string_at(info.data, info.caplen)
        assert info.caplen == 54 < info.len
        numbers.append(struct.unpack(">Q", packet[46:54])[0])
assert numbers == list(range(count)), numbers
# Slices, and packets of a VLAN.
assert lib.pfring_set_packet_slicing(a, 4, 2) == 0 and lib.pfring_set_packet_slicing(a, 1, 0) == -2
assert lib.pfring_set_reflector_device(a, None) == 0
print("more", flush=True)
assert receive(a) == 1 and lengths()[0] == 44 < lengths()[1], lengths()
assert lib.pfring_set_vlan_id(a, 5) == 0 and lib.pfring_set_vlan_id(a, 4096) == -2
while receive(a) != 1:
    pass
packet = c.string_at(place.value, lengths()[0])
assert packet[12:16] == b"\x81\0\0\5" and len(packet) == 48, packet
lib.pfring_close(a)
print("done", len(numbers))
"#;

fn program(row: &Inline, dropin: &Dropin, text: &str) -> Process {
    let mut command: Command = row.ns().command("python3");
    command
        .args(["-c", &format!("{HEAD}{text}")])
        .arg(dropin.library());
    command.args([X, Y, &COUNT.to_string()]);
    Process::spawn(&mut command).unwrap()
}

/// Lengths of packets: with the tag of a VLAN at most what an MTU of 1500 lets through.
fn packet_len(number: u64) -> usize {
    100 + (number as usize * 37) % 1400
}

/// Receives the packets at B: each once and in order.
fn check(socket: &Raw) {
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < COUNT {
        let packet = socket.receive(LIMIT).unwrap().expect("a packet");
        if let Ok(number) = number_of(&packet) {
            assert_eq!(packet.len(), packet_len(number));
            numbers.push(number);
        }
    }
    assert!(numbers.into_iter().eq(0..COUNT));
}

/// A sender at A, a receiver at B, and packets between them.
fn ends(row: &Inline) -> (Raw, Raw, Udp) {
    let (a, b) = (row.a(), row.b());
    let from = a.ns.run(|| Raw::sender(&a.ifname)).unwrap().unwrap();
    let to = b.ns.run(|| Raw::open(&b.ifname)).unwrap().unwrap();
    (from, to, Udp::between(a, b))
}

#[test]
fn the_last_received_packet_is_sent_to_another_interface() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let row = Inline::new(&Veth::new()).unwrap();
    let (from, to, udp) = ends(&row);
    let mut bridge = program(&row, &dropin, BRIDGE);
    bridge.wait_stdout("ready", LIMIT).unwrap();
    for number in 0..COUNT {
        from.send(&udp.build(number, packet_len(number))).unwrap();
    }
    let finished = bridge.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains(&format!("done {COUNT}")));
    check(&to);
}

#[test]
fn received_packets_go_to_a_reflector_and_arrive_in_bursts() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let row = Inline::new(&Veth::new()).unwrap();
    let (from, to, udp) = ends(&row);
    let mut reader = program(&row, &dropin, REFLECTOR);
    reader.wait_stdout("ready", LIMIT).unwrap();
    for number in 0..COUNT {
        from.send(&udp.build(number, packet_len(number))).unwrap();
    }
    check(&to);
    reader.wait_stdout("more", LIMIT).unwrap();
    let plain = udp.build(0, 100);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    // The first ends the wait for a slice, and the next ones are in no VLAN.
    for packet in [&plain, &plain, &tagged] {
        from.send(packet).unwrap();
    }
    let finished = reader.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains(&format!("done {COUNT}")));
}

/// As pfcount_multichannel: a ring for each queue, which see each packet once.
const CHANNELS: &str = r#"
rings = (c.c_void_p * 64)()
assert lib.pfring_open_multichannel(b"no-such-one", 1536, 8, rings) == 0
opened = lib.pfring_open_multichannel(x, 1536, 8, rings)
assert opened == 2, opened
rings = [c.c_void_p(ring) for ring in rings[:opened]]
for ring in rings:
    assert lib.pfring_set_direction(ring, 1) == 0 and lib.pfring_enable_ring(ring) == 0
print("ready", flush=True)
numbers = []
while len(numbers) < count:
    for ring in rings:
        while lib.pfring_recv(ring, c.byref(place), 0, header, 0) == 1:
            packet = c.string_at(place.value, lengths()[0])
            numbers.append(struct.unpack(">Q", packet[46:54])[0])
assert sorted(numbers) == list(range(count)), numbers
for ring in rings:
    lib.pfring_close(ring)
print("done", len(numbers))
"#;

#[test]
fn a_ring_for_each_queue_sees_each_packet_once() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().queues(2).create().unwrap();
    let mut command = pair.right.ns.command("python3");
    command
        .args(["-c", &format!("{HEAD}{CHANNELS}")])
        .arg(dropin.library());
    command.args([&pair.right.ifname, "", &COUNT.to_string()]);
    let mut reader = Process::spawn(&mut command).unwrap();
    reader.wait_stdout("ready", LIMIT).unwrap();
    lab::packet::pour(&pair, 16, COUNT);
    let finished = reader.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains(&format!("done {COUNT}")));
}
