//! `libpcap.so` and `libpfring.so`: a program may write to the packets that it receives, on a queue
//! of a cluster as on an interface, and other readers do not see it.

use std::process::Command;

use lab::dropin::Dropin;
use lab::packet::{Udp, number_of};
use lab::process::{Process, Signal};
use lab::{Veth, require, skip};

use crate::afxdp::sender;
use crate::cluster_live::{Cluster, FILTER, LIMIT, capture, packets_of, unique};

const COUNT: u64 = 400;

/// Overwrites each packet; prints the numbers that were in them.
const PCAP: &str = r#"
import ctypes as c, struct, sys
lib = c.CDLL(sys.argv[1])
device, count, how = sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4]
lib.pcap_open_live.restype = lib.pcap_next.restype = c.c_void_p
errors = c.create_string_buffer(256)
p = c.c_void_p(lib.pcap_open_live(device, 65535, 1, 50, errors))
assert p.value, errors.value
numbers = []
def take(data, caplen):
    numbers.append(struct.unpack(">Q", c.string_at(data, caplen)[46:54])[0])
    c.memset(data, 0xee, caplen)
    assert c.string_at(data, caplen) == b"\xee" * caplen
def on_packet(user, header, data):
    take(data, c.cast(header, c.POINTER(c.c_uint32))[4])
    if len(numbers) == count:
        lib.pcap_breakloop(p)
handler = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)(on_packet)
print("ready", flush=True)
header = (c.c_uint32 * 6)()
if how == "loop":
    assert lib.pcap_loop(p, -1, handler, None) == -2
while len(numbers) < count:
    if how == "dispatch":
        assert lib.pcap_dispatch(p, -1, handler, None) >= 0 or len(numbers) == count
    else:
        data = lib.pcap_next(p, header)
        if data:
            take(data, header[4])
lib.pcap_close(p)
print("numbers", *numbers, flush=True)
"#;

const PFRING: &str = r#"
import ctypes as c, struct, sys
lib = c.CDLL(sys.argv[1])
device, count, how = sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4]
lib.pfring_open.restype = c.c_void_p
ring = c.c_void_p(lib.pfring_open(device, 65535, 8))
assert ring.value and lib.pfring_set_direction(ring, 1) == 0
assert lib.pfring_enable_ring(ring) == 0
numbers = []
def take(data, caplen):
    numbers.append(struct.unpack(">Q", c.string_at(data, caplen)[46:54])[0])
    c.memset(data, 0xee, caplen)
    assert c.string_at(data, caplen) == b"\xee" * caplen
def on_packet(header, data, user):
    take(data, struct.unpack("=I", c.string_at(header + 16, 4))[0])
    if len(numbers) == count:
        lib.pfring_breakloop(ring)
handler = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)(on_packet)
print("ready", flush=True)
header, place = c.create_string_buffer(209), c.c_void_p()
if how == "loop":
    assert lib.pfring_loop(ring, handler, None, 1) == 0
class Info(c.Structure):
    _fields_ = [("data", c.c_void_p), ("ts", c.c_long * 2), ("caplen", c.c_uint16),
                ("len", c.c_uint16), ("flags", c.c_uint32), ("hash", c.c_uint32)]
infos = (Info * 32)()
while len(numbers) < count:
    if how == "burst":
        for info in infos[:lib.pfring_recv_burst(ring, infos, 32, 1)]:
            take(info.data, info.caplen)
    elif lib.pfring_recv(ring, c.byref(place), 0, header, 1) == 1:
        take(place.value, struct.unpack_from("=I", header, 16)[0])
lib.pfring_close(ring)
print("numbers", *numbers, flush=True)
"#;

/// Runs a program on a device; `how` it receives.
fn writer(mut command: Command, dropin: &Dropin, text: &str, device: &str, how: &str) -> Process {
    command.args(["-c", text]).arg(dropin.library());
    command.args([device, &COUNT.to_string(), how]);
    Process::spawn(&mut command).unwrap()
}

/// All ways to receive, each with a library and its program.
fn ways() -> [(bool, &'static str); 6] {
    let (pcap, pfring) = (true, false);
    [
        (pcap, "dispatch"),
        (pcap, "loop"),
        (pcap, "next"),
        (pfring, "loop"),
        (pfring, "recv"),
        (pfring, "burst"),
    ]
}

#[test]
fn programs_write_to_packets_of_a_cluster() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let libraries = [Dropin::pfring().unwrap(), Dropin::new().unwrap()];
    for (is_pcap, how) in ways() {
        let text = if is_pcap { PCAP } else { PFRING };
        let dropin = &libraries[usize::from(is_pcap)];
        let pair = Veth::new().create().unwrap();
        let name = unique();
        // Two applications share the memory: one writes, the other must not see it.
        let args = [
            "--app",
            "writer",
            "--app",
            "reader",
            &pair.right.ifname,
            FILTER,
        ];
        let cluster = Cluster::start(&pair, &name, &args);
        let file = lab::oracle::TempFile::new(".pcap");
        let reader = capture(&format!("ring:{name}/reader"), file.path());
        let device = format!("ring:{name}/writer");
        let mut process = writer(Command::new("python3"), dropin, text, &device, how);
        process.wait_stdout("ready", LIMIT).unwrap();
        let (udp, port) = (Udp::between(&pair.left, &pair.right), sender(&pair.left));
        for number in 0..COUNT {
            port.send(&udp.build(number, 100)).unwrap();
        }
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        let line = finished.stdout.lines().last().unwrap();
        let numbers = line
            .split(' ')
            .skip(1)
            .map(|word| word.parse::<u64>().unwrap());
        assert!(numbers.eq(0..COUNT), "{how}: {line}");
        cluster.wait_delivered(COUNT);
        cluster.stop();
        let mut reader = reader;
        reader.wait(LIMIT).unwrap().checked().unwrap();
        let seen = packets_of(file.path());
        let seen: Vec<_> = seen
            .iter()
            .map(|packet| number_of(packet).unwrap())
            .collect();
        assert!(seen.into_iter().eq(0..COUNT), "{how}");
    }
}

/// With the variable, packets stay in the cluster's memory, which is read-only.
#[test]
fn without_copies_a_program_that_writes_is_stopped() {
    require!(skip::lab(), skip::program("python3", "python3"));
    for (dropin, text) in [
        (Dropin::new().unwrap(), PCAP),
        (Dropin::pfring().unwrap(), PFRING),
    ] {
        let pair = Veth::new().create().unwrap();
        let name = unique();
        let cluster = Cluster::start(&pair, &name, &[&pair.right.ifname, FILTER]);
        let mut command = Command::new("python3");
        command.env("BAREWIRE_IN_PLACE", "1");
        let mut process = writer(command, &dropin, text, &format!("ring:{name}"), "loop");
        process.wait_stdout("ready", LIMIT).unwrap();
        let (udp, port) = (Udp::between(&pair.left, &pair.right), sender(&pair.left));
        for number in 0..COUNT {
            port.send(&udp.build(number, 100)).unwrap();
        }
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(
            finished.signal(),
            Some(Signal::SIGSEGV),
            "{}",
            finished.stderr
        );
        drop(cluster);
    }
}
