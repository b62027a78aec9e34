//! `libpfring.so`: the functions of PF_RING ZC as zmap and PF_RING's examples call them, over a
//! veth pair.

use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::packet::Udp;
use lab::process::{Process, barewire};
use lab::{Veth, require, skip};

use crate::afxdp::sender;
use crate::cluster_live::unique;

const LIMIT: Duration = Duration::from_secs(120);

/// What all programs begin with: the library with the types of its results.
pub const HEAD: &str = r#"
import ctypes as c, struct, sys
lib = c.CDLL(sys.argv[1], use_errno=True)
for name in ("create_cluster", "open_device", "create_queue", "get_packet_handle",
             "create_buffer_pool", "get_packet_handle_from_pool", "run_balancer", "run_fifo",
             "create_multi_queue", "run_fanout",
             "pkt_buff_data", "ipc_attach_queue", "ipc_attach_buffer_pool", "version"):
    getattr(lib, "pfring_zc_" + name).restype = c.c_void_p
def P(value):
    assert value, "null"
    return c.c_void_p(value)
def handle(cluster):
    return P(lib.pfring_zc_get_packet_handle(cluster))
def put(buffer, queue, data):
    c.c_uint16.from_address(buffer.value).value = len(data)
    c.memmove(lib.pfring_zc_pkt_buff_data(buffer, queue), data, len(data))
def get(buffer, queue):
    length, flags, hash, seconds, ns = struct.unpack("=HHIII", c.string_at(buffer.value, 16))
    assert seconds > 1600000000 or seconds == 0
    return c.string_at(lib.pfring_zc_pkt_buff_data(buffer, queue), length)
def stats(queue):
    three = (c.c_uint64 * 3)()
    assert lib.pfring_zc_stats(queue, three) == 0
    return list(three)
"#;

/// As zmap: threads put packets into queues, a FIFO worker sends those of all queues; another queue
/// of the device receives what comes back.
const SENDER: &str = r#"
device, count = sys.argv[2].encode(), int(sys.argv[3])
cluster = P(lib.pfring_zc_create_cluster(99, 1536, 0, 4096, -1, None))
assert lib.pfring_zc_get_cluster_id(cluster) == 99
send = P(lib.pfring_zc_open_device(cluster, device, 1, 0))
queues = (c.c_void_p * 2)(*[lib.pfring_zc_create_queue(cluster, 512) for _ in range(2)])
assert [lib.pfring_zc_get_queue_id(P(queue)) for queue in queues] == [0, 1]
pool = P(lib.pfring_zc_create_buffer_pool(cluster, 8))
answer = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_void_p)(lambda buffer, queue, user: 0)
worker = P(lib.pfring_zc_run_fifo(queues, send, 2, pool, None, answer, None, 0, -1, -1))
buffers = (c.c_void_p * 16)(*[handle(cluster).value for _ in range(16)])
base = bytes.fromhex(sys.argv[4])
done = 0
while done < count:
    queue = P(queues[done // 16 % 2])
    n = min(16, count - done)
    for i in range(n):
        put(P(buffers[i]), queue, base[:46] + struct.pack(">Q", done + i) + base[54:])
    sent = 0
    while sent < n:
        step = lib.pfring_zc_send_pkt_burst(queue, c.byref(buffers, 8 * sent), n - sent, 1)
        sent += max(step, 0)
    done += n
while stats(send)[1] < count:
    lib.pfring_zc_sync_queue(send, 1)
lib.pfring_zc_kill_worker(worker)
assert stats(send)[2] == 0
# As zbounce: one that is longer than the MTU is never sent, which the errno says.
buffer = P(buffers[0])
put(buffer, send, bytes(1530))
assert lib.pfring_zc_send_pkt(send, c.byref(buffer), 1) == -2 and c.get_errno() == 90
assert lib.pfring_zc_send_pkt_burst(send, c.byref(buffer), 1, 1) == -2
assert stats(send) == [0, count, 2], stats(send)
print(sum(stats(P(queue))[0] for queue in queues), flush=True)
lib.pfring_zc_destroy_cluster(cluster)
"#;

/// As zcount: receives from a device and a balancer's queues, prints the numbers of the packets.
const RECEIVER: &str = r#"
device, count = sys.argv[2].encode(), int(sys.argv[3])
cluster = P(lib.pfring_zc_create_cluster(98, 1536, 16, 4096, -1, None))
receive = (c.c_void_p * 1)(lib.pfring_zc_open_device(cluster, device, 0, 0))
assert lib.pfring_zc_set_bpf_filter(P(receive[0]), b"udp dst port 9") == 0
assert lib.pfring_zc_get_queue_id(P(receive[0])) > 0xffff
queues = (c.c_void_p * 3)(*[lib.pfring_zc_create_queue(cluster, 1024) for _ in range(3)])
pool = P(lib.pfring_zc_create_buffer_pool(cluster, 8))
number = c.c_uint64(0)
def choose(buffer, queue, user):
    assert user == c.addressof(number)
    return -1 if number.value == count else c.c_uint8.from_address(
        lib.pfring_zc_pkt_buff_data(c.c_void_p(buffer), c.c_void_p(queue)) + 53).value % 3
func = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_void_p)(choose)
worker = P(lib.pfring_zc_run_balancer(receive, queues, 1, 3, pool, 0, None, func,
                                      c.byref(number), 0, -1))
print("ready", flush=True)
seen = [[], [], []]
place = c.c_void_p(handle(cluster).value)
while sum(map(len, seen)) < count:
    for at, queue in enumerate(queues):
        while lib.pfring_zc_recv_pkt(P(queue), c.byref(place), 0) == 1:
            seen[at].append(struct.unpack(">Q", get(place, P(queue))[46:54])[0])
lib.pfring_zc_kill_worker(worker)
assert lib.pfring_zc_recv_pkt(P(queues[0]), c.byref(place), 0) == 0
assert stats(P(receive[0]))[0] >= count and stats(P(receive[0]))[2] == 0
for at, numbers in enumerate(seen):
    assert all(number % 256 % 3 == at for number in numbers)
    # The sender had two queues, in turn for 16 packets each.
    for half in 0, 1:
        ours = [number for number in numbers if number // 16 % 2 == half]
        assert ours == sorted(ours)
print(*sorted(sum(seen, [])), flush=True)
lib.pfring_zc_release_packet_handle(cluster, place)
lib.pfring_zc_destroy_cluster(cluster)
"#;

/// As zcount_ipc: receives from a queue of a cluster in another process.
const ATTACHED: &str = r#"
number, count = int(sys.argv[2]), int(sys.argv[3])
lib.pfring_zc_ipc_init(None)
queue = P(lib.pfring_zc_ipc_attach_queue(number, 0, 0))
pool = P(lib.pfring_zc_ipc_attach_buffer_pool(number, 0))
assert not lib.pfring_zc_ipc_attach_queue(number, 0, 1)
place = c.c_void_p(lib.pfring_zc_get_packet_handle_from_pool(pool))
numbers = []
while len(numbers) < count:
    assert lib.pfring_zc_recv_pkt(queue, c.byref(place), 1) == 1
    numbers.append(struct.unpack(">Q", get(place, queue)[46:54])[0])
print(*numbers, flush=True)
lib.pfring_zc_release_packet_handle_to_pool(pool, place)
lib.pfring_zc_ipc_detach_queue(queue)
lib.pfring_zc_ipc_detach_buffer_pool(pool)
"#;

fn program(mut command: Command, dropin: &Dropin, text: &str, args: &[&str]) -> Process {
    command.args(["-c", &format!("{HEAD}{text}")]);
    command.arg(dropin.library()).args(args);
    Process::spawn(&mut command).unwrap()
}

fn numbers(text: &str) -> Vec<u64> {
    let last = text.lines().last().unwrap_or_default();
    last.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn packets_pass_from_queues_to_a_device_and_from_a_device_to_queues() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: u64 = 3_000;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let count = COUNT.to_string();
    let names = [&pair.right, &pair.left].map(|end| end.ifname.clone());
    let command = pair.right.ns.command("python3");
    let mut receiver = program(command, &dropin, RECEIVER, &[&names[0], &count]);
    receiver.wait_stdout("ready", LIMIT).unwrap();
    let first = Udp::between(&pair.left, &pair.right).build(0, 100);
    let hex: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
    let command = pair.left.ns.command("python3");
    let mut sender = program(command, &dropin, SENDER, &[&names[1], &count, &hex]);
    let sent = sender.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(numbers(&sent.stdout), [COUNT]);
    let received = receiver.wait(LIMIT).unwrap().checked().unwrap();
    assert!(numbers(&received.stdout).into_iter().eq(0..COUNT));
}

#[test]
fn a_queue_of_a_cluster_is_attached_by_its_number() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: u64 = 500;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    // The names of PF_RING's clusters are numbers.
    let name = unique().bytes().fold(7_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let (name, count) = (name.to_string(), COUNT.to_string());
    let args = [
        "cluster",
        "run",
        "--name",
        &name,
        &pair.right.ifname,
        "udp dst port 9",
    ];
    let cluster = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let python = Command::new("python3");
    let mut reader = program(python, &dropin, ATTACHED, &[&name, &count]);
    cluster.wait_stderr("read by process", LIMIT).unwrap();
    let (plan, port) = (Udp::between(&pair.left, &pair.right), sender(&pair.left));
    for number in 0..COUNT {
        port.send(&plan.build(number, 100)).unwrap();
    }
    let received = reader.wait(LIMIT).unwrap().checked().unwrap();
    assert!(numbers(&received.stdout).into_iter().eq(0..COUNT));
    drop(cluster);
    let _ = std::fs::remove_file(format!("/run/barewire/{name}"));
}
