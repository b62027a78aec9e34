//! Commands on an interface from which no packets come say so, and what to do.

use std::time::Duration;

use lab::process::barewire;
use lab::{Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `barewire` in the left namespace, and returns its standard error.
fn run(pair: &Pair, args: &str) -> String {
    let args = args.replace("IFACE", &pair.left.ifname);
    let mut process = pair
        .left
        .ns
        .spawn(barewire().unwrap(), args.split(' '))
        .unwrap();
    process.wait(LIMIT).unwrap().stderr
}

const COMMANDS: &[&str] = &[
    "capture IFACE --duration 0.2",
    "capture -i IFACE -w /dev/null --duration 0.2",
    "capture lo IFACE --duration 0.2",
    "flows IFACE --plain --duration 0.2",
    "flows afxdp:IFACE --plain --duration 0.2",
    "forward lo IFACE --duration 0.2",
    "guard IFACE --drop udp --duration 0.2",
    "cluster run --name down IFACE --duration 0.2",
];

#[test]
fn every_command_names_an_interface_that_is_down() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let ip = |end: &lab::End, state: &str| {
        let args = ["link", "set", &end.ifname, state];
        let mut process = end.ns.spawn("ip", args).unwrap();
        process.wait(LIMIT).unwrap().checked().unwrap();
    };
    let hint = format!("hint: ip link set {} up", pair.left.ifname);
    for (is_down, has_carrier) in [(false, true), (true, false), (false, false)] {
        ip(&pair.left, if is_down { "down" } else { "up" });
        ip(&pair.right, if has_carrier { "up" } else { "down" });
        for args in COMMANDS {
            let text = run(&pair, args);
            let words = format!("warning: {}: it is down", pair.left.ifname);
            assert_eq!(text.contains(&words), is_down, "{args}: {text}");
            assert_eq!(text.contains(&hint), is_down, "{args}: {text}");
            let words = format!("warning: {}: it has no carrier", pair.left.ifname);
            let is_expected = !is_down && !has_carrier;
            assert_eq!(text.contains(&words), is_expected, "{args}: {text}");
        }
        // They refuse to run.
        for args in [
            "send --udp --dst 10.77.0.2 IFACE -c 1",
            "scan 10.77.0.2 -p 9 -e IFACE",
        ] {
            if is_down {
                let text = run(&pair, args);
                assert!(
                    text.contains("it is down") && text.contains(&hint),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn a_tap_behind_an_xdp_program_says_so() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = ["guard", &pair.left.ifname, "--drop", "udp"];
    let guard = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    guard.wait_stderr("guarding", LIMIT).unwrap();
    for args in [
        "capture IFACE --duration 0.2",
        "flows IFACE --plain --duration 0.2",
        "forward IFACE lo --duration 0.2",
        "cluster run --name tap IFACE --duration 0.2",
    ] {
        let text = run(&pair, args);
        assert!(text.contains("runs before this tap"), "{args}: {text}");
        assert!(text.contains("hint: `barewire devices"), "{args}: {text}");
    }
    let text = run(&pair, "capture lo --duration 0.2");
    assert!(!text.contains("XDP"), "{text}");
}
