//! `barewire send` finds the MAC address of its destination.

use std::time::Duration;

use lab::process::barewire;
use lab::{Finished, Pair, Veth, skip};

const LIMIT: Duration = Duration::from_secs(60);

fn send(pair: &Pair, args: &[&str]) -> Finished {
    let args = [&["send"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap()
}

/// Neighbours that the kernel does not know yet are resolved, for both families, and the gateway
/// for off-link destinations. A dry run sends no requests.
#[test]
fn the_mac_address_of_a_destination_is_resolved() {
    lab::require!(skip::lab());
    let pair = Veth::new().ipv6().create().unwrap();
    let (left, right) = (&pair.left, &pair.right);
    let mac = wire::Mac(right.mac).to_string();
    let ip = |args: &[&str]| left.ns.ip(args).unwrap();
    let v6 = right.ipv6.to_string();
    for address in ["10.77.0.2", v6.as_str()] {
        ip(&["neighbor", "del", address, "dev", &left.ifname]);
    }
    // Neighbor Discovery needs a link-local address, which the pair lacks.
    let link_local = ["address", "add", "fe80::1/64", "dev", &left.ifname, "nodad"];
    ip(&link_local);
    ip(&["route", "add", "192.0.2.0/24", "via", "10.77.0.2"]);
    ip(&["route", "add", "2001:db8::/32", "via", &v6]);

    for (gateway, destination) in [
        ("10.77.0.2", "192.0.2.1"),
        (v6.as_str(), "2001:db8::1"),
        ("10.77.0.2", "10.77.0.2"),
        (v6.as_str(), v6.as_str()),
    ] {
        let dry = ["--udp", &left.ifname, "--dst", destination, "--dry-run"];
        let known = || ip(&["-o", "neighbor", "show", gateway, "dev", &left.ifname]);
        let was_known = known().contains(&mac);
        let dry = send(&pair, &dry).checked().unwrap();
        assert_eq!(known().contains(&mac), was_known);
        assert_eq!(
            dry.stderr.contains("not known yet"),
            !was_known,
            "{}",
            dry.stderr
        );

        let before = right.counters().unwrap();
        let args = [
            "--udp",
            &left.ifname,
            "--dst",
            destination,
            "--count",
            "100",
        ];
        send(&pair, &args).checked().unwrap();
        // The kernel's own packets (ARP, Neighbor Discovery) are added.
        let got = right.counters().unwrap().since(&before);
        assert!(got.rx_packets >= 100, "{destination}: {}", got.rx_packets);
        let entry = known();
        assert!(entry.contains(&mac), "{destination}: {entry}");
    }

    let args = ["--udp", left.ifname.as_str(), "--dst", "10.77.0.9"];
    let refused = send(&pair, &args);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("10.77.0.9 did not answer"),
        "{}",
        refused.stderr
    );
}
