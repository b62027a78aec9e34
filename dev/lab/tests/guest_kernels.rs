//! In guests with other kernels than this machine's: what barewire loads into them is accepted by
//! their verifiers, and works. A kernel that is too old for something is named in the error.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::oracle::TempFile;
use lab::packet::pour;
use lab::process::{Process, Signal};
use lab::random::Random;
use lab::{Netns, Pair, Veth, guest};
use serde_json::Value;
use sys::KernelVersion;
use sys::bpf::{Program, ProgramSpec, ProgramType, TestRun, XDP_FLAG_FRAGS};

const LIMIT: Duration = Duration::from_secs(60);

/// The database of p0f.
const DATABASE: &str = "/etc/p0f/p0f.fp";

fn is_at_least(major: u16, minor: u16) -> bool {
    KernelVersion::running() >= Some(KernelVersion::new(major, minor))
}

fn spawn(pair: &Pair, args: &[&str]) -> Process {
    pair.right.ns.spawn("barewire", args).unwrap()
}

/// Loads rules, sends 128 packets of UDP, and returns the totals.
fn guarded(pair: &Pair, args: &[&str]) -> Value {
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let mut process = spawn(pair, &args);
    process.wait_stderr("guarding", LIMIT).unwrap();
    for end in [&pair.left, &pair.right] {
        end.wait_up(LIMIT).unwrap();
    }
    pour(pair, 4, 128);
    let ended = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let stdout = ended.checked().unwrap().stdout;
    let totals: Value = serde_json::from_str(stdout.lines().last().unwrap_or_default()).unwrap();
    assert_eq!(totals["imbalance"], 0);
    totals
}

/// Fails with an error that names the kernel which is needed.
fn refused(pair: &Pair, args: &[&str], since: &str) {
    let args = [&["guard", &pair.right.ifname], args].concat();
    let ended = spawn(pair, &args).wait(LIMIT).unwrap();
    let expected = format!("needs Linux {since}");
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
}

fn packets(totals: &Value, key: &str) -> u64 {
    totals[key].as_u64().unwrap_or_default()
}

#[test]
fn rules_of_the_guard_are_accepted_and_drop() {
    lab::require!(guest::inside());
    let pair = Veth::new().create().unwrap();
    let totals = guarded(&pair, &["--drop", "udp"]);
    assert_eq!(packets(&totals, "dropped"), 128);
    let list = TempFile::new("prefixes");
    std::fs::write(list.path(), "10.0.0.0/8\n192.168.0.0/16\n2001:db8::/32\n").unwrap();
    let list = list.path().to_str().unwrap();
    let totals = guarded(&pair, &["--deny", list, "--allow", "198.51.100.7"]);
    assert!(packets(&totals, "seen") >= 128);
}

#[test]
fn limits_and_challenges_are_accepted_or_the_kernel_is_too_old() {
    lab::require!(guest::inside());
    let pair = Veth::new().create().unwrap();
    for limit in ["1/s udp", "1/s and 1/s per /24 udp"] {
        let args = ["--limit", limit];
        if is_at_least(5, 12) {
            let totals = guarded(&pair, &args);
            assert!(packets(&totals, "dropped") > 0);
        } else {
            refused(&pair, &args, "5.12");
        }
    }
    let args = ["--challenge", "tcp dst port 443"];
    match is_at_least(5, 18) {
        true => drop(guarded(&pair, &args)),
        false => refused(&pair, &args, "5.18"),
    }
    let args = ["--hook", "tc", "--drop", "udp"];
    match is_at_least(6, 6) {
        true => assert_eq!(packets(&guarded(&pair, &args), "dropped"), 128),
        false => refused(&pair, &args, "6.6"),
    }
}

/// Loads a file of rules as one program.
fn many(rules: &[String]) {
    let file = TempFile::new("rules.toml");
    let rules = rules.iter().map(|rule| {
        let rule = rule.replace('"', "\\\"");
        format!("[[rule]]\nmatch = \"{rule}\"\nverdict = \"drop\"\n")
    });
    std::fs::write(file.path(), rules.collect::<String>()).unwrap();
    let pair = Veth::new().create().unwrap();
    let totals = guarded(&pair, &["--rules", file.path().to_str().unwrap()]);
    assert!(packets(&totals, "seen") >= 128);
}

#[test]
fn all_signatures_of_p0f_are_accepted() {
    let has_database = || match std::path::Path::new(DATABASE).exists() {
        true => Ok(()),
        false => Err(lab::skip::Missing::Program {
            name: "p0f".into(),
            package: "p0f".into(),
        }),
    };
    lab::require!(guest::inside(), has_database());
    let database = std::fs::read_to_string(DATABASE).unwrap();
    let requests = database.split("[tcp:request]").nth(1).unwrap();
    let requests = requests.split("\n[").next().unwrap();
    let signatures = requests.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "sig").then(|| format!("p0f:{}", value.trim()))
    });
    let signatures: Vec<_> = signatures.collect();
    assert!(signatures.len() >= 90, "{}", signatures.len());
    many(&signatures);
}

#[test]
fn two_hundred_expressions_are_accepted() {
    lab::require!(guest::inside());
    let mut random = Random::seeded("expressions of the guest");
    let expressions: Vec<_> = (0..200)
        .map(|_| {
            let mut below = |bound| random.below(bound);
            let port = 1 + below(300);
            match below(5) {
                0 => format!("src net 10.{}.{}.0/24 and tcp", below(4), below(8)),
                1 => format!("udp dst port {port} and ip[8] < {}", below(255)),
                2 => format!("tcp dst portrange {port}-{}", port + below(9)),
                3 => format!("ip6 and udp src port {port}"),
                _ => format!("tcp[tcpflags] = {} and dst port {port}", below(64)),
            }
        })
        .collect();
    many(&expressions);
}

/// Captures 64 packets that a filter selects.
fn captured(pair: &Pair, port: &str) {
    let args = [
        "capture",
        port,
        "-c",
        "64",
        "-w",
        "/dev/null",
        "udp and ip[8] > 1",
    ];
    let mut process = spawn(pair, &args);
    process.wait_stderr("listening on", LIMIT).unwrap();
    for end in [&pair.left, &pair.right] {
        end.wait_up(LIMIT).unwrap();
    }
    pour(pair, 4, 128);
    process.wait(LIMIT).unwrap().checked().unwrap();
}

#[test]
fn filters_are_accepted_in_xdp_and_on_sockets() {
    lab::require!(guest::inside());
    let pair = Veth::new().create().unwrap();
    let name = &pair.right.ifname;
    for port in [
        format!("afxdp:{name}?attach=native"),
        format!("afxdp:{name}?attach=generic"),
        format!("afpacket:{name}?tap=tpacket"),
    ] {
        captured(&pair, &port);
    }
    let port = format!("afpacket:{name}?tap=bpf");
    if is_at_least(5, 12) {
        captured(&pair, &port);
    }
    // With a large MTU a socket needs packets of several buffers.
    let pair = Veth::new().mtu(9000).create().unwrap();
    let port = format!("afxdp:{}?attach=native", pair.right.ifname);
    if is_at_least(6, 6) {
        captured(&pair, &port);
    } else {
        let args = ["capture", &port, "-w", "/dev/null"];
        let ended = spawn(&pair, &args).wait(LIMIT).unwrap();
        assert!(ended.stderr.contains("several buffers"), "{}", ended.stderr);
        assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    }
}

/// Writes an object file, and returns the instructions of its program: its first section, after
/// whose name the file is loaded.
fn object(args: &[&str], section: &str) -> Vec<u64> {
    let file = TempFile::new(".o");
    let mut command = Command::new("barewire");
    command.args(["filter", "compile", "--object"]);
    let mut process = Process::spawn(command.arg(file.path()).args(args)).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    let elf = std::fs::read(file.path()).unwrap();
    let number = |at: usize| u64::from_ne_bytes(elf[at..at + 8].try_into().unwrap()) as usize;
    // e_shoff, the second of the headers of 64 bytes, and its sh_offset and sh_size.
    let header = number(0x28) + 64;
    let (start, len) = (number(header + 0x18), number(header + 0x20));
    let name = [&[0], section.as_bytes(), &[0]].concat();
    assert!(elf.windows(name.len()).any(|bytes| bytes == name));
    let insns = elf[start..start + len].chunks_exact(8);
    insns
        .map(|insn| u64::from_ne_bytes(insn.try_into().unwrap()))
        .collect()
}

/// Loads the program of an object as libbpf does.
fn load(kind: ProgramType, insns: &[u64], flags: u32) -> Result<Program, String> {
    let spec = ProgramSpec {
        kind,
        name: bpf::object::PROGRAM,
        insns,
        flags,
        ifindex: 0,
    };
    Program::load(&spec).map_err(|failure| format!("{}\n{}", failure.source, failure.log))
}

/// A packet of UDP to a port, with this length of its IP packet, in which the last byte is 7.
fn datagram(port: u16, len: u16) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
    packet.extend(port.to_be_bytes());
    packet.resize(14 + usize::from(len), 0);
    *packet.last_mut().unwrap() = 7;
    packet
}

fn verdict(program: &Program, data: &[u8]) -> u32 {
    let run = TestRun {
        data,
        ..TestRun::default()
    };
    program.test_run(&run).unwrap().retval
}

/// Length, bytes at constant offsets, and bytes behind a header of variable length.
const EXPRESSIONS: [&str; 3] = [
    "udp dst port 5300",
    "udp dst port 5300 and greater 100 and less 1000",
    "udp[2:2] = 5300 and ip[8] > 1 and not tcp",
];

#[test]
fn object_files_of_filters_are_accepted_and_decide() {
    lab::require!(guest::inside());
    let packets = [datagram(5300, 200), datagram(5400, 200)];
    for expression in EXPRESSIONS {
        let link = ["--link", "raw"];
        let drop = ["--verdict", "drop"];
        for (to, args, kind, expected) in [
            ("xdp", &drop[..], ProgramType::Xdp, [1, 2]),
            ("xdp", &["--verdict", "pass"], ProgramType::Xdp, [2, 1]),
            ("tc", &drop, ProgramType::SchedCls, [2, 0]),
            // A socket filter is run from the IP header.
            ("socket", &link, ProgramType::SocketFilter, [262_144, 0]),
        ] {
            let args = [&["--to", to], args, &[expression]].concat();
            let program = load(kind, &object(&args, to), 0);
            let program = program.unwrap_or_else(|e| panic!("{to} {expression}: {e}"));
            let verdicts = [0, 1].map(|at| verdict(&program, &packets[at]));
            assert_eq!(verdicts, expected, "{to} {expression}");
        }
    }
    // tc and sockets look for a tag in both places.
    let tagged = ["--to", "tc", "vlan 5 and udp dst port 5300"];
    load(ProgramType::SchedCls, &object(&tagged, "tc"), 0).unwrap();
}

#[test]
fn object_files_for_several_buffers_are_accepted_or_the_kernel_is_too_old() {
    lab::require!(guest::inside());
    for expression in EXPRESSIONS.into_iter().chain(["ether[6013] = 7"]) {
        let args = ["--to", "xdp", "--frags", expression];
        let insns = object(&args, "xdp.frags");
        let loaded = load(ProgramType::Xdp, &insns, XDP_FLAG_FRAGS);
        if !is_at_least(5, 18) {
            let error = loaded.expect_err("packets of several buffers came with Linux 5.18");
            assert!(error.contains("Invalid argument"), "{error}");
            continue;
        }
        let program = loaded.unwrap_or_else(|e| panic!("{expression}: {e}"));
        let is_large = expression.starts_with("ether");
        let len = if is_large { 6000 } else { 200 };
        let mut packet = datagram(5300, len);
        assert_eq!(verdict(&program, &packet), 1, "{expression}");
        if is_large {
            *packet.last_mut().unwrap() = 8;
        } else {
            packet = datagram(5400, len);
        }
        assert_eq!(verdict(&program, &packet), 2, "{expression}");
    }
}

/// Two pppd on the ends of a pseudo-terminal, each in its own namespace.
struct PppLink {
    left: Netns,
    right: Netns,
    daemons: Process,
}

impl PppLink {
    /// The right one answers for 10.99.1.0/28 and fd99:1::/124; port 80 is open.
    fn new() -> Self {
        // Where pppd looks for files and keeps its own.
        for dir in ["/etc/ppp", "/var/run", "/run/pppd"] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let (left, right) = (Netns::new().unwrap(), Netns::new().unwrap());
        let common = "nodetach noauth nodeflate nobsdcomp noccp novj lcp-echo-interval 0 +ipv6";
        // By its path: the shell that pppd starts may prefer BusyBox's.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|folder| folder.join("ip"));
        let ip = found.find(|path| path.is_file()).unwrap();
        let far = format!(
            "exec {} netns exec {} pppd {common} notty local 10.99.0.2:10.99.0.1 ipv6 ::2,::1",
            ip.display(),
            right.name()
        );
        let near = common
            .split(' ')
            .chain(["local", "10.99.0.1:10.99.0.2", "ipv6", "::1,::2"]);
        let args: Vec<&str> = near.chain(["pty", &far]).collect();
        let daemons = left.spawn("pppd", &args).unwrap();
        let link = Self {
            left,
            right,
            daemons,
        };
        for (ns, addr) in [(&link.left, "fd99::1/128"), (&link.right, "fd99::2/128")] {
            let until = Instant::now() + LIMIT;
            // Both protocols are up once both addresses are there.
            let is_up = || {
                let addresses = ns.ip(["addr", "show", "dev", "ppp0"]).unwrap_or_default();
                addresses.contains("inet 10.99.0.") && addresses.contains("inet6 fe80::")
            };
            while !is_up() {
                let (out, errors) = (link.daemons.stdout(), link.daemons.stderr());
                assert!(Instant::now() < until, "no PPP link: {out}{errors}");
                std::thread::sleep(Duration::from_millis(50));
            }
            ns.ip(["addr", "add", addr, "dev", "ppp0", "nodad"])
                .unwrap();
        }
        for family in ["-4", "-6"] {
            let route = [family, "route", "add", "default", "dev", "ppp0"];
            link.left.ip(route).unwrap();
        }
        let back = ["-6", "route", "add", "fd99::1", "dev", "ppp0"];
        link.right.ip(back).unwrap();
        for (family, prefix) in [("-4", "10.99.1.0/28"), ("-6", "fd99:1::/124")] {
            let local = [family, "route", "add", "local", prefix, "dev", "lo"];
            link.right.ip(local).unwrap();
        }
        let listen = || TcpListener::bind(("::", 80));
        let listener = link.right.run(listen).unwrap().unwrap();
        // Runs until the test process ends.
        std::thread::spawn(move || while listener.accept().is_ok() {});
        link
    }
}

#[test]
fn a_scan_crosses_a_ppp_link() {
    let has_ppp = || match std::path::Path::new("/dev/ppp").exists() {
        true => Ok(()),
        false => Err(lab::skip::Missing::Machine(
            "a kernel with ppp_generic".into(),
        )),
    };
    lab::require!(
        guest::inside(),
        has_ppp(),
        lab::skip::program("pppd", "ppp")
    );
    let mut link = PppLink::new();
    let targets = ["10.99.1.0/28", "fd99:1::/124"];
    let args = [
        "scan", "--json", "--wait", "3", "-p", "80,81", "--rate", "200",
    ];
    for port in ["ppp0", "afpacket:ppp0"] {
        let args = [&args[..], &["--probe", "syn,echo", "-e", port], &targets].concat();
        let finished = link.left.spawn("barewire", &args).unwrap().wait(LIMIT);
        let stdout = finished.unwrap().checked().unwrap().stdout;
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let lines: Vec<Value> = stdout.lines().map(parse).collect();
        let count = |state: &str| lines.iter().filter(|line| line["state"] == state).count();
        // Echo requests to both families are probes without a port.
        assert_eq!(
            (count("open"), count("closed"), count("up")),
            (32, 32, 32),
            "{stdout}"
        );
        let totals = lines.last().unwrap();
        let counts = (&totals["sent"], &totals["failed"], &totals["lost"]);
        assert_eq!(counts, (&96.into(), &0.into(), &0.into()), "{totals}");
    }
    link.daemons.stop(Signal::SIGTERM, LIMIT).unwrap();
}
