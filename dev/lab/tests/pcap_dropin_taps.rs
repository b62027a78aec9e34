//! `libpcap.so` on interfaces of every kind, with the settings of packet sockets: as the original.

use std::path::Path;

use lab::dropin::Dropin;
use lab::process::{Process, Signal};
use lab::{Veth, require, skip};

use crate::pcap_dropin_calls::{LIVE, START, original, run};
use crate::pcap_dropin_live::{devices, listed_by_both};

/// Interfaces of hardware types with a known header, without one, and unknown ones: those of a TUN
/// device can be chosen.
const KINDS: &str = r#"
import fcntl, struct
lib.pcap_datalink_val_to_name.restype = ctypes.c_char_p
numbers = ctypes.POINTER(ctypes.c_int)()
ip = (bytes.fromhex("4500001c0000000040110000c0000201c0000202") + struct.pack(">HHHH", 9, 9, 8, 0))
KINDS = [1, 512, 519, 768, 769, 776, 778, 772, 65534, 4711, 19, 783, 824, 513, 774, 801, 804, 256,
         18, 2, 4, 5]
for kind in KINDS:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    name = f"kind{kind}"; names = [name]
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", name.encode(), 0x1001))
    fcntl.ioctl(fd, 0x400454cd, kind)
    os.system(f"sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1; ip link set {name} up")
    for snaplen in 262144, 18, 0:
        p = V(lib.pcap_create(name.encode(), errors))
        lib.pcap_set_timeout(p, 10); lib.pcap_set_immediate_mode(p, 1)
        lib.pcap_set_snaplen(p, snaplen)
        say("kind", kind, lib.pcap_activate(p), error(p), lib.pcap_datalink(p),
            lib.pcap_snapshot(p))
        count = lib.pcap_list_datalinks(p, ctypes.byref(numbers))
        say("link types", numbers[:count])
        count = lib.pcap_list_tstamp_types(p, ctypes.byref(numbers))
        say("timestamps", numbers[:count])
        set = [lib.pcap_set_datalink(p, dlt) for dlt in (113, 276, 12)]
        say("set", set, lib.pcap_datalink(p))
        code = lib.pcap_inject(p, ip, ctypes.c_size_t(len(ip)))
        # What a device of such a type does with a packet is the kernel's.
        say("inject", error(p) if code < 0 else "")
        lib.pcap_close(p)
    p = opened(name)
    os.write(fd, ip); say("packet", got(p, 1))
    if lib.pcap_datalink(p) == 113:
        for text in "ip", "udp port 9", "src host 192.0.2.1", "inbound", "udp[4:2] = 8", "len < 50":
            filtered(p, text); stats = Stats()
            lib.pcap_stats(p, ctypes.byref(stats)); before = stats.received
            os.write(fd, ip); say(text, got(p, 1))
        filtered(p, "udp port 10")
        stats = Stats(); lib.pcap_stats(p, ctypes.byref(stats)); before = stats.received
        os.write(fd, ip); os.write(fd, ip[:22] + b"\0\n" + ip[24:]); say("rejected", got(p, 1))
        lib.pcap_stats(p, ctypes.byref(stats)); say("received", stats.received - before)
    lib.pcap_close(p); os.close(fd)
"#;

/// The socket's protocol, and filters that are too long for the kernel.
const SETTINGS: &str = r#"
for protocol in 0, ONE, TWO, 3, 0x10000 + ONE:
    p = V(lib.pcap_create(here.encode(), errors))
    lib.pcap_set_timeout(p, 10); lib.pcap_set_immediate_mode(p, 1)
    say("protocol", lib.pcap_set_protocol_linux(p, protocol), lib.pcap_activate(p), error(p))
    say("again", lib.pcap_set_protocol_linux(p, protocol), error(p))
    send(1); send(2, kind=TWO); say(got(p, 2 if protocol in (0, 3) else 1)); lib.pcap_close(p)
class Insn(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
                ("k", ctypes.c_uint)]
def program_of(count, kind):
    # Tests the EtherType behind as many instructions that change nothing.
    rows = [Insn(0x28, 0, 0, 12)] + [Insn(0x54, 0, 0, 0xffff)] * (count - 4)
    rows += [Insn(0x15, 0, 1, kind), Insn(6, 0, 0, 262144), Insn(6, 0, 0, 0)]
    insns = (Insn * count)(*rows)
    return insns, Program(count, ctypes.cast(insns, V))
for count in 4096, 4097, 40000, 65535:
    p = opened(here)
    insns, program = program_of(count, TWO)
    say("long", count, lib.pcap_setfilter(p, ctypes.byref(program)), error(p))
    say("valid", lib.bpf_validate(insns, count))
    send(1, 2, 3); send(4, kind=TWO); say(got(p, 1))
    stats = Stats(); lib.pcap_stats(p, ctypes.byref(stats)); say("received", stats.received)
    filtered(p, "ether proto 0x88b5"); send(5); send(6, kind=TWO); say(got(p, 1))
    lib.pcap_close(p)
hosts = " or ".join(f"src host 10.{n >> 8}.{n & 255}.7" for n in range(400))
p = V(lib.pcap_open_dead(1, 262144)); program = Program()
say("hosts", lib.pcap_compile(p, ctypes.byref(program), hosts.encode(), 1, 0))
packet = packet(0x800, 0)[:14] + b"\x45" + bytes(11) + bytes([10, 1, 143, 7]) + bytes(30)
header = Header(0, 0, 60, 60)
say("match", lib.pcap_offline_filter(ctypes.byref(program), ctypes.byref(header), packet) != 0)
packet = packet[:26] + bytes([10, 1, 144, 7]) + packet[30:]
say("match", lib.pcap_offline_filter(ctypes.byref(program), ctypes.byref(header), packet) != 0)
"#;

fn same_as(original: &Path, script: &str) -> String {
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, LIVE, script].concat();
    let theirs = run(&pair, original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    assert_eq!(ours, theirs);
    theirs
}

#[test]
fn interfaces_of_every_hardware_type_have_the_headers_of_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let text = same_as(&original, KINDS);
    assert!(text.contains("falling back to cooked socket"), "{text}");
}

#[test]
fn protocols_and_long_filters_select_what_they_select_with_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let text = same_as(&original, SETTINGS);
    assert!(text.contains("long 65535 0"), "{text}");
}

/// A file that is removed on drop.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Queues of clusters come after the devices that the original lists; sockets whose owner does not
/// answer are left out.
#[test]
fn queues_of_clusters_are_listed_after_the_interfaces() {
    require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let barewire = lab::process::barewire().unwrap();
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let name = format!("list{}", std::process::id());
    let mut command = pair.left.ns.command(barewire);
    command.args(["cluster", "run", "--name", &name, "--app", "ids=2"]);
    let mut cluster = Process::spawn(command.arg(&pair.left.ifname)).unwrap();
    let limit = std::time::Duration::from_secs(60);
    cluster.wait_stderr("open ring:", limit).unwrap();
    // Accepts connections, and never answers.
    let silent = format!("/run/barewire/silent{}", std::process::id());
    let _removed = Removed(silent.clone());
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let list = |library: Option<&Dropin>| {
        let plain = pair.left.ns.command("tcpdump");
        let mut command = match library {
            Some(dropin) => dropin.with(plain),
            None => plain,
        };
        let output = command.arg("-D").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // A cluster that has no processor for a while is left out.
    let mut lists = std::iter::repeat_with(|| list(Some(&dropin))).take(100);
    let has_both =
        |list: &String| (0..2).all(|queue| list.contains(&format!("ring:{name}/{queue}")));
    let ours = lists.find(has_both).expect("a list with both queues");
    for queue in 0..2 {
        let port = format!("ring:{name}/{queue}");
        let line = ours.lines().find(|line| line.contains(&port));
        let line = line.unwrap_or_else(|| panic!("{port}: {ours}"));
        assert!(
            line.contains(&format!("Queue of cluster {name} for ids")),
            "{line}"
        );
    }
    assert!(!ours.contains("silent"), "{ours}");
    let is_ours = |line: &&str| line.contains(".ring:");
    let first = ours.lines().position(|line| is_ours(&line)).unwrap();
    assert!(
        ours.lines().skip(first).all(|line| is_ours(&line)),
        "{ours}"
    );
    assert!(first >= 3, "{ours}");
    let theirs = list(None);
    let ours: Vec<&str> = devices(&ours).take(first).collect();
    assert_eq!(ours, listed_by_both(&theirs));
    cluster.stop(Signal::SIGINT, limit).unwrap();
}
