//! `barewire scan` on a device without Ethernet headers: a tun in each of two namespaces, whose
//! packets a program copies from one to the other.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use lab::process::{Process, barewire};
use lab::{Netns, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// Copies packets between `t0` of its namespace and `t0` of another, until its standard input is
/// closed.
const BRIDGE: &str = r#"
import ctypes, fcntl, os, select, struct, sys

def tun():
    fd = os.open("/dev/net/tun", os.O_RDWR)
    # TUNSETIFF: IFF_TUN without packet information.
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"t0", 0x1001))
    return fd

one = tun()
other = os.open(sys.argv[1], os.O_RDONLY)
assert ctypes.CDLL(None).setns(other, 0x40000000) == 0
two = tun()
print("ready", file=sys.stderr, flush=True)
while True:
    for fd in select.select([one, two, 0], [], [])[0]:
        if fd == 0:
            sys.exit(0)
        try:
            os.write(two if fd == one else one, os.read(fd, 65536))
        except OSError:
            pass
"#;

/// Two namespaces with a tun each, and the program between them.
struct Tunnel {
    left: Netns,
    right: Netns,
    bridge: Process,
}

impl Tunnel {
    /// The right one answers for 10.99.1.0/28 and fd99:1::/124; port 80 is open.
    fn new() -> Self {
        let (left, right) = (Netns::new().unwrap(), Netns::new().unwrap());
        let path = right.path();
        let mut command = left.command("python3");
        let command = command.args(["-c", BRIDGE, path.to_str().unwrap()]);
        let bridge = Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap();
        bridge.wait_stderr("ready", LIMIT).unwrap();
        for (ns, v4, v6) in [
            (&left, "10.99.0.1/32", "fd99::1/128"),
            (&right, "10.99.0.2/32", "fd99::2/128"),
        ] {
            ns.ip(["link", "set", "lo", "up"]).unwrap();
            ns.ip(["link", "set", "t0", "up"]).unwrap();
            ns.ip(["addr", "add", v4, "dev", "t0"]).unwrap();
            ns.ip(["addr", "add", v6, "dev", "t0", "nodad"]).unwrap();
        }
        left.ip(["route", "add", "default", "dev", "t0"]).unwrap();
        left.ip(["-6", "route", "add", "default", "dev", "t0"])
            .unwrap();
        right
            .ip(["route", "add", "10.99.0.1", "dev", "t0"])
            .unwrap();
        right
            .ip(["-6", "route", "add", "fd99::1", "dev", "t0"])
            .unwrap();
        right
            .ip(["route", "add", "local", "10.99.1.0/28", "dev", "lo"])
            .unwrap();
        right
            .ip(["-6", "route", "add", "local", "fd99:1::/124", "dev", "lo"])
            .unwrap();
        let listen = || TcpListener::bind(("::", 80));
        let listener = right.run(listen).unwrap().unwrap();
        // Runs until the test process ends.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(b"SSH-2.0-behind a tunnel\r\n");
            }
        });
        Self {
            left,
            right,
            bridge,
        }
    }

    fn scan(&self, args: &[&str]) -> Vec<Value> {
        let args = [&["scan", "--json", "--wait", "2", "--rate", "1000"], args].concat();
        let mut process = self.left.spawn(barewire().unwrap(), args).unwrap();
        let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        stdout.lines().map(parse).collect()
    }
}

/// Number of answers of a protocol in a state.
fn count(lines: &[Value], protocol: &str, state: &str) -> usize {
    let is = |line: &&Value| {
        line["type"] == "answer" && line["protocol"] == protocol && line["state"] == state
    };
    lines.iter().filter(is).count()
}

#[test]
fn a_scan_finds_its_way_through_a_tun() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let mut tunnel = Tunnel::new();
    for targets in ["10.99.1.0/28", "fd99:1::/124"] {
        // UDP ports without a service are reported by ICMP, at a rate that the kernel limits.
        let lines = tunnel.scan(&[targets, "-p", "80,81", "--probe", "syn,echo"]);
        assert_eq!(count(&lines, "tcp", "open"), 16, "{targets}");
        assert_eq!(count(&lines, "tcp", "closed"), 16, "{targets}");
        assert_eq!(count(&lines, "icmp", "up"), 16, "{targets}");
        let totals = lines.last().unwrap();
        assert_eq!(
            (&totals["sent"], &totals["lost"]),
            (&48.into(), &0.into()),
            "{totals}"
        );
    }
    // Both families in random order: each packet is sent with its EtherType, which PPP needs and
    // a tun does not.
    let both = [
        "10.99.1.0/28",
        "fd99:1::/124",
        "-p",
        "80,81",
        "--retries",
        "2",
    ];
    let lines = tunnel.scan(&both);
    assert_eq!(count(&lines, "tcp", "open"), 32, "{lines:?}");
    assert_eq!(count(&lines, "tcp", "closed"), 32, "{lines:?}");
    let totals = lines.last().unwrap();
    let counts = (&totals["sent"], &totals["failed"], &totals["repeated"]);
    assert_eq!(counts, (&192.into(), &0.into(), &128.into()), "{totals}");
    let lines = tunnel.scan(&["10.99.1.1", "-p", "U:9"]);
    assert_eq!(count(&lines, "udp", "closed"), 1, "{lines:?}");
    let plan = tunnel.scan(&["10.99.1.1", "-p", "80", "--dry-run"]);
    assert_eq!(plan[0]["interface"], "t0");
    assert!(
        plan[0]["first"][0].as_str().unwrap().contains("10.99.0.1"),
        "{plan:?}"
    );
    tunnel.bridge.kill().unwrap();
    drop(tunnel.right);
}

#[test]
fn banners_are_read_through_a_tun() {
    require!(
        skip::lab(),
        skip::program("python3", "python3"),
        skip::program("nft", "nftables")
    );
    let mut tunnel = Tunnel::new();
    let lines = tunnel.scan(&["10.99.1.0/30", "-p", "80", "--banners", "--firewall"]);
    let banners = lines.iter().filter(|line| line["type"] == "banner");
    let banners: Vec<_> = banners.collect();
    assert_eq!(banners.len(), 4, "{lines:?}");
    for banner in banners {
        assert_eq!(
            banner["application"]["ssh_server"],
            "SSH-2.0-behind a tunnel"
        );
    }
    tunnel.bridge.kill().unwrap();
}

#[test]
fn what_needs_an_ethernet_header_is_refused_on_a_tun() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let mut tunnel = Tunnel::new();
    for (args, why) in [
        (
            &["-p", "80", "-e", "afxdp:t0"][..],
            "needs an Ethernet header",
        ),
        (&["--probe", "arp"], "not on the link"),
    ] {
        let args = [&["scan", "10.99.1.1"], args].concat();
        let mut process = tunnel.left.spawn(barewire().unwrap(), args).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert!(finished.stderr.contains(why), "{}", finished.stderr);
    }
    tunnel.bridge.kill().unwrap();
}
