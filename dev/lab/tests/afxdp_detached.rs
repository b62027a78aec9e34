//! Another process detaches the XDP program: it is attached again or the port ends, and either is
//! reported.

use std::time::{Duration, Instant};

use lab::packet::Udp;
use lab::process::{Finished, Process, Signal, barewire};
use lab::{End, Inline, Pair, Veth, require, skip};
use port::{Port, PortEvent, PortOptions};
use serde_json::Value;
use sys::ErrorKind;
use sys::bpf::{Link, ObjectKind, object_ids, open_by_id};

use crate::afxdp::{LIMIT, assert_balanced, exchange, open, sender, settled};
use crate::afxdp_life::{pass_program, wait_event};

/// The XDP links on an interface; indices in other namespaces may be equal.
fn links(end: &End) -> Vec<Link> {
    let Some((program, _)) = end.xdp().unwrap() else {
        return Vec::new();
    };
    let ids = object_ids(ObjectKind::Link).unwrap();
    let open = |id| open_by_id(ObjectKind::Link, id).ok().map(Link::from_fd);
    let on_it = |link: &Link| {
        let info = link.info().unwrap();
        info.xdp_ifindex == Some(end.ifindex) && u64::from(info.program_id) == program
    };
    ids.into_iter().filter_map(open).filter(on_it).collect()
}

/// Detaches as `bpftool link detach` does.
fn detach(end: &End) {
    let links = links(end);
    assert_eq!(links.len(), 1);
    links[0].detach().unwrap();
}

#[test]
fn a_program_detached_by_another_process_is_attached_again() {
    require!(skip::lab());
    for (attach, mode) in [("native", "xdp"), ("generic", "xdpgeneric")] {
        let pair = Veth::new().create().unwrap();
        let name = format!("afxdp:{{}}?attach={attach}");
        let mut port = open(&pair.right, &name, &PortOptions::default());
        for round in 1..=3 {
            exchange(&pair, &mut port, 1, 0, 100 * round);
            detach(&pair.right);
            assert_eq!(pair.right.xdp().unwrap(), None);
            wait_event(&mut port, &PortEvent::Reattached);
            pair.left.wait_up(LIMIT).unwrap();
            assert_eq!(pair.right.xdp().unwrap().unwrap().1, mode);
        }
        exchange(&pair, &mut port, 1, 0, 100);
        let (_, account) = settled(&mut port);
        assert_balanced(&account);
        assert_eq!(account.rx[0].delivered, 700);
        assert_eq!(port.control.event(), None);
        drop(port);
        assert_eq!(pair.right.xdp().unwrap(), None);
    }
}

/// The error of the receiving end, reported once its ring is empty.
fn end_of(port: &mut Port) -> sys::Error {
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until);
        if let Err(error) = port.rx[0].wait(Duration::from_millis(10)) {
            return error;
        }
    }
}

#[test]
fn a_port_whose_program_was_replaced_ends() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let program = pass_program();
    // The program is detached and another process attaches one; or another program is put into the
    // port's link.
    for replaces in [false, true] {
        let mut port = open(&pair.right, "afxdp:{}", &PortOptions::default());
        exchange(&pair, &mut port, 1, 0, 100);
        let other = if replaces {
            links(&pair.right)[0].update(&program).unwrap();
            None
        } else {
            detach(&pair.right);
            let attach = || Link::create_xdp(&program, pair.right.ifindex, 1 << 2).unwrap();
            Some(pair.right.ns.run(attach).unwrap())
        };
        let until = Instant::now() + LIMIT;
        let why = loop {
            match port.control.event() {
                Some(PortEvent::Detached(why)) => break why,
                Some(_) => {}
                None => assert!(Instant::now() < until),
            }
        };
        assert!(why.contains("foreign"), "{why}");
        let error = end_of(&mut port);
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.to_string().contains("foreign"), "{error}");
        assert_eq!(port.control.event(), None);
        assert_balanced(&port.control.account().unwrap());
        drop(port);
        let left = pair.right.xdp().unwrap().map(|(id, _)| id);
        let foreign = other.as_ref().map(|_| program.info().unwrap().id.into());
        assert_eq!(left, foreign);
    }
}

#[test]
fn a_detachment_found_at_the_end_is_reported() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "afxdp:{}", &PortOptions::default());
    exchange(&pair, &mut port, 1, 0, 100);
    detach(&pair.right);
    port.control.stop().unwrap();
    assert!(matches!(port.control.event(), Some(PortEvent::Detached(_))));
    assert_eq!(end_of(&mut port).kind(), ErrorKind::Gone);
    assert_balanced(&port.control.account().unwrap());
}

/// Packets of a burst: veth queues 256 until its peer's program has seen them.
const COUNT: u64 = 200;

/// Sends `COUNT` packets and waits until the interface at the other end has counted them, which is
/// when its program has seen them.
fn send(from: &End, to: &End, udp: &Udp) {
    let out = sender(from);
    let before = to.counters().unwrap().rx_packets;
    for number in 0..COUNT {
        out.send(&udp.build(number, 60)).unwrap();
    }
    wait_for(|| to.counters().unwrap().rx_packets >= before + COUNT);
}

fn wait_for(is_so: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "nothing came of it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// UDP to another station's address, so that the stack does not answer.
fn plan(pair: &Pair) -> Udp {
    let mut plan = Udp::between(&pair.left, &pair.right);
    plan.destination_mac[5] ^= 0x40;
    plan
}

/// Starts a subcommand on the right end and waits until it receives.
fn start(end: &End, args: &[&str], ready: &str) -> Process {
    let process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr(ready, LIMIT).unwrap();
    process
}

fn total(finished: &Finished) -> Value {
    let line = finished.stdout.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {finished:?}"));
    value["account"]["total"].clone()
}

/// The subcommands that receive, with their message when they do.
const RECEIVERS: [(&[&str], &str); 2] = [
    (&["flows", "--json"], "of memory"),
    (&["capture", "--json", "-w", "/dev/null"], "listening on"),
];

#[test]
fn flows_and_capture_continue_after_a_detachment() {
    require!(skip::lab());
    for (args, ready) in RECEIVERS {
        let pair = Veth::new().create().unwrap();
        let name = format!("afxdp:{}", pair.right.ifname);
        let args = [args, &[&name, "udp port 9"]].concat();
        let mut process = start(&pair.right, &args, ready);
        send(&pair.left, &pair.right, &plan(&pair));
        detach(&pair.right);
        process.wait_stderr("attached again", LIMIT).unwrap();
        pair.left.wait_up(LIMIT).unwrap();
        send(&pair.left, &pair.right, &plan(&pair));
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(finished.code(), Some(0), "{finished:?}");
        let total = total(&finished);
        assert_eq!(total["delivered"], 2 * COUNT, "{finished:?}");
        assert_eq!(total["imbalance"], 0, "{finished:?}");
    }
}

#[test]
fn flows_and_capture_end_with_code_4_when_their_program_is_replaced() {
    require!(skip::lab());
    let program = pass_program();
    for (args, ready) in RECEIVERS {
        let pair = Veth::new().create().unwrap();
        let name = format!("afxdp:{}", pair.right.ifname);
        let args = [args, &[&name, "udp port 9"]].concat();
        let mut process = start(&pair.right, &args, ready);
        send(&pair.left, &pair.right, &plan(&pair));
        links(&pair.right)[0].update(&program).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(4), "{finished:?}");
        assert!(finished.stderr.contains("detached"), "{finished:?}");
        // Its name cannot be looked up after privileges were dropped.
        assert!(finished.stderr.contains("XDP program"), "{finished:?}");
        assert_eq!(total(&finished)["delivered"], COUNT, "{finished:?}");
    }
}

#[test]
fn forward_continues_after_a_detachment() {
    require!(skip::lab());
    let path = Inline::new(&Veth::new()).unwrap();
    let [x, y] = [lab::inline::X, lab::inline::Y].map(|name| format!("afxdp:{name}"));
    let args = ["forward", "--json", &x, &y];
    let mut process = path.ns().spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("forwarding", LIMIT).unwrap();
    let (a, b) = (path.a(), path.b());
    let mut plan = Udp::between(a, b);
    plan.destination_mac[5] ^= 0x40;
    for is_last in [false, true] {
        a.wait_up(LIMIT).unwrap();
        b.wait_up(LIMIT).unwrap();
        send(a, b, &plan);
        if !is_last {
            detach(path.x());
            process.wait_stderr("attached again", LIMIT).unwrap();
        }
    }
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{finished:?}");
}
