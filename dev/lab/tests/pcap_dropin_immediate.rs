//! Immediate mode of `libpcap.so`: packets are delivered at once, and are those of the original.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::oracle::TempFile;
use lab::packet::Udp;
use lab::process::Signal;
use lab::skip::which;
use lab::{Pair, Veth, require, skip};

use crate::afxdp::sender;
use crate::pcap_dropin_calls::{LIVE, START, original, run};
use crate::pcap_programs_live::{LIMIT, start};

/// Each packet is sent after the one before was received, with a timeout of a minute: if packets
/// waited for it, or for the second after which blocks are handed over at the latest, the rounds
/// would not end in time.
const AT_ONCE: &str = r#"
def immediate(name):
    p = V(lib.pcap_create(name.encode(), errors))
    lib.pcap_set_timeout(p, 60000); lib.pcap_set_immediate_mode(p, 1)
    assert lib.pcap_activate(p) >= 0, error(p)
    # Both ends are interfaces here: each packet is received once.
    assert lib.pcap_setdirection(p, 1) == 0, error(p)
    return p
SEEN = ctypes.CFUNCTYPE(None, V, ctypes.POINTER(Header), V)
count = 0
def seen(user, header, data):
    global count; count += 1
callback = SEEN(seen)
for name in here, "any":
    p = immediate(name); filtered(p, "ether proto 0x88b5")
    end = time.monotonic() + LIMIT
    for number in range(200):
        send(number)
        assert time.monotonic() < end, (name, number)
        say(one(p)[0], "packet at once")
    count = 0
    for number in range(50):
        send(number)
        while count <= number:
            assert time.monotonic() < end, (name, count)
            assert lib.pcap_dispatch(p, -1, callback, None) >= 0, error(p)
    say("dispatched", count)
    fd = lib.pcap_get_selectable_fd(p)
    lib.pcap_setnonblock(p, 1, errors)
    for number in range(50):
        send(number)
        say("readable", bool(select.select([fd], [], [], LIMIT)[0]), one(p)[0])
        say("empty", one(p)[0], bool(select.select([fd], [], [], 0)[0]))
    lib.pcap_setnonblock(p, 0, errors)
    # Another thread ends the wait.
    timer = threading.Timer(0.2, lambda: lib.pcap_breakloop(p)); timer.start()
    say("broken", lib.pcap_loop(p, -1, callback, None)); timer.join()
    lib.pcap_close(p)
"#;

#[test]
fn packets_are_delivered_at_once_in_immediate_mode() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, LIVE, AT_ONCE].concat();
    let theirs = run(&pair, &original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    assert_eq!(ours, theirs);
    assert_eq!(ours.matches("1 packet at once").count(), 400, "{ours}");
}

/// Lengths and bytes of the packets of a file that tcpdump is writing.
fn records(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let file = std::fs::read(path).unwrap_or_default();
    let mut rest = file.get(24..).unwrap_or_default();
    let mut records = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| head[at + n]));
        let Some((bytes, tail)) = tail.split_at_checked(word(8) as usize) else {
            break;
        };
        records.push((word(12), bytes.to_vec()));
        rest = tail;
    }
    records
}

/// Sends a stream from the left end to the right, whose segments cross the pair merged.
fn stream(pair: &Pair, len: usize) {
    let to = (pair.right.ipv4, 7070);
    let listener = pair.right.ns.run(|| TcpListener::bind(to)).unwrap();
    let listener = listener.unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received)
    });
    let connected = pair.left.ns.run(|| TcpStream::connect(to)).unwrap();
    connected.unwrap().write_all(&vec![0xa5; len]).unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), len);
}

#[test]
fn tcpdump_writes_the_packets_of_the_original_in_immediate_mode() {
    require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let veth = Veth::new().mtu(9000).offloads().vlan_offload();
    let pair = veth.create().unwrap();
    let program = which("tcpdump").unwrap();
    let mut running = Vec::new();
    for (device, snaplen) in [
        (pair.right.ifname.as_str(), "262144"),
        (&pair.right.ifname, "9014"),
        (&pair.right.ifname, "96"),
        (&pair.right.ifname, "14"),
        ("any", "262144"),
        ("any", "60"),
    ] {
        let both = [None, Some(&dropin)].map(|dropin| {
            let file = TempFile::new(".pcap");
            let path = file.path().to_str().unwrap();
            let mut args = vec!["--immediate-mode", "-U", "-Z", "root", "-i", device];
            // With enough room for all packets in frames of this length.
            args.extend(["-B", "32768", "-s", snaplen, "-w", path]);
            (start(&pair, dropin, &program, &args), file)
        });
        running.push((device, snaplen, both));
    }
    for (process, _) in running.iter().flat_map(|(.., both)| both) {
        process.wait_stderr("listening on", LIMIT).unwrap();
    }
    let out = sender(&pair.left);
    for (number, len) in (0..).zip([60, 61, 97, 500, 1514, 4000, 9014]) {
        for tag in [None, Some(7)] {
            let mut udp = Udp::between(&pair.left, &pair.right);
            udp.destination_mac[5] ^= 0x40;
            udp.vlan = tag;
            out.send(&udp.build(number, len)).unwrap();
        }
    }
    stream(&pair, 1_000_000);
    let mut last = Udp::between(&pair.left, &pair.right).build(99, 333);
    last[12..14].copy_from_slice(&[0x88, 0xb5]);
    out.send(&last).unwrap();
    for (device, snaplen, both) in running {
        let [theirs, ours] = both.map(|(mut process, file)| {
            let until = Instant::now() + LIMIT;
            // Cooked headers have another length.
            let is_last = |(len, _): &(u32, Vec<u8>)| (333..=339).contains(len);
            while !records(file.path()).last().is_some_and(is_last) {
                assert!(Instant::now() < until, "{}", process.stderr());
                std::thread::sleep(Duration::from_millis(5));
            }
            let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
            let lost = "\n0 packets dropped by kernel";
            assert!(finished.stderr.contains(lost), "{}", finished.stderr);
            records(file.path())
        });
        let longest = theirs.iter().map(|(len, _)| *len).max().unwrap();
        assert!(longest > 30_000, "no merged packet: {longest} bytes");
        let lens = |records: &[(u32, Vec<u8>)]| -> Vec<(u32, usize)> {
            let lens = records.iter().map(|(len, bytes)| (*len, bytes.len()));
            lens.collect()
        };
        // Each direction is sent from a processor of its own, and records have no direction: only
        // the packets are compared, not their order.
        let [ours, theirs] = [ours, theirs].map(|mut records| {
            records.sort();
            records
        });
        assert_eq!(lens(&ours), lens(&theirs), "{device} {snaplen}");
        assert!(ours == theirs, "{device} {snaplen}");
    }
}
