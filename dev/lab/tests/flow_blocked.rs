//! `barewire flows` with stalled readers: a terminal, a pipe for standard error, a pipe for
//! standard output. Packets are still metered, the metrics are updated, and a signal ends the
//! process without the reader.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lab::packet::{Raw, Udp};
use lab::process::{Signal, barewire};
use lab::{Pair, Veth, require, skip};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::{Winsize, openpty};

/// Time limit of a test that might hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Two rounds of as many flows as there are ports: more records than the queues between the threads
/// hold.
const FLOWS: u16 = 30_000;
const COUNT: u64 = 2 * FLOWS as u64;
pub(crate) const METRICS: &str = "127.0.0.1:14739";
const RECORDS_DROPPED: &str = "barewire_records_dropped_total{";

/// A program that is killed at the end of the test.
struct Probe(Child);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Probe {
    /// Starts `barewire flows` on the right end.
    fn start(pair: &Pair, args: &[&str], streams: impl FnOnce(&mut Command)) -> Probe {
        let end = &pair.right;
        end.ns.ip(["link", "set", "lo", "up"]).unwrap();
        let mut command = end.ns.command(barewire().unwrap());
        command.args(["flows", &end.ifname, "--idle-timeout", "200ms"]);
        command.args(["--metrics", METRICS]).args(args);
        command.args(["udp", "port", "9"]).stdin(Stdio::null());
        streams(&mut command);
        Probe(command.spawn().unwrap())
    }

    /// Requests a stop, and waits for it.
    fn end(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "SIGINT does not end it");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Waits until a stream has output.
fn wait_for(from: &mut impl Read, text: &str) {
    let mut printed = Vec::new();
    let mut part = [0; 1024];
    while !String::from_utf8_lossy(&printed).contains(text) {
        let count = from.read(&mut part).unwrap();
        assert_ne!(count, 0, "{:?}", String::from_utf8_lossy(&printed));
        printed.extend(&part[..count]);
    }
}

/// Fills a pipe or terminal whose reader does not read. The test's own descriptor is non-blocking;
/// that of the program is not.
fn fill(path: &str) -> File {
    let mut way = OpenOptions::new()
        .write(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(path)
        .unwrap();
    loop {
        match way.write(&[b'x'; 512]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return way,
            Err(error) => panic!("{error}"),
        }
    }
}

fn fd_path(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A value of the metrics page, once there is one.
pub(crate) fn figure(pair: &Pair, name: &str) -> Option<u64> {
    let page = pair.right.ns.run(|| {
        let mut stream = TcpStream::connect(METRICS).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        Some(page)
    });
    let page = page.unwrap()?;
    let values = page.lines().filter(|line| line.starts_with(name));
    Some(
        values
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum(),
    )
}

/// Waits until values have this sum.
fn wait_figures(pair: &Pair, names: &[&str], wanted: u64) {
    let until = Instant::now() + LIMIT;
    loop {
        let values: Vec<_> = names.iter().map(|name| figure(pair, name)).collect();
        if values.iter().copied().sum::<Option<u64>>() == Some(wanted) {
            return;
        }
        assert!(
            Instant::now() < until,
            "{names:?} are {values:?}, and not {wanted} together"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Sends packets in bursts that a running probe can receive, and waits until the metrics show all
/// that have arrived, and the ends of their flows. A blocked probe would leave them in its ring,
/// which has room for all, and so would not account for them.
fn packets_are_metered(pair: &Pair) {
    let before = pair.right.counters().unwrap().rx_packets;
    let udp = Udp::between(&pair.left, &pair.right).flows(FLOWS);
    let out = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let out = out.unwrap().unwrap();
    for number in 0..COUNT {
        out.send(&udp.build(number, 60)).unwrap();
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // On a busy machine the kernel may drop some of them.
    let arrived = pair.right.counters().unwrap().rx_packets - before;
    assert!(arrived > COUNT / 2, "{arrived} of {COUNT} packets arrived");
    let metered = "barewire_packets_total{";
    wait_figures(pair, &[metered, "barewire_port_lost_total{"], arrived);
    assert!(figure(pair, metered) > Some(COUNT / 2));
    wait_figures(pair, &["barewire_flows_live{"], 0);
}

/// Most records found room: with a blocked collector there would be more than the buffers hold.
fn records_are_taken(pair: &Pair) {
    let dropped = figure(pair, RECORDS_DROPPED);
    assert!(dropped < Some(COUNT / 4), "{dropped:?} records are dropped");
}

#[test]
fn a_stalled_terminal_loses_no_packets() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let size = Winsize {
        ws_row: 50,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).unwrap();
    // Other tests start programs at the same time.
    for end in [&pty.master, &pty.slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    let path = std::fs::read_link(fd_path(&pty.slave)).unwrap();
    let probe = Probe::start(&pair, &[], |command| {
        let stream = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command
            .stdin(stream(&pty.slave))
            .stdout(stream(&pty.slave))
            .stderr(stream(&pty.slave))
            .env("TERM", "xterm-256color")
            .process_group(0);
    });
    let mut master = File::from(pty.master);
    wait_for(&mut master, "destination");
    let _full = fill(path.to_str().unwrap());
    packets_are_metered(&pair);
    records_are_taken(&pair);
    // What is left for the terminal is not written, which is an error.
    assert_eq!(probe.end().code(), Some(1));
}

#[test]
fn a_full_pipe_for_standard_error_loses_no_packets() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let path = fd_path(&writer);
    let ours = writer.try_clone().unwrap();
    let probe = Probe::start(&pair, &["--plain"], |command| {
        command.stdout(Stdio::null()).stderr(ours);
    });
    wait_for(&mut reader, "of memory");
    let _full = fill(&path);
    packets_are_metered(&pair);
    records_are_taken(&pair);
    assert_eq!(probe.end().code(), Some(0));
}

/// Records that exceed the queue are dropped, and the queued ones are reported at the end.
#[test]
fn a_full_pipe_for_standard_output_does_not_delay_the_end() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let path = fd_path(&writer);
    let ours = writer.try_clone().unwrap();
    let mut probe = Probe::start(&pair, &["--json"], |command| {
        command.stdout(ours).stderr(Stdio::piped());
    });
    let mut printed = probe.0.stderr.take().unwrap();
    wait_for(&mut printed, "of memory");
    let _full = fill(&path);
    packets_are_metered(&pair);
    assert!(figure(&pair, RECORDS_DROPPED).is_some_and(|count| count > 0));
    assert_eq!(probe.end().code(), Some(1));
    let mut text = String::new();
    printed.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("the summary, and") && text.contains("packets, was not written"),
        "what was left is reported: {text}"
    );
    drop(reader);
}

/// A collector that accepts a connection and reads nothing: what it has not accepted is counted.
#[test]
fn a_stalled_collector_does_not_delay_the_end() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    // It would delay a process that waits for everything to be read.
    let collector = pair.right.ns.run(|| TcpListener::bind("127.0.0.1:9000"));
    let collector = collector.unwrap().unwrap();
    let export = ["--plain", "--export", "json:tcp://127.0.0.1:9000"];
    let mut probe = Probe::start(&pair, &export, |command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    });
    let mut printed = probe.0.stderr.take().unwrap();
    wait_for(&mut printed, "of memory");
    packets_are_metered(&pair);
    assert_eq!(probe.end().code(), Some(5));
    let mut text = String::new();
    printed.read_to_string(&mut text).unwrap();
    assert!(text.contains("not exported: unreachable"), "{text}");
    assert!(text.contains("stopped accepting data"), "{text}");
    let (_, export) = text.split_once("export json:tcp").unwrap();
    assert!(export.contains("dropped: adds up"), "{text}");
    drop(collector);
}

/// A file waits for its reader without a limit, until a stop is requested.
#[test]
fn a_file_waits_for_its_reader_and_a_signal_ends_the_wait() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/captures/lab-mix.pcapng");
    let (mut reader, writer) = std::io::pipe().unwrap();
    // A page, the minimum in the kernel; the lines are many times that.
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json"]).arg(file);
    command.stdin(Stdio::null()).stdout(writer);
    let mut probe = Probe(command.stderr(Stdio::piped()).spawn().unwrap());
    drop(command);
    reader.read_exact(&mut [0]).unwrap();
    // It writes, and waits. Lines of a live port would be dropped in this time, whatever its
    // length.
    std::thread::sleep(2 * runtime::output::STALL);
    assert!(probe.0.try_wait().unwrap().is_none(), "it waits");
    let mut printed = probe.0.stderr.take().unwrap();
    assert_eq!(probe.end().code(), Some(1));
    let mut text = String::new();
    printed.read_to_string(&mut text).unwrap();
    assert!(text.contains("was not written"), "{text}");
    drop(reader);
}
