//! `libpfring.so`: masscan of the distribution scans with it; rings of several processes share a
//! cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::packet::Udp;
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};

use crate::afxdp::sender;

const LIMIT: Duration = Duration::from_secs(120);

/// 1,024 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/22";
const HOST_COUNT: usize = 1024;
const PORT: u16 = 8080;

/// A pair with these hosts.
fn network() -> Pair {
    let pair = Veth::new().create().unwrap();
    let route = ["route", "add", "local", HOSTS, "dev", "lo"];
    pair.right.ns.ip(route).unwrap();
    pair
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Runs masscan on the left end's `zc:` device through `prefix`; returns the addresses that it
/// found open.
fn masscan(pair: &Pair, dropin: &Dropin, prefix: &[&str]) -> BTreeSet<String> {
    let (left, right) = (&pair.left, &pair.right);
    let address = (std::net::Ipv4Addr::UNSPECIFIED, PORT);
    let listener = right
        .ns
        .run(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    let words = [prefix, &["masscan"]].concat();
    let mut command = dropin.with(left.ns.command(words[0]));
    command.args(&words[1..]);
    command.args([
        "-e",
        &format!("zc:{}", left.ifname),
        "-p",
        &PORT.to_string(),
        HOSTS,
    ]);
    command.args([
        "--source-ip",
        &left.ipv4.to_string(),
        "--source-mac",
        &mac(left.mac),
    ]);
    command.args([
        "--router-mac",
        &mac(right.mac),
        "--rate",
        "5000",
        "--wait",
        "5",
        "--retries",
        "2",
    ]);
    command.args(["-oL", "-"]);
    let mut process = Process::spawn(&mut command).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    drop(listener);
    let open = finished
        .stdout
        .lines()
        .filter(|line| line.starts_with("open tcp"));
    let address = |line: &str| line.split(' ').nth(3).unwrap().to_owned();
    open.map(address).collect()
}

#[test]
fn masscan_finds_every_open_port_by_af_xdp() {
    require!(skip::lab(), skip::program("masscan", "masscan"));
    let dropin = Dropin::pfring().unwrap();
    let pair = network();
    assert_eq!(masscan(&pair, &dropin, &[]).len(), HOST_COUNT);
    // The program is detached when the process ends.
    assert_eq!(pair.left.xdp().unwrap(), None);
}

#[test]
fn masscan_falls_back_to_a_tap_without_privileges_for_xdp() {
    require!(
        skip::lab(),
        skip::program("masscan", "masscan"),
        skip::program("setpriv", "util-linux")
    );
    let dropin = Dropin::pfring().unwrap();
    let pair = network();
    let without = ["setpriv", "--bounding-set", "-sys_admin,-bpf,-net_admin"];
    assert_eq!(masscan(&pair, &dropin, &without).len(), HOST_COUNT);
}

/// Receives on a ring of a cluster: prints `ready`, then a line for each UDP packet with its port
/// and number, and at the end of standard input the counters.
const MEMBER: &str = r#"
import ctypes, select, struct, sys
lib = ctypes.CDLL(sys.argv[1])
lib.pfring_open.restype = ctypes.c_void_p
ring = ctypes.c_void_p(lib.pfring_open(sys.argv[2].encode(), 1500, 8))
assert ring.value
if sys.argv[3]:
    assert lib.pfring_set_cluster(ring, 4711, int(sys.argv[3])) == 0
assert lib.pfring_set_direction(ring, 1) == 0
assert lib.pfring_set_bpf_filter(ring, b"udp") == 0
assert lib.pfring_enable_ring(ring) == 0
assert lib.pfring_set_poll_duration(ring, 20) == 0
print("ready", flush=True)
header = ctypes.create_string_buffer(209)
place = ctypes.c_void_p()
while True:
    code = lib.pfring_recv(ring, ctypes.byref(place), 0, header, 1)
    assert code in (0, 1), code
    if code == 1:
        caplen, length = struct.unpack_from("=II", header, 16)
        packet = ctypes.string_at(place.value, caplen)
        assert caplen == length
        print(struct.unpack_from("!H", packet, 34)[0], flush=True)
    elif select.select([sys.stdin], [], [], 0)[0]:
        break
stats = (ctypes.c_uint64 * 3)()
assert lib.pfring_stats(ring, stats) == 0
print("stats", *stats, flush=True)
lib.pfring_close(ring)
"#;

/// Odd, so that packets of one flow alternate between two rings.
const FLOW_COUNT: u16 = 63;
const PACKETS_PER_FLOW: u64 = 10;
/// `cluster_flow_5_tuple` and `cluster_round_robin` of `pf_ring.h`.
const BY_FLOW: &str = "4";
const ROUND_ROBIN: &str = "1";

struct Member {
    child: Child,
    received: Arc<AtomicU64>,
    reader: JoinHandle<Ended>,
}

/// The number of packets of each flow, and the counters.
type Ended = (BTreeMap<u16, u64>, Vec<u64>);

impl Member {
    fn start(pair: &Pair, dropin: &Dropin, device: &str, kind: &str) -> Member {
        let library = dropin.library();
        let mut command: Command = pair.right.ns.command("python3");
        command.args(["-c", MEMBER, library.to_str().unwrap(), device, kind]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        let reader = std::thread::spawn(move || read(lines, &count));
        Member {
            child,
            received,
            reader,
        }
    }

    fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let ended = self.reader.join().unwrap();
        assert!(self.child.wait().unwrap().success());
        ended
    }
}

/// Reads what a member prints; counts packets as they arrive.
fn read(lines: std::io::Lines<BufReader<ChildStdout>>, received: &AtomicU64) -> Ended {
    let (mut flows, mut counters) = (BTreeMap::new(), Vec::new());
    for line in lines {
        let line = line.unwrap();
        match line.strip_prefix("stats ") {
            Some(rest) => {
                counters.extend(rest.split(' ').map(|word| word.parse::<u64>().unwrap()));
            }
            None => {
                *flows.entry(line.parse().unwrap()).or_default() += 1;
                received.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    (flows, counters)
}

/// Waits until both have received all packets, and ends them.
fn end(members: [Member; 2]) -> [Ended; 2] {
    let all = u64::from(FLOW_COUNT) * PACKETS_PER_FLOW;
    let received = |member: &Member| member.received.load(Ordering::Relaxed);
    let until = Instant::now() + LIMIT;
    while members.iter().map(received).sum::<u64>() < all && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    members.map(Member::end)
}

/// Sends the packets of all flows.
fn send(pair: &Pair) {
    let out = sender(&pair.left);
    for number in 0..PACKETS_PER_FLOW {
        for flow in 0..FLOW_COUNT {
            let mut udp = Udp::between(&pair.left, &pair.right);
            udp.source_port = 10_000 + flow;
            out.send(&udp.build(number, 60)).unwrap();
        }
    }
}

/// Sends packets of many flows to two rings of one cluster, in two processes.
fn cluster(kind: &str) -> [BTreeMap<u16, u64>; 2] {
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let members = [0, 1].map(|_| Member::start(&pair, &dropin, &pair.right.ifname, kind));
    send(&pair);
    let ended = end(members);
    for (flows, counters) in &ended {
        let received: u64 = flows.values().sum();
        assert_eq!(*counters, [received, 0, 0]);
    }
    let flows = ended.map(|(flows, _)| flows);
    let sum = |flow| {
        flows
            .iter()
            .filter_map(|member| member.get(&flow))
            .sum::<u64>()
    };
    for flow in 10_000..10_000 + FLOW_COUNT {
        assert_eq!(sum(flow), PACKETS_PER_FLOW, "{flow}");
    }
    flows
}

#[test]
fn processes_of_a_cluster_share_flows_or_packets() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let [first, second] = cluster(BY_FLOW);
    assert!(
        first.keys().all(|flow| !second.contains_key(flow)),
        "{first:?} {second:?}"
    );
    assert!(
        !first.is_empty() && !second.is_empty(),
        "{first:?} {second:?}"
    );
    let [first, second] = cluster(ROUND_ROBIN);
    assert!(
        first.keys().any(|flow| second.contains_key(flow)),
        "{first:?} {second:?}"
    );
}

/// The socket of a cluster, which a test that fails would leave.
struct Socket(String);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A queue of a cluster of barewire has a name of PF_RING ZC: `zc:CLUSTER@QUEUE`.
#[test]
fn queues_of_a_cluster_are_opened_by_number() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let name = std::process::id().to_string();
    let _socket = Socket(format!("/run/barewire/{name}"));
    let args = [
        "cluster",
        "run",
        "--json",
        "--name",
        &name,
        &pair.right.ifname,
    ];
    let args = [&args[..], &["--queues", "2", "udp dst port 9"]].concat();
    let mut cluster = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    cluster
        .wait_stderr(&format!("open ring:{name}"), LIMIT)
        .unwrap();
    let members = [0, 1].map(|queue| {
        let device = format!("zc:{name}@{queue}");
        Member::start(&pair, &dropin, &device, "")
    });
    send(&pair);
    let [first, second] = end(members).map(|(flows, _)| flows);
    let all = u64::from(FLOW_COUNT) * PACKETS_PER_FLOW;
    assert_eq!(first.values().chain(second.values()).sum::<u64>(), all);
    assert!(
        first.keys().all(|flow| !second.contains_key(flow)),
        "{first:?} {second:?}"
    );
    cluster
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
}
