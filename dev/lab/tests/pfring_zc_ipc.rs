//! `libpfring.so`: queues of a PF_RING ZC cluster that other processes attach to, by the calls of
//! PF_RING's examples: `zbalance_ipc` and `zfanout_ipc` own a cluster, `zcount_ipc` receives,
//! `zpipeline_ipc` receives and sends.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::packet::{Addresses, Udp};
use lab::process::Process;
use lab::{Pair, Veth, require, skip};

use crate::afxdp::sender;
use crate::pfring_zc::HEAD;

const LIMIT: Duration = Duration::from_secs(60);

/// As `zbalance_ipc` and `zfanout_ipc`: distributes the packets of a device over queues that other
/// processes receive from, until its standard input ends. Arguments: device, cluster, number of
/// queues, and whether each queue receives everything.
const OWNER: &str = r#"
device, number, count = sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
cluster = P(lib.pfring_zc_create_cluster(number, 1536, 0, 65536, -1, None))
assert not lib.pfring_zc_create_cluster(number, 1536, 0, 64, -1, None)
devices = (c.c_void_p * 1)(lib.pfring_zc_open_device(cluster, device, 0, 0))
assert lib.pfring_zc_set_bpf_filter(P(devices[0]), b"udp dst port 9") == 0
queues = (c.c_void_p * count)(*[lib.pfring_zc_create_queue(cluster, 8192) for _ in range(count)])
pools = [P(lib.pfring_zc_create_buffer_pool(cluster, 9)) for _ in range(count)]
pool = P(lib.pfring_zc_create_buffer_pool(cluster, 8))
if sys.argv[5] == "fanout":
    multi = P(lib.pfring_zc_create_multi_queue(queues, count))
    worker = P(lib.pfring_zc_run_fanout(devices, multi, 1, pool, 0, None, None, None, 0, -1))
else:
    worker = P(lib.pfring_zc_run_balancer(devices, queues, 1, count, pool, 0, None, None, None,
                                          0, -1))
print("ready", flush=True)
sys.stdin.read()
lib.pfring_zc_kill_worker(worker)
assert stats(P(devices[0]))[2] == 0
# Until the last packets were received.
import time
for _ in range(6000):
    if all(stats(P(queue))[0] == stats(P(queue))[1] for queue in queues):
        break
    time.sleep(0.01)
for queue in queues:
    print("queue", *stats(P(queue)), flush=True)
lib.pfring_zc_destroy_cluster(cluster)
print("end", flush=True)
"#;

/// As `zcount_ipc`: prints the number and the last bytes of both addresses of each packet, and at
/// the end what `recv_pkt` returned.
const CONSUMER: &str = r#"
number, which = int(sys.argv[2]), int(sys.argv[3])
assert not lib.pfring_zc_ipc_attach_queue(number, 999, 0)
assert not lib.pfring_zc_ipc_attach_queue(number, which, 7)
assert not lib.pfring_zc_ipc_attach_queue(4000000001, which, 0)
assert not lib.pfring_zc_ipc_attach_buffer_pool(4000000001, 0)
queue = P(lib.pfring_zc_ipc_attach_queue(number, which, 0))
# It is taken, also for this process.
assert not lib.pfring_zc_ipc_attach_queue(number, which, 0)
assert lib.pfring_zc_get_queue_id(queue) == which
place = c.c_void_p(lib.pfring_zc_get_packet_handle_from_pool(
    P(lib.pfring_zc_ipc_attach_buffer_pool(number, which))))
print("ready", flush=True)
while True:
    code = lib.pfring_zc_recv_pkt(queue, c.byref(place), 1)
    if code < 0:
        break
    if code == 1:
        packet = get(place, queue)
        print("packet", struct.unpack(">Q", packet[46:54])[0], packet[29], packet[33], flush=True)
print("gone", code, flush=True)
lib.pfring_zc_ipc_detach_queue(queue)
"#;

/// As `zpipeline_ipc`: receives from one queue, and sends to another.
const STAGE: &str = r#"
number, source, target = map(int, sys.argv[2:5])
rx = P(lib.pfring_zc_ipc_attach_queue(number, source, 0))
tx = P(lib.pfring_zc_ipc_attach_queue(number, target, 1))
assert not lib.pfring_zc_ipc_attach_queue(number, target, 1)
place = c.c_void_p(lib.pfring_zc_get_packet_handle_from_pool(
    P(lib.pfring_zc_ipc_attach_buffer_pool(number, 0))))
assert lib.pfring_zc_recv_pkt(tx, c.byref(place), 0) < 0
print("ready", flush=True)
while True:
    code = lib.pfring_zc_recv_pkt(rx, c.byref(place), 1)
    if code < 0:
        break
    while code == 1 and lib.pfring_zc_send_pkt(tx, c.byref(place), 0) == -1:
        pass
lib.pfring_zc_ipc_detach_queue(tx)
print("gone", code, flush=True)
"#;

/// The owner of a pipeline: sends packets to its first queue, and receives them from its last one.
const PIPELINE: &str = r#"
number, count = int(sys.argv[2]), int(sys.argv[3])
cluster = P(lib.pfring_zc_create_cluster(number, 9000, 0, 8192, -1, None))
queues = [P(lib.pfring_zc_create_queue(cluster, 256)) for _ in range(3)]
out, into = handle(cluster), handle(cluster)
print("ready", flush=True)
sys.stdin.readline()
sent, seen = 0, 0
while seen < count:
    if sent < count:
        # Longer than a frame of the shared memory, now and then.
        put(out, queues[0], struct.pack(">I", sent) * (15 if sent % 7 else 2200))
        sent += lib.pfring_zc_send_pkt(queues[0], c.byref(out), 0) > 0
    while lib.pfring_zc_recv_pkt(queues[2], c.byref(into), 0) == 1:
        packet = get(into, queues[2])
        assert packet == struct.pack(">I", seen) * (15 if seen % 7 else 2200), seen
        seen += 1
assert stats(queues[0])[0] == count and stats(queues[1])[:2] == [count, count]
assert stats(queues[2])[:2] == [count, count]
print("received", seen, flush=True)
sys.stdin.read()
"#;

/// A program, the number of its cluster, and the cluster's socket, which a killed owner leaves.
struct Owner {
    process: Process,
    number: String,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/run/barewire/{}", self.number));
    }
}

/// A number that no other test uses.
fn number() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    (1_000_000 + std::process::id() % 4_000_000 * 64 + next).to_string()
}

fn spawn(mut command: Command, dropin: &Dropin, text: &str, args: &[&str]) -> Process {
    command.args(["-c", &format!("{HEAD}{text}")]);
    command.arg(dropin.library()).args(args);
    command.stdin(Stdio::piped());
    let process = Process::spawn_with_stdin(&mut command).unwrap();
    process.wait_stdout("ready", LIMIT).unwrap();
    process
}

impl Owner {
    fn start(pair: &Pair, dropin: &Dropin, count: &str, kind: &str) -> Owner {
        let (end, number) = (&pair.right, number());
        let command = end.ns.command("python3");
        let args = [end.ifname.as_str(), &number, count, kind];
        let process = spawn(command, dropin, OWNER, &args);
        Owner { process, number }
    }

    fn consumer(&self, dropin: &Dropin, queue: &str) -> Process {
        let python = Command::new("python3");
        spawn(python, dropin, CONSUMER, &[&self.number, queue])
    }

    /// Ends it in order; returns the counters of its queues.
    fn end(mut self) -> Vec<[u64; 3]> {
        drop(self.process.take_stdin());
        let finished = self.process.wait(LIMIT).unwrap().checked().unwrap();
        assert!(finished.stdout.ends_with("end\n"), "{finished:?}");
        let lines = finished.stdout.lines();
        let queues = lines.filter_map(|line| line.strip_prefix("queue "));
        queues.map(|line| words(line).try_into().unwrap()).collect()
    }
}

fn words(line: &str) -> Vec<u64> {
    line.split(' ').map(|word| word.parse().unwrap()).collect()
}

/// What a consumer received so far: number of the packet, and both hosts.
fn received(consumer: &Process) -> Vec<(u64, [u64; 2])> {
    let text = consumer.stdout();
    // The last line may not be complete.
    let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    let packets = whole
        .lines()
        .filter_map(|line| line.strip_prefix("packet "));
    let packet = |line: &str| {
        let [number, one, other] = words(line).try_into().unwrap();
        (number, [one.min(other), one.max(other)])
    };
    packets.map(packet).collect()
}

/// Sends packets of 40 pairs of hosts in turn, in both directions.
fn send(pair: &Pair, numbers: std::ops::Range<u64>) {
    let out = sender(&pair.left);
    for number in numbers {
        let host = (number % 40) as u8;
        let (one, other) = ([198, 18, 1, host], [198, 18, 2, host / 4 + 100]);
        let (mut one, mut other) = (Ipv4Addr::from(one), Ipv4Addr::from(other));
        if number / 40 % 2 == 1 {
            std::mem::swap(&mut one, &mut other);
        }
        let mut udp = Udp::between(&pair.left, &pair.right);
        udp.addresses = Addresses::V4(one, other);
        out.send(&udp.build(number, 100)).unwrap();
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn total(consumers: &[Process]) -> usize {
    consumers.iter().map(|it| received(it).len()).sum()
}

fn check_gone(mut consumer: Process) {
    let finished = consumer.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains("gone -"), "{finished:?}");
}

/// Garbage from whoever can connect to the socket.
fn disturb(number: &str) {
    for garbage in [&b""[..], &[0; 52], &[0xff; 4000]] {
        let path = format!("/run/barewire/{number}");
        let mut socket = UnixStream::connect(path).unwrap();
        // The owner may have closed it.
        let _ = socket.write_all(garbage);
    }
}

#[test]
fn processes_attach_to_the_queues_of_a_balancer() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: u64 = 2_000;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let owner = Owner::start(&pair, &dropin, "3", "balance");
    disturb(&owner.number);
    // These wait in the queues until a process attaches.
    send(&pair, 0..COUNT / 2);
    let consumers = ["0", "1", "2"].map(|queue| owner.consumer(&dropin, queue));
    wait_until("the first half", || total(&consumers) as u64 == COUNT / 2);
    disturb(&owner.number);
    send(&pair, COUNT / 2..COUNT);
    wait_until("all packets", || total(&consumers) as u64 == COUNT);
    let all = consumers.each_ref().map(received);
    let numbers: BTreeSet<u64> = all.iter().flatten().map(|(number, _)| *number).collect();
    assert_eq!(numbers.len() as u64, COUNT, "each once");
    let mut queue_of = BTreeMap::new();
    for (at, packets) in all.iter().enumerate() {
        assert!(!packets.is_empty());
        assert!(packets.is_sorted_by_key(|(number, _)| *number), "in order");
        for (_, hosts) in packets {
            assert_eq!(*queue_of.entry(*hosts).or_insert(at), at, "{hosts:?}");
        }
    }
    let counters = owner.end();
    for (packets, counters) in all.iter().zip(counters) {
        let count = packets.len() as u64;
        assert_eq!(counters, [count, count, 0]);
    }
    consumers.into_iter().for_each(check_gone);
}

/// Of a consumer that is killed, at most the packet in its hands is lost; the next one continues,
/// and the others do not notice.
#[test]
fn a_killed_consumer_loses_at_most_one_packet() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const PART: u64 = 1_000;
    const KILLS: u64 = 5;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let owner = Owner::start(&pair, &dropin, "2", "balance");
    let other = owner.consumer(&dropin, "1");
    let mut seen = BTreeSet::new();
    let mut sent = 0;
    for _ in 0..KILLS {
        let mut killed = owner.consumer(&dropin, "0");
        send(&pair, sent..sent + PART);
        sent += PART;
        wait_until("some packets", || !received(&killed).is_empty());
        killed.kill().unwrap();
        for (number, _) in received(&killed) {
            assert!(seen.insert(number), "packet {number} was received twice");
        }
    }
    let last = owner.consumer(&dropin, "0");
    let missing = |last: &Process| {
        sent - seen.len() as u64 - received(last).len() as u64 - received(&other).len() as u64
    };
    wait_until("the other packets", || missing(&last) <= KILLS);
    for (number, _) in received(&last) {
        assert!(seen.insert(number), "packet {number} was received twice");
    }
    for counters in owner.end() {
        assert_eq!((counters[0], counters[2]), (counters[1], 0));
    }
    check_gone(last);
    check_gone(other);
}

#[test]
fn each_queue_of_a_fan_out_receives_every_packet() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: u64 = 500;
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let mut owner = Owner::start(&pair, &dropin, "2", "fanout");
    let consumers = ["0", "1"].map(|queue| owner.consumer(&dropin, queue));
    send(&pair, 0..COUNT);
    wait_until("all packets", || total(&consumers) as u64 == 2 * COUNT);
    for consumer in &consumers {
        let numbers = received(consumer).into_iter().map(|(number, _)| number);
        assert!(numbers.eq(0..COUNT));
    }
    // An owner that is killed is reported to both, and can be started again.
    owner.process.kill().unwrap();
    consumers.into_iter().for_each(check_gone);
    let args = [pair.right.ifname.as_str(), &owner.number, "1", "balance"];
    let command = pair.right.ns.command("python3");
    owner.process = spawn(command, &dropin, OWNER, &args);
    let consumer = owner.consumer(&dropin, "0");
    send(&pair, 0..COUNT);
    wait_until("all packets again", || {
        received(&consumer).len() as u64 == COUNT
    });
    assert_eq!(owner.end(), [[COUNT, COUNT, 0]]);
    check_gone(consumer);
}

#[test]
fn packets_pass_through_a_pipeline_of_three_processes() {
    require!(skip::lab(), skip::program("python3", "python3"));
    const COUNT: &str = "3000";
    let dropin = Dropin::pfring().unwrap();
    let number = number();
    let python = || Command::new("python3");
    let process = spawn(python(), &dropin, PIPELINE, &[&number, COUNT]);
    let mut owner = Owner { process, number };
    let stages = [["0", "1"], ["1", "2"]].map(|[source, target]| {
        let args = [owner.number.as_str(), source, target];
        spawn(python(), &dropin, STAGE, &args)
    });
    let mut stdin = owner.process.take_stdin().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let expected = format!("received {COUNT}");
    if let Err(error) = owner.process.wait_stdout(&expected, LIMIT) {
        panic!("{error:#}: {}", owner.process.stderr());
    }
    owner.process.kill().unwrap();
    stages.into_iter().for_each(check_gone);
}
