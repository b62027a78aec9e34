//! `libpfring.so`: what newer programs of PF_RING ZC call (pairs of a queue and a pool, workers
//! with a filter), long packets, and processes that end while a queue is full.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::dropin::Dropin;
use lab::packet::Udp;
use lab::process::Process;
use lab::{Veth, require, skip};

use crate::afxdp::sender;
use crate::pfring_zc::HEAD;

const LIMIT: Duration = Duration::from_secs(60);

/// Functions of PF_RING 8, and steps that the test asks for on standard input.
const MORE: &str = r#"
lib.pfring_zc_run_balancer_v2.restype = c.c_void_p
lib.pfring_zc_run_fanout_v2.restype = c.c_void_p
lib.pfring_zc_pkt_buff_data_from_cluster.restype = c.c_void_p
def pair(cluster, length, count):
    queue, pool = c.c_void_p(), c.c_void_p()
    assert lib.pfring_zc_create_queue_pool_pair(cluster, length, count, c.byref(queue),
                                                c.byref(pool)) == 0
    assert lib.pfring_zc_get_queue_id(queue) == lib.pfring_zc_get_pool_id(pool)
    return queue, pool
def step(text):
    print(text, flush=True)
    sys.stdin.readline()
"#;

/// Its first queue is received from, and its second one sent to, by other processes.
const OWNER: &str = r#"
number = int(sys.argv[2])
assert lib.pfring_zc_precompute_cluster_settings(None, 65535, 0, 256, 0) < 0
cluster = P(lib.pfring_zc_create_cluster(number, 65535, 0, 256, -1, None, 0))
(out, _), (into, _) = pair(cluster, 16, 9), pair(cluster, 16, 9)
place = handle(cluster)
assert (lib.pfring_zc_pkt_buff_data_from_cluster(place, cluster)
        == lib.pfring_zc_pkt_buff_data(place, out))
def send(data):
    put(place, out, data)
    return lib.pfring_zc_send_pkt(out, c.byref(place), 1)
step("ready")
assert send(b"\x07" * 40000) == 40000
count = 1
while send(b"\x08" * 60) > 0:
    count += 1
assert send(b"\x08" * 60) == -1
step("full %d" % count)
# The reader has received them, and learns of the two that were dropped.
assert send(b"\x09" * 60) == 60
step("marked")
numbers = []
while not numbers or numbers[-1] != 1000:
    if lib.pfring_zc_recv_pkt(into, c.byref(place), 1) == 1:
        numbers.append(struct.unpack(">Q", get(place, into)[:8])[0])
# 16 that waited in the queue, 32 in the memory of the killed sender, and that of the next one.
assert numbers == list(range(48)) + [1000], numbers
assert stats(into) == [len(numbers), len(numbers), 0], stats(into)
print("end", flush=True)
"#;

const READER: &str = r#"
queue = P(lib.pfring_zc_ipc_attach_queue(int(sys.argv[2]), 0, 0))
place = c.c_void_p(lib.pfring_zc_get_packet_handle_from_pool(
    P(lib.pfring_zc_ipc_attach_buffer_pool(int(sys.argv[2]), 0))))
step("ready")
def receive():
    while lib.pfring_zc_recv_pkt(queue, c.byref(place), 1) != 1:
        pass
    return get(place, queue)
count = int(sys.stdin.readline())
assert receive() == b"\x07" * 40000
for _ in range(count - 1):
    assert receive() == b"\x08" * 60
step("received")
assert receive() == b"\x09" * 60
assert stats(queue) == [count + 1, 0, 2], stats(queue)
print("end", flush=True)
"#;

/// Sends the given number, or as many as there is room for.
const SENDER: &str = r#"
import time
queue = P(lib.pfring_zc_ipc_attach_queue(int(sys.argv[2]), 1, 1))
place = c.c_void_p(lib.pfring_zc_get_packet_handle_from_pool(
    P(lib.pfring_zc_ipc_attach_buffer_pool(int(sys.argv[2]), 1))))
def send(number):
    put(place, queue, struct.pack(">Q", number) + bytes(52))
    return lib.pfring_zc_send_pkt(queue, c.byref(place), 1)
if len(sys.argv) > 3:
    assert send(int(sys.argv[3])) == 60
    step("sent")
count, until = 0, time.monotonic() + 60
while count < 48:
    assert time.monotonic() < until, count
    if send(count) > 0:
        count += 1
    else:
        time.sleep(0.005)
assert send(count) == -1
step("full")
"#;

/// As zbalance_ipc of PF_RING 8: a filter, and a distribution function of 64 bits.
const BALANCER: &str = r#"
import os
device, count, number = sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
cluster = P(lib.pfring_zc_create_cluster(number, 1536, 0, 4096, -1, None, 0))
devices = (c.c_void_p * 1)(lib.pfring_zc_open_device(cluster, device, 0, 0))
assert lib.pfring_zc_set_bpf_filter(P(devices[0]), b"udp dst port 9") == 0
queues = (c.c_void_p * 64)(*[pair(cluster, 64, 4)[0].value for _ in range(64)])
pool = P(lib.pfring_zc_create_buffer_pool(cluster, 8))
function = c.CFUNCTYPE(c.c_int64, c.c_void_p, c.c_void_p, c.c_void_p)
def last(buffer):
    return c.c_uint8.from_address(lib.pfring_zc_pkt_buff_data(c.c_void_p(buffer), None) + 53).value
keep = function(lambda buffer, queue, user: last(buffer) % 2)
choose = function(lambda buffer, queue, user: -1 if last(buffer) == 1 else last(buffer) % 64)
worker = P(lib.pfring_zc_run_balancer_v2(devices, queues, 1, 64, pool, 0, None, keep, None,
                                         choose, None, 0, -1))
print("ready", flush=True)
place = handle(cluster)
def take(first, expected):
    seen = []
    while len(seen) < expected:
        for at in range(first, 64):
            while lib.pfring_zc_recv_pkt(P(queues[at]), c.byref(place), 0) == 1:
                number = struct.unpack(">Q", get(place, P(queues[at]))[46:54])[0]
                seen.append((number, at))
    return seen
half = count // 2
assert sorted(take(0, half - 1)) == [(n, n % 64) for n in range(3, count, 2)]
lib.pfring_zc_kill_worker(worker)
# A child that closes the device does not close it for its parent.
child = os.fork()
if child == 0:
    lib.pfring_zc_close_device(P(devices[0]))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
# To the last of the queues, too.
multi = P(lib.pfring_zc_create_multi_queue(queues, 64))
mask = function(lambda buffer, queue, user: -1 << 63 | 1)
worker = P(lib.pfring_zc_run_fanout_v2(devices, multi, 1, pool, 0, None, keep, None, mask, None,
                                       0, -1))
print("again", flush=True)
assert [n for n, _ in take(63, half)] == list(range(1, count, 2))
assert stats(P(queues[0])) == [0, half, 0], stats(P(queues[0]))
lib.pfring_zc_kill_worker(worker)
lib.pfring_zc_close_device(P(devices[0]))
assert lib.pfring_zc_recv_pkt(P(devices[0]), c.byref(place), 0) < 0
lib.pfring_zc_destroy_cluster(cluster)
print("end", flush=True)
"#;

fn spawn(mut command: Command, dropin: &Dropin, text: &str, args: &[&str]) -> Process {
    command.args(["-c", &[HEAD, MORE, text].concat()]);
    command.arg(dropin.library()).args(args);
    command.stdin(Stdio::piped());
    Process::spawn_with_stdin(&mut command).unwrap()
}

fn wait(process: &Process, text: &str) {
    if let Err(error) = process.wait_stdout(text, LIMIT) {
        panic!("{text}: {error:#}: {}", process.stderr());
    }
}

/// The socket of a cluster, which an owner that fails leaves.
struct Socket(String);

impl Socket {
    /// Of a number from `first` on that no other test uses.
    fn new(first: u32) -> Self {
        Self((first + std::process::id() % 4_000_000).to_string())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/run/barewire/{}", self.0));
    }
}

#[test]
fn a_full_queue_counts_drops_and_keeps_what_killed_senders_sent() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let socket = Socket::new(300_000_000);
    let python = || Command::new("python3");
    let mut owner = spawn(python(), &dropin, OWNER, &[&socket.0]);
    let mut owner_in = owner.take_stdin().unwrap();
    wait(&owner, "ready");
    let mut reader = spawn(python(), &dropin, READER, &[&socket.0]);
    let mut reader_in = reader.take_stdin().unwrap();
    wait(&reader, "ready");
    owner_in.write_all(b"\n").unwrap();
    wait(&owner, "full ");
    let text = owner.stdout();
    let count = text.split("full ").nth(1).unwrap().trim().to_owned();
    reader_in
        .write_all(format!("\n{count}\n").as_bytes())
        .unwrap();
    wait(&reader, "received");
    owner_in.write_all(b"\n").unwrap();
    wait(&owner, "marked");
    reader_in.write_all(b"\n").unwrap();
    wait(&reader, "end");
    reader.wait(LIMIT).unwrap().checked().unwrap();
    let mut killed = spawn(python(), &dropin, SENDER, &[&socket.0]);
    wait(&killed, "full");
    killed.kill().unwrap();
    // The queue is still full, and its place is free.
    let mut next = spawn(python(), &dropin, SENDER, &[&socket.0, "1000"]);
    wait(&next, "sent");
    owner_in.write_all(b"\n").unwrap();
    wait(&owner, "end");
    owner.wait(LIMIT).unwrap().checked().unwrap();
    next.kill().unwrap();
}

#[test]
fn workers_with_a_filter_distribute_packets_over_many_queues() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: u64 = 100;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let command = pair.right.ns.command("python3");
    let count = COUNT.to_string();
    let socket = Socket::new(310_000_000);
    let args = [pair.right.ifname.as_str(), &count, &socket.0];
    let mut process = spawn(command, &dropin, BALANCER, &args);
    let (plan, out) = (Udp::between(&pair.left, &pair.right), sender(&pair.left));
    for stage in ["ready", "again"] {
        wait(&process, stage);
        for number in 0..COUNT {
            out.send(&plan.build(number, 100)).unwrap();
        }
    }
    process.wait(LIMIT).unwrap().checked().unwrap();
}
