//! `libpcap.so`: every function with null, in the wrong order, and a loop that another thread ends.
//! A child process per call, so that the original may crash where it does; where it returns, so
//! does ours, with the same value.

use std::collections::BTreeMap;

use lab::dropin::Dropin;
use lab::{Veth, require, skip};

use crate::pcap_dropin_calls::{START, original, run};

/// Calls each function with a handle in each state, in a child process. The other arguments are
/// valid ones, or null.
const CALLS: &str = r#"
names = [sys.argv[2]]
interface = sys.argv[2].encode()
C = ctypes
folder = tempfile.TemporaryDirectory()
path = (folder.name + "/x").encode()
p = V(lib.pcap_open_dead(1, 100))
to = V(lib.pcap_dump_open(p, path))
header = Header(1, 2, 60, 60)
for _ in range(3): lib.pcap_dump(to, C.byref(header), bytes(60))
lib.pcap_dump_close(to)
def activated(**settings):
    p = V(lib.pcap_create(interface, errors))
    lib.pcap_set_timeout(p, 10)
    assert lib.pcap_activate(p) == 0
    return p
def ended():
    p = V(lib.pcap_open_offline(path, errors))
    while lib.pcap_next(p, C.byref(Header())): pass
    return p
def nonblocking():
    p = activated(); lib.pcap_setnonblock(p, 1, errors); return p
lib.pcap_next.restype = V
states = {
    "null": lambda: V(None), "created": lambda: V(lib.pcap_create(interface, errors)),
    "dead": lambda: V(lib.pcap_open_dead(1, 100)),
    "file": lambda: V(lib.pcap_open_offline(path, errors)), "ended": ended,
    "live": nonblocking,
}
@C.CFUNCTYPE(None, V, V, V)
def handler(user, header, data): pass
number, place = C.c_int(), C.POINTER(C.c_int)()
stats, program, data, head = Stats(), Program(), V(), V()
class Insn(C.Structure):
    _fields_ = [("code", C.c_ushort), ("jt", C.c_ubyte), ("jf", C.c_ubyte), ("k", C.c_uint)]
one = (Insn * 1)(Insn(6, 0, 0, 100))
good = Program(1, C.cast(one, V))
bad = Program(1, C.cast((Insn * 1)(Insn(0xffff, 0, 0, 0)), V))
empty = Program(0, None)
ref = C.byref
# Function, and its arguments behind the handle.
on_handles = [
    ("activate",), ("breakloop",), ("can_set_rfmon",), ("close",),
    ("compile", ref(program), b"tcp", 1, 0), ("compile", ref(program), b"foo", 1, 0),
    ("compile", ref(program), None, 1, 0),
    ("datalink",), ("datalink_ext",), ("dispatch", 0, handler, None),
    ("dispatch", 1, handler, None), ("dispatch", -1, handler, None), ("loop", 1, handler, None),
    ("fileno",), ("get_selectable_fd",), ("get_tstamp_precision",), ("getnonblock", errors),
    ("inject", bytes(60), C.c_size_t(0)), ("sendpacket", bytes(60), 0),
    ("sendpacket", bytes(60), -1),
    ("is_swapped",), ("list_datalinks", ref(place)), ("list_tstamp_types", ref(place)),
    ("major_version",), ("minor_version",), ("next_ex", ref(head), ref(data)),
    ("set_buffer_size", 0), ("set_buffer_size", -1), ("set_buffer_size", 65536),
    ("set_datalink", 1), ("set_datalink", 113), ("set_datalink", -1), ("set_immediate_mode", 1),
    ("set_promisc", 1), ("set_protocol_linux", 0x800), ("set_rfmon", 0), ("set_snaplen", 0),
    ("set_snaplen", -1), ("set_timeout", -1), ("set_tstamp_precision", 0),
    ("set_tstamp_precision", 7), ("set_tstamp_precision", -1), ("set_tstamp_type", 0),
    ("set_tstamp_type", 9), ("setdirection", 0), ("setdirection", 1), ("setdirection", 9),
    ("setfilter", ref(good)), ("setfilter", ref(bad)), ("setfilter", ref(empty)),
    ("setfilter", None), ("setnonblock", 1, errors), ("setnonblock", 0, errors),
    ("snapshot",), ("stats", ref(stats)), ("bufsize",), ("perror", b"prefix"),
]
pointers = [("next", ref(header)), ("file",), ("get_required_select_timeout",),
            ("dump_open", path + b"y"), ("dump_open", None), ("dump_open", b"/no/such"),
            ("dump_open_append", None), ("dump_fopen", None)]
# Without a handle: function, whether it returns a pointer, arguments.
others = [
    ("pcap_create", 1, None, errors), ("pcap_create", 1, b"", errors),
    ("pcap_create", 1, b"x" * 400, errors), ("pcap_create", 1, b"a b", errors),
    ("pcap_open_live", 1, None, 100, 0, 10, errors), ("pcap_open_live", 1, b"", 100, 0, 10, errors),
    ("pcap_open_live", 1, b"x" * 400, 100, 0, 10, errors),
    ("pcap_open_live", 1, interface, -1, 0, -1, errors),
    ("pcap_open_offline", 1, None, errors), ("pcap_open_offline", 1, b"", errors),
    ("pcap_open_offline", 1, b"/", errors), ("pcap_open_offline", 1, b"/dev/null", errors),
    ("pcap_open_offline_with_tstamp_precision", 1, path, 7, errors),
    ("pcap_fopen_offline", 1, None, errors),
    ("pcap_fopen_offline_with_tstamp_precision", 1, None, 1, errors),
    ("pcap_open_dead", 1, -1, -1), ("pcap_open_dead_with_tstamp_precision", 1, 1, 1, 9),
    ("pcap_freealldevs", 0, None), ("pcap_freecode", 0, ref(Program())),
    ("pcap_free_datalinks", 0, None), ("pcap_free_tstamp_types", 0, None),
    ("pcap_findalldevs", 0, None, errors), ("pcap_lookupdev", 1, errors),
    ("pcap_lookupnet", 0, b"nosuch9", ref(number), ref(number), errors),
    ("pcap_lookupnet", 0, b"any", ref(number), ref(number), errors),
    ("pcap_lookupnet", 0, None, ref(number), ref(number), errors),
    ("pcap_lookupnet", 0, b"x" * 40, ref(number), ref(number), errors),
    ("pcap_datalink_name_to_val", 0, b"nosuch"), ("pcap_datalink_name_to_val", 0, b""),
    ("pcap_datalink_val_to_name", 1, -1), ("pcap_datalink_val_to_description", 1, 5000),
    ("pcap_datalink_val_to_description_or_dlt", 1, -1), ("pcap_statustostr", 1, 99),
    ("pcap_statustostr", 1, -99), ("pcap_strerror", 1, -1), ("pcap_strerror", 1, 9999),
    ("pcap_tstamp_type_name_to_val", 0, b"nosuch"), ("pcap_tstamp_type_val_to_name", 1, 99),
    ("pcap_tstamp_type_val_to_description", 1, -1), ("pcap_lib_version", 1),
    ("pcap_init", 0, 99, errors), ("pcap_init", 0, 1, errors),
    ("pcap_nametoport", 0, b"nosuch", ref(number), ref(number)),
    ("pcap_nametoport", 0, b"", ref(number), ref(number)),
    ("pcap_nametoport", 0, b"99999", ref(number), ref(number)),
    ("pcap_nametoportrange", 0, b"1-", ref(number), ref(number), ref(number)),
    ("pcap_nametoproto", 0, b"nosuch"), ("pcap_nametoeproto", 0, b"nosuch"),
    ("pcap_nametollc", 0, b"nosuch"), ("pcap_nametoaddr", 1, b"no.such.host.invalid"),
    ("pcap_nametoaddrinfo", 1, b"no.such.host.invalid"), ("pcap_nametonetaddr", 0, b"nosuch"),
    ("pcap_ether_aton", 1, b"1:2:3:4:5:6"), ("pcap_ether_hostton", 1, b"nosuch"),
    ("pcap_dump_file", 1, None), ("pcap_dump_flush", 0, None), ("pcap_dump_ftell", 0, None),
    ("pcap_dump_ftell64", 0, None), ("pcap_dump_close", 0, None),
    ("pcap_dump", 0, None, ref(header), bytes(60)),
    ("pcap_compile_nopcap", 0, 0, 1, ref(program), b"tcp", 1, 0),
    ("pcap_compile_nopcap", 0, 100, -5, ref(program), b"tcp", 1, 0),
    ("pcap_compile_nopcap", 0, 100, 1, ref(program), b"foo bar", 1, 0),
    ("pcap_offline_filter", 0, ref(empty), ref(header), bytes(60)),
    ("pcap_offline_filter", 0, ref(good), ref(header), bytes(60)),
    ("bpf_validate", 0, one, 0), ("bpf_validate", 0, one, -1), ("bpf_validate", 0, None, 0),
    ("bpf_filter", 0, None, bytes(60), 60, 60), ("bpf_filter", 0, one, bytes(60), 60, 0),
    ("bpf_image", 1, one, -1), ("bpf_dump", 0, ref(good), 99),
]
def in_child(label, call):
    sys.stdout.flush()
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(r); null = os.open("/dev/null", os.O_RDWR); os.dup2(null, 1); os.dup2(null, 2)
        os.dup2(null, 0)
        import signal; signal.alarm(120)
        try: os.write(w, call().encode()); os._exit(0)
        finally: os._exit(1)
    os.close(w)
    text = b""
    while part := os.read(r, 4096): text += part
    os.close(r)
    status = os.waitpid(child, 0)[1]
    say(label, text.decode() if status == 0 else "crashed", sep="\t")
def say(*what, sep=" "):
    text = sep.join(map(str, what))
    print(text.replace(sys.argv[2], "interface0").replace(folder.name, "folder"))
void = {"breakloop", "close", "pcap_freealldevs", "pcap_freecode", "pcap_free_datalinks",
        "pcap_free_tstamp_types", "bpf_dump",
        "perror", "pcap_dump", "pcap_dump_close"}
def called(f, name, arguments, is_pointer, p):
    f.restype = V if is_pointer else C.c_int
    errors.value = b""
    before = error(p) if p and p.value else ""
    result = f(*arguments)
    if name in void: result = ""
    if is_pointer: result = "pointer" if result else "null"
    if name in ("fileno", "get_selectable_fd") and result >= 0: result = "descriptor"
    after = error(p) if p and p.value and name != "close" else ""
    # Texts are compared of calls that fail.
    has_failed = result == "null" or isinstance(result, int) and result < 0
    return f"{result} {after if has_failed and after != before else ''} {errors.value.decode()}"
for state, make in states.items():
    for row in on_handles + pointers:
        # What these return depends on packets of the host.
        if state == "live" and row[0] in ("loop", "dispatch", "next", "next_ex"): continue
        def call():
            p = make()
            f = getattr(lib, "pcap_" + row[0])
            return called(f, row[0], (p,) + row[1:], row in pointers, p)
        shown = [a if isinstance(a, (int, bytes)) else type(a).__name__ for a in row[1:]]
        in_child(f"{state} {row[0]} {shown}", call)
for name, is_pointer, *arguments in others:
    shown = [a if isinstance(a, (int, bytes)) else type(a).__name__ for a in arguments]
    f = getattr(lib, name)
    in_child(f"{name} {shown}", lambda: called(f, name, arguments, is_pointer, None))
def ended_by_another_thread():
    p, results = activated(), []
    for _ in range(20):
        loop = lambda: results.append(lib.pcap_loop(p, -1, handler, None))
        thread = threading.Thread(target=loop); thread.start()
        time.sleep(0.002); lib.pcap_breakloop(p); thread.join()
    return str(results)
in_child("loops", ended_by_another_thread)
"#;

/// Calls whose result differs, and ours: the original returns descriptor 0 for a handle that has
/// none, and truncates port numbers to 16 bits.
const DIFFERENT: &[(&str, &str)] = &[
    ("dead fileno []", "-1"),
    ("dead get_selectable_fd []", "-1"),
    (
        "pcap_nametoport [b'99999', 'CArgObject', 'CArgObject']",
        "0",
    ),
];

/// A result without what the last system call happened to say, which the original appends.
fn plain(result: &str) -> String {
    let texts = [
        "The number of bytes to be injected must not be zero",
        "The number of bytes to be sent must be positive",
    ];
    let result = result.trim();
    match texts
        .iter()
        .find_map(|text| result.find(text).map(|at| at + text.len()))
    {
        Some(end) => result[..end].to_owned(),
        None => result.to_owned(),
    }
}

#[test]
fn calls_in_wrong_states_return_what_the_original_returns() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let script = [START, CALLS].concat();
    let theirs = run(&pair, &original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    let known: BTreeMap<&str, &str> = DIFFERENT.iter().copied().collect();
    assert_eq!(ours.lines().count(), theirs.lines().count());
    assert!(theirs.lines().count() > 350, "{theirs}");
    let mut wrong = Vec::new();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        let (call, theirs) = theirs.split_once('\t').unwrap();
        let ours = ours.split_once('\t').map_or("", |(_, ours)| ours);
        let (theirs, ours) = (plain(theirs), plain(ours));
        let code = ours.split(' ').next().unwrap_or_default();
        let is_right = match known.get(call) {
            Some(known) => ours == *known,
            // Undefined there; here an error.
            None if theirs == "crashed" => ours != "crashed",
            // Errors without a text have one here.
            None => theirs == ours || theirs == code,
        };
        if !is_right {
            wrong.push(format!("{call}\n  {ours}\n  {theirs}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
