//! `afxdp:` ports under adverse conditions: conflicts, killed processes, flapping links, removed
//! devices, dropped privileges, limits.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::afxdp::{self, LIMIT, assert_balanced, exchange, open, settled, try_open};
use lab::process::own_test;
use lab::{End, Process, Veth, require, skip};
use nix::sys::signal::Signal;
use port::{Port, PortEvent, PortOptions};
use sys::ErrorKind;
use sys::link::{Link, XdpFeatures};
use sys::netlink::{Message, Socket};

/// Selects the role of a child process, which is this test binary.
const CHILD: &str = "BW_AFXDP_CHILD";

/// Starts this test binary again in the namespace of an end, to run the test `name` as a child.
fn child(end: &End, name: &str) -> Process {
    let (program, args) = own_test(module_path!(), name);
    let mut command = end.ns.command(program);
    command.args(args);
    Process::spawn(command.env(CHILD, &end.ifname)).unwrap()
}

/// A program that passes everything: r0 = XDP_PASS; exit.
pub(crate) fn pass_program() -> sys::bpf::Program {
    let insns = [0xb7u8, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let insns: Vec<u64> = insns
        .as_chunks::<8>()
        .0
        .iter()
        .map(|c| u64::from_ne_bytes(*c))
        .collect();
    sys::bpf::Program::load(&sys::bpf::ProgramSpec {
        kind: sys::bpf::ProgramType::Xdp,
        name: "foreign",
        insns: &insns,
        flags: 0,
        ifindex: 0,
    })
    .unwrap()
}

/// Attaches a program by netlink, as iproute2 does; -1 detaches it.
fn set_xdp(end: &End, fd: i32) {
    const IFLA_XDP: u16 = 43;
    let mut info = [0u8; 16];
    info[4..8].copy_from_slice(&end.ifindex.to_ne_bytes());
    let ask = Message::new(19, 0)
        .raw(&info)
        .nest(IFLA_XDP, |m| m.attr(1, &fd.to_ne_bytes()));
    let set = || {
        Socket::route()
            .unwrap()
            .request("attach a foreign program", ask)
            .unwrap()
    };
    end.ns.run(set).unwrap();
}

fn open_default(end: &End) -> Port {
    open(end, "afxdp:{}", &PortOptions::default())
}

fn error_of(end: &End, name: &str) -> sys::Error {
    match try_open(end, name, &PortOptions::default()) {
        Ok(_) => panic!("{name} must not open"),
        Err(error) => error,
    }
}

/// Reads events until one is `wanted`.
pub(crate) fn wait_event(port: &mut Port, wanted: &PortEvent) {
    let until = Instant::now() + LIMIT;
    loop {
        match port.control.event() {
            Some(event) if event == *wanted => return,
            Some(_) => {}
            None => {
                assert!(Instant::now() < until, "no {wanted:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn a_program_attached_by_netlink_is_named_and_left_alone() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let program = pass_program();
    set_xdp(&pair.right, program.as_fd().as_raw_fd());
    let id = program.info().unwrap().id;
    for name in [
        "afxdp:{}",
        "afxdp:{}?attach=generic",
        "afxdp:{}?attach=native",
    ] {
        let error = error_of(&pair.right, name);
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("foreign") && text.contains(&id.to_string()),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("xdp off"), "{error:?}");
    }
    assert_eq!(pair.right.xdp().unwrap().unwrap().0, u64::from(id));
    set_xdp(&pair.right, -1);
    drop(open_default(&pair.right));
}

#[test]
fn a_program_attached_by_link_is_named_and_left_alone() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let program = pass_program();
    let link = pair
        .right
        .ns
        .run(|| sys::bpf::Link::create_xdp(&program, pair.right.ifindex, 1 << 2))
        .unwrap()
        .unwrap();
    let link_id = link.info().unwrap().id;
    let error = error_of(&pair.right, "afxdp:{}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let text = error.to_string();
    assert!(
        text.contains("foreign") && text.contains(&format!("link {link_id}")),
        "{text}"
    );
    assert!(pair.right.xdp().unwrap().is_some());
    drop(link);
    drop(open_default(&pair.right));
}

#[test]
fn two_ports_cannot_share_an_interface() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let first = open_default(&pair.right);
    let error = error_of(&pair.right, "afxdp:{}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("bw_redirect"), "{error}");
    drop(first);
    drop(open_default(&pair.right));
}

#[test]
fn unsupported_options_are_refused_with_a_reason() {
    require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let tunnel = "tuntap add dev tun0 mode tun".split(' ');
    pair.right.ns.ip(tunnel).unwrap();
    let cases = [
        ("afxdp:tun0", ErrorKind::Unsupported, "no Ethernet header"),
        (
            "afxdp:no-such-if0",
            ErrorKind::NotFound,
            "no such interface",
        ),
        ("afxdp:{}/2", ErrorKind::NotFound, "no queue 2: "),
        ("afxdp:{}/2", ErrorKind::NotFound, "has 2 queues, 0 to 1"),
        ("afxdp:{}?queues=3", ErrorKind::NotFound, "3 queues"),
        ("afxdp:{}?queues=3", ErrorKind::NotFound, "has 2 queues"),
        ("afxdp:{}?bind=zero-copy", ErrorKind::Unsupported, "veth"),
        (
            "afxdp:{}?bind=zero-copy&attach=generic",
            ErrorKind::Unsupported,
            "veth",
        ),
        (
            "afxdp:{}?timestamp=device&attach=generic",
            ErrorKind::Unsupported,
            "time",
        ),
        ("afxdp:{}?ring=1000000", ErrorKind::InvalidInput, "1000000"),
    ];
    for (name, kind, words) in cases {
        let error = error_of(&pair.right, name);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert!(
            error.hint().is_some() || kind == ErrorKind::InvalidInput,
            "{error}"
        );
        assert_eq!(pair.right.xdp().unwrap(), None, "{name}: nothing stays");
    }
}

#[test]
fn afxdp_works_on_loopback() {
    require!(skip::lab());
    let ns = lab::Netns::new().unwrap();
    let open_and_receive = || {
        let mut port = port::open("afxdp:lo", &PortOptions::default()).unwrap();
        assert_eq!(afxdp::fact(&port, "attach mode"), "generic");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"to nobody", "127.0.0.1:9").unwrap();
        port.rx[0].wait(LIMIT).unwrap();
        let batch = port.rx[0].receive().unwrap();
        let packet = batch.iter().next().expect("a packet");
        assert_eq!(&packet.bytes()[42..], b"to nobody");
    };
    ns.run(open_and_receive).unwrap();
}

#[test]
fn a_queue_that_another_socket_holds_is_refused() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    // A sender holds the queue without a program.
    let sending = PortOptions {
        direction: port::Direction::Tx,
        ..PortOptions::default()
    };
    let first = open(&pair.right, "afxdp:{}", &sending);
    let error = error_of(&pair.right, "afxdp:{}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("queue 0"), "{error}");
    assert_eq!(pair.right.xdp().unwrap(), None);
    drop(first);
    drop(open_default(&pair.right));
}

/// Several queues, the last of which is in use: nothing of the others stays attached.
#[test]
fn a_port_that_fails_to_open_leaves_nothing_attached() {
    require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let sending = PortOptions {
        direction: port::Direction::Tx,
        ..PortOptions::default()
    };
    let holder = open(&pair.right, "afxdp:{}/1", &sending);
    let pool = ring::Pool::new(ring::PoolConfig {
        frame_count: 4096,
        ..ring::PoolConfig::default()
    })
    .unwrap();
    let before = pool.counts();
    for direction in [port::Direction::Rx, port::Direction::Both] {
        let options = PortOptions {
            direction,
            pool: Some(pool.clone()),
            ..PortOptions::default()
        };
        let error = try_open(&pair.right, "afxdp:{}", &options).err();
        let error = error.expect("queue 1 is in use");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("queue 1"), "{error}");
        assert_eq!(pair.right.xdp().unwrap(), None, "the program is off");
        assert_eq!(pool.counts(), before, "every frame is back");
    }
    drop(holder);
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let mut port = open(&pair.right, "afxdp:{}", &options);
    exchange(&pair, &mut port, 8, 0, 200);
    drop(port);
    assert_eq!(pool.counts(), before);
}

#[test]
fn child_holds_the_port() {
    let ifname = ::skip::child_body!(CHILD);
    let mut port = port::open(&format!("afxdp:{ifname}"), &PortOptions::default()).unwrap();
    println!("open");
    loop {
        port.rx[0].wait(Duration::from_millis(10)).unwrap();
        drop(port.rx[0].receive().unwrap());
    }
}

#[test]
fn kill_9_leaves_the_interface_as_before() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let out = afxdp::sender(&pair.left);
    let udp = lab::packet::Udp::between(&pair.left, &pair.right);
    for round in 0..10 {
        let mut process = child(&pair.right, "child_holds_the_port");
        process.wait_stdout("open", LIMIT).unwrap();
        assert!(pair.right.xdp().unwrap().is_some());
        for number in 0..64 {
            out.send(&udp.build(number, 60)).unwrap();
        }
        process.signal(Signal::SIGKILL).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(finished.signal(), Some(Signal::SIGKILL));
        // The link's last descriptor is closed with the process; the program follows shortly after.
        let until = Instant::now() + Duration::from_millis(500);
        while pair.right.xdp().unwrap().is_some() {
            assert!(Instant::now() < until, "round {round}: the program stays");
        }
        let mut port = open_default(&pair.right);
        exchange(&pair, &mut port, 1, 0, 64);
    }
    assert_eq!(pair.right.xdp().unwrap(), None);
}

#[test]
fn child_drops_its_privileges() {
    let ifname = ::skip::child_body!(CHILD);
    let mut port = port::open(&format!("afxdp:{ifname}"), &PortOptions::default()).unwrap();
    sys::privileges::drop_privileges(Some(&sys::privileges::User::find("nobody").unwrap()), &[])
        .unwrap();
    assert!(sys::xsk::XskSocket::open().is_err(), "the rights are gone");
    println!("open");
    let until = Instant::now() + LIMIT;
    let mut received = 0;
    while received < 100 {
        assert!(Instant::now() < until);
        port.rx[0].wait(Duration::from_millis(10)).unwrap();
        received += port.rx[0].receive().unwrap().len();
    }
    port.control.stop().unwrap();
    assert_eq!(port.control.event(), None);
    let account = port.control.account().unwrap();
    assert_balanced(&account);
    assert_eq!(account.rx[0].delivered, 100);
    assert_eq!(account.interface_seen, Some(100));
    drop(port);
    println!("closed");
}

#[test]
fn an_open_port_needs_no_privileges() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut process = child(&pair.right, "child_drops_its_privileges");
    process.wait_stdout("open", LIMIT).unwrap();
    let out = afxdp::sender(&pair.left);
    let udp = lab::packet::Udp::between(&pair.left, &pair.right);
    for number in 0..100 {
        out.send(&udp.build(number, 60)).unwrap();
    }
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains("closed"));
    assert_eq!(pair.right.xdp().unwrap(), None);
}

#[test]
fn child_has_no_privileges() {
    let ifname = ::skip::child_body!(CHILD);
    sys::privileges::drop_privileges(Some(&sys::privileges::User::find("nobody").unwrap()), &[])
        .unwrap();
    for direction in [port::Direction::Rx, port::Direction::Tx] {
        let options = PortOptions {
            direction,
            ..PortOptions::default()
        };
        let error = port::open(&format!("afxdp:{ifname}"), &options).err();
        let error = error.expect("nobody may not open ports");
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("root") && hint.contains("CAP_"), "{hint}");
    }
    println!("done");
}

#[test]
fn missing_privileges_are_named() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut process = child(&pair.right, "child_has_no_privileges");
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains("done"));
    assert_eq!(pair.right.xdp().unwrap(), None);
}

#[test]
fn driver_features_of_the_kernel_are_read() {
    require!(skip::lab());
    let pair = Veth::new().queues(3).create().unwrap();
    let ask = || {
        let link = Link::by_name(&pair.right.ifname).unwrap();
        (XdpFeatures::of(link.index), link)
    };
    let (features, link) = pair.right.ns.run(ask).unwrap();
    assert_eq!(
        (link.index, link.kind.as_str()),
        (pair.right.ifindex, "veth")
    );
    assert_eq!(link.address, pair.right.mac);
    assert!(link.is_running() && link.rx_queue_max == 3 && link.tx_queue_max == 3);
    match features {
        Ok(features) => {
            assert!(features.has(XdpFeatures::BASIC | XdpFeatures::REDIRECT | XdpFeatures::RX_SG));
            assert!(!features.has(XdpFeatures::ZERO_COPY));
            assert!(features.rx_metadata & XdpFeatures::META_HASH != 0);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
}

#[test]
fn child_has_little_locked_memory() {
    let ifname = ::skip::child_body!(CHILD);
    use sys::privileges::Capability;
    let keep = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf];
    sys::privileges::drop_privileges(None, &keep).unwrap();
    let error = port::open(&format!("afxdp:{ifname}"), &PortOptions::default()).err();
    let error = error.expect("9 MiB do not fit 8 MiB");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("locked memory") && text.contains("8388608"),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("ulimit -l"));
    // Less memory fits.
    drop(port::open(&format!("afxdp:{ifname}?ring=512"), &PortOptions::default()).unwrap());
    println!("done");
}

#[test]
fn too_little_locked_memory_is_named() {
    require!(skip::lab(), skip::program("prlimit", "util-linux"));
    let pair = Veth::new().create().unwrap();
    let mut command = pair.right.ns.command("prlimit");
    command.arg("--memlock=8388608:8388608");
    let (program, args) = own_test(module_path!(), "child_has_little_locked_memory");
    command.arg(program).args(args);
    let mut process = Process::spawn(command.env(CHILD, &pair.right.ifname)).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    assert!(finished.stdout.contains("done"));
}

#[test]
fn reception_continues_after_a_link_flap() {
    require!(skip::lab());
    for attach in ["native", "generic"] {
        let pair = Veth::new().create().unwrap();
        let name = format!("afxdp:{{}}?attach={attach}");
        let mut port = open(&pair.right, &name, &PortOptions::default());
        exchange(&pair, &mut port, 1, 0, 100);
        for round in 1..=3 {
            pair.right.set_down().unwrap();
            wait_event(&mut port, &PortEvent::LinkDown);
            drop(port.rx[0].receive().unwrap());
            pair.right.set_up().unwrap();
            wait_event(&mut port, &PortEvent::LinkUp);
            exchange(&pair, &mut port, 1, 0, 100 * round);
        }
        let (_, account) = settled(&mut port);
        assert_balanced(&account);
        assert_eq!(account.rx[0].delivered, 700);
    }
}

#[test]
fn a_port_may_be_opened_before_the_link_is_up() {
    require!(skip::lab());
    for attach in ["native", "generic"] {
        let pair = Veth::new().create().unwrap();
        pair.right.set_down().unwrap();
        let name = format!("afxdp:{{}}?attach={attach}");
        let mut port = open(&pair.right, &name, &PortOptions::default());
        drop(port.rx[0].receive().unwrap());
        pair.right.set_up().unwrap();
        wait_event(&mut port, &PortEvent::LinkUp);
        exchange(&pair, &mut port, 1, 0, 500);
        let (_, account) = settled(&mut port);
        assert_balanced(&account);
        assert_eq!(account.rx[0].delivered, 500);
    }
}

#[test]
fn an_mtu_change_is_reported_and_applied() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open_default(&pair.right);
    exchange(&pair, &mut port, 1, 0, 100);
    for mtu in [9000, 1500] {
        pair.right.set_mtu(mtu).unwrap();
        pair.left.set_mtu(mtu).unwrap();
        wait_event(&mut port, &PortEvent::MtuChanged(mtu));
        let out = afxdp::sender(&pair.left);
        let udp = lab::packet::Udp::between(&pair.left, &pair.right);
        out.send(&udp.build(7, mtu as usize + 14)).unwrap();
        assert_eq!(afxdp::receive(&mut port, 1), [[7]]);
    }
    let (_, account) = settled(&mut port);
    assert_balanced(&account);
}

#[test]
fn a_device_that_is_removed_ends_the_port() {
    require!(skip::lab());
    for attach in ["native", "generic"] {
        // One port learns it by its events, one by its reader alone.
        for by_event in [true, false] {
            let pair = Veth::new().create().unwrap();
            let name = format!("afxdp:{{}}?attach={attach}");
            let mut port = open(&pair.right, &name, &PortOptions::default());
            exchange(&pair, &mut port, 1, 0, 100);
            pair.right.delete().unwrap();
            if by_event {
                wait_event(&mut port, &PortEvent::DeviceGone);
                assert_eq!(port.rx[0].receive().err().unwrap().kind(), ErrorKind::Gone);
                assert_eq!(port.control.event(), None);
            } else {
                let until = Instant::now() + LIMIT;
                let error = loop {
                    assert!(Instant::now() < until);
                    if let Err(error) = port.rx[0].wait(Duration::from_millis(10)) {
                        break error;
                    }
                };
                assert_eq!(error.kind(), ErrorKind::Gone);
                // A reader that never waits detects it too.
                let error = (0..10_000).find_map(|_| port.rx[0].receive().err());
                assert_eq!(error.unwrap().kind(), ErrorKind::Gone);
            }
            // The counters are available to the end.
            port.control.stop().unwrap();
            let account = port.control.account().unwrap();
            assert_balanced(&account);
            assert_eq!(
                (account.rx[0].delivered, account.interface_seen),
                (100, None)
            );
        }
    }
}

#[test]
fn queues_may_be_added_and_removed_while_open() {
    require!(skip::lab());
    let pair = Veth::new().queues(4).create().unwrap();
    pair.left.set_queues(2).unwrap();
    pair.right.set_queues(2).unwrap();
    let mut port = open_default(&pair.right);
    assert_eq!(port.rx.len(), 2);
    let host = pair.right.ns.run(|| lab::packet::Raw::open("right0"));
    let host = host.unwrap().unwrap();
    exchange(&pair, &mut port, 16, 0, 200);
    // Fewer than have sockets: the kernel prevents that.
    pair.right.set_queues(1).unwrap_err();
    exchange(&pair, &mut port, 16, 200, 400);
    // More than before: packets of queues without a socket continue to the host.
    pair.right.set_queues(4).unwrap();
    pair.left.set_queues(4).unwrap();
    let out = afxdp::sender(&pair.left);
    let udp = lab::packet::Udp::between(&pair.left, &pair.right).flows(32);
    for number in 400..600 {
        out.send(&udp.build(number, 60)).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    let (left, account) = settled(&mut port);
    let mut all = left.concat();
    while let Some(packet) = host.receive(Duration::from_millis(100)).unwrap() {
        all.extend(lab::packet::number_of(&packet).ok().filter(|&n| n >= 400));
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(400..600));
    assert_balanced(&account);
    // veth does not run the program on queues added later, and those packets go to the host unseen
    // by the port.
    let seen = account.rx_total().seen;
    assert!((400..=600).contains(&seen), "{account:?}");
    assert_eq!(account.interface_seen, Some(600));
}

#[test]
fn bodies_of_children_run_if_their_variable_is_set() {
    // The children above would pass without doing anything if the variable did not reach them.
    let (program, args) = own_test(module_path!(), "child_holds_the_port");
    let output = Command::new(program)
        .args(args)
        .env(CHILD, "no-such-if0")
        .output()
        .unwrap();
    assert!(!output.status.success());
}
