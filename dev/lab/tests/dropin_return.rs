//! `libpcap.so` and `libpfring.so`: packets that programs send on a queue of a cluster go out by
//! its return path.

use lab::dropin::Dropin;
use lab::oracle::write_pcap;
use lab::packet::{Raw, Udp, number_of};
use lab::process::Process;
use lab::{Pair, Veth, require, skip};

use crate::cluster_live::{Cluster, FILTER, LIMIT, unique};

const COUNT: u64 = 500;

/// A cluster that reads the left end, and sends there what its readers send.
fn cluster(pair: &Pair, name: &str, has_return: bool) -> Cluster {
    let port = format!("afpacket:{}", pair.left.ifname);
    let both = [port.as_str(), FILTER, "--return", &port];
    let args = if has_return { &both[..] } else { &both[..2] };
    Cluster::start_in(&pair.left.ns, name, args)
}

/// Receives `count` packets of [`Udp`] at the right end; their numbers, in order.
fn numbers(socket: &Raw, count: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < count {
        let packet = socket.receive(LIMIT).unwrap();
        let packet = packet.unwrap_or_else(|| panic!("only {numbers:?}"));
        numbers.extend(number_of(&packet));
    }
    numbers
}

fn at_right(pair: &Pair) -> Raw {
    let right = &pair.right;
    right.ns.run(|| Raw::open(&right.ifname)).unwrap().unwrap()
}

/// bittwist sends by `pcap_sendpacket`.
#[test]
fn an_unmodified_program_sends_a_capture_through_a_cluster() {
    require!(skip::lab(), skip::program("bittwist", "bittwist"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let udp = Udp::between(&pair.left, &pair.right);
    let packets: Vec<_> = (0..COUNT).map(|number| udp.build(number, 100)).collect();
    let file = write_pcap(&packets).unwrap();
    let send = || {
        let mut command = dropin.with(pair.left.ns.command("bittwist"));
        let device = format!("ring:{name}");
        command.args(["-i", &device, "-m", "0"]).arg(file.path());
        Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
    };
    let with_return = cluster(&pair, &name, true);
    let socket = at_right(&pair);
    let finished = send();
    let expected: Vec<_> = (0..COUNT).collect();
    assert_eq!(numbers(&socket, COUNT), expected, "{finished:?}");
    let totals = with_return.stop();
    let sent = &totals["queues"][0]["sent"]["packets"];
    assert_eq!(sent.as_u64(), Some(COUNT), "{totals}");

    let without = cluster(&pair, &name, false);
    let finished = send();
    let text = format!("{}{}", finished.stdout, finished.stderr);
    let why = "Sending packets isn't supported on a cluster without a return path";
    assert!(text.contains(why), "{text}");
    without.stop();
}

/// Prints the results of sending a packet, one that is too long for a buffer, and of receiving.
const SENDER: &str = r#"
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.pfring_open.restype = ctypes.c_void_p
ring = ctypes.c_void_p(lib.pfring_open(sys.argv[2].encode(), 1500, 8))
assert ring.value
assert lib.pfring_enable_ring(ring) == 0
packet = bytes.fromhex(sys.argv[3])
for data in packet, packet, packet + bytes(20000):
    print(lib.pfring_send(ring, data, len(data), int(data != packet)))
print(lib.pfring_flush_tx_packets(ring))
lib.pfring_close(ring)
"#;

/// A packet that the device refuses is an error, on an interface as well.
#[test]
fn pfring_send_sends_through_a_cluster_and_returns_errors() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let packet = Udp::between(&pair.left, &pair.right).build(7, 100);
    let hex: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
    let send = |device: &str| {
        let mut command = pair.left.ns.command("python3");
        command.args(["-c", SENDER]).arg(dropin.library());
        command.args([device, &hex]);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        finished.checked().unwrap().stdout
    };
    // Names of PF_RING's clusters are numbers; this one no other test uses.
    let name = format!("{}7", std::process::id());
    let device = format!("zc:{name}@0");
    let socket = at_right(&pair);
    for device in [&pair.left.ifname, &format!("afxdp:{}", pair.left.ifname)] {
        assert_eq!(send(device), "100\n100\n-2\n0\n", "{device}");
        assert_eq!(numbers(&socket, 2), [7, 7], "{device}");
    }
    let with_return = cluster(&pair, &name, true);
    assert_eq!(send(&device), "100\n100\n-2\n0\n");
    assert_eq!(numbers(&socket, 2), [7, 7]);
    with_return.stop();
    let without = cluster(&pair, &name, false);
    assert_eq!(send(&device), "-7\n-7\n-7\n-7\n");
    without.stop();
}
