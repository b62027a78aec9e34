//! In the guest: `barewire scan` on a card in user space. The far end's kernel has to resolve the
//! scan's addresses by ARP and Neighbor Discovery, which barewire alone can answer.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::vfio_card::{Peer, VfioCard, ip};
use lab::guest;
use lab::process::Process;
use lab::watch;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
/// The scan's addresses, with the prefix of the link.
const OWN: [&str; 2] = ["10.77.0.1/24", "fd77::1/64"];
/// The far end's addresses.
const ROUTERS: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// Addresses that it has, too: 16 and 8 on the link, and 256 and 16 beyond it.
const NEAR: [&str; 2] = ["10.77.0.16/28", "fd77::10-fd77::17"];
const FAR: [&str; 2] = ["198.18.4.0/24", "fd78::/124"];

/// The kernel's end of the wire.
struct FarEnd {
    peer: Peer,
}

impl FarEnd {
    fn new(ifname: &str) -> Self {
        let peer = Peer::up(ifname, 1500);
        // Solicitations are sent from the link-local address, which must be there at once.
        for (name, value) in [("accept_dad", "0"), ("disable_ipv6", "0")] {
            let path = format!("/proc/sys/net/ipv6/conf/{ifname}/{name}");
            std::fs::write(path, value).unwrap();
        }
        ip(&["addr", "add", "10.77.0.2/24", "dev", ifname]);
        let near = (0x10..0x18).map(|host| format!("fd77::{host:x}/64"));
        for addr in near.chain(["fd77::2/64".to_owned()]) {
            ip(&["addr", "add", &addr, "dev", ifname, "nodad"]);
        }
        for prefix in [NEAR[0], FAR[0]] {
            ip(&["route", "add", "local", prefix, "dev", "lo"]);
        }
        ip(&["-6", "route", "add", "local", FAR[1], "dev", "lo"]);
        Self { peer }
    }

    /// Forgets all neighbours.
    fn forget(&self) {
        for family in ["-4", "-6"] {
            ip(&[family, "neigh", "flush", "dev", &self.peer.ifname]);
        }
    }

    /// What it knows of a neighbour.
    fn neighbour(&self, addr: &str) -> String {
        let args = ["neigh", "show", addr, "dev", &self.peer.ifname];
        let output = Command::new("ip").args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        let ifname = &self.peer.ifname;
        for args in [
            vec!["addr", "flush", "dev", ifname],
            vec!["route", "del", "local", NEAR[0], "dev", "lo"],
            vec!["route", "del", "local", FAR[0], "dev", "lo"],
            vec!["-6", "route", "del", "local", FAR[1], "dev", "lo"],
        ] {
            let _ = Command::new("ip").args(args).output();
        }
    }
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn begin(card: &VfioCard, args: &[&str]) -> Process {
    let port = format!("vfio:{}", card.address);
    let mut command = Command::new("barewire");
    command.args(["scan", "--json", "--wait", "4", "-e", &port]);
    Process::spawn(command.args(args)).unwrap()
}

fn lines(stdout: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    stdout.lines().map(parse).collect()
}

/// Number of answers in a state, each of which must be reported once.
fn count(lines: &[Value], state: &str) -> usize {
    let of_state = |line: &&Value| line["type"] == "answer" && line["state"] == state;
    let mut keys: Vec<_> = lines
        .iter()
        .filter(of_state)
        .map(|line| format!("{} {}", line["address"], line["port"]))
        .collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all, "reported twice");
    all
}

/// SYNs that arrive at the far end while `body` runs, by address and port.
fn probes<T>(far: &FarEnd, body: impl FnOnce() -> T) -> (T, HashMap<(IpAddr, u16), usize>) {
    watch::syns(&far.peer.receiver(), body)
}

/// A server on port 80 that speaks first.
fn serve() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 80)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-at the far end\r\n");
        }
    });
}

/// The far end knows nothing of us: to answer it must ask, once for each family. The rate is one
/// that emulated cards keep up with where QEMU interprets the guest.
fn through_a_given_router(far: &FarEnd, card: &VfioCard) {
    let mac = text(far.peer.mac);
    for (own, targets, hosts) in [(OWN[0], FAR[0], 256), (OWN[1], FAR[1], 16)] {
        far.forget();
        let own = own.split('/').next().unwrap();
        let args = [
            targets,
            "-p",
            "80,81",
            "--rate",
            "100",
            "--source-ip",
            own,
            "--router-mac",
            &mac,
        ];
        let (finished, seen) = probes(far, || {
            begin(card, &args).wait(LIMIT).unwrap().checked().unwrap()
        });
        let lines = lines(&finished.stdout);
        let totals = lines.last().unwrap();
        assert_eq!(seen.len(), 2 * hosts, "{totals}");
        assert!(seen.values().all(|count| *count == 1), "{totals}");
        assert_eq!(
            (count(&lines, "open"), count(&lines, "closed")),
            (hosts, hosts)
        );
        let number = |name: &str| totals[name].as_u64().unwrap();
        assert_eq!((number("sent"), number("lost")), (2 * hosts as u64, 0));
        let known = far.neighbour(own);
        assert!(known.contains(&text(card.mac)), "{own}: {known}");
    }
}

/// Targets on the link and beyond it, of both families; the far end forgets us in the middle, and
/// asks for an address that nobody has. Resets that it drops as it forgets come again by the second
/// probe.
fn both_families(far: &FarEnd, card: &VfioCard) {
    far.forget();
    let mut args = vec![
        NEAR[0],
        NEAR[1],
        FAR[0],
        FAR[1],
        "-p",
        "80,81",
        "--rate",
        "150",
        "--retries",
        "1",
    ];
    for (own, router) in OWN.into_iter().zip(ROUTERS) {
        args.extend(["--source-ip", own, "--router-ip", router]);
    }
    let mut process = begin(card, &args);
    process.wait_stdout("closed", LIMIT).unwrap();
    far.forget();
    for nobody in ["10.77.0.9", "fd77::9"] {
        let mut ping = Command::new("ping");
        let _ = ping.args(["-c", "1", "-W", "1", nobody]).output();
        let known = far.neighbour(nobody);
        assert!(!known.contains(&text(card.mac)), "{nobody}: {known}");
    }
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let lines = lines(&finished.stdout);
    let hosts = 16 + 8 + 256 + 16;
    let totals = lines.last().unwrap();
    assert_eq!(
        (count(&lines, "open"), count(&lines, "closed")),
        (hosts, hosts),
        "{totals}"
    );
    assert_eq!(
        (&totals["lost"], &totals["unreachable"]),
        (&0.into(), &0.into())
    );
    for own in ["10.77.0.1", "fd77::1"] {
        let known = far.neighbour(own);
        assert!(known.contains(&text(card.mac)), "{own}: {known}");
    }
    assert!(
        finished
            .stderr
            .contains("24 of 24 on-link targets answered"),
        "{}",
        finished.stderr
    );
}

fn banners(far: &FarEnd, card: &VfioCard) {
    far.forget();
    std::fs::write("/tmp/index.html", "<title>At the far end</title>").unwrap();
    let mut command = Command::new("busybox");
    let mut server = Process::spawn(command.args(["httpd", "-f", "-p", "8080", "-h", "/tmp"]));
    let until = Instant::now() + LIMIT;
    while std::net::TcpStream::connect("10.77.0.2:8080").is_err() {
        assert!(Instant::now() < until, "busybox httpd does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut args = vec![
        NEAR[0],
        NEAR[1],
        "-p",
        "80,8080",
        "--rate",
        "200",
        "--banners",
    ];
    for own in OWN {
        args.extend(["--source-ip", own]);
    }
    let finished = begin(card, &args).wait(LIMIT).unwrap().checked().unwrap();
    let lines = lines(&finished.stdout);
    let has = |text: &str| {
        let banners = lines.iter().filter(|line| line["type"] == "banner");
        banners
            .filter(|line| line.to_string().contains(text))
            .count()
    };
    let totals = lines.last().unwrap();
    assert_eq!(has("SSH-2.0-at the far end"), 24, "{totals}");
    assert_eq!(has("At the far end\""), 24, "{totals}");
    if let Ok(server) = &mut server {
        server.kill().unwrap();
    }
}

#[test]
fn scans_on_cards_in_user_space_are_exact_and_their_addresses_are_resolved() {
    lab::require!(guest::inside());
    serve();
    for [card, peer] in [
        ["igb0", "igb1"],
        ["e1000-0", "e1000-1"],
        ["virtio1", "virtio0"],
    ] {
        println!("{card}");
        let far = FarEnd::new(peer);
        let card = VfioCard::bind(card);
        through_a_given_router(&far, &card);
        both_families(&far, &card);
        banners(&far, &card);
    }
}
