//! Interfaces that a host depends on, in namespaces with all kinds of routes.

use lab::{Netns, skip};

/// A namespace with a pair whose ends are `card` and `peer`, configured by these lines.
fn after(lines: &[&str]) -> Netns {
    let ns = Netns::new().unwrap();
    let common = [
        "link add card type veth peer name peer",
        "link set card up",
        "link set peer up",
        "link set lo up",
    ];
    for line in common.iter().chain(lines) {
        ns.ip(line.split_whitespace()).unwrap();
    }
    ns
}

fn host_dependency(ns: &Netns, name: &str) -> Option<String> {
    ns.run(|| nic::host_dependency(name)).unwrap()
}

#[test]
fn default_routes_of_every_form_are_found() {
    lab::require!(skip::lab());
    let address = "address add 192.0.2.1/24 dev card";
    let six = "address add 2001:db8::1/64 dev card nodad";
    for (lines, why) in [
        (
            &[address, "route add default via 192.0.2.2"][..],
            "default route uses card",
        ),
        (
            &[address, "route add default via 192.0.2.2 table 77"],
            "of table 77",
        ),
        (
            &[address, "route add 0.0.0.0/1 via 192.0.2.2"],
            "default route",
        ),
        (
            &[address, "route add 128.0.0.0/1 dev card"],
            "default route",
        ),
        (
            &[
                address,
                "address add 198.51.100.1/24 dev peer",
                "route add default nexthop via 198.51.100.2 nexthop via 192.0.2.2",
            ],
            "uses card",
        ),
        (&[six, "-6 route add default via 2001:db8::2"], "uses card"),
        (
            &[
                "link add bridge0 type bridge",
                "link set card master bridge0",
                "link set bridge0 up",
                "address add 192.0.2.1/24 dev bridge0",
                "route add default via 192.0.2.2",
            ],
            "bridge0, which is on top of card",
        ),
    ] {
        let ns = after(lines);
        let reported =
            host_dependency(&ns, "card").unwrap_or_else(|| panic!("not seen: {lines:?}"));
        assert!(reported.contains(why), "{lines:?}: {reported}");
        // Not needed by the host: the peer, unless the route uses it too.
        if !lines.iter().any(|line| line.contains("peer")) {
            assert_eq!(host_dependency(&ns, "peer"), None, "{lines:?}");
        }
    }
}

#[test]
fn other_routes_are_not_host_dependencies() {
    lab::require!(skip::lab());
    let ns = after(&[
        "address add 192.0.2.1/24 dev card",
        "route add 10.0.0.0/8 via 192.0.2.2",
        "route add unreachable default",
    ]);
    assert_eq!(host_dependency(&ns, "card"), None);
    // An interface that does not exist is an error, too.
    assert!(host_dependency(&ns, "no-such-if").is_some());
}
