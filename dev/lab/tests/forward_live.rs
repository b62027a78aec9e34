//! `barewire forward` between two veth pairs: real stacks and real programs at both ends.

use std::time::{Duration, Instant};

use crate::forward::{LIMIT, Path, X, Y, number};
use lab::oracle::tcpdump::Capture;
use lab::oracle::{TempFile, read_pcap, write_pcap};
use lab::packet::{Raw, Udp, number_of};
use lab::process::{Signal, barewire};
use lab::{Veth, skip};

fn names(scheme: &str) -> [String; 2] {
    [X, Y].map(|name| format!("{scheme}:{name}"))
}

/// Matches the packets of these tests; their receiver answers with port unreachable.
const FILTER: &str = "udp dst port 9";

/// What arrives at B while `body` runs, once `count` packets have arrived.
fn received(path: &Path, count: usize, filter: &str, body: impl FnOnce()) -> Vec<Vec<u8>> {
    let file = TempFile::new(".pcap");
    let capture = Capture::start(&path.b().ns, &path.b().ifname, file.path(), filter).unwrap();
    body();
    // tcpdump drops at SIGINT what it has not read: wait until it has everything.
    for _ in 0..500 {
        if read_pcap(file.path()).unwrap().len() >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    capture.stop().unwrap();
    read_pcap(file.path()).unwrap()
}

/// Numbered packets from A to B, of all lengths up to `len_max`.
fn packets(path: &Path, count: u64, len_max: u64) -> Vec<Vec<u8>> {
    let plan = Udp::between(path.a(), path.b()).flows(16);
    let len = |number: u64| 60 + number * 37 % (len_max - 59);
    (0..count)
        .map(|number| plan.build(number, len(number) as usize))
        .collect()
}

/// Sends from A at a rate without loss.
fn replay(path: &Path, packets: &[Vec<u8>]) {
    let file = write_pcap(packets).unwrap();
    let name = file.path().to_str().unwrap();
    let args = ["send", name, &path.a().ifname, "--rate", "20kpps"];
    let ns = &path.a().ns;
    let mut process = ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
}

fn assert_same(got: &[Vec<u8>], expected: &[Vec<u8>]) {
    assert_eq!(got.len(), expected.len(), "packets received");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "packet {index}");
    }
}

#[test]
fn ping_and_tcp_pass_through_without_a_copy() {
    lab::require!(
        skip::lab(),
        skip::program("ping", "iputils-ping"),
        skip::program("curl", "curl"),
        skip::program("python3", "python3")
    );
    for options in ["attach=native", "attach=generic"] {
        let path = Path::new(&Veth::new());
        let [x, y] = names("afxdp").map(|name| format!("{name}?{options}"));
        let forward = path.forward(&[&x, &y, "--both"]);
        let address = path.b().ipv4.to_string();
        let ping = path.a().ns.exec("ping", ["-c20", "-i0.02", &address]);
        let ping = ping.unwrap();
        assert!(ping.contains(" 20 received"), "{ping}");
        // A file of 20 MB over TCP, through the queues of both directions at once.
        let folder = std::env::temp_dir().join(format!("bw-forward-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let content: Vec<u8> = (0..20_000_000u32).map(|at| (at * 7 / 5) as u8).collect();
        std::fs::write(folder.join("file"), &content).unwrap();
        let mut server = path.b().ns.command("python3");
        server
            .args(["-m", "http.server", "8000"])
            .current_dir(&folder);
        let server = lab::Process::spawn(&mut server).unwrap();
        let copy = folder.join("copy");
        let url = format!("http://{address}:8000/file");
        let args = [
            "-sS",
            "--retry",
            "20",
            "--retry-connrefused",
            "--retry-delay",
            "1",
            "-o",
        ];
        let args = args.iter().copied().chain([copy.to_str().unwrap(), &url]);
        path.a().ns.exec("curl", args).unwrap();
        drop(server);
        let same = std::fs::read(&copy).unwrap() == content;
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(same, "the file has changed on its way");
        let reported = forward.stop();
        for way in reported["directions"].as_array().unwrap() {
            assert_eq!(way["copied"], 0, "{reported}");
            // Twenty echoes and the connection; the number of acknowledgments depends on TCP.
            assert!(number(&way["forwarded"]) > 20, "{reported}");
            assert_eq!(
                (&way["failed"], &way["dropped"]["tx_full"]),
                (&0.into(), &0.into())
            );
        }
    }
}

#[test]
fn a_replay_arrives_byte_for_byte_and_in_order() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    for mtu in [1500, 9000] {
        let path = Path::new(&Veth::new().mtu(mtu));
        let sent = packets(&path, 4_000, u64::from(mtu) + 14);
        let [x, y] = names("afxdp");
        let forward = path.forward(&[&x, &y]);
        let got = received(&path, sent.len(), FILTER, || replay(&path, &sent));
        assert_same(&got, &sent);
        let reported = forward.stop();
        let way = &reported["directions"][0];
        assert_eq!(
            (&way["forwarded"], &way["copied"]),
            (&4_000.into(), &0.into())
        );
    }
}

#[test]
fn every_pair_of_ports_forwards() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let path = Path::new(&Veth::new());
    let sent = packets(&path, 1_000, 1_514);
    for [x, y] in [
        [format!("afpacket:{X}"), format!("afpacket:{Y}")],
        [format!("afpacket:{X}"), format!("afxdp:{Y}")],
        [format!("afxdp:{X}"), format!("afpacket:{Y}")],
        [format!("afxdp:{X}"), format!("xdplive:{Y}")],
        [X.to_owned(), Y.to_owned()],
    ] {
        if y.starts_with("xdplive") {
            // XDP frames are accepted only if the peer polls. Before, the link was down.
            path.b().set_gro(false).unwrap();
            path.b().set_gro(true).unwrap();
        }
        let forward = path.forward(&[&x, &y]);
        let got = received(&path, sent.len(), FILTER, || replay(&path, &sent));
        assert_same(&got, &sent);
        assert!(
            forward.process.stderr().contains("is a tap") != x.starts_with("afxdp"),
            "{}",
            forward.process.stderr()
        );
        let reported = forward.stop();
        let way = &reported["directions"][0];
        assert_eq!(
            (&way["forwarded"], &way["copied"], &way["sent"]),
            (&1_000.into(), &1_000.into(), &1_000.into()),
            "{x} to {y}: {reported}"
        );
    }
    // From a file, and into one.
    let input = write_pcap(&sent).unwrap();
    let output = TempFile::new(".pcap");
    let [x, y] = names("afxdp");
    let got = received(&path, sent.len(), FILTER, || {
        let reported = path.forward(&[input.path().to_str().unwrap(), &y]).wait();
        assert_eq!(reported["ended"], "input", "{reported}");
    });
    assert_same(&got, &sent);
    let forward = path.forward(&[&x, output.path().to_str().unwrap(), "--count", "1000"]);
    replay(&path, &sent);
    let reported = forward.wait();
    assert_eq!(
        (&reported["ended"], &reported["directions"][0]["sent"]),
        (&"count".into(), &1_000.into())
    );
    let copy = TempFile::new(".pcap");
    let args = ["-r", output.path().to_str().unwrap(), "-Z", "root", "-w"];
    let args = args.into_iter().chain([copy.path().to_str().unwrap()]);
    path.ns().exec("tcpdump", args).unwrap();
    assert_same(&read_pcap(copy.path()).unwrap(), &sent);
}

#[test]
fn packets_that_do_not_match_stay_with_the_host() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let path = Path::new(&Veth::new());
    let sent = packets(&path, 1_600, 200);
    let port = |packet: &Vec<u8>| u16::from_be_bytes([packet[34], packet[35]]);
    let wanted: Vec<_> = sent
        .iter()
        .filter(|packet| port(packet) == 4_003)
        .cloned()
        .collect();
    assert_eq!(wanted.len(), 100);
    for (scheme, in_kernel) in [("afxdp", true), ("afpacket", false)] {
        let [x, y] = names(scheme);
        let forward = path.forward(&[&x, &y, "udp", "src", "port", "4003"]);
        let got = received(&path, wanted.len(), FILTER, || replay(&path, &sent));
        assert_same(&got, &wanted);
        let reported = forward.stop();
        assert_eq!(reported["directions"][0]["forwarded"], 100, "{reported}");
        if in_kernel {
            assert_eq!(
                reported["ports"][0]["account"]["total"]["passed"], 1_500,
                "{reported}"
            );
        }
    }
}

#[test]
fn several_queues_forward_with_a_thread_per_transmit_queue() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let path = Path::new(&Veth::new().queues(2));
    let [x, y] = names("afxdp");
    let single = format!("{y}/0");
    for (to, threads) in [(&y, "2 threads"), (&single, "1 thread")] {
        let sent = packets(&path, 3_000, 300);
        let forward = path.forward(&[&x, to]);
        assert!(
            forward.process.stderr().contains(threads),
            "{}",
            forward.process.stderr()
        );
        let mut got = received(&path, sent.len(), FILTER, || replay(&path, &sent));
        // Each flow is in order; flows of different queues are not.
        got.sort_by_key(|packet| number_of(packet).unwrap());
        assert_same(&got, &sent);
        let reported = forward.stop();
        assert_eq!(reported["directions"][0]["forwarded"], 3_000, "{reported}");
    }
}

#[test]
fn overload_drops_are_accounted_for() {
    lab::require!(skip::lab());
    let path = Path::new(&Veth::new());
    let [x, y] = names("afxdp").map(|name| format!("{name}?ring=64"));
    for idle in ["gather", "spin"] {
        let before = path.b().counters().unwrap();
        let forward = path.forward(&[&x, &y, "--idle", idle]);
        let to = path.b().ipv4.to_string();
        let mac = path.b().mac.map(|byte| format!("{byte:02x}")).join(":");
        let args = [
            "send",
            "--udp",
            &path.a().ifname,
            "--dst",
            &to,
            "--dst-mac",
            &mac,
        ];
        let args = [&args[..], &["--rate", "max", "--duration", "2", "--json"]].concat();
        let ns = &path.a().ns;
        let mut sender = ns.spawn(barewire().unwrap(), args).unwrap();
        // What the interface refuses at this rate gives exit code 1, and is in its output.
        let sender = sender.wait(LIMIT).unwrap();
        let sender: serde_json::Value = serde_json::from_str(&sender.stdout).unwrap();
        let reported = forward.stop();
        let total = &reported["ports"][0]["account"]["total"];
        // Everything sent by A was seen here, and everything sent here arrived at B.
        assert_eq!(total["seen"], sender["packets"], "{reported}");
        let way = &reported["directions"][0];
        let after = path.b().counters().unwrap().since(&before);
        assert_eq!(
            number(&way["sent"]),
            after.rx_packets + after.rx_dropped,
            "{reported}"
        );
        // How many depends on the load of the machine.
        assert!(number(&way["forwarded"]) > 0, "{reported}");
        let lost = number(&total["dropped"]["ring_full"]) + number(&total["dropped"]["fill_empty"]);
        println!(
            "{idle}: {} of {} forwarded, {lost} lost",
            way["forwarded"], total["seen"]
        );
    }
}

#[test]
fn a_killed_forward_leaves_both_interfaces_as_they_were() {
    lab::require!(skip::lab(), skip::program("ping", "iputils-ping"));
    let path = Path::new(&Veth::new());
    let [x, y] = names("afxdp");
    for round in 0..2 {
        let mut forward = path.forward(&[&x, &y, "--both"]);
        assert!(path.link(X)["xdp"].is_object() && path.link(Y)["xdp"].is_object());
        let address = path.b().ipv4.to_string();
        path.a()
            .ns
            .exec("ping", ["-c3", "-i0.02", &address])
            .unwrap();
        forward.process.kill().unwrap();
        let quiet = |name| {
            let link = path.link(name);
            !link["xdp"].is_object() && link["promiscuity"] == 0
        };
        let mut left = 500;
        while !(quiet(X) && quiet(Y)) {
            left -= 1;
            assert!(left > 0, "round {round}: {} {}", path.link(X), path.link(Y));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn vlan_tags_stay_with_their_packets() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let path = Path::new(&Veth::new());
    let plan = Udp {
        vlan: Some(7),
        ..Udp::between(path.a(), path.b())
    };
    let sent: Vec<_> = (0..500)
        .map(|number| plan.build(number, 64 + number as usize))
        .collect();
    // The kernel removes the tag before a tap sees the packet, and reports it as metadata.
    for [from, to] in [
        ["afpacket", "afpacket"],
        ["afpacket", "afxdp"],
        ["afxdp", "afxdp"],
    ] {
        let (x, y) = (format!("{from}:{X}"), format!("{to}:{Y}"));
        let forward = path.forward(&[&x, &y]);
        let filter = format!("vlan 7 and {FILTER}");
        let got = received(&path, sent.len(), &filter, || replay(&path, &sent));
        assert_same(&got, &sent);
        forward.stop();
    }
}

#[test]
fn a_temporary_link_failure_does_not_end_forwarding() {
    lab::require!(skip::lab(), skip::program("ping", "iputils-ping"));
    let path = Path::new(&Veth::new());
    let [x, y] = names("afxdp");
    let forward = path.forward(&[&x, &y, "--both"]);
    path.b().set_down().unwrap();
    path.ns().ip(["link", "set", Y, "down"]).unwrap();
    let raw = path
        .a()
        .ns
        .run(|| Raw::sender(&path.a().ifname))
        .unwrap()
        .unwrap();
    for packet in packets(&path, 500, 200) {
        raw.send(&packet).unwrap();
    }
    forward
        .process
        .wait_stderr("the link is down", LIMIT)
        .unwrap();
    path.ns().ip(["link", "set", Y, "up"]).unwrap();
    path.b().set_up().unwrap();
    let address = path.b().ipv4.to_string();
    let ping = path.a().ns.exec("ping", ["-c10", "-i0.2", "-W5", &address]);
    let ping = ping.unwrap();
    assert!(!ping.contains(" 0 received"), "{ping}");
    let reported = forward.stop();
    assert_eq!(reported["ended"], "stopped", "{reported}");
}

#[test]
fn long_packets_for_a_short_interface_are_counted() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let path = Path::new(&Veth::new().mtu(3000));
    for (end, name) in [(&path.b().ns, path.b().ifname.as_str()), (path.ns(), Y)] {
        end.ip(["link", "set", name, "mtu", "1500"]).unwrap();
    }
    let sent = packets(&path, 1_000, 3_014);
    let [x, y] = names("afxdp");
    let forward = path.forward(&[&x, &y]);
    let fits = |packet: &&Vec<u8>| packet.len() <= 1_518;
    let expected: Vec<_> = sent.iter().filter(fits).cloned().collect();
    // The device itself refuses a packet that exceeds the MTU by up to four bytes.
    let by_device = expected
        .iter()
        .filter(|packet| packet.len() > 1_514)
        .count();
    let got = received(&path, expected.len() - by_device, FILTER, || {
        replay(&path, &sent)
    });
    let reported = forward.stop();
    let way = &reported["directions"][0];
    assert_eq!(
        number(&way["dropped"]["too_long"]),
        (sent.len() - expected.len()) as u64
    );
    let whole: Vec<_> = expected
        .iter()
        .filter(|packet| packet.len() <= 1_514)
        .cloned()
        .collect();
    let short: Vec<_> = got
        .iter()
        .filter(|packet| packet.len() <= 1_514)
        .cloned()
        .collect();
    assert_same(&short, &whole);
}

#[test]
fn forwarding_loops_are_refused_before_anything_is_opened() {
    lab::require!(skip::lab());
    let path = Path::new(&Veth::new());
    let ns = path.ns();
    ns.ip([
        "link", "add", "one", "type", "veth", "peer", "name", "other",
    ])
    .unwrap();
    for name in ["one", "other"] {
        ns.ip(["link", "set", name, "up"]).unwrap();
    }
    for (args, why) in [
        (["afxdp:one", "afxdp:other"], "peers of one veth pair"),
        (["afxdp:one", "one"], "both are one:"),
        (["afxdp:one", "afxdp:no-such-if"], "no such interface"),
        (["xdplive:one", &format!("afxdp:{X}")], "only sends"),
        (
            [&format!("afxdp:{X}"), "x.pcap?ring=no"],
            "not a valid ring",
        ),
    ] {
        let args = ["forward", args[0], args[1]];
        let mut process = ns.spawn(barewire().unwrap(), args).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(1), "{args:?}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(why),
            "{args:?}: {}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains("hint: "),
            "{args:?}: {}",
            finished.stderr
        );
    }
    assert!(!path.link(X)["xdp"].is_object());
    // A wire that ends in another namespace does not count, whatever the indices of its ends.
    let [x, y] = names("afxdp");
    let mut forward = path.forward(&[&x, &y, "--both", "--duration", "1"]);
    let finished = forward.process.stop(Signal::SIGTERM, LIMIT).unwrap();
    assert!(finished.success(), "{}", finished.stderr);
}

/// The `--json` line of each second covers that second: all of them add up to the total.
#[test]
fn rates_of_each_second_add_up_to_the_total() {
    lab::require!(skip::lab());
    const COUNT: u64 = 30_000;
    let path = Path::new(&Veth::new());
    let [x, y] = names("afxdp");
    let forward = path.forward(&[&x, &y, FILTER]);
    replay(&path, &packets(&path, COUNT, 1514));
    let rates = || -> Vec<serde_json::Value> {
        let text = forward.process.stdout();
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    // The sum of the rates of all seconds.
    let sum_of = |lines: &[serde_json::Value], name: &str| {
        let (mut sum, mut at) = (0.0, 0.0);
        for line in lines {
            let seconds = line["seconds"].as_f64().unwrap();
            sum += line["directions"][0][name].as_f64().unwrap() * (seconds - at);
            at = seconds;
        }
        sum
    };
    // Until all have arrived at the far end and are in the rates, except for the clock difference
    // between a rate and its time.
    let until = Instant::now() + LIMIT;
    let lines = loop {
        let lines = rates();
        let came = path.b().counters().unwrap().rx_packets;
        if came >= COUNT && sum_of(&lines, "forwarded_pps") >= 0.99 * COUNT as f64 {
            break lines;
        }
        assert!(Instant::now() < until, "{lines:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let reported = forward.stop();
    let total = &reported["directions"][0];
    assert_eq!(total["received"], COUNT, "{reported}");
    for (name, sum, factor) in [
        ("received_pps", number(&total["received"]), 1.0),
        ("forwarded_pps", number(&total["forwarded"]), 1.0),
        ("forwarded_bps", number(&total["forwarded_bytes"]), 8.0),
        ("copied_pps", 0, 1.0),
    ] {
        for line in &lines {
            assert_eq!(line["type"], "rates", "{line}");
            assert_eq!(
                (&line["directions"][0]["from"], &line["directions"][0]["to"]),
                (&x.as_str().into(), &y.as_str().into()),
                "{line}"
            );
        }
        let by_rates = sum_of(&lines, name);
        let sum = sum as f64 * factor;
        assert!(
            (by_rates - sum).abs() <= sum / 50.0,
            "{name}: {by_rates} of {sum}: {lines:?}"
        );
    }
}
