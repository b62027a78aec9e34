//! `libpfring.so`: filtering rules, by the calls of Snort's DAQ module, of Suricata's bypass and of
//! pfcount; and filters with `vlan` on queues of clusters.

use std::io::Write as _;
use std::process::{ChildStdin, Stdio};

use lab::dropin::Dropin;
use lab::packet::{Addresses, Raw, Udp};
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};

use crate::cluster_live::{LIMIT, unique};

/// Receives until a packet to port 99 arrives: `until()` returns how many there were to each port.
const HEAD: &str = r#"
import ctypes, struct, sys
lib = ctypes.CDLL(sys.argv[1])
device = sys.argv[2].encode()
lib.pfring_open.restype = ctypes.c_void_p
header = ctypes.create_string_buffer(209)
place = ctypes.c_void_p()
stats = (ctypes.c_uint64 * 3)()
def opened(flags):
    ring = ctypes.c_void_p(lib.pfring_open(device, 1500, flags))
    assert ring.value
    return ring
def ports(packet):
    at = 4 if packet[12:14] == b"\x81\x00" else 0
    return struct.unpack_from("!HH", packet, 34 + at)
def until(ring, each=lambda packet: None):
    print("go", flush=True)
    sys.stdin.readline()
    found = {}
    while True:
        code = lib.pfring_recv(ring, ctypes.byref(place), 0, header, 1)
        assert code in (0, 1), code
        if code == 0:
            continue
        packet = ctypes.string_at(place.value, struct.unpack_from("=I", header, 16)[0])
        port = min(ports(packet))
        if port == 99:
            return found
        each(packet)
        found[port] = found.get(port, 0) + 1
def shunted(ring):
    assert lib.pfring_stats(ring, stats) == 0
    return stats[2]
"#;

/// As the DAQ module when Snort blocks a flow: it parses a packet, copies what was found to a rule,
/// and removes idle rules.
const SNORT: &str = r#"
ring = opened(1 << 2 | 1 << 3)
assert lib.pfring_set_filtering_mode(ring, 2) == 0
assert lib.pfring_set_direction(ring, 1) == 0
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_enable_ring(ring) == 0
rule = ctypes.create_string_buffer(70)
def block(packet):
    if ports(packet)[1] != 9 or rule.raw[42]:
        return
    # The ring was opened with the long header: the packet is parsed already.
    before = header.raw
    ctypes.memset(ctypes.addressof(header) + 68, 0, 141)
    assert lib.pfring_parse_pkt(place, header, 4, 0, 0) == 4
    assert header.raw == before
    vlan, = struct.unpack_from("=H", header, 82)
    source, destination = struct.unpack_from("=16s16s", header, 89)
    one, other = struct.unpack_from("=HH", header, 121)
    struct.pack_into("=HHBB16s16sHHI", rule, 0, 1, vlan, 0, header.raw[87], source, destination,
                     one, other, 1)
    assert lib.pfring_handle_hash_filtering_rule(ring, rule, 1) == 0
    assert lib.pfring_purge_idle_hash_rules(ring, 300) == 0
found = until(ring, block)
assert found == {9: 1, 10: 20}, found
assert shunted(ring) == 39, list(stats)
counts = ctypes.create_string_buffer(28)
length = ctypes.c_uint32(28)
assert lib.pfring_get_hash_filtering_rule_stats(ring, rule, counts, ctypes.byref(length)) == 0
assert struct.unpack("=QQQI", counts.raw)[:3] == (39, 39, 0) and length.value == 28
# Again: all are dropped. Then without the rule.
assert until(ring) == {10: 20}
assert lib.pfring_handle_hash_filtering_rule(ring, rule, 0) == 0
assert lib.pfring_handle_hash_filtering_rule(ring, rule, 0) < 0
assert until(ring) == {9: 40, 10: 20}
assert lib.pfring_handle_hash_filtering_rule(ring, rule, 1) == 0
assert lib.pfring_purge_idle_hash_rules(ring, 0) == 0
assert until(ring) == {9: 40, 10: 20}
assert shunted(ring) == 79, list(stats)
"#;

/// As Suricata: the hash of a packet is the number of its flow, which it no longer wants.
const SURICATA: &str = r#"
ring = opened(1 << 3 | 1 << 17 | 1 << 18)
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_set_direction(ring, 1) == 0
assert lib.pfring_enable_ring(ring) == 0
rule = ctypes.create_string_buffer(94)
numbers = set()
def bypass(packet):
    flags, = struct.unpack_from("=I", header, 32)
    number, = struct.unpack_from("=I", header, 44)
    assert flags & 1 << 7
    numbers.add(number)
    if 9 in ports(packet) and not rule.raw[0]:
        struct.pack_into("=IHIII", rule, 0, 3, 0, 0, number, 0)
        assert lib.pfring_add_hw_rule(ring, rule) == 0
    # Whatever is not the number of a flow.
    other = ctypes.create_string_buffer(94)
    struct.pack_into("=IHIII", other, 0, 3, 0, 0, number ^ 1, 0)
    assert lib.pfring_add_hw_rule(ring, other) < 0
found = until(ring, bypass)
assert found == {9: 1, 10: 20}, found
assert len(numbers) == 2, numbers
assert shunted(ring) == 39, list(stats)
assert until(ring) == {10: 20}
"#;

/// As pfcount with a wildcard rule; and with a policy that drops what no rule passes.
const PFCOUNT: &str = r#"
ring = opened(1 << 3)
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_set_direction(ring, 1) == 0
rule = ctypes.create_string_buffer(230)
def put(number, action, low, high):
    struct.pack_into("=HI", rule, 0, number, action)
    rule[9] = 1
    rule[30] = 17
    struct.pack_into("=HHHH", rule, 95, 0, 0, low, high)
    assert lib.pfring_add_filtering_rule(ring, rule) == 0
put(5, 1, 9, 10)
assert lib.pfring_enable_ring(ring) == 0
assert until(ring) == {}
put(4, 0, 10, 10)
assert until(ring) == {10: 20}
assert lib.pfring_remove_filtering_rule(ring, 5) == 0
assert lib.pfring_remove_filtering_rule(ring, 5) < 0
assert until(ring) == {9: 40, 10: 20}
put(6, 0, 99, 99)
assert lib.pfring_toggle_filtering_policy(ring, 0) == 0
assert until(ring) == {10: 20}
assert lib.pfring_toggle_filtering_policy(ring, 1) == 0
assert until(ring) == {9: 40, 10: 20}
# Reflected to another interface.
struct.pack_into("=HI", rule, 0, 7, 6)
assert lib.pfring_add_filtering_rule(ring, rule) == -7
"#;

/// A ring that joins a cluster while packets wait, of which rules drop some; and one that is
/// disabled and enabled again.
const JOIN: &str = r#"
ring = opened(1 << 3)
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_set_direction(ring, 1) == 0
rule = ctypes.create_string_buffer(230)
struct.pack_into("=HI", rule, 0, 0xffff, 1)
rule[9] = 1
struct.pack_into("=HHHH", rule, 95, 0, 0, 9, 9)
assert lib.pfring_add_filtering_rule(ring, rule) == 0
assert lib.pfring_enable_ring(ring) == 0
assert until(ring) == {10: 20}
assert shunted(ring) == 40 and list(stats) == [21, 0, 40], list(stats)
print("go", flush=True)
sys.stdin.readline()
while stats[0] < 82:
    shunted(ring)
assert lib.pfring_set_cluster(ring, 4714, 4) == 0
assert shunted(ring) == 80 and list(stats) == [21, 21, 80], list(stats)
assert until(ring) == {10: 20}
assert shunted(ring) == 120 and list(stats) == [42, 21, 120], list(stats)
lib.pfring_close(ring)
ring = opened(1 << 3)
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_set_direction(ring, 1) == 0
assert lib.pfring_add_filtering_rule(ring, rule) == 0
for _ in range(2):
    assert lib.pfring_enable_ring(ring) == 0
    assert until(ring) == {10: 20}
    assert shunted(ring) == 40 and list(stats) == [21, 0, 40], list(stats)
    assert lib.pfring_disable_ring(ring) == 0
"#;

/// A queue of a cluster: the tag is beside the packets. Filters are set before and after enabling.
const VLAN: &str = r#"
for before in True, False:
    ring = opened(1 << 3)
    if not before:
        assert lib.pfring_enable_ring(ring) == 0
    assert lib.pfring_set_bpf_filter(ring, b"udp port 99 or (vlan 7 and udp)") == 0
    assert lib.pfring_enable_ring(ring) == 0
    found = until(ring)
    assert found == {11: 5}, (before, found)
    lib.pfring_close(ring)
"#;

/// One flow in both directions, another one, packets of VLAN 7 if wanted, and the last one.
fn send(pair: &Pair, tagged_count: u64) {
    let (left, right) = (&pair.left, &pair.right);
    let out = left.ns.run(|| Raw::sender(&left.ifname)).unwrap().unwrap();
    let there = Udp::between(left, right);
    let mut back = there.clone();
    let Addresses::V4(one, other) = there.addresses else {
        unreachable!("IPv4 by default")
    };
    back.addresses = Addresses::V4(other, one);
    (back.source_port, back.destination_port) = (9, there.source_port);
    let mut others = there.clone();
    others.destination_port = 10;
    let mut tagged = there.clone();
    (tagged.destination_port, tagged.vlan) = (11, Some(7));
    let mut last = there.clone();
    last.destination_port = 99;
    for number in 0..20 {
        for udp in [&there, &back, &others] {
            out.send(&udp.build(number, 100)).unwrap();
        }
    }
    for number in 0..tagged_count {
        out.send(&tagged.build(number, 100)).unwrap();
    }
    out.send(&last.build(0, 100)).unwrap();
}

/// Runs a program: each `go` that it prints asks for the packets.
fn run(pair: &Pair, text: &str, device: &str, tagged_count: u64) {
    let dropin = Dropin::pfring().unwrap();
    let mut command = pair.right.ns.command("python3");
    command.args(["-c", &[HEAD, text].concat()]);
    command.arg(dropin.library()).arg(device);
    command.stdin(Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut done = 0;
    let until = std::time::Instant::now() + LIMIT;
    loop {
        let asked = process.stdout().matches("go\n").count();
        if asked > done {
            done = asked;
            answer(&mut stdin);
            send(pair, tagged_count);
        }
        if !process.running().unwrap() {
            break;
        }
        assert!(std::time::Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    process.wait(LIMIT).unwrap().checked().unwrap();
    assert!(done > 1, "the program asked for packets");
}

fn answer(stdin: &mut ChildStdin) {
    // It may have ended.
    let _ = stdin.write_all(b"\n");
}

#[test]
fn hash_rules_drop_both_directions_of_a_flow() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    run(&pair, SNORT, &pair.right.ifname, 0);
}

#[test]
fn a_bypassed_flow_is_dropped_by_its_number() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    run(&pair, SURICATA, &pair.right.ifname, 0);
}

#[test]
fn wildcard_rules_and_the_policy_select_packets() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    run(&pair, PFCOUNT, &pair.right.ifname, 0);
}

#[test]
fn packets_that_rules_drop_count_once_when_a_ring_is_opened_again() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    run(&pair, JOIN, &pair.right.ifname, 0);
}

#[test]
fn filters_with_vlan_select_tagged_packets_of_a_cluster() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    let name = unique().bytes().fold(11_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let name = name.to_string();
    let args = ["cluster", "run", "--name", &name, &pair.right.ifname];
    let mut cluster = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    run(&pair, VLAN, &format!("zc:{name}@0"), 5);
    cluster
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
}
