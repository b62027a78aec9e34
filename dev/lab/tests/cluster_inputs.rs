//! Inputs of a cluster that go and come back, quiet inputs, and readers that pass their queue on.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::inline::{Inline, X, Y};
use lab::metrics::scrape;
use lab::oracle::TempFile;
use lab::packet::{Raw, Udp, number_of};
use lab::process::{Process, Signal, barewire};
use lab::{End, Veth, skip};
use serde_json::Value;
use vhost::testing::{FrontEnd, Options};

use crate::cluster_live::{Cluster, FILTER, LIMIT, capture, packets_of, unique};

/// Sends numbered packets from one end to another one, a few at a time.
fn send(from: &End, to: &End, numbers: Range<u64>) {
    let udp = Udp::between(from, to).flows(16);
    let out = from.ns.run(|| Raw::sender(&from.ifname)).unwrap().unwrap();
    for number in numbers {
        out.send(&udp.build(number, 60)).unwrap();
        if number % 32 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn state(status: &Value, number: usize) -> (String, u64) {
    let input = &status["inputs"][number];
    let state = input["state"].as_str().unwrap_or_default();
    (state.to_owned(), input["losses"].as_u64().unwrap_or(99))
}

/// Waits until a cluster ends by itself with this code; its totals, and what it wrote.
fn wait_code(mut cluster: Cluster, code: i32) -> (Value, String) {
    let finished = cluster.process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    let totals: Value = serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&totals["type"], &totals["imbalance"]),
        (&"totals".into(), &0.into())
    );
    (totals, finished.stderr)
}

/// What `cluster show` prints.
fn shown(name: &str) -> String {
    let mut command = Command::new(barewire().unwrap());
    let shown = Process::spawn(command.args(["cluster", "show", name])).unwrap();
    let mut shown = shown;
    shown.wait(LIMIT).unwrap().checked().unwrap().stdout
}

/// Waits until the metrics show that an input is gone.
fn wait_down(cluster: &Cluster, row: &Inline, name: &str, port: &str) {
    let until = Instant::now() + LIMIT;
    let down = format!("barewire_cluster_input_up{{cluster=\"{name}\",port=\"{port}\"}} 0");
    loop {
        let page = scrape(row.ns(), &cluster.process).unwrap();
        if page.contains(&down) {
            return;
        }
        assert!(Instant::now() < until, "{page}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One of two inputs is deleted: packets of the other one still arrive. It is made again, and is
/// received from again. All are deleted: the cluster and its readers end with code 4.
#[test]
fn a_cluster_continues_without_an_input_and_takes_it_back() {
    lab::require!(skip::lab());
    const COUNT: u64 = 300;
    for (scheme, queues) in [("afpacket", ""), ("afpacket", "?queues=2"), ("afxdp", "")] {
        let row = Inline::new(&Veth::new()).unwrap();
        let name = unique();
        let ports = [X, Y].map(|it| format!("{scheme}:{it}{queues}"));
        let cluster = Cluster::start_in(
            row.ns(),
            &name,
            &[&ports[0], &ports[1], FILTER, "--metrics", "127.0.0.1:0"],
        );
        let file = TempFile::new(".pcap");
        let mut reader = capture(&format!("ring:{name}"), file.path());
        send(row.a(), row.b(), 0..COUNT);
        cluster.wait_delivered(COUNT);
        assert_eq!(state(&cluster.status(), 0), ("open".into(), 0));

        row.ns().ip(["link", "delete", X]).unwrap();
        cluster.wait_for("gone", |it| state(it, 0) == ("gone".into(), 1));
        assert!(
            shown(&name).contains("its device is gone"),
            "{}",
            shown(&name)
        );
        wait_down(&cluster, &row, &name, &ports[0]);
        send(row.b(), row.a(), COUNT..2 * COUNT);
        cluster.wait_delivered(2 * COUNT);

        let (left, there) = (&row.a().ifname, row.a().ns.name());
        let pair = [
            "link", "add", X, "type", "veth", "peer", "name", left, "netns", there,
        ];
        row.ns().ip(pair).unwrap();
        row.ns().ip(["link", "set", X, "up"]).unwrap();
        row.a().ns.ip(["link", "set", left, "up"]).unwrap();
        row.a().wait_up(LIMIT).unwrap();
        cluster.wait_for("back", |it| state(it, 0) == ("open".into(), 1));
        // After an XDP program is attached, the carrier takes a moment.
        row.a().wait_up(LIMIT).unwrap();
        assert!(shown(&name).contains("was gone 1 time"), "{}", shown(&name));
        send(row.a(), row.b(), 2 * COUNT..3 * COUNT);
        send(row.b(), row.a(), 3 * COUNT..4 * COUNT);
        cluster.wait_delivered(4 * COUNT);

        for port in [X, Y] {
            row.ns().ip(["link", "delete", port]).unwrap();
        }
        let (totals, said) = wait_code(cluster, 4);
        let what = format!("{ports:?}: {totals}\n{said}");
        assert!(said.contains("the other inputs continue"), "{what}");
        assert!(said.contains("has been deleted"), "{what}");
        assert_eq!(totals["received"], 4 * COUNT, "{what}");
        assert_eq!(state(&totals, 0).0, "gone", "{what}");
        let finished = reader.wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(4), "{what}\n{finished:?}");
        let why = "a device that the cluster needs is gone";
        assert!(finished.stderr.contains(why), "{finished:?}");
        let numbers = packets_of(file.path());
        let numbers = numbers.iter().map(|packet| number_of(packet).unwrap());
        let mut numbers: Vec<u64> = numbers.collect();
        // Two inputs have no common order.
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..4 * COUNT), "{what}");
    }
}

/// Without another input, the cluster and its readers end at once.
#[test]
fn a_cluster_without_inputs_and_its_readers_end_with_code_4() {
    lab::require!(skip::lab());
    for scheme in ["afpacket", "afxdp"] {
        let pair = Veth::new().create().unwrap();
        let name = unique();
        let port = format!("{scheme}:{}", pair.right.ifname);
        let cluster = Cluster::start(&pair, &name, &[&port, "--app", "a", "--app", "b", FILTER]);
        let files = [TempFile::new(".pcap"), TempFile::new(".pcap")];
        let readers = [("a", &files[0]), ("b", &files[1])];
        let readers = readers.map(|(it, file)| capture(&format!("ring:{name}/{it}"), file.path()));
        send(&pair.left, &pair.right, 0..100);
        cluster.wait_delivered(100);
        pair.right.delete().unwrap();
        let (totals, said) = wait_code(cluster, 4);
        assert!(said.contains("has been deleted"), "{scheme}: {said}");
        assert_eq!(totals["imbalance"], 0, "{totals}");
        for (mut reader, file) in readers.into_iter().zip(&files) {
            let finished = reader.wait(LIMIT).unwrap();
            assert_eq!(finished.code(), Some(4), "{scheme}: {finished:?}");
            assert_eq!(packets_of(file.path()).len(), 100);
        }
    }
}

/// A socket that no other test uses; removed on drop.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A virtual machine connects while the link is quiet: its front-end waits for answers, and would
/// wait for ever for a port that serves the socket with its first packet only.
#[test]
fn a_guest_connects_before_the_first_packet() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let ifname = pair.right.ifname.as_str();
    for case in ["reader", "return", "forward"] {
        let socket = format!("bw-idle-{}-{case}.sock", std::process::id());
        let socket = Socket(std::env::temp_dir().join(socket));
        let (name, port) = (unique(), format!("vm:{}", socket.0.display()));
        let application = format!("sensor={port}");
        let tap = format!("afpacket:{ifname}");
        let queue = format!("ring:{name}");
        let back = format!("{queue}/return");
        let cluster = ["cluster", "run", "--name", &name, &tap];
        let args = match case {
            "reader" => [&cluster[..], &["--app", &application, FILTER]].concat(),
            "return" => [&cluster[..], &["--return", &port, FILTER]].concat(),
            _ => vec!["forward", &tap, &port, FILTER],
        };
        let mut process = pair.right.ns.spawn(barewire().unwrap(), &args).unwrap();
        let ready = if case == "forward" {
            "forwarding"
        } else {
            "open ring:"
        };
        let ready = if case == "reader" {
            "sent to vm:"
        } else {
            ready
        };
        process.wait_stderr(ready, LIMIT).unwrap();
        // Each of its requests has an answer within a minute, or this fails.
        let mut guest = FrontEnd::connect(&socket.0, Options::default()).unwrap();
        assert_eq!(guest.receive(0), None);
        let mut reader = (case == "return").then(|| {
            let mut command = Command::new(barewire().unwrap());
            let reader = Process::spawn(command.args(["forward", &queue, &back])).unwrap();
            reader.wait_stderr("forwarding", LIMIT).unwrap();
            reader
        });
        send(&pair.left, &pair.right, 7..8);
        let until = Instant::now() + LIMIT;
        let packet = loop {
            match guest.receive(0) {
                Some(packet) => break packet,
                None => assert!(Instant::now() < until, "{case}: {}", process.stderr()),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(number_of(&packet).ok(), Some(7), "{case}");
        process
            .stop(Signal::SIGINT, LIMIT)
            .unwrap()
            .checked()
            .unwrap();
        if let Some(reader) = &mut reader {
            reader.wait(LIMIT).unwrap();
        }
    }
}

/// Opens a queue, forks and exits; the child reads to the end.
const DAEMON: &str = r#"
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
lib.pcap_open_live.restype = ctypes.c_void_p
error = ctypes.create_string_buffer(256)
handle = lib.pcap_open_live(sys.argv[2].encode(), 65535, 0, 100, error)
assert handle, error.value
handle = ctypes.c_void_p(handle)
if os.fork():
    os._exit(0)
os.write(1, b"child %d reads\n" % os.getpid())
header, data = ctypes.c_void_p(), ctypes.c_void_p()
count = 0
while True:
    result = lib.pcap_next_ex(handle, ctypes.byref(header), ctypes.byref(data))
    if result < 0:
        break
    count += result
os.write(1, b"received %d packets\n" % count)
"#;

/// `cluster show` names the process that holds the queue, not one that has opened it and exited.
#[test]
fn a_reader_that_was_forked_is_shown() {
    lab::require!(skip::lab(), skip::program("python3", "python3"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let cluster = Cluster::start(&pair, &name, &[&pair.right.ifname, FILTER]);
    let mut command = Command::new("python3");
    command
        .args(["-c", DAEMON])
        .arg(dropin.library())
        .arg(format!("ring:{name}"));
    let mut daemon = Process::spawn(&mut command).unwrap();
    daemon.wait_stdout("reads", LIMIT).unwrap();
    // The parent has exited, and was waited for.
    let parent = daemon.pid();
    let until = Instant::now() + LIMIT;
    while daemon.running().unwrap() {
        assert!(Instant::now() < until, "the parent does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = daemon.stdout();
    let child = said.split_whitespace().nth(1).unwrap();
    let child: u32 = child.parse().unwrap();
    assert_ne!(child, parent);
    let queue = cluster.status()["queues"][0].clone();
    assert_eq!(
        (&queue["reader"], &queue["reader_exited"]),
        (&child.into(), &false.into())
    );
    assert!(
        shown(&name).contains(&format!("process {child}")),
        "{}",
        shown(&name)
    );
    // A second reader is refused; the error names no process that has exited.
    let mut second = Command::new(barewire().unwrap());
    let second = second.args(["capture", &format!("ring:{name}")]);
    let refused = Process::spawn(second).unwrap().wait(LIMIT).unwrap();
    let why = format!("a process that process {parent} has started");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    send(&pair.left, &pair.right, 0..50);
    cluster.wait_delivered(50);
    cluster.stop();
    daemon.wait_stdout("received 50 packets", LIMIT).unwrap();
}
