//! `barewire guard --hook iptables --print`: a shell runs what it prints, as a person would.

use std::net::UdpSocket;

use lab::process::barewire;
use lab::{Pair, Veth, require, skip};

use crate::guard_flood::{HPING3, hping3, ten_connections};

/// The printed commands for the right end.
fn printed(pair: &Pair, args: &[&str]) -> String {
    let hook = ["guard", &pair.right.ifname, "--hook", "iptables", "--print"];
    let args = [&hook[..], args].concat();
    pair.right.ns.exec(barewire().unwrap(), args).unwrap()
}

/// Runs commands at the right end; each must succeed.
fn shell(pair: &Pair, text: &str) {
    pair.right.ns.exec("sh", ["-e", "-c", text]).unwrap();
}

/// The packets of each rule of a chain, from the first on.
fn counts(pair: &Pair, command: &str, chain: &str) -> Vec<u64> {
    let list = ["-t", "raw", "-L", chain, "-v", "-x", "-n"];
    let text = pair.right.ns.exec(command, list).unwrap();
    let count = |line: &str| line.split_whitespace().next().unwrap().parse().unwrap();
    text.lines().skip(2).map(count).collect()
}

/// The commands that undo the others.
fn undo(text: &str) -> String {
    let (_, undo) = text.split_once("# To undo it:\n").unwrap();
    undo.replace("# ", "")
}

#[test]
fn a_shell_runs_the_commands_and_undoes_them() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    require!(skip::program("iptables", "iptables"));
    let pair = Veth::new().create().unwrap();
    let rule = format!("p0f:{HPING3}");
    let args = [
        "--drop",
        &rule,
        "--count",
        "tcp",
        "--deny",
        "192.0.2.0/24,2001:db8::/32",
        "--allow",
        "203.0.113.9",
        "--limit",
        "10/s and 1/s per /24 udp dst port 9 and not greater 1400",
    ];
    let text = printed(&pair, &args);
    shell(&pair, &text);
    let chain = format!("barewire-{}", pair.right.ifname);
    hping3(&pair, &["-S", "-p", "8080"]);
    ten_connections(&pair);
    // Of other packets of hping3, none.
    hping3(&pair, &["-S", "-p", "8080", "-t", "65"]);
    // In their order: allow, count, deny, drop, limit.
    let rules = counts(&pair, "iptables", &chain);
    assert_eq!(rules.len(), 5, "{text}");
    assert_eq!((rules[0], rules[2], rules[3]), (0, 0, 10), "{rules:?}");
    assert!(rules[1] >= 10 + 10 * 5 + 10, "{rules:?}");
    // The denied prefix and the expressions, without the IPv4 address and signature.
    assert_eq!(counts(&pair, "ip6tables", &chain).len(), 3, "{text}");

    // One packet of a source fits, and no more.
    let socket = pair.left.ns.run(|| UdpSocket::bind((pair.left.ipv4, 0)));
    let socket = socket.unwrap().unwrap();
    for _ in 0..20 {
        // The port is closed, which an answer to an earlier packet may report.
        let _ = socket.send_to(b"flood", (pair.right.ipv4, 9));
    }
    let own = format!("barewire5-{}", pair.right.ifname);
    let limit = counts(&pair, "iptables", &own);
    assert_eq!(limit.len(), 3, "{text}");
    assert!(limit[0] >= 15, "{limit:?}");
    assert!(limit[2] >= 1, "{limit:?}");

    shell(&pair, &undo(&text));
    for command in ["iptables", "ip6tables"] {
        let left = pair.right.ns.exec(command, ["-t", "raw", "-S"]).unwrap();
        assert!(!left.contains("barewire"), "{left}");
    }
}

#[test]
fn a_dry_run_counts_and_drops_nothing() {
    require!(skip::lab());
    require!(skip::program("iptables", "iptables"));
    let pair = Veth::new().create().unwrap();
    shell(&pair, &printed(&pair, &["--dry-run", "--drop", "tcp"]));
    ten_connections(&pair);
    let chain = format!("barewire-{}", pair.right.ifname);
    assert!(counts(&pair, "iptables", &chain)[0] >= 50);
}
