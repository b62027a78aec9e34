//! Threads that are in the drop-in libraries: a program may cancel them, and they may end
//! themselves in a callback.

use std::path::Path;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::write_pcap;
use lab::process::Process;
use lab::{Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(120);

/// Starts threads in functions that wait, cancels them, and waits until each has ended. Then lets
/// threads end themselves in a handler, which is the C library's `pthread_exit`.
const SCRIPT: &str = r#"
import ctypes, os, sys, threading, time
# A thread gives the interpreter's lock away only when it calls a library: once another one runs, it
# is there.
sys.setswitchinterval(1000)
libc = ctypes.CDLL(None)
V = ctypes.c_void_p
nothing = ctypes.cast(libc.getpid, V)
ends = ctypes.cast(libc.pthread_exit, V)

def started(function, *args):
    found = []
    def run():
        found.append(threading.get_native_id())
        function(*args)
        print("returned", flush=True)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not found:
        time.sleep(0.01)
    return thread, found[0]

def ended(tid, what):
    # At least as long as a part of the wait: a failure is noticed after a minute.
    for _ in range(6000):
        if not os.path.exists(f"/proc/self/task/{tid}"):
            print("ended", what, flush=True)
            return
        time.sleep(0.01)
    print("still there", what, flush=True)

def cancelled(what, function, *args):
    thread, tid = started(function, *args)
    time.sleep(0.2)
    libc.pthread_cancel(ctypes.c_ulong(thread.ident))
    ended(tid, what)

lib = ctypes.CDLL(sys.argv[1])
if "pfring" in sys.argv[1]:
    lib.pfring_open.restype = V
    ring = V(lib.pfring_open(sys.argv[2].encode(), 1500, 0))
    lib.pfring_enable_ring(ring)
    cancelled("poll", lib.pfring_poll, ring, 100000)
    cancelled("loop", lib.pfring_loop, ring, nothing, None, 1)
    offline = V(lib.pfring_open(b"pcap:" + sys.argv[3].encode(), 1500, 0))
    lib.pfring_enable_ring(offline)
    ended(started(lib.pfring_loop, offline, ends, None, 1)[1], "handler")
else:
    for name in ("open_live", "open_offline"):
        getattr(lib, "pcap_" + name).restype = V
    errors = ctypes.create_string_buffer(256)
    for timeout in (0, 100000):
        p = V(lib.pcap_open_live(sys.argv[2].encode(), 1500, 0, timeout, errors))
        header = ctypes.create_string_buffer(64)
        data, place = V(), V()
        cancelled("loop", lib.pcap_loop, p, -1, nothing, None)
        cancelled("dispatch", lib.pcap_dispatch, p, -1, nothing, None)
        cancelled("next", lib.pcap_next, p, header)
        cancelled("next_ex", lib.pcap_next_ex, p, ctypes.byref(place), ctypes.byref(data))
        # The handle stays usable.
        lib.pcap_breakloop(p)
        print("breakloop", lib.pcap_loop(p, -1, nothing, None), flush=True)
        lib.pcap_close(p)
    # Shorter than a part of the wait, and as long.
    for timeout in (10, 100):
        p = V(lib.pcap_open_live(sys.argv[2].encode(), 1500, 0, timeout, errors))
        cancelled("loop", lib.pcap_loop, p, -1, nothing, None)
        lib.pcap_close(p)
    p = V(lib.pcap_open_offline(sys.argv[3].encode(), errors))
    ended(started(lib.pcap_loop, p, -1, ends, None)[1], "handler")
    lib.pcap_close(p)
print("done", flush=True)
os._exit(0)
"#;

fn run(pair: &Pair, library: &Path, file: &Path) -> String {
    let end = &pair.left;
    let mut command = end.ns.command("python3");
    command.args(["-c", SCRIPT]).arg(library).arg(&end.ifname);
    command.arg(file);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap().stdout
}

#[test]
fn threads_in_libpcap_are_cancelled_and_may_exit_in_callbacks() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    let (dropin, file) = (Dropin::new().unwrap(), write_pcap(&[[0; 60]]).unwrap());
    let round = "ended loop\nended dispatch\nended next\nended next_ex\nbreakloop -2\n";
    let short = "ended loop\n".repeat(2);
    let expected = format!("{round}{round}{short}ended handler\ndone\n");
    assert_eq!(run(&pair, &dropin.library(), file.path()), expected);
}

#[test]
fn threads_in_libpfring_are_cancelled_and_may_exit_in_callbacks() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let pair = Veth::new().create().unwrap();
    let (dropin, file) = (Dropin::pfring().unwrap(), write_pcap(&[[0; 60]]).unwrap());
    let expected = "ended poll\nended loop\nended handler\ndone\n";
    assert_eq!(run(&pair, &dropin.library(), file.path()), expected);
}
