//! The port `vm:` with QEMU and a real driver: a guest behind `barewire forward`, guests that are
//! killed and reboot under traffic, `capture` and `send`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster_live::{Cluster, capture, unique};
use crate::forward::{number, totals};
use lab::oracle::{TempFile, read_pcap, write_pcap};
use lab::packet::Raw;
use lab::process::{Process, Signal, barewire};
use lab::vm::{self, Link, Machine, Options, System};
use lab::{Pair, Veth, skip};

/// Time limit of a step; booting is emulated.
const LIMIT: Duration = Duration::from_secs(300);

/// A socket that no other test uses, in a directory that QEMU sees; removed on drop.
struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Socket {
        let name = format!("bw-vm-socket-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Socket(folder.join("vm"))
    }

    fn port(&self) -> String {
        format!("vm:{}", self.0.display())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = self.0.parent().map(std::fs::remove_dir_all);
    }
}

/// A host on the left end of a pair, and a guest in the place of the right one: with its addresses,
/// behind `barewire forward` on its interface.
struct Stand {
    pair: Pair,
    socket: Socket,
    forward: Process,
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Stand {
    fn new(name: &str, mtu: u32) -> Stand {
        let pair = Veth::new().mtu(mtu).create().unwrap();
        let (right, socket) = (&pair.right, Socket::new(name));
        right
            .ns
            .ip(["address", "flush", "dev", &right.ifname])
            .unwrap();
        let tap = format!("afpacket:{}", right.ifname);
        let args = ["forward", "--json", "--both", &socket.port(), &tap];
        let forward = right.ns.spawn(barewire().unwrap(), args).unwrap();
        forward.wait_stderr("forwarding", LIMIT).unwrap();
        forward.wait_stderr("waiting for one on", LIMIT).unwrap();
        Stand {
            pair,
            socket,
            forward,
        }
    }

    fn guest(&self, name: &str, mtu: u32) -> Machine {
        self.guest_of(System::Debian, name, mtu)
    }

    fn guest_of(&self, system: System, name: &str, mtu: u32) -> Machine {
        let options = Options {
            link: Link::VhostUser(self.socket.0.clone()),
            own: self.pair.right.ipv4.to_string(),
            peer: self.pair.left.ipv4.to_string(),
            mac: mac(self.pair.right.mac),
            mtu,
        };
        Machine::start_of(system, name, &options).unwrap()
    }

    /// Pings the guest until it has answered ten times in a row.
    fn ping(&self, len: &str) {
        let until = Instant::now() + LIMIT;
        let address = self.pair.right.ipv4.to_string();
        loop {
            let args = ["-c10", "-i0.02", "-W2", "-s", len, &address];
            match self.pair.left.ns.exec("ping", args) {
                Ok(text) if text.contains(" 10 received") => return,
                other => assert!(Instant::now() < until, "{other:?}"),
            }
        }
    }

    /// Stops forwarding; every packet is accounted for.
    fn stop(mut self) -> serde_json::Value {
        let finished = self.forward.stop(Signal::SIGINT, LIMIT).unwrap();
        let finished = finished.checked().unwrap();
        assert!(!self.socket.0.exists(), "the socket stays");
        totals(&finished.stdout)
    }
}

fn ready() -> Result<(), skip::Missing> {
    vm::available()?;
    skip::program("setpriv", "util-linux")
}

/// A guest with this MTU, and its host, ping each other.
fn reach(system: System, name: &str, mtu: u32) {
    let stand = Stand::new(name, mtu);
    let mut guest = stand.guest_of(system, name, mtu);
    // The guest pings the host, then the host the guest.
    guest.wait_console("vm: answered", 1, LIMIT).unwrap();
    stand.ping("56");
    stand.ping(&(mtu - 28).to_string());
    drop(guest);
    let reported = stand.stop();
    for way in reported["directions"].as_array().unwrap() {
        assert!(number(&way["forwarded"]) >= 30, "{reported}");
        assert_eq!(way["failed"], 0, "{reported}");
    }
}

#[test]
fn guest_and_host_reach_each_other() {
    lab::require!(skip::lab(), ready(), skip::program("ping", "iputils-ping"));
    for mtu in [1500, 9000] {
        reach(System::Debian, "reach", mtu);
    }
}

/// Ubuntu's kernel is years older than Debian's here, and built by others.
#[test]
fn a_guest_of_ubuntu_and_its_host_reach_each_other() {
    lab::require!(
        skip::lab(),
        ready(),
        vm::available_of(System::Ubuntu),
        skip::program("ping", "iputils-ping")
    );
    reach(System::Ubuntu, "ubuntu", 1500);
}

#[test]
fn guests_that_are_killed_and_reboot_under_traffic_are_accounted_for() {
    lab::require!(skip::lab(), ready(), skip::program("ping", "iputils-ping"));
    let stand = Stand::new("killed", 1500);
    let address = stand.pair.right.ipv4.to_string();
    let mut traffic = stand
        .pair
        .left
        .ns
        .spawn("ping", ["-q", "-i0.002", "-s", "1000", &address])
        .unwrap();
    for round in 0..2 {
        let mut guest = stand.guest(&format!("killed{round}"), 1500);
        guest.wait_console("vm: up", 1, LIMIT).unwrap();
        stand.ping("56");
        guest.monitor("system_reset").unwrap();
        guest.wait_console("vm: up", 2, LIMIT).unwrap();
        stand.ping("56");
        assert_eq!(guest.kill().unwrap().signal(), Some(Signal::SIGKILL));
    }
    let until = Instant::now() + LIMIT;
    while stand.forward.stderr().matches("waiting for one on").count() < 3 {
        assert!(Instant::now() < until, "{}", stand.forward.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    traffic.stop(Signal::SIGINT, LIMIT).unwrap();
    let said = stand.forward.stderr();
    for (text, count) in [("has connected", 2), ("link is up", 4)] {
        assert!(said.matches(text).count() >= count, "{said}");
    }
    let reported = stand.stop();
    for way in reported["directions"].as_array().unwrap() {
        assert!(number(&way["forwarded"]) > 100, "{reported}");
    }
}

#[test]
fn capture_reads_what_a_guest_sends_and_send_reaches_it() {
    lab::require!(skip::lab(), ready());
    let socket = Socket::new("commands");
    let file = TempFile::new(".pcap");
    let options = Options {
        link: Link::VhostUser(socket.0.clone()),
        own: "10.77.0.2".into(),
        peer: "10.77.0.1".into(),
        mac: "52:54:00:77:00:02".into(),
        mtu: 0,
    };
    let spawn = |args: &[&str]| {
        let mut command = Command::new(barewire().unwrap());
        Process::spawn(command.args(args)).unwrap()
    };
    let name = file.path().to_str().unwrap();
    let mut capture = spawn(&["capture", &socket.port(), "-w", name, "-c", "3", "arp"]);
    let mut guest = Machine::start("commands", &options).unwrap();
    capture.wait(LIMIT).unwrap().checked().unwrap();
    let asked = read_pcap(file.path()).unwrap();
    assert_eq!(asked.len(), 3);
    // Who has 10.77.0.1? (RFC 826)
    for packet in asked {
        assert_eq!(packet[6..12], [0x52, 0x54, 0, 0x77, 0, 2]);
        assert_eq!(packet[38..42], [10, 77, 0, 1]);
    }
    // Its driver continues with the next back-end, to which QEMU connects by itself.
    guest.wait_console("vm: received 0 ", 1, LIMIT).unwrap();
    let packets: Vec<Vec<u8>> = (0..1000u32)
        .map(|number| {
            let mut packet = vec![0; 60 + number as usize];
            packet[..6].fill(0xff);
            packet[12..14].copy_from_slice(&[0x88, 0xb5]);
            packet
        })
        .collect();
    let replay = write_pcap(&packets).unwrap();
    let name = replay.path().to_str().unwrap();
    let mut send = spawn(&["send", name, &socket.port(), "--rate", "5kpps"]);
    send.wait(LIMIT).unwrap().checked().unwrap();
    guest.wait_console("vm: received 1000 ", 1, LIMIT).unwrap();
}

/// The reader of an application is a guest: no second command, and another application receives the
/// same packets while there is no guest and after it was killed.
#[test]
fn a_guest_is_the_reader_of_an_application() {
    lab::require!(skip::lab(), ready());
    let pair = Veth::new().create().unwrap();
    let (name, socket) = (unique(), Socket::new("reader"));
    let application = format!("vm={}", socket.port());
    let ifname = pair.right.ifname.as_str();
    let args = [
        "--app",
        "log",
        "--app",
        &application,
        ifname,
        "ether proto 0x88b5",
    ];
    let cluster = Cluster::start(&pair, &name, &args);
    let file = TempFile::new(".pcap");
    let mut log = capture(&format!("ring:{name}/log"), file.path());
    let raw = || Raw::sender(&pair.left.ifname);
    let raw = pair.left.ns.run(raw).unwrap().unwrap();
    let send = |count: u32| {
        for number in 0..count {
            let mut packet = vec![0; 60 + number as usize];
            packet[..6].fill(0xff);
            packet[12..14].copy_from_slice(&[0x88, 0xb5]);
            raw.send(&packet).unwrap();
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    // The guest boots while the link is quiet: its firmware waits for the port's answers.
    let options = Options {
        link: Link::VhostUser(socket.0.clone()),
        own: "10.77.0.2".into(),
        peer: String::new(),
        mac: "52:54:00:77:00:02".into(),
        mtu: 0,
    };
    let mut guest = Machine::start("reader", &options).unwrap();
    guest.wait_console("vm: received 0 ", 1, LIMIT).unwrap();
    send(1000);
    guest.wait_console("vm: received 1000 ", 1, LIMIT).unwrap();
    assert_eq!(guest.kill().unwrap().signal(), Some(Signal::SIGKILL));
    send(100);
    // Nobody is there: they are dropped, and the other reader has them.
    cluster.wait_delivered(1100);
    let totals = cluster.stop();
    log.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(read_pcap(file.path()).unwrap().len(), 1100);
    let port = &totals["outputs"][0];
    let [sent, dropped, given] = ["sent", "dropped", "given"].map(|key| number(&port[key]));
    assert_eq!((given, sent + dropped), (1100, 1100), "{totals}");
    assert!(sent >= 1000, "{totals}");
}

/// A card is plugged into a running guest, which reaches the host by it, and taken out again.
#[test]
fn a_card_is_plugged_into_a_running_guest_and_taken_out() {
    lab::require!(skip::lab(), ready(), skip::program("ping", "iputils-ping"));
    let stand = Stand::new("plug", 1500);
    let card = mac(stand.pair.right.mac);
    let options = Options {
        link: Link::Later(stand.socket.0.clone()),
        own: stand.pair.right.ipv4.to_string(),
        peer: stand.pair.left.ipv4.to_string(),
        mac: card.clone(),
        mtu: 0,
    };
    let mut guest = Machine::start("plug", &options).unwrap();
    guest.wait_console("vm: booted", 1, LIMIT).unwrap();
    guest.plug(&stand.socket.0, &card).unwrap();
    guest.wait_console("vm: answered", 1, LIMIT).unwrap();
    stand.ping("56");
    guest.unplug().unwrap();
    let until = Instant::now() + LIMIT;
    while !stand.forward.stderr().contains("link is down") {
        assert!(Instant::now() < until, "{}", stand.forward.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(guest);
    let reported = stand.stop();
    for way in reported["directions"].as_array().unwrap() {
        assert!(number(&way["forwarded"]) >= 20, "{reported}");
    }
}

/// A guest with two queue pairs: packets pass on both in each direction.
#[test]
fn a_guest_uses_several_queue_pairs() {
    lab::require!(skip::lab(), ready(), skip::program("ping", "iputils-ping"));
    let pair = Veth::new().queues(2).create().unwrap();
    let (right, socket) = (&pair.right, Socket::new("pairs"));
    right
        .ns
        .ip(["address", "flush", "dev", &right.ifname])
        .unwrap();
    let guest_port = format!("{}?queues=2", socket.port());
    let tap = format!("afpacket:{}?queues=2&fanout=lb", right.ifname);
    let args = ["forward", "--json", "--both", &guest_port, &tap];
    let forward = right.ns.spawn(barewire().unwrap(), args).unwrap();
    forward.wait_stderr("waiting for one on", LIMIT).unwrap();
    let stand = Stand {
        pair,
        socket,
        forward,
    };
    let options = Options {
        link: Link::Queues(stand.socket.0.clone(), 2),
        own: stand.pair.right.ipv4.to_string(),
        peer: stand.pair.left.ipv4.to_string(),
        mac: mac(stand.pair.right.mac),
        mtu: 0,
    };
    let mut guest = Machine::start("pairs", &options).unwrap();
    guest.wait_console("vm: answered", 1, LIMIT).unwrap();
    stand.ping("56");
    stand.ping("1400");
    drop(guest);
    let reported = stand.stop();
    let queues = &reported["ports"][0]["account"]["sending"];
    let sent = |at: usize| number(&queues[at]["sent"]);
    assert!(sent(0) > 0 && sent(1) > 0, "{reported}");
}
