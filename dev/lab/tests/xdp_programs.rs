//! The generated XDP programs in the kernel: verdicts and counts through `BPF_PROG_TEST_RUN`, and
//! their attachment to veth devices in separate namespaces.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use bpf::cbpf::{Insn, Program};
use lab::packet::{Raw, Udp};
use lab::process::own_test;
use lab::{Veth, skip};
use sys::ErrorKind;
use sys::bpf::TestRun;
use sys::xsk::XskSocket;
use xdp::metadata::{METADATA_LEN, Metadata, TimeClock};
use xdp::{
    AttachMode, MetadataSpec, Redirect, RedirectCounters, RedirectSpec, TimestampSource, XdpLink,
    XdpProgram,
};

const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Selects packets whose byte 12 is 8: IPv4 on Ethernet.
fn ipv4_filter() -> Program {
    let insns = [
        (0x30, 0, 0, 12),
        (0x15, 0, 1, 8),
        (0x06, 0, 0, 96),
        (0x06, 0, 0, 0),
    ];
    Program::new(
        insns
            .map(|(code, jt, jf, k)| Insn::new(code, jt, jf, k))
            .to_vec(),
    )
    .unwrap()
}

/// Selects packets whose byte 4000 is 7, which is not in the first buffer.
fn far_filter() -> Program {
    let insns = [
        (0x30, 0, 0, 4000),
        (0x15, 0, 1, 7),
        (0x06, 0, 0, 96),
        (0x06, 0, 0, 0),
    ];
    Program::new(
        insns
            .map(|(code, jt, jf, k)| Insn::new(code, jt, jf, k))
            .to_vec(),
    )
    .unwrap()
}

/// Selects packets whose byte at 14 plus the length of the IPv4 header is 9: uses X.
fn port_filter() -> Program {
    let insns = [
        (0xb1, 0, 0, 14),
        (0x50, 0, 0, 17),
        (0x15, 0, 1, 9),
        (0x06, 0, 0, 96),
        (0x06, 0, 0, 0),
    ];
    Program::new(
        insns
            .map(|(code, jt, jf, k)| Insn::new(code, jt, jf, k))
            .to_vec(),
    )
    .unwrap()
}

/// A packet of this length, filled with one byte except for a few.
fn packet(len: usize, fill: u8, set: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    for &(at, value) in set {
        bytes[at] = value;
    }
    bytes
}

struct Case {
    what: &'static str,
    spec: RedirectSpec,
    has_socket: bool,
    packet: Vec<u8>,
    verdict: u32,
    /// In addition to `seen` and `seen_bytes`.
    counters: RedirectCounters,
}

impl Case {
    /// A packet redirected to the socket.
    fn redirected(what: &'static str, spec: RedirectSpec, packet: Vec<u8>) -> Case {
        let counters = RedirectCounters {
            redirected: 1,
            ..RedirectCounters::default()
        };
        Case {
            what,
            spec,
            has_socket: true,
            packet,
            verdict: XDP_REDIRECT,
            counters,
        }
    }

    /// A packet left to the host by the filter, although there is a socket.
    fn filtered(what: &'static str, spec: RedirectSpec, packet: Vec<u8>) -> Case {
        let counters = RedirectCounters {
            passed_filter: 1,
            ..RedirectCounters::default()
        };
        Case {
            verdict: XDP_PASS,
            counters,
            ..Case::redirected(what, spec, packet)
        }
    }

    /// A packet left to the host because there is no socket.
    fn alone(what: &'static str, spec: RedirectSpec, packet: Vec<u8>) -> Case {
        let counters = RedirectCounters {
            passed_no_socket: 1,
            ..RedirectCounters::default()
        };
        Case {
            has_socket: false,
            verdict: XDP_PASS,
            counters,
            ..Case::redirected(what, spec, packet)
        }
    }
}

fn filtering(filter: Program) -> RedirectSpec {
    RedirectSpec {
        filter: Some(filter),
        ..RedirectSpec::default()
    }
}

/// The same for packets of several buffers.
fn with_frags(spec: RedirectSpec) -> RedirectSpec {
    RedirectSpec {
        frags: true,
        ..spec
    }
}

/// With the program's timestamp before each packet.
fn with_time(spec: RedirectSpec) -> RedirectSpec {
    RedirectSpec {
        metadata: MetadataSpec {
            time: TimestampSource::Program,
            ..MetadataSpec::default()
        },
        ..spec
    }
}

fn ipv4() -> Vec<u8> {
    packet(60, 1, &[(12, 8)])
}

fn cases() -> Vec<Case> {
    let plain = RedirectSpec::default;
    [
        vec![
            Case::alone("no socket", plain(), ipv4()),
            Case::redirected("a socket", plain(), ipv4()),
            Case::redirected("frags", with_frags(plain()), packet(9000, 1, &[])),
        ],
        cases_of_filters(),
        cases_of_far_filters(),
        cases_of_metadata(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn cases_of_filters() -> Vec<Case> {
    let never = Program::new(vec![Insn::new(0x06, 0, 0, 0)]).unwrap();
    let (other, short) = (packet(60, 1, &[]), packet(20, 1, &[]));
    vec![
        Case::filtered("filter, no", filtering(ipv4_filter()), other),
        Case::redirected("filter, yes", filtering(ipv4_filter()), ipv4()),
        Case::filtered("filter, too short", filtering(port_filter()), short),
        Case::alone("filter, alone", filtering(ipv4_filter()), ipv4()),
        Case::filtered("filter, never", filtering(never), ipv4()),
    ]
}

/// Filters that read beyond the first buffer.
fn cases_of_far_filters() -> Vec<Case> {
    let far = || with_frags(filtering(far_filter()));
    let (yes, no) = (packet(9000, 1, &[(4000, 7)]), packet(9000, 1, &[]));
    vec![
        Case::redirected("filter beyond the first buffer", far(), yes),
        Case::filtered("and not", far(), no),
        Case::filtered("and too short", far(), packet(60, 7, &[])),
    ]
}

fn cases_of_metadata() -> Vec<Case> {
    let timed = || with_time(RedirectSpec::default());
    let with_all = || with_time(with_frags(filtering(port_filter())));
    let no = packet(5000, 1, &[(14, 0x4f), (20 + 17, 9)]);
    let yes = packet(5000, 1, &[(14, 0x45), (20 + 17, 9)]);
    vec![
        Case::redirected("metadata", timed(), ipv4()),
        Case::filtered("metadata, frags, filter with X", with_all(), no),
        Case::redirected("metadata, frags, filter with X, yes", with_all(), yes),
        Case::alone("metadata, alone", timed(), ipv4()),
    ]
}

#[test]
fn each_packet_has_one_verdict_and_one_count() {
    lab::require!(skip::root());
    for case in cases() {
        let what = case.what;
        let redirect = Redirect::load(&case.spec).unwrap_or_else(|e| panic!("{what}: {e}"));
        // In the map though not bound: the program's verdict does not depend on that.
        let socket = XskSocket::open().unwrap();
        if case.has_socket {
            redirect.sockets().set(0, socket.as_fd()).unwrap();
        }
        let run = TestRun {
            data: &case.packet,
            data_out_max: case.packet.len() as u32 + 64,
            ..TestRun::default()
        };
        let before = std::time::UNIX_EPOCH.elapsed().unwrap();
        let result = redirect.program().test_run(&run).unwrap();
        assert_eq!(result.retval, case.verdict, "{what}");
        let expected = RedirectCounters {
            seen: 1,
            seen_bytes: case.packet.len() as u64,
            ..case.counters
        };
        assert_eq!(redirect.counters(0).unwrap(), expected, "{what}");

        let has_metadata = case.spec.metadata.is_wanted() && case.verdict == XDP_REDIRECT;
        let meta_len = if has_metadata { METADATA_LEN } else { 0 };
        let (meta, bytes) = result.data.split_at(meta_len);
        assert_eq!(bytes, case.packet, "{what}: the packet must stay as it is");
        if let Some(meta) = meta.first_chunk() {
            let meta = Metadata::parse(meta).unwrap();
            let (time_ns, clock) = meta.time_ns.unwrap();
            assert_eq!(clock, TimeClock::Tai, "{what}");
            // CLOCK_TAI is ahead by the leap seconds, 37 today, if the kernel was configured.
            let ahead = Duration::from_nanos(time_ns).checked_sub(before).unwrap();
            assert!(ahead < Duration::from_secs(60), "{what}: {ahead:?}");
            assert_eq!((meta.hash, meta.vlan), (None, None));
        }
        // The map entry ends with the socket.
        if case.has_socket && case.verdict == XDP_REDIRECT {
            drop(socket);
            let result = redirect.program().test_run(&run).unwrap();
            assert_eq!(result.retval, XDP_PASS, "{what}");
            assert_eq!(redirect.counters(0).unwrap().passed_no_socket, 1, "{what}");
        }
    }
}

#[test]
fn a_filter_is_replaced_with_the_same_maps() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let udp = Udp::between(&pair.left, &pair.right);
    pair.right
        .ns
        .run(|| {
            let mut redirect = Redirect::load(&RedirectSpec::default()).unwrap();
            let link = XdpLink::attach(redirect.program(), pair.right.ifindex, AttachMode::Native)
                .unwrap();
            let send_and_count = |redirect: &Redirect, seen: u64| {
                for number in 0..10 {
                    sender.send(&udp.build(number, 100)).unwrap();
                }
                wait_for(redirect, seen)
            };
            let first = send_and_count(&redirect, 10);
            assert_eq!((first.passed_no_socket, first.seen_bytes), (10, 1000));

            let not_ipv4 = [
                (0x30, 0, 0, 12),
                (0x15, 0, 1, 9),
                (0x06, 0, 0, 96),
                (0x06, 0, 0, 0),
            ];
            let not_ipv4 = not_ipv4.map(|(code, jt, jf, k)| Insn::new(code, jt, jf, k));
            let filter = Program::new(not_ipv4.to_vec()).unwrap();
            let spec = RedirectSpec {
                filter: Some(filter),
                ..RedirectSpec::default()
            };
            redirect.reload(&spec).unwrap();
            link.update(redirect.program()).unwrap();
            let second = send_and_count(&redirect, 20);
            assert_eq!((second.passed_no_socket, second.passed_filter), (10, 10));

            let other = RedirectSpec {
                queue_count: 2,
                ..RedirectSpec::default()
            };
            assert_eq!(
                redirect.reload(&other).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        })
        .unwrap();
    assert_eq!(pair.right.xdp().unwrap(), None, "dropped is detached");
}

/// The counters of queue 0 once it has seen this many packets.
fn wait_for(redirect: &Redirect, seen: u64) -> RedirectCounters {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let counters = redirect.counters(0).unwrap();
        if counters.seen >= seen || Instant::now() > until {
            assert_eq!(counters.seen, seen);
            return counters;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn device_metadata_needs_its_device_and_native_mode() {
    lab::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let udp = Udp::between(&pair.left, &pair.right);
    pair.right
        .ns
        .run(|| {
            let ifindex = pair.right.ifindex;
            let spec = RedirectSpec {
                metadata: MetadataSpec {
                    time: TimestampSource::Device,
                    hash: true,
                    vlan: true,
                },
                ifindex,
                queue_count: 2,
                ..RedirectSpec::default()
            };
            let redirect = Redirect::load(&spec).unwrap();
            let error =
                XdpLink::attach(redirect.program(), ifindex, AttachMode::Generic).unwrap_err();
            assert!(error.hint().is_some(), "{error}");
            let link = XdpLink::attach(redirect.program(), ifindex, AttachMode::Native).unwrap();
            assert!(link.is_attached().unwrap());
            assert_eq!((link.ifindex(), link.mode()), (ifindex, AttachMode::Native));
            let socket = XskSocket::open().unwrap();
            redirect.sockets().set(0, socket.as_fd()).unwrap();
            redirect.sockets().set(1, socket.as_fd()).unwrap();
            assert!(redirect.sockets().set(2, socket.as_fd()).is_err());
            for number in 0..20 {
                sender.send(&udp.build(number, 80)).unwrap();
            }
            let until = Instant::now() + Duration::from_secs(5);
            let redirected = || -> u64 {
                (0..2)
                    .map(|queue| redirect.counters(queue).unwrap().redirected)
                    .sum()
            };
            while redirected() < 20 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(redirected(), 20, "no packet lacked room for metadata");
        })
        .unwrap();
}

/// A program that passes everything, from its instructions.
fn pass_program(name: &str) -> XdpProgram {
    let mut asm = bpf::asm::Asm::new();
    asm.mov(bpf::ebpf::Reg::R0, XDP_PASS as i32);
    asm.exit();
    XdpProgram::load(name, &asm.finish().unwrap(), false, None).unwrap()
}

#[test]
fn the_program_on_a_busy_device_is_named() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    pair.right
        .ns
        .run(|| {
            let ifindex = pair.right.ifindex;
            let theirs = pass_program("theirs");
            let held = XdpLink::attach(&theirs, ifindex, AttachMode::Native).unwrap();
            let id = theirs.info().id;
            let ours = pass_program("ours");
            for mode in [AttachMode::Native, AttachMode::Generic] {
                let error = XdpLink::attach(&ours, ifindex, mode).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                for part in ["\"theirs\"", &format!("id {id}"), "native mode", "by link "] {
                    assert!(error.why().contains(part), "{error} lacks {part}");
                }
                assert!(error.to_string().contains(&pair.right.ifname), "{error}");
                assert!(error.hint().is_some());
            }
            drop(held);
            let held = XdpLink::attach(&ours, ifindex, AttachMode::Generic).unwrap();
            assert_eq!(
                pair.right.xdp().unwrap().unwrap().0,
                u64::from(ours.info().id)
            );
            held.detach().unwrap();
            assert!(!held.is_attached().unwrap());
            assert_eq!(pair.right.xdp().unwrap(), None);
        })
        .unwrap();
}

#[test]
fn refused_programs_give_the_reason() {
    lab::require!(skip::lab());
    let pair = Veth::new().mtu(9000).create().unwrap();
    pair.right
        .ns
        .run(|| {
            let ifindex = pair.right.ifindex;
            let single = Redirect::load(&RedirectSpec::default()).unwrap();
            let error = XdpLink::attach(single.program(), ifindex, AttachMode::Native).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.why().contains("MTU 9000"), "{error}");
            let spec = RedirectSpec {
                frags: true,
                ..RedirectSpec::default()
            };
            let frags = Redirect::load(&spec).unwrap();
            XdpLink::attach(frags.program(), ifindex, AttachMode::Native).unwrap();

            let error = XdpLink::attach(frags.program(), 999_999, AttachMode::Native).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            // Loopback's driver has no native mode.
            let error = XdpLink::attach(single.program(), 1, AttachMode::Native).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("lo"), "{error}");
            let invalid = [bpf::ebpf::Insn {
                code: 0x95,
                ..Default::default()
            }];
            let error = XdpProgram::load("invalid", &invalid, false, None).unwrap_err();
            assert!(error.why().contains("R0 !read_ok"), "{error}");
        })
        .unwrap();
}

#[test]
fn a_deleted_device_ends_the_attachment() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    pair.right
        .ns
        .run(|| {
            let redirect = Redirect::load(&RedirectSpec::default()).unwrap();
            let link = XdpLink::attach(redirect.program(), pair.right.ifindex, AttachMode::Native)
                .unwrap();
            assert!(link.is_attached().unwrap());
            pair.right.delete().unwrap();
            assert!(!link.is_attached().unwrap());
            assert!(link.update(redirect.program()).is_err());
        })
        .unwrap();
}

/// Sufficient capabilities: not CAP_SYS_ADMIN, nor CAP_PERFMON, without which the verifier rejects
/// adding an unknown value to a packet pointer and subtracting two pointers.
#[test]
fn the_documented_capabilities_suffice() {
    lab::require!(skip::root(), skip::program("setpriv", "util-linux"));
    const INSIDE: &str = "BW_LEAST_RIGHTS";
    if std::env::var_os(INSIDE).is_none() {
        let (program, args) = own_test(module_path!(), "the_documented_capabilities_suffice");
        let out = Command::new("setpriv")
            .arg("--bounding-set=-all,+net_admin,+net_raw,+bpf")
            .arg(program)
            .args(args)
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        let results = String::from_utf8_lossy(&out.stdout);
        let ran = out.status.success() && results.contains("1 passed");
        assert!(ran, "{results}{text}");
        return;
    }
    let direct = bpf::translate::XdpOptions {
        hook: bpf::translate::DirectHook::Xdp,
        frags: false,
        indirect_by_helper: false,
        stack_top: 0,
    };
    let insns = bpf::translate::xdp_program(&port_filter(), &direct).unwrap();
    let error = XdpProgram::load("direct", &insns, false, None).unwrap_err();
    assert!(
        error.why().contains("prohibited"),
        "the rights are not the least: {error}"
    );
    for case in cases() {
        Redirect::load(&case.spec).unwrap_or_else(|e| panic!("{}: {e}", case.what));
    }
}
