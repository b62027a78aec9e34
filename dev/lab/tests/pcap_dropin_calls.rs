//! `libpcap.so`: the same calls give the same results, codes and texts as with the original.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::dropin::Dropin;
use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// The system's library, if it is where Debian and others have it.
pub fn original() -> Result<PathBuf, skip::Missing> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/libpcap.so.0.8",
        "/usr/lib/aarch64-linux-gnu/libpcap.so.0.8",
        "/usr/lib/libpcap.so.0.8",
    ];
    let found = places.iter().map(Path::new).find(|path| path.exists());
    let found = found.map(Path::to_owned);
    found.ok_or_else(|| skip::Missing::Machine("a libpcap.so.0.8".into()))
}

/// Runs a script with a library in the left end's namespace; returns what it printed.
pub fn run(pair: &Pair, library: &Path, script: &str, prefix: &[&str]) -> String {
    let (here, there) = (&pair.left, &pair.right);
    let words = [prefix, &["python3", "-c", script]].concat();
    let mut command = here.ns.command(words[0]);
    command.args(&words[1..]).arg(library);
    command
        .args([&here.ifname, &there.ifname])
        .arg(barewire().unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap().stdout
}

/// Definitions for all scripts.
pub const START: &str = r#"
import ctypes, os, select, socket, sys, tempfile, threading, time
lib = ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
V = ctypes.c_void_p
for name in ("create", "fopen_offline", "open_offline", "open_live", "open_dead", "dump_open",
             "dump_open_append", "open_dead_with_tstamp_precision"):
    getattr(lib, "pcap_" + name).restype = V
lib.pcap_geterr.restype = ctypes.c_char_p
lib.pcap_lookupdev.restype = ctypes.c_char_p
libc.fdopen.restype = V
errors = ctypes.create_string_buffer(256)
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint), ("insns", V)]
class Header(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("usec", ctypes.c_long),
                ("caplen", ctypes.c_uint), ("len", ctypes.c_uint)]
class Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("received", "dropped", "interface")]
def error(p):
    return lib.pcap_geterr(p).decode()
# The names of the interfaces differ between the two runs.
def say(*what):
    text = " ".join(map(str, what))
    for at, name in enumerate(names):
        text = text.replace(name, f"interface{at}")
    print(text)
"#;

const CODES: &str = r#"
up = sys.argv[2]
names = [up]
os.system("ip link add down0 type veth peer name down1")
def activated(name, **settings):
    p = V(lib.pcap_create(name.encode(), errors))
    set = [getattr(lib, "pcap_set_" + key)(p, value) for key, value in settings.items()]
    lib.pcap_set_timeout(p, 10)
    say(name, settings, set, lib.pcap_activate(p), error(p))
    return p
for name, settings in [("nosuch9", {}), ("down0", {}), ("any", {"promisc": 1}), (up, {"rfmon": 1})]:
    activated(name, **settings)
for kind in range(-1, 7):
    activated(up, tstamp_type=kind)
for name in "nosuch9", "down0", "any", up:
    errors.value = b""
    p = lib.pcap_open_live(name.encode(), 100, 1, 10, errors)
    say("open_live", name, bool(p), errors.value)
    if not p and b"permission" in errors.value: sys.exit()
numbers = ctypes.POINTER(ctypes.c_int)()
packet = b"\xff" * 12 + b"\x88\xb5" + bytes(46)
for name in up, "any", "lo":
    p = activated(name)
    count = lib.pcap_list_datalinks(p, ctypes.byref(numbers))
    say("link types", numbers[:count], lib.pcap_datalink(p))
    for dlt in 1, 143, 113, 276, 12:
        p = activated(name)
        say("set", dlt, lib.pcap_set_datalink(p, dlt), error(p), lib.pcap_datalink(p))
    if name == "lo": continue
    for data in packet, packet[:5], packet + bytes(3000), b"":
        code = lib.pcap_inject(p, data, ctypes.c_size_t(len(data)))
        say("inject", len(data), code, error(p).split(": Success")[0] if code < 0 else "")
    say("send", lib.pcap_sendpacket(p, packet, 60), lib.pcap_sendpacket(p, packet, -1))
    for call in ("set_snaplen", "set_promisc", "set_rfmon", "set_timeout", "set_tstamp_type",
                 "set_immediate_mode", "set_buffer_size", "set_tstamp_precision",
                 "set_protocol_linux", "setdirection", "can_set_rfmon"):
        say(call, getattr(lib, "pcap_" + call)(p, 7), error(p))
    say("activate", lib.pcap_activate(p), error(p))
program = Program()
for snaplen in 0, -1, 100:
    for mask in 0xffffffff, 0, 0x00ffffff:
        p = V(lib.pcap_open_dead(1, snaplen))
        args = (ctypes.byref(program), b"ip broadcast", 1, ctypes.c_uint(mask))
        code = lib.pcap_compile(p, *args)
        say("dead", snaplen, mask, lib.pcap_snapshot(p), code, error(p),
            lib.pcap_compile_nopcap(snaplen, 1, *args))
p = lib.pcap_open_dead_with_tstamp_precision(1, 100, 7)
say("precision", bool(p), lib.pcap_get_tstamp_precision(V(p)))
folder = tempfile.TemporaryDirectory()
path = folder.name + "/x"
for dlt in range(-1, 400):
    p = V(lib.pcap_open_dead(dlt, 100))
    to = lib.pcap_dump_open(p, path.encode())
    if to: lib.pcap_dump_close(V(to))
    number = open(path, "rb").read()[20:].hex() if to else error(p).split(": ")[1]
    say("file", dlt, number)
p = V(lib.pcap_open_dead(1, 100))
for start in b"", b"abc", b"x" * 24, b"x" * 100:
    open(path, "wb").write(start)
    to = lib.pcap_dump_open_append(p, path.encode())
    say("append", len(start), bool(to), "" if to else error(p).split(": ")[1])
for options in 9, 0, 0, 1, 9:
    errors.value = b""
    say("init", options, lib.pcap_init(options, errors), errors.value)
open(path, "wb").write(bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000"))
p = V(lib.pcap_open_offline(path.encode(), errors))
say("savefile", lib.pcap_fileno(p), lib.pcap_get_selectable_fd(p) >= 0)
say("lookupdev", lib.pcap_lookupdev(errors), errors.value)
class Address(ctypes.Structure): pass
class Text(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26)]
Address._fields_ = [("next", ctypes.POINTER(Address))] + [
    (name, ctypes.POINTER(Text)) for name in ("address", "mask", "broadcast", "peer")]
class Device(ctypes.Structure): pass
Device._fields_ = [("next", ctypes.POINTER(Device)), ("name", ctypes.c_char_p),
    ("text", ctypes.c_char_p), ("addresses", ctypes.POINTER(Address)), ("flags", ctypes.c_uint)]
os.system("ip address add 10.9.7.1 peer 10.9.7.2/32 dev down0")
os.system("ip address add 10.9.8.1/24 brd + dev down1")
device = ctypes.POINTER(Device)()
assert lib.pcap_findalldevs(ctypes.byref(device), errors) == 0
first = device
while device:
    device = device[0]
    if device.name in (b"down0", b"down1", b"lo", b"any"):
        say("device", device.name, device.text, hex(device.flags))
        address = device.addresses
        while address:
            for name in "address", "mask", "broadcast", "peer":
                text = getattr(address[0], name)
                if not text: continue
                size = {2: 14, 10: 26, 17: 18}[text[0].family]
                data = bytes(text[0].data[:size])
                # The index and the random address of an interface differ between the runs.
                if data[:1] and text[0].family == 17: data = data[6:10] + data[16:]
                if text[0].family == 10 and data[6:8] == b"\xfe\x80": data = data[6:14]
                say("", name, text[0].family, data.hex())
            address = address[0].next
    device = device.next
lib.pcap_freealldevs(first)
os.system("ip link del down0")
"#;

pub const LIVE: &str = r#"
os.system("ip link add other0 type veth peer name other1")
os.system("sysctl -qw net.ipv6.conf.other0.disable_ipv6=1 net.ipv6.conf.other1.disable_ipv6=1")
os.system("ip link set other0 up; ip link set other1 up")
here, there = names = ["other0", "other1"]
ONE, TWO = 0x88b5, 0x88b6
LIMIT = 60
def opened(name, snaplen=262144, buffer=0):
    p = V(lib.pcap_create(name.encode(), errors))
    lib.pcap_set_timeout(p, 100)
    lib.pcap_set_immediate_mode(p, 1)
    lib.pcap_set_snaplen(p, snaplen)
    if buffer: lib.pcap_set_buffer_size(p, buffer)
    assert lib.pcap_activate(p) >= 0, error(p)
    return p
def filtered(p, text):
    program = Program()
    assert lib.pcap_compile(p, ctypes.byref(program), text.encode(), 1, 0) == 0, error(p)
    assert lib.pcap_setfilter(p, ctypes.byref(program)) == 0, error(p)
def one(p):
    header, data = ctypes.POINTER(Header)(), ctypes.POINTER(ctypes.c_ubyte)()
    code = lib.pcap_next_ex(p, ctypes.byref(header), ctypes.byref(data))
    if code != 1: return code, None
    header = header[0]
    return 1, (header.caplen, header.len, bytes(data[12:min(header.caplen, 24)]).hex())
def got(p, count):
    found, end = [], time.monotonic() + LIMIT
    while len(found) < count and time.monotonic() < end:
        code, what = one(p)
        if code < 0: return found + [(code, error(p))]
        if code: found.append(what)
    return found
def packet(kind, number, length=60):
    return (bytes([2, 0, 0, 0, 0, 1] * 2) + kind.to_bytes(2, "big") + bytes([number])
            + bytes(2000))[:length]
def socket_on(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
    s.bind((name, 0))
    s.settimeout(LIMIT)
    return s
out = socket_on(there)
def send(*numbers, kind=ONE, length=60):
    for number in numbers: out.send(packet(kind, number, length))
def received(p, count):
    stats, end = Stats(), time.monotonic() + LIMIT
    while stats.received < count and time.monotonic() < end:
        lib.pcap_stats(p, ctypes.byref(stats))
        time.sleep(0.01)

"#;

/// What the original is compared in.
const TAP: &str = r#"
# Packets that wait when a filter is set are selected by that filter.
p = opened(here)
send(1, 2); send(3, kind=TWO); received(p, 3)
filtered(p, "ether proto 0x88b6"); send(4); send(5, kind=TWO)
say("waiting", got(p, 2)); lib.pcap_close(p)
p = opened(here)
send(1, 2); send(3, kind=TWO); received(p, 3)
say("first", got(p, 1)); filtered(p, "ether proto 0x88b6"); say("rest", got(p, 1))
lib.pcap_close(p)
# Metadata that only the kernel has; the original drops the first packet after the change.
p = opened(here)
filtered(p, f"ifindex {socket.if_nametoindex(here)} and ether proto 0x88b5"); send(*[6] * 20)
say("ifindex", got(p, 1)); lib.pcap_close(p)
# A tag does not make a packet longer than the snapshot length.
p = opened(here, snaplen=40)
out.send(packet(0x8100, 0)[:14] + b"\0\7" + packet(ONE, 0)[12:]); say("vlan", got(p, 1))
lib.pcap_close(p)
# Both cooked headers.
for dlt in 113, 276:
    p = opened("any", snaplen=30)
    say("cooked", lib.pcap_set_datalink(p, dlt)); filtered(p, "ether proto 0x88b5"); send(1)
    code, what = one(p)
    while not code: code, what = one(p)
    say(what[:2], what[2][-4:] if dlt == 113 else ""); lib.pcap_close(p)
# A tag that the kernel has removed is in packets with the first cooked header only.
for dlt in 113, 276:
    p = opened("any"); lib.pcap_set_datalink(p, dlt); filtered(p, "ether proto 0x88b5")
    out.send(packet(0x8100, 0)[:14] + b"\0\7" + packet(ONE, 0)[12:])
    say("tag", dlt, got(p, 1)); lib.pcap_close(p)
# Sent packets are seen by other sockets on the interface, at the other end, but not here.
p = opened(here); beside, other = socket_on(here), socket_on(there)
say("inject", lib.pcap_inject(p, packet(ONE, 7), ctypes.c_size_t(60)))
for s in beside, other:
    data = b""
    while data[12:15] != b"\x88\xb5\7": data, address = s.recvfrom(2000)
    say("seen", address[2])
send(8); say("here", got(p, 1)); lib.pcap_close(p)
# The descriptor is readable once for each packet, and not when there is none.
for nonblocking in 0, 1:
    p = opened(here); lib.pcap_setnonblock(p, nonblocking, errors)
    filtered(p, "ether proto 0x88b5"); fd = lib.pcap_get_selectable_fd(p)
    send(*range(20)); found = 0
    while found < 20 and select.select([fd], [], [], LIMIT)[0]: found += one(p)[0]
    say("select", found, select.select([fd], [], [], 0.2)[0], one(p)[0] if nonblocking else "")
    send(9); say("again", len(select.select([fd], [], [], LIMIT)[0]), got(p, 1))
    lib.pcap_close(p)
# A child closes its copy; the parent continues.
p = opened(here); filtered(p, "ether proto 0x88b5"); send(1, 2); say("before", got(p, 1))
child = os.fork()
if child == 0:
    lib.pcap_close(p); os._exit(0)
os.waitpid(child, 0); send(3); say("after", got(p, 2)); lib.pcap_close(p)
# A file does not take the place of an interface.
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name); open(here, "wb").write(b"not a capture")
p = opened(here); send(8); say("file", got(p, 1)); lib.pcap_close(p)
p = opened(here, buffer=8192); send(8, length=1500); say("small", got(p, 1)); lib.pcap_close(p)
# A break ends the search for a packet in a file.
r, w = os.pipe()
record = bytes(8) + bytes([60, 0, 0, 0]) * 2 + packet(ONE, 1)
start = bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")
os.write(w, start + record * 3)
p = V(lib.pcap_fopen_offline(V(libc.fdopen(r, b"rb")), errors))
filtered(p, "ether proto 0x88b6")
def stop():
    time.sleep(0.2); lib.pcap_breakloop(p); os.write(w, record)
    time.sleep(0.2); os.write(w, record * 100); os.close(w)
thread = threading.Thread(target=stop); thread.start()
say("break", one(p)[0]); thread.join(); rest = got(p, 1); say("end", rest[0][0])
lib.pcap_close(p)
p = opened(there); os.system(f"ip link del {there}"); say("gone", got(p, 1000)[-1])
"#;

/// Reads files of both byte orders with random headers; prints the packets.
const FILES: &str = r#"
import random, struct
random = random.Random(7)
def number(order, size, value): return struct.pack(order + size, value)
def packet(order, dlt, n):
    size = random.choice([0, 3, 10, random.randrange(120), random.randrange(300), 200])
    data = bytearray(random.choice([0, 0, 1, 2, 255, random.randrange(256)]) for _ in range(size))
    def put(at, value):
        if at + len(value) <= size: data[at:at + len(value)] = value
    wire = [size, size + random.randrange(100), 64 + 200]
    if dlt in (189, 220):
        put(8, bytes([random.choice(b"SCE"), random.choice([0, 0, 1, 2, 3]),
                      random.choice([0x81, 1])]))
        put(15, bytes([random.choice([0, 0, 1])]))
        count = random.choice([0, 1, 2, 3, 100, 0xffffffff, 0x10000000])
        length = random.choice([0, 5, 200, max(size - 64, 0)])
        put(32, number(order, "I", length)); put(60, number(order, "I", count))
        for at in range(64, 64 + 16 * min(count, 3), 16):
            put(at, struct.pack(order + "IIII", 0, random.randrange(50), random.randrange(60), 0))
        wire += [(64 + count * 16 + length) & 0xffffffff] * 3
    if dlt in (113, 276):
        protocol = random.choice([0xc, 0xd, 0xe, 0x800])
        put(14 if dlt == 113 else 0, number(">", "H", protocol))
    if dlt == 117:
        put(0, bytes([random.choice([61, 60, 59, 48, 47, 49, 64, 100, 52, 56, 0])]))
    if dlt == 239:
        put(0, bytes([2, random.choice([0, 0, 0, 1]), 0, 0])); at = 4
        while at < size:
            length = random.choice([4, 5, 8, 13, 0, 2, 3, 40, 60000])
            put(at, struct.pack(order + "HH", length, 9)); at += max(4, (length + 3) & ~3)
    return bytes(data), random.choice(wire)
file = tempfile.NamedTemporaryFile()
for order in "><":
  for is_blocks in False, True:
    for dlt in 1, 113, 117, 189, 220, 239, 276, 227:
        if is_blocks:
            content = struct.pack(order + "IIIHHqI", 0x0a0d0d0a, 28, 0x1a2b3c4d, 1, 0, -1, 28)
            content += struct.pack(order + "IIHHII", 1, 20, dlt, 0, 262144, 20)
        else:
            content = struct.pack(order + "IHHIIII", 0xa1b2c3d4, 2, 4, 0, 0, 262144, dlt)
        for n in range(300):
            data, wire = packet(order, dlt, n)
            if is_blocks:
                pad = -len(data) % 4; total = 32 + len(data) + pad
                content += struct.pack(order + "7I", 6, total, 0, 0, 0, len(data), wire)
                content += data + bytes(pad) + number(order, "I", total)
            else:
                content += struct.pack(order + "IIII", 0, 0, len(data), wire) + data
        open(file.name, "wb").write(content)
        p = V(lib.pcap_open_offline(file.name.encode(), errors))
        header, data = ctypes.POINTER(Header)(), ctypes.POINTER(ctypes.c_ubyte)()
        n = 0
        while lib.pcap_next_ex(p, ctypes.byref(header), ctypes.byref(data)) == 1:
            size = header[0].caplen
            print(order, is_blocks, dlt, n, size, header[0].len, bytes(data[:size]).hex()); n += 1
        assert n == 300, error(p)
        lib.pcap_close(p)
"#;

/// Headers inside packets that have the byte order of the capturing machine are swapped.
#[test]
fn packets_of_files_in_both_byte_orders_are_read_as_by_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, FILES].concat();
    let theirs = run(&pair, &original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    assert_eq!(theirs.lines().count(), 9600);
    for (theirs, ours) in theirs.lines().zip(ours.lines()) {
        assert_eq!(ours, theirs);
    }
}

/// On ports of barewire: one select for each packet, sending, the end of a cluster.
const PORTS: &str = r#"
import subprocess
command = [sys.argv[4], "cluster", "run", "--name", f"calls{os.getpid()}", "afpacket:" + here]
cluster = subprocess.Popen(command, stderr=subprocess.PIPE)
line = b" "
while line and b"queue 0" not in line: line = cluster.stderr.readline()
assert line, "the cluster ended"
for name in f"ring:calls{os.getpid()}/0", "afxdp:" + here:
    for nonblocking in 0, 1:
        p = opened(name); lib.pcap_setnonblock(p, nonblocking, errors)
        filtered(p, "ether proto 0x88b5"); fd = lib.pcap_get_selectable_fd(p)
        send(*range(20)); found = 0
        while found < 20 and select.select([fd], [], [], LIMIT)[0]: found += one(p)[0]
        say("select", found, len(select.select([fd], [], [], 0.2)[0]))
        send(9); say("again", len(select.select([fd], [], [], LIMIT)[0]), got(p, 1))
        if name[0] == "a":
            other = socket_on(there); data = b""
            say("inject", lib.pcap_inject(p, packet(TWO, 7), ctypes.c_size_t(60)))
            while data[12:15] != b"\x88\xb6\7": data = other.recv(2000)
            code = lib.pcap_inject(p, bytes(20000), ctypes.c_size_t(20000))
            say("long", code, error(p))
        elif nonblocking:
            say("inject", lib.pcap_inject(p, packet(TWO, 7), ctypes.c_size_t(60)))
            cluster.terminate(); cluster.wait()
            say("end", len(select.select([fd], [], [], LIMIT)[0]), got(p, 1))
        lib.pcap_close(p)
# A child closes its copy; the parent continues, and its filter can still be replaced in the driver.
p = opened("afxdp:" + here); filtered(p, "ether proto 0x88b5"); send(1); say("before", got(p, 1))
child = os.fork()
if child == 0:
    lib.pcap_close(p); os._exit(0)
os.waitpid(child, 0); send(3); say("after", got(p, 1))
os.setuid(65534); filtered(p, "ether proto 0x88b6"); send(4); send(5, kind=TWO)
say("filter", got(p, 1)); lib.pcap_close(p)
"#;

#[test]
fn ports_can_be_polled_and_sent_to() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, LIVE, PORTS].concat();
    let packet = "(60, 60, '88b509000000000000000000')";
    let each = format!("select 20 0\nagain 1 [{packet}]\n");
    let end = "inject -1\nend 1 [(-1, 'The interface disappeared')]\n";
    let card = format!("{each}inject 60\nlong -1 send: Message too long\n");
    let packet =
        |kind: &str, number: u8| format!("[(60, 60, '{kind}0{number}000000000000000000')]");
    let forked = format!(
        "before {}\nafter {}\nfilter {}\n",
        packet("88b5", 1),
        packet("88b5", 3),
        packet("88b6", 5)
    );
    let expected = format!("{each}{each}{end}{card}{card}{forked}");
    assert_eq!(run(&pair, &dropin.library(), &script, &[]), expected);
}

#[test]
fn codes_and_texts_equal_those_of_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, CODES].concat();
    let without = ["setpriv", "--bounding-set", "-net_raw"];
    for prefix in [&[][..], &without] {
        let theirs = run(&pair, &original, &script, prefix);
        let ours = run(&pair, &dropin.library(), &script, prefix);
        assert!(theirs.lines().count() > 10, "{theirs}");
        assert_eq!(ours, theirs);
    }
}

#[test]
fn live_captures_behave_as_with_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, LIVE, TAP].concat();
    let theirs = run(&pair, &original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    assert!(theirs.contains("gone"), "{theirs}");
    assert_eq!(ours, theirs);
}
