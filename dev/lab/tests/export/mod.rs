//! Common code of the tests of exports: ports, runs of the probe, totals.

pub mod sides;

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::corpus;
use lab::process::{Process, barewire};
use serde_json::Value;

pub const LIMIT: Duration = Duration::from_secs(60);

/// A free UDP port on loopback that stays free until its program binds it: outside the kernel's
/// ephemeral range, and returned only once.
pub fn udp_port() -> u16 {
    free_port(|port| UdpSocket::bind(("127.0.0.1", port)).is_ok())
}

/// A free TCP port, likewise.
pub fn tcp_port() -> u16 {
    free_port(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

fn free_port(is_free: impl Fn(u16) -> bool) -> u16 {
    // net.ipv4.ip_local_port_range starts at 32768.
    const PORTS: std::ops::Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Other test processes start elsewhere.
    let first = std::process::id().wrapping_mul(499);
    for _ in PORTS {
        let at = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + at % PORTS.len() as u32;
        let port = u16::try_from(port).expect("a port below 32768");
        if is_free(port) {
            return port;
        }
    }
    panic!("no port is free");
}

/// Waits until a program has bound a port: `udp` or `tcp`.
pub fn wait_bound(protocol: &str, port: u16) {
    let until = Instant::now() + LIMIT;
    let wanted = format!(":{port:04X}");
    loop {
        for table in [protocol.to_owned(), format!("{protocol}6")] {
            let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            let mut locals = text.lines().filter_map(|l| l.split_whitespace().nth(1));
            if locals.any(|local| local.ends_with(&wanted)) {
                return;
            }
        }
        assert!(
            Instant::now() < until,
            "nobody listens on {protocol} port {port}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the socket bound to a UDP port has no datagram left to read.
pub fn wait_read(port: u16) {
    let until = Instant::now() + LIMIT;
    let wanted = format!(":{port:04X}");
    let is_queued = || {
        let text = std::fs::read_to_string("/proc/net/udp").unwrap();
        text.lines().any(|line| {
            // After number, local and remote address and state: tx_queue:rx_queue, in hex.
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.len() > 4 && columns[1].ends_with(&wanted) && !columns[4].ends_with(":00000000")
        })
    };
    while is_queued() {
        assert!(
            Instant::now() < until,
            "datagrams for UDP port {port} are not read"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary directory, deleted on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Tests of several files share a process, and may choose the same name.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("barewire-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder for results");
        Folder(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Captures for collectors: those of the repository, and one in `every` of the large corpus,
/// without damaged ones.
#[track_caller]
pub fn captures(every: usize) -> Vec<PathBuf> {
    let all = corpus::captures();
    let own = all.files.iter().filter(|file| is_own(file)).cloned();
    let others = all.files.iter().filter(|file| !is_own(file));
    let others = others
        .step_by(every)
        .filter(|file| !corpus::is_damaged(file));
    let files: Vec<PathBuf> = own.chain(others.cloned()).collect();
    let count = all.at_least(4 + corpus::LARGE_COUNT / every, 4);
    assert!(files.len() >= count, "{} captures", files.len());
    files
}

/// A capture of the repository.
pub fn capture() -> PathBuf {
    corpus::own().join("lab-fragments.pcapng")
}

fn is_own(file: &Path) -> bool {
    file.to_string_lossy().contains("testdata/captures")
}

/// The exit code if records could not be exported (`barewire --help`).
const RECORDS_LOST: i32 = 5;

/// The result of a run of the probe.
#[derive(Clone, Debug)]
pub struct Run {
    pub summary: Value,
    pub flows: Vec<Value>,
}

/// Runs the probe on a capture with `--json` and these further arguments.
pub fn run(file: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json", "--table-size", "64k"]);
    command.args(args).arg(file);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let mut lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let summary = lines.pop().unwrap_or_default();
    assert_eq!(
        summary["type"],
        "summary",
        "{}: {finished:?}",
        file.display()
    );
    let mut is_lost = false;
    for export in summary["exports"].as_array().unwrap() {
        assert_eq!(export["imbalance"], 0, "{export}");
        is_lost |= export["dropped"] != serde_json::json!({});
    }
    // What a format cannot carry is dropped too, and is no loss.
    let is_reported = is_lost && finished.code() == Some(RECORDS_LOST);
    assert!(finished.success() || is_reported, "{finished:?}");
    Run {
        summary,
        flows: lines,
    }
}

/// Sums over directions with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub directions: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl Totals {
    pub fn add(&mut self, other: Totals) {
        self.directions += other.directions;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl Run {
    /// The sums over records that `select` accepts.
    pub fn totals(&self, select: impl Fn(&Value) -> bool) -> Totals {
        let mut totals = Totals::default();
        for flow in self.flows.iter().filter(|flow| select(flow)) {
            for way in [flow, &flow["reverse"]] {
                let packets = way["packets"].as_u64().unwrap();
                totals.directions += u64::from(packets != 0);
                totals.packets += packets;
                totals.bytes += way["bytes"].as_u64().unwrap();
            }
        }
        totals
    }

    /// The account of the only destination.
    pub fn export(&self) -> &Value {
        &self.summary["exports"][0]
    }
}

/// A capture of `count` flows of one packet, 10 ms apart, so that records end while it is read.
pub fn flood(count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101] {
        bytes.extend(word.to_le_bytes());
    }
    for n in 0..count {
        let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0];
        packet.extend(((n >> 16) as u16).to_be_bytes());
        packet.extend([192, 0, 2, 1]);
        packet.extend((n as u16).to_be_bytes());
        packet.extend([0, 53, 0, 8, 0, 0]);
        let head = [1_700_000_000 + n / 100, n % 100 * 10_000, 28, 28];
        bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(packet);
    }
    bytes
}
