//! `libpfring.so`: clusters by two fields, the addresses of a packet, over several processes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::packet::{Addresses, Raw, Udp};
use lab::process::Process;
use lab::{Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// `cluster_per_flow_2_tuple` and `cluster_per_flow_tcp_5_tuple` of `pf_ring.h`.
const BY_ADDRESSES: &str = "2";
const BY_TCP_FLOW: &str = "5";
const HOST_COUNT: u8 = 40;

/// Receives on a ring of a cluster: prints `ready`, then a line for each packet between the hosts,
/// with its round and the last bytes of both addresses. Ends with its standard input.
const MEMBER: &str = r#"
import ctypes, select, struct, sys
lib = ctypes.CDLL(sys.argv[1])
lib.pfring_open.restype = ctypes.c_void_p
ring = ctypes.c_void_p(lib.pfring_open(sys.argv[2].encode(), 1500, 8))
assert ring.value
assert lib.pfring_set_cluster(ring, 4714, int(sys.argv[3])) == 0
assert lib.pfring_enable_ring(ring) == 0
assert lib.pfring_set_poll_duration(ring, 20) == 0
print("ready", flush=True)
header = ctypes.create_string_buffer(209)
place = ctypes.c_void_p()
while True:
    code = lib.pfring_recv(ring, ctypes.byref(place), 0, header, 1)
    assert code in (0, 1), code
    if code == 1:
        packet = ctypes.string_at(place.value, struct.unpack_from("=I", header, 16)[0])
        ip = packet[18:] if packet[12:14] == b"\x81\x00" else packet[14:]
        if ip[0] == 0x45 and ip[12:14] == bytes([198, 18]):
            number, hosts = struct.unpack_from("!H", ip, 4)[0], sorted((ip[15], ip[19]))
            print("packet", number, *hosts, flush=True)
    elif select.select([sys.stdin], [], [], 0)[0]:
        break
stats = (ctypes.c_uint64 * 3)()
assert lib.pfring_stats(ring, stats) == 0 and stats[1] == 0, list(stats)
lib.pfring_close(ring)
print("end", flush=True)
"#;

struct Member(Process);

/// How many packets each pair of hosts sent, in one round.
type Pairs = BTreeMap<(u8, u8), u32>;

impl Member {
    fn start(pair: &Pair, dropin: &Dropin) -> Member {
        Self::of(pair, dropin, BY_ADDRESSES)
    }

    fn of(pair: &Pair, dropin: &Dropin, kind: &str) -> Member {
        let mut command = pair.right.ns.command("python3");
        command.args(["-c", MEMBER]).arg(dropin.library());
        command.args([&pair.right.ifname, kind]);
        command.stdin(Stdio::piped());
        let process = Process::spawn_with_stdin(&mut command).unwrap();
        process.wait_stdout("ready", LIMIT).unwrap();
        Member(process)
    }

    /// The packets of a round that it has received so far.
    fn received(&self, round: u16) -> Pairs {
        let mut pairs = Pairs::new();
        let text = self.0.stdout();
        // The last line may not be complete.
        let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["packet", of, one, other] = words[..]
                && of == round.to_string()
            {
                let pair = (one.parse().unwrap(), other.parse().unwrap());
                *pairs.entry(pair).or_default() += 1;
            }
        }
        pairs
    }

    fn end(mut self) {
        drop(self.0.take_stdin());
        let finished = self.0.wait(LIMIT).unwrap().checked().unwrap();
        assert!(finished.stdout.ends_with("end\n"), "{finished:?}");
    }
}

/// Packets between a host and its neighbour: both directions, other ports in each, one with a VLAN
/// tag, and a fragment, which has no ports.
fn packets(pair: &Pair, round: u16, host: u8) -> Vec<Vec<u8>> {
    let (one, other) = ([198, 18, 1, host], [198, 18, 2, host + 100]);
    let (one, other) = (Ipv4Addr::from(one), Ipv4Addr::from(other));
    let mut udp = Udp::between(&pair.left, &pair.right);
    udp.addresses = Addresses::V4(one, other);
    let forth = udp.build(u64::from(round), 100);
    udp.vlan = Some(9);
    let tagged = udp.build(u64::from(round), 100);
    udp.vlan = None;
    udp.addresses = Addresses::V4(other, one);
    udp.source_port += u16::from(host);
    let back = udp.build(u64::from(round), 100);
    let mut fragment = forth.clone();
    fragment[20..22].copy_from_slice(&[0x20, 7]);
    vec![forth, tagged, back, fragment]
}

/// Sends the packets of all hosts, and waits until the members have received them. Each pair of
/// hosts belongs to one member; returns the pairs of each.
fn round(pair: &Pair, number: u16, members: &[&Member]) -> Vec<BTreeSet<(u8, u8)>> {
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    let mut count = 0;
    for host in 1..=HOST_COUNT {
        for packet in packets(pair, number, host) {
            sender.send(&packet).unwrap();
            count += 1;
        }
    }
    let read = || -> Vec<Pairs> { members.iter().map(|it| it.received(number)).collect() };
    let sum = |all: &[Pairs]| all.iter().flat_map(Pairs::values).sum::<u32>();
    let until = Instant::now() + LIMIT;
    while sum(&read()) < count && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let all = read();
    assert_eq!(sum(&all), count, "round {number}: {all:?}");
    for (hosts, packets) in all.iter().flatten() {
        assert_eq!(*packets, 4, "round {number}: hosts {hosts:?} are split");
    }
    all.into_iter()
        .map(|pairs| pairs.into_keys().collect())
        .collect()
}

#[test]
fn a_cluster_by_addresses_keeps_the_packets_of_two_hosts_together() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let mut first = Member::start(&pair, &dropin);
    let second = Member::start(&pair, &dropin);
    let before = round(&pair, 1, &[&first, &second]);
    assert!(before.iter().all(|hosts| !hosts.is_empty()), "{before:?}");
    // Nothing changes while the members are the same.
    assert_eq!(round(&pair, 2, &[&first, &second]), before);
    let third = Member::start(&pair, &dropin);
    let three = round(&pair, 3, &[&first, &second, &third]);
    assert!(three.iter().all(|hosts| !hosts.is_empty()), "{three:?}");
    // A member that is killed leaves the cluster; the others receive everything.
    first.0.kill().unwrap();
    let two = round(&pair, 4, &[&second, &third]);
    assert!(two.iter().all(|hosts| !hosts.is_empty()), "{two:?}");
    second.end();
    let alone = round(&pair, 5, &[&third]);
    assert_eq!(alone[0].len(), usize::from(HOST_COUNT));
    third.end();
}

/// Of UDP, PF_RING uses the addresses only.
#[test]
fn a_cluster_by_tcp_flow_keeps_udp_packets_of_two_hosts_together() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::pfring().unwrap();
    let pair = Veth::new().create().unwrap();
    let members = [0, 1].map(|_| Member::of(&pair, &dropin, BY_TCP_FLOW));
    let both = round(&pair, 1, &members.each_ref());
    assert!(both.iter().all(|hosts| !hosts.is_empty()), "{both:?}");
    members.into_iter().for_each(Member::end);
}
