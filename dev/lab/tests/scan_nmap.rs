//! `barewire scan` compared with nmap, on ports that are open, closed, dropped and rejected.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::barewire;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);
/// 200 ports, of which these are open, dropped and rejected by a packet filter.
const PORTS: &str = "1000-1199";
const OPEN: [u16; 5] = [1000, 1033, 1100, 1150, 1199];

/// A host with sockets and a packet filter.
struct Scene {
    pair: Pair,
    _tcp: Vec<TcpListener>,
    _udp: Vec<UdpSocket>,
}

fn scene() -> Scene {
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    right.ns.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
    for protocol in ["tcp", "udp"] {
        for (ports, target) in [("1040:1059", "DROP"), ("1060:1079", "REJECT")] {
            let rule = [
                "-A", "INPUT", "-p", protocol, "--dport", ports, "-j", target,
            ];
            right.ns.exec("iptables", rule).unwrap();
        }
    }
    let bind = |port: &u16| {
        let addr = (Ipv4Addr::UNSPECIFIED, *port);
        let open = || (TcpListener::bind(addr), UdpSocket::bind(addr));
        let (tcp, udp) = right.ns.run(open).unwrap();
        (tcp.unwrap(), udp.unwrap())
    };
    let (tcp, udp) = OPEN.iter().map(bind).unzip();
    Scene {
        pair,
        _tcp: tcp,
        _udp: udp,
    }
}

/// The value of an attribute of XML as nmap writes it.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let start = element.find(&format!("{name}=\"")).expect(name) + name.len() + 2;
    element[start..].split('"').next().unwrap()
}

/// What nmap says of each port: its state, if an answer is the reason.
fn nmap(scene: &Scene, scan: &str, ports: &str) -> BTreeMap<u16, String> {
    let file = TempFile::new("xml");
    let target = scene.pair.right.ipv4.to_string();
    // With -d no ports are summed up.
    let args = ["-n", "-Pn", "-d", "--max-retries", "2", scan, "-p", ports];
    let args = [&args[..], &["-oX", file.path().to_str().unwrap(), &target]].concat();
    let mut process = scene.pair.left.ns.spawn("nmap", args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let mut found = BTreeMap::new();
    for element in text.split("<port ").skip(1) {
        let port = attribute(element, "portid").parse().unwrap();
        if attribute(element, "reason") != "no-response" {
            found.insert(port, attribute(element, "state state").to_owned());
        }
    }
    found
}

fn ours(scene: &Scene, scan: &str, ports: &str) -> BTreeMap<u16, String> {
    let target = scene.pair.right.ipv4.to_string();
    let args = ["scan", &target, scan, "-p", ports, "--json", "--wait", "1"];
    let args = [&args[..], &["--rate", "500", "--retries", "1"]].concat();
    let mut process = scene.pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let rows = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let answers = rows.filter(|row| row["type"] == "answer");
    let state = |row: Value| {
        let port = row["port"].as_u64().unwrap() as u16;
        (port, row["state"].as_str().unwrap().to_owned())
    };
    answers.map(state).collect()
}

#[test]
fn states_of_ports_are_those_that_nmap_finds() {
    require!(skip::lab());
    require!(skip::program("nmap", "nmap"));
    require!(skip::program("iptables", "iptables"));
    let scene = scene();
    for (scan, open) in [
        ("-sS", Some("open")),
        ("-sA", Some("unfiltered")),
        ("-sF", None),
        ("-sX", None),
        ("-sN", None),
        ("-sU", None),
    ] {
        let (ours, nmap) = (ours(&scene, scan, PORTS), nmap(&scene, scan, PORTS));
        // REJECT answers for UDP as a closed port does.
        assert_eq!(ours, nmap, "{scan}");
        assert_eq!(ours.get(&OPEN[1]).map(String::as_str), open, "{scan}");
        let silent = OPEN.len() * usize::from(open.is_none());
        assert_eq!(ours.len(), 180 - silent, "{scan}");
    }
}

/// nmap sends whole headers of the protocols that it knows; these it does not.
#[test]
fn protocols_that_a_host_lacks_are_those_that_nmap_finds() {
    require!(skip::lab());
    require!(skip::program("nmap", "nmap"));
    require!(skip::program("iptables", "iptables"));
    let scene = scene();
    // nmap sums up more than 25 of one state if it finds no other.
    let ports = "3,5,7-16,140-150";
    let ours = ours(&scene, "-sO", ports);
    assert_eq!(ours, nmap(&scene, "-sO", ports));
    assert!(ours.values().filter(|state| *state == "closed").count() > 20);
}

/// The kernel answers timestamp requests; the far end of associations is simulated elsewhere.
#[test]
fn hosts_answer_timestamp_requests() {
    require!(skip::lab());
    require!(skip::program("iptables", "iptables"));
    let scene = scene();
    let target = scene.pair.right.ipv4.to_string();
    let args = ["scan", &target, "-PP", "--json", "--wait", "1"];
    let mut process = scene.pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let answer = stdout.lines().find(|line| line.contains("\"answer\""));
    let row: Value = serde_json::from_str(answer.unwrap()).unwrap();
    assert_eq!(
        (&row["state"], &row["reason"]),
        (&"up".into(), &"timestamp-reply".into())
    );
    assert!(row["rtt_ms"].as_f64().is_some(), "{row}");
}
