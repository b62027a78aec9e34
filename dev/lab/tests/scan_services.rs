//! `barewire scan --banners` against real servers of SNMP, memcached, Telnet, DNS, VNC and SMB.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::oracle::TempFile;
use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// Where snmpd keeps its state; the test that starts it removes it.
fn folder() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("barewire-snmpd-{}", std::process::id()))
}

/// Starts a server in the right end's namespace.
fn start(pair: &Pair, program: &str, args: &[&str]) -> Process {
    let mut command = pair.right.ns.command(program);
    let command = command.args(args).env("SNMP_PERSISTENT_DIR", folder());
    Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap()
}

/// Waits until a UDP socket is bound to a port of the right end.
fn wait_bound(pair: &Pair, port: u16) {
    let since = Instant::now();
    let row = format!(":{port:04X} ");
    let is_bound = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/udp");
        table.unwrap_or_default().contains(&row)
    };
    while !pair.right.ns.run(is_bound).unwrap() {
        assert!(since.elapsed() < LIMIT, "nothing listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Scans the right end's address; returns the banners and the totals.
pub(crate) fn banners(pair: &Pair, ports: &str) -> (Vec<Value>, Value) {
    let target = pair.right.ipv4.to_string();
    let args = ["scan", &target, "-p", ports, "--banners", "--json"];
    let args = [&args[..], &["--wait", "2", "--rate", "1000"]].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut lines: Vec<Value> = stdout.lines().map(parse).collect();
    let totals = lines.pop().expect("totals");
    lines.retain(|line| line["type"] == "banner");
    (lines, totals)
}

#[test]
fn snmpd_says_its_version_system_and_engine() {
    require!(skip::lab(), skip::program("snmpd", "snmpd"));
    let pair = Veth::new().offloads().create().unwrap();
    let file = TempFile::new("conf");
    std::fs::write(
        file.path(),
        "rocommunity public\nsysDescr a router of this test\n",
    )
    .unwrap();
    let args = ["-f", "-Lo", "-C", "-c", file.path().to_str().unwrap()];
    let mut server = start(&pair, "snmpd", &[&args[..], &["udp:161"]].concat());
    wait_bound(&pair, 161);
    let (banners, totals) = banners(&pair, "U:161");
    assert_eq!(
        banners.len(),
        2,
        "one for each version: {totals} {banners:?}"
    );
    assert_eq!(totals["banners"], 2);
    for banner in &banners {
        let ends = (&banner["protocol"], &banner["port"], &banner["end"]);
        assert_eq!(ends, (&"udp".into(), &161.into(), &"datagram".into()));
    }
    let of = |version: u64| {
        let found = banners.iter().map(|banner| &banner["application"]);
        let mut found = found.filter(|found| found["snmp_version"] == version);
        found.next().unwrap_or_else(|| panic!("{banners:?}"))
    };
    assert_eq!(of(2)["snmp_sys_descr"], "a router of this test");
    // Net-SNMP's number with the first bit set (RFC 3411 section 5).
    let engine = of(3)["snmp_engine"].as_str().unwrap();
    assert!(engine.starts_with("80001f88"), "{engine}");
    server.kill().unwrap();
    let _ = std::fs::remove_dir_all(folder());
}

#[test]
fn memcached_says_its_version_over_tcp_and_udp() {
    require!(skip::lab(), skip::program("memcached", "memcached"));
    let pair = Veth::new().offloads().create().unwrap();
    let args = [
        "-u", "nobody", "-l", "0.0.0.0", "-p", "11211", "-U", "11211",
    ];
    let mut server = start(&pair, "memcached", &args);
    wait_bound(&pair, 11_211);
    let version = Command::new("memcached").arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let version = version.trim().strip_prefix("memcached ").unwrap();
    let (banners, totals) = banners(&pair, "11211,U:11211");
    let mut protocols: Vec<_> = banners.iter().map(|b| b["protocol"].to_string()).collect();
    protocols.sort_unstable();
    assert_eq!(protocols, ["\"tcp\"", "\"udp\""], "{totals}");
    for banner in &banners {
        assert_eq!(banner["application"]["protocol"], "memcached", "{banner}");
        assert_eq!(banner["application"]["memcached_version"], version);
    }
    server.kill().unwrap();
}

#[test]
fn telnetd_says_its_options_and_text() {
    require!(skip::lab(), skip::program("telnetd", "inetutils-telnetd"));
    let pair = Veth::new().offloads().create().unwrap();
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 23));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        // As inetd does. It waits for replies to its options before it starts the program.
        let (stream, _) = listener.accept().unwrap();
        let other = stream.try_clone().unwrap();
        let mut command = Command::new("telnetd");
        let command = command.args(["-E", "/bin/cat"]);
        let command = command
            .stdin(OwnedFd::from(stream))
            .stdout(OwnedFd::from(other));
        command.stderr(Stdio::null()).status().unwrap()
    });
    let (banners, totals) = banners(&pair, "23");
    assert_eq!(banners.len(), 1, "{totals}");
    let found = &banners[0]["application"];
    assert_eq!(found["protocol"], "telnet", "{}", banners[0]);
    let options = found["telnet_option"].as_array().unwrap();
    assert!(options.contains(&"do 24".into()), "terminal type: {found}");
    // The name of the system.
    let text = found["telnet_text"].as_str().unwrap();
    assert!(text.starts_with("Linux "), "{}", banners[0]);
    server.join().unwrap();
}

#[test]
fn dnsmasq_says_its_version_over_tcp_and_udp() {
    require!(skip::lab(), skip::program("dnsmasq", "dnsmasq-base"));
    let pair = Veth::new().offloads().create().unwrap();
    let args = [
        "-k",
        "-C",
        "/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--user=root",
    ];
    let mut server = start(&pair, "dnsmasq", &[&args[..], &["--pid-file="]].concat());
    wait_bound(&pair, 53);
    let (banners, totals) = banners(&pair, "53,U:53");
    assert_eq!(banners.len(), 2, "{totals}");
    for banner in &banners {
        let answer = &banner["application"]["dns_answer"][0];
        assert!(answer.as_str().unwrap().starts_with("dnsmasq-"), "{banner}");
    }
    server.kill().unwrap();
}

/// Starts a server in the right end's namespace, and waits until it listens on a port.
fn listening(pair: &Pair, program: &str, args: &[&str], port: u16) -> Process {
    let mut server = pair.right.ns.spawn(program, args).unwrap();
    let since = Instant::now();
    // State 10 is LISTEN (`net/ipv4/tcp_ipv4.c`).
    let is_row = |line: &str| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A ");
    let listens = || {
        let tables = ["tcp", "tcp6"].map(|name| format!("/proc/thread-self/net/{name}"));
        let tables = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        tables.iter().any(|table| table.lines().any(is_row))
    };
    while !pair.right.ns.run(listens).unwrap() {
        let is_running = server.running().unwrap();
        assert!(
            is_running && since.elapsed() < LIMIT,
            "{program} does not listen on {port}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// The decoded fields of the one banner of a TCP port.
fn application(pair: &Pair, port: u16) -> Value {
    let (banners, totals) = banners(pair, &port.to_string());
    assert_eq!(banners.len(), 1, "{totals}");
    banners[0]["application"].clone()
}

#[test]
fn a_vnc_server_says_its_version_and_security_types() {
    require!(
        skip::lab(),
        skip::program("Xvnc", "tigervnc-standalone-server")
    );
    let pair = Veth::new().offloads().create().unwrap();
    let display = format!(":{}", 4000 + std::process::id() % 1000);
    let args = [
        &*display,
        "-rfbport",
        "5900",
        "-SecurityTypes",
        "None,VncAuth",
    ];
    let args = [&args[..], &["-nolisten", "unix", "-geometry", "64x64"]].concat();
    let mut server = listening(&pair, "Xvnc", &args, 5900);
    let found = application(&pair, 5900);
    assert_eq!(found["protocol"], "vnc");
    assert_eq!(found["vnc_version"], "003.008");
    let types = found["vnc_security"].as_str().unwrap();
    // None and VNC authentication (RFC 6143 section 7.1.2).
    let mut types: Vec<&str> = types
        .split([',', ' '])
        .filter(|word| !word.is_empty())
        .collect();
    types.sort_unstable();
    assert_eq!(types, ["1", "2"]);
    server.stop(lab::process::Signal::SIGTERM, LIMIT).unwrap();
}

const SMB_SERVER: &str = "
from impacket import smbserver
server = smbserver.SimpleSMBServer('0.0.0.0', 445)
server.setSMB2Support(True)
server.start()
";

#[test]
fn an_smb_server_says_its_dialect() {
    require!(
        skip::lab(),
        // In Debian's Python; the first of the path may be another one.
        skip::program("impacket-netview", "python3-impacket")
    );
    let pair = Veth::new().offloads().create().unwrap();
    let mut server = listening(&pair, "/usr/bin/python3", &["-c", SMB_SERVER], 445);
    let found = application(&pair, 445);
    assert_eq!(found["protocol"], "smb");
    // It knows no later one.
    assert_eq!(found["smb_dialect"], "2.0.2");
    server.kill().unwrap();
}
