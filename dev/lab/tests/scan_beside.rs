//! A scan beside others: a second one with banners on the same interface, the scanner's own host,
//! and a link with more hosts than are resolved at once.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use lab::process::{Process, barewire};
use lab::{Finished, Pair, Veth, require, skip};
use serde_json::Value;

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 64 addresses of the right end.
const HOSTS: &str = "198.18.4.0/26";

fn begin(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["scan", "--json", "--wait", "1"], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

fn scan(pair: &Pair, args: &[&str]) -> Finished {
    begin(pair, args).wait(LIMIT).unwrap()
}

fn totals(finished: &Finished) -> Value {
    serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap()
}

/// Starts a server that greets each client.
fn serve(pair: &Pair, port: u16, greeting: &'static [u8]) {
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    // Runs until the test process ends.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.write_all(greeting);
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
}

#[test]
fn a_second_scan_with_banners_says_how_it_works_beside_the_first() {
    require!(skip::lab());
    let pair = Veth::new().offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    serve(&pair, 22, b"SSH-2.0-test\r\n");
    serve(&pair, 25, b"");
    // Its connections to port 25 stay open while the second one runs.
    let args = [HOSTS, "-p", "22,25", "--rate", "2000", "--banners"];
    let first = [&args[..], &["--banner-timeout", "25"]].concat();
    let mut first = begin(&pair, &first);
    first.wait_stderr("all probes sent", LIMIT).unwrap();
    let refused = scan(&pair, &args);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let hint = refused.stderr.split("XDP: ").nth(1).expect("a hint").trim();
    assert!(hint.contains("--firewall --source-port"), "{hint}");
    let beside: Vec<&str> = hint.split(' ').collect();
    let second = [&args[..], &["--banner-timeout", "3"], &beside].concat();
    let second = scan(&pair, &second).checked().unwrap();
    let of_second = totals(&second);
    assert!(second.stderr.contains("XDP program"), "{}", second.stderr);
    let of_first = totals(&first.wait(LIMIT).unwrap().checked().unwrap());
    for totals in [of_first, of_second] {
        assert_eq!(
            (&totals["open"], &totals["banners"], &totals["silent"]),
            // Both connections to a silent service count.
            (&128.into(), &64.into(), &128.into()),
            "{totals}"
        );
    }
}

#[test]
fn this_host_is_refused_with_a_sentence_and_no_silent_neighbour() {
    require!(skip::lab());
    let pair = Veth::new().ipv6().create().unwrap();
    pair.left.ns.ip(["link", "set", "lo", "up"]).unwrap();
    let name = pair.left.ifname.as_str();
    let own = pair.left.ipv4.to_string();
    for args in [
        &["127.0.0.1"][..],
        &["localhost"],
        &["::1"],
        &["0.0.0.0"],
        &["127.0.0.0/8"],
        &[&own],
        &[&own, "-e", name],
        &[&own, "-e", "lo"],
        &["10.77.0.1:80"],
        &["fd77::1", "127.0.0.1", "-e", name],
        &["10.77.0.2", "-e", "lo"],
    ] {
        for more in [
            &[][..],
            &["--banners"],
            &["--dry-run"],
            &["--probe", "echo"],
        ] {
            let args = [args, &["-p", "80"], more].concat();
            let finished = scan(&pair, &args);
            assert_eq!(finished.code(), Some(1), "{args:?}: {}", finished.stderr);
            let text = &finished.stderr;
            let is_said = text.contains("this host itself") || text.contains("not delivered");
            assert!(is_said && text.contains("ss -tuln"), "{args:?}: {text}");
        }
    }
    for (range, own, silent) in [("10.77.0.0/29", 1, 6), ("fd77::/125", 1, 6)] {
        for more in [&[][..], &["--retries", "1"], &["--probe", "echo"]] {
            let attempts = if more == ["--retries", "1"] { 2 } else { 1 };
            let args = [&[range, "-p", "80", "--rate", "1000"], more].concat();
            let finished = scan(&pair, &args).checked().unwrap();
            let totals = totals(&finished);
            let kinds = if more == ["--probe", "echo"] { 2 } else { 1 };
            assert_eq!(totals["own"], own * attempts * kinds, "{totals}");
            assert_eq!(totals["unreachable"], silent * attempts * kinds, "{totals}");
            assert_eq!(totals["complete"], true);
            let text = &finished.stderr;
            assert!(text.contains("1 of 7 on-link targets answered"), "{text}");
            assert!(
                text.contains("1 address of this host is not probed"),
                "{text}"
            );
        }
    }
    // Behind a router, where SYNs are written in batches.
    let mac = wire::Mac(pair.right.mac).to_string();
    let args = [
        "10.77.0.0/24",
        "-p",
        "80,81",
        "--router-mac",
        &mac,
        "-e",
        name,
    ];
    let args = [&args[..], &["--rate", "5000"]].concat();
    let totals = totals(&scan(&pair, &args).checked().unwrap());
    assert_eq!((&totals["own"], &totals["sent"]), (&2.into(), &510.into()));
}

/// 131,072 addresses on the link, of which 512 are hosts.
#[test]
fn hosts_of_a_large_link_are_resolved_as_the_scan_proceeds() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (left, right) = (&pair.left, &pair.right);
    let add = ["address", "add", "198.18.0.1/15", "dev", &left.ifname];
    left.ns.ip(add).unwrap();
    for prefix in ["198.18.4.0/24", "198.19.250.0/24"] {
        let hosts = ["route", "add", "local", prefix, "dev", "lo"];
        right.ns.ip(hosts).unwrap();
    }
    let back = ["route", "add", "198.18.0.1", "dev", &right.ifname];
    right.ns.ip(back).unwrap();
    for (more, probed, hosts) in [
        (&[][..], 131_072, Some(512)),
        (
            &["--shard", "2/3", "--seed", "7"],
            131_072_u64.div_ceil(3),
            None,
        ),
    ] {
        let args = ["198.18.0.0/15", "-p", "81", "--rate", "60kpps"];
        let args = [&args[..], more].concat();
        let raw = receiver(right);
        let (finished, syns) = lab::watch::syns(&raw, || scan(&pair, &args));
        let finished = finished.checked().unwrap();
        let totals = totals(&finished);
        let of = |name: &str| totals[name].as_u64().unwrap();
        assert!(hosts.is_none_or(|hosts| of("closed") == hosts), "{totals}");
        assert_eq!(of("closed"), syns.len() as u64, "{totals}");
        assert!(syns.values().all(|count| *count == 1), "{totals}");
        assert_eq!(
            of("sent") + of("unreachable") + of("own"),
            probed,
            "{totals}"
        );
        let answered = format!("{} of ", of("closed"));
        assert!(finished.stderr.contains(&answered), "{}", finished.stderr);
    }
}

#[test]
fn a_large_scan_has_to_be_confirmed() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mac = wire::Mac(pair.right.mac).to_string();
    let route = ["route", "add", "default", "dev", &pair.left.ifname];
    pair.left.ns.ip(route).unwrap();
    let args = ["9.0.0.0/8", "-p", "80", "--router-mac", &mac, "--rate"];
    let run = |more: &[&str]| scan(&pair, &[&args[..], more].concat());
    let refused = run(&["100kpps"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let why = "16777216 probes at up to 100.00 kpps";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("hint: --yes confirms it"),
        "{}",
        refused.stderr
    );
    run(&["100kpps", "--dry-run"]).checked().unwrap();
    for more in [&["100kpps", "--yes"][..], &["100"]] {
        let mut process = begin(&pair, &[&args[..], more].concat());
        process.wait_stderr("scanning", LIMIT).unwrap();
        let stopped = process.stop(lab::process::Signal::SIGTERM, LIMIT).unwrap();
        assert_eq!(stopped.code(), Some(6), "{}", stopped.stderr);
        assert!(
            stopped.stderr.contains("probes were not sent"),
            "{}",
            stopped.stderr
        );
    }
}
