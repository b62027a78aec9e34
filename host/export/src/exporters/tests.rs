//! Tests of destinations with collectors in this process: what is exported, and the accounts.

mod losses;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;

use flow::decode::ipfix::{Decoder, Header};
use flow::element::REVERSE_ENTERPRISE;
use flow::{HashKey, Input, Meter, MeterConfig};
use socket2::{Domain, Socket, Type};
use wire::LinkType;

use super::*;
use crate::sink::{Sent, Sink};

/// Records of `count` flows of one packet, every third with a response, made by a meter.
pub(crate) fn records(count: u16) -> Vec<(Record, EndReason)> {
    records_at(count, |_| 1_700_000_000_000_000_000)
}

/// The records of [`records`] with the given times.
pub(crate) fn records_at(count: u16, time_ns: fn(u16) -> u64) -> Vec<(Record, EndReason)> {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = u32::from(count).max(64) * 2;
    let mut meter = Meter::new(&config).unwrap();
    let mut records = Vec::new();
    let mut sink = |record: &Record, reason| records.push((*record, reason));
    for n in 0..count {
        for way in 0..2 {
            if way == 1 && n % 3 != 0 {
                continue;
            }
            let (source, destination) = if way == 0 { (1, 2) } else { (2, 1) };
            let ports = if way == 0 { [n, 53] } else { [53, n] };
            let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
            bytes.extend([10, 0, 0, source, 10, 0, 0, destination]);
            bytes.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
            bytes.extend([0, 8, 0, 0]);
            let input = Input {
                link: LinkType::RAW,
                bytes: &bytes,
                wire_len: bytes.len() as u32,
                time_ns: time_ns(n),
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
    }
    meter.finish(&mut sink);
    assert_eq!(records.len(), usize::from(count));
    records
}

pub(crate) fn setup() -> Setup {
    Setup {
        sampling: 1,
        can_wait: true,
        ..Setup::default()
    }
}

fn start(targets: &[Target], setup: &Setup) -> Result<Exporters> {
    let mut exporters = Exporters::open(targets, setup)?;
    exporters.start()?;
    Ok(exporters)
}

/// Exporters with one destination, and another sink in place of its own.
pub(crate) fn with_sink(url: &str, sink: Box<dyn Sink>) -> Exporters {
    let target = Target::parse(url).unwrap();
    let mut exporters = Exporters::open(&[target], &setup()).unwrap();
    let Some(Job::Worker(worker)) = &mut exporters.handles[0].job else {
        panic!("it sends messages")
    };
    worker.sink = sink;
    exporters
}

pub(crate) fn export(url: &str, records: &[(Record, EndReason)], setup: &Setup) -> Account {
    let target = Target::parse(url).unwrap();
    let mut exporters = start(&[target], setup).unwrap();
    for (record, reason) in records {
        exporters.ended(record, *reason);
    }
    let (_, account) = exporters.finish(Observed::default()).remove(0);
    assert_eq!(account.waiting(), 0, "{account:?}");
    account
}

/// What a collector has found in a stream of messages.
#[derive(Default)]
struct Found {
    decoder: Decoder,
    flows: u64,
    packets: u64,
    exported: u64,
}

impl Found {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = Header::parse(bytes).unwrap().len;
            let (flows, packets) = (&mut self.flows, &mut self.packets);
            let exported = &mut self.exported;
            self.decoder
                .message(&bytes[..len], &mut |record| {
                    if record.scope_count != 0 {
                        *exported = (*exported).max(record.unsigned(0, 42).unwrap_or(0));
                        return;
                    }
                    *flows += 1;
                    *packets += record.unsigned(0, 2).unwrap();
                    *packets += record.unsigned(REVERSE_ENTERPRISE, 2).unwrap_or(0);
                })
                .unwrap();
            bytes = &bytes[len..];
        }
    }
}

#[test]
fn udp_delivers_all_records_in_datagrams() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let port = collector.local_addr().unwrap().port();
    let reader = thread::spawn(move || {
        let (mut found, mut buffer) = (Found::default(), [0; 65536]);
        // The exporter starts a little later.
        let until = Instant::now() + Duration::from_secs(20);
        while found.exported == 0 && Instant::now() < until {
            if let Ok(len) = collector.recv(&mut buffer) {
                assert!(len <= 600);
                found.read(&buffer[..len]);
            }
        }
        found
    });
    // Few enough to fit into a socket's buffer, with the kernel's overhead.
    let records = records(600);
    let url = format!("ipfix:udp://127.0.0.1:{port}?mtu=600");
    let account = export(&url, &records, &setup());
    let found = reader.join().unwrap();
    assert_eq!((account.exported.flows, found.flows), (600, 600));
    assert_eq!((account.exported.packets, found.packets), (800, 800));
    assert_eq!((found.decoder.missed, found.decoder.unknown_sets), (0, 0));
    assert_eq!(found.exported, 600);
}

/// Whether a connection to this port is established, as seen from the connecting side.
fn is_established_to(port: u16) -> bool {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns[2].ends_with(&format!(":{port:04X}")) && columns[3] == ESTABLISHED
    })
}

/// A collector that disconnects and returns: what it did not get completely it gets in the next
/// session, with new sequence numbers and templates.
#[test]
fn tcp_reconnects() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reader = thread::spawn(move || {
        let mut sessions = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        // Read the templates, then disconnect.
        let mut head = [0; 16];
        stream.read_exact(&mut head).unwrap();
        let mut bytes = head.to_vec();
        bytes.resize(
            Header::parse(&[&head[..], &[0; 65536]].concat())
                .unwrap()
                .len,
            0,
        );
        stream.read_exact(&mut bytes[16..]).unwrap();
        sessions.push(bytes);
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        sessions.push(bytes);
        sessions
    });
    let target = Target::parse(&format!("ipfix:tcp://127.0.0.1:{port}")).unwrap();
    let mut exporters = start(&[target], &setup()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while exporters.accounts()[0].1.messages == 0 || is_established_to(port) {
        assert!(Instant::now() < until, "no connection, or it does not end");
        thread::sleep(Duration::from_millis(10));
    }
    let records = records(2000);
    for (record, reason) in &records {
        exporters.ended(record, *reason);
    }
    let (_, account) = exporters.finish(Observed::default()).remove(0);
    let sessions = reader.join().unwrap();
    assert_eq!((account.sessions, account.waiting()), (2, 0), "{account:?}");
    assert_eq!(account.exported.flows, 2000);
    let mut found = Found::default();
    found.read(&sessions[1]);
    assert_eq!((found.flows, found.packets), (2000, 2666 + 1));
    assert_eq!(found.decoder.missed, 0);
    assert_eq!(Header::parse(&sessions[1]).unwrap().sequence, 0);
    // Templates are withdrawn at the end.
    assert_eq!(found.decoder.template_count(), 0);
}

/// Without a collector the queue fills, further records are dropped at once, and at the end queued
/// records are counted as not delivered. The caller never blocks.
#[test]
fn an_unreachable_collector_is_accounted_for() {
    // The port stays in use, by a socket that does not listen.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    held.bind(&any.into()).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port();
    let records = records(4000);
    let setup = Setup {
        can_wait: false,
        ..setup()
    };
    let target = Target::parse(&format!("ipfix:tcp://127.0.0.1:{port}?queue=512")).unwrap();
    let mut exporters = start(&[target], &setup).unwrap();
    for (record, reason) in &records {
        exporters.ended(record, *reason);
    }
    assert!(exporters.handles[0].stall.is_none(), "it waited");
    let (_, account) = exporters.finish(Observed::default()).remove(0);
    assert_eq!((account.offered.flows, account.exported.flows), (4000, 0));
    let dropped = |reason: DropReason| account.dropped[reason as usize].flows;
    assert!(dropped(DropReason::Unreachable) >= 512, "{account:?}");
    assert!(dropped(DropReason::QueueFull) >= 3000, "{account:?}");
    assert_eq!(account.waiting(), 0);
    assert!(account.failures > 0 && account.last_failure.is_some());
}

/// A busy destination is waited for without a limit; a stalled one is not.
#[test]
fn a_busy_destination_is_waited_for() {
    let idle = thread::spawn(|| records_taken(false));
    assert_eq!(records_taken(true), (128, 0));
    assert_eq!(idle.join().unwrap(), (64, 64));
}

/// How many records of two batches a destination takes whose queue holds one, and how many find the
/// queue full. It takes nothing for longer than the limit, and is busy or not.
fn records_taken(is_busy: bool) -> (usize, u64) {
    let target = Target::parse("json:/dev/null?queue=256&wait=5s").unwrap();
    let mut handle = Handle::open(&target, &setup()).unwrap();
    let (queue, batches) = sync_channel(1);
    handle.queue = Some(queue);
    let batch = || {
        Arc::new(Records {
            records: records(64),
            extras: Vec::new(),
        })
    };
    handle.hand_over(batch(), Instant::now(), true, &|| None);
    let shared = handle.shared.clone();
    let destination = thread::spawn(move || {
        for _ in 0..60 {
            thread::sleep(Duration::from_millis(100));
            if is_busy {
                shared.progress.step();
            }
        }
        batches
            .iter()
            .map(|batch| batch.records.len())
            .sum::<usize>()
    });
    handle.hand_over(batch(), Instant::now(), true, &|| None);
    handle.close();
    let taken = destination.join().unwrap();
    handle.report();
    let account = lock(&handle.shared.account);
    let full = account.dropped[DropReason::QueueFull as usize].flows;
    (taken, full)
}

/// A destination with deferred results, which never arrive.
struct Deaf;

impl Sink for Deaf {
    fn connect(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn send(&mut self, _: &[u8]) -> Sent {
        Sent::Broken(std::io::Error::other("nothing is taken"))
    }

    fn is_deferred(&self) -> bool {
        true
    }
}

/// A pause to keep the rate does not count as progress.
#[test]
fn a_run_with_a_rate_ends_too() {
    let target = Target::parse("json:kafka://127.0.0.1:1/flows?rate=100&wait=1s").unwrap();
    let Make::Messages(make) = target.format.make else {
        panic!("lines are messages")
    };
    let shared = Arc::new(Shared::default());
    let (queue, batches) = sync_channel(1);
    let (setup, sink) = (setup(), Box::new(Deaf));
    let worker = Worker::new(
        &target,
        make(&target, &setup),
        sink,
        batches,
        shared.clone(),
    );
    let batch = Records {
        records: records(64),
        extras: Vec::new(),
    };
    queue.send(Arc::new(batch)).unwrap();
    drop(queue);
    lock(&shared.observed).is_over = true;
    let (done, ended) = sync_channel(1);
    thread::spawn(move || {
        worker.run();
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("an end");
    let account = lock(&shared.account);
    assert_eq!(account.dropped[DropReason::Unreachable as usize].flows, 64);
}

#[test]
fn fan_out_by_hash_sends_each_flow_to_one_destination() {
    let folder = std::env::temp_dir().join(format!("barewire-export-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |n: usize| folder.join(format!("{n}.ipfix"));
    let records = records(3000);
    let setup = Setup {
        fan_out: FanOut::Hash,
        ..setup()
    };
    let urls = [0, 1, 2].map(|n| Target::parse(&format!("ipfix:{}", path(n).display())).unwrap());
    let mut exporters = start(&urls, &setup).unwrap();
    for (record, reason) in records.iter().chain(&records) {
        exporters.ended(record, *reason);
    }
    let accounts = exporters.finish(Observed::default());
    let mut flows = 0;
    for (n, (_, account)) in accounts.iter().enumerate() {
        let mut found = Found::default();
        found.read(&std::fs::read(path(n)).unwrap());
        assert_eq!(found.flows, account.exported.flows);
        // Every record was passed twice.
        assert!(
            found.flows % 2 == 0 && found.flows > 1000,
            "{}",
            found.flows
        );
        flows += found.flows;
    }
    assert_eq!(flows, 6000);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_disk_is_reported() {
    let account = export("csv:/dev/full", &records(500), &setup());
    let lost = account.dropped[DropReason::WriteFailed as usize];
    assert_eq!((account.exported.flows, lost.flows), (0, 500));
    assert!(account.last_failure.unwrap().contains("space"));
    let missing = Target::parse("csv:/nonexistent/flows.csv").unwrap();
    let error = Exporters::open(&[missing], &setup()).err().unwrap();
    assert!(
        error.to_string().contains("/nonexistent/flows.csv"),
        "{error}"
    );
}

#[test]
fn lines_are_sent_unchanged_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // A collector may send data; it is ignored.
        drop(stream.write_all(b"thanks"));
        text
    });
    let account = export(
        &format!("csv:tcp://127.0.0.1:{port}"),
        &records(700),
        &setup(),
    );
    assert_eq!(account.exported.flows, 700);
    let text = reader.join().unwrap();
    assert!(text.starts_with("start,"));
    assert_eq!(text.lines().count(), 701);
}

/// Extra fields are exported with the right record by formats that support them.
#[test]
fn extras_stay_with_their_records() {
    let folder = std::env::temp_dir().join(format!("barewire-extras-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("flows.json");
    let target = Target::parse(&format!("json:{}", path.display())).unwrap();
    let mut exporters = start(&[target], &setup()).unwrap();
    let records = records(600);
    for (at, (record, reason)) in records.iter().enumerate() {
        let notes = [flow::PacketNote {
            payload_len: record.key().port(record.initiator()),
            ..flow::PacketNote::default()
        }];
        let extra = Extra {
            packets: &notes,
            ..Extra::default()
        };
        if at % 3 == 0 {
            exporters.ended(record, *reason);
        } else {
            exporters.ended_with(record, &extra, *reason);
        }
    }
    let (_, account) = exporters.finish(Observed::default()).remove(0);
    assert_eq!((account.exported.flows, account.waiting()), (600, 0));
    let mut expected = Vec::new();
    for (at, (record, reason)) in records.iter().enumerate() {
        let notes = [flow::PacketNote {
            payload_len: record.key().port(record.initiator()),
            ..flow::PacketNote::default()
        }];
        let extra = Extra {
            packets: if at % 3 == 0 { &[] } else { &notes },
            ..Extra::default()
        };
        flow::encode::json::line_with(record, &extra, *reason, &mut expected);
    }
    assert!(std::fs::read(&path).unwrap() == expected);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Changed sampling is reported to collectors in a new session; a file stays unchanged, and is
/// named.
#[test]
fn changed_sampling_is_reported_in_a_new_session() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wait = Some(Duration::from_secs(20));
    collector.set_read_timeout(wait).unwrap();
    let port = collector.local_addr().unwrap().port();
    let folder = std::env::temp_dir().join(format!("barewire-resample-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let texts = [
        format!("ipfix:udp://127.0.0.1:{port}"),
        format!("json:udp://127.0.0.1:{port}"),
        format!("ipfix:{}", folder.join("flows.ipfix").display()),
    ];
    let targets = texts.clone().map(|text| Target::parse(&text).unwrap());
    let before = setup();
    let mut exporters = Exporters::open(&targets, &before).unwrap();
    exporters.start().unwrap();
    assert_eq!(
        exporters.replace(&targets, &before).unwrap(),
        Changes::default()
    );
    let after = Setup {
        sampling: 7,
        selectors: [Sampling::Count(7), Sampling::All],
        ..before
    };
    let changes = exporters.replace(&targets, &after).unwrap();
    let expected = Changes {
        resampled: vec![texts[0].clone()],
        outdated: vec![texts[2].clone()],
        ..Changes::default()
    };
    assert_eq!(changes, expected);
    // Once: then it has been reported.
    assert_eq!(
        exporters.replace(&targets, &after).unwrap(),
        Changes::default()
    );
    for (record, reason) in records(3) {
        exporters.ended(&record, reason);
    }
    exporters.finish(Observed::default());
    let words = b"the first of 7 packets";
    let mut buffer = [0; 65536];
    loop {
        let len = collector
            .recv(&mut buffer)
            .expect("a message with the new sampling");
        if buffer[..len].windows(words.len()).any(|part| part == words) {
            break;
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Batches in use are tracked up to a bound; the memory of returned ones is reused.
#[test]
fn borrowed_batches_return_in_order() {
    let record = records(1)[0];
    let fill = |gathered: &mut Gathered| {
        gathered.records.add(&record.0, None, record.1);
        gathered.take_batch()
    };
    let mut gathered = Gathered::default();
    // None is returned: the oldest are no longer tracked.
    let mut held: Vec<_> = (0..BORROWED_MAX + 5).map(|_| fill(&mut gathered)).collect();
    assert_eq!(gathered.borrowed.len(), BORROWED_MAX + 1);
    assert!(held.iter().all(|batch| batch.records.len() == 1));
    // The first that is still tracked returns: its memory is used next.
    let first = held.remove(4);
    let place = first.records.as_ptr();
    assert!(Arc::ptr_eq(&first, &gathered.borrowed[0]));
    drop(first);
    held.push(fill(&mut gathered));
    assert_eq!(gathered.records.records.as_ptr(), place);
    assert!(gathered.records.records.is_empty());
    assert_eq!(gathered.borrowed.len(), BORROWED_MAX + 1);
}

#[test]
fn memory_includes_all_queues() {
    let len = |urls: &[&str]| {
        let targets: Vec<_> = urls.iter().map(|url| Target::parse(url).unwrap()).collect();
        Exporters::memory_len(&targets)
    };
    assert_eq!(len(&[]), 0);
    let record = size_of::<(Record, EndReason)>();
    let one = len(&["csv:/tmp/x?queue=1024"]);
    let two = len(&["csv:/tmp/x?queue=2048"]);
    assert_eq!(two - one, 1024 * record);
    assert!(one >= (1024 + 2 * BATCH_LEN) * record);
    // Batches are rounded up.
    assert_eq!(len(&["csv:/tmp/x?queue=1025"]) - one, BATCH_LEN * record);
    assert_eq!(
        len(&["csv:/tmp/x?queue=1024", "csv:/tmp/y?queue=2048"]),
        one + two
    );
    let unasked = len(&["csv:/tmp/x"]);
    assert_eq!(unasked - one, (QUEUE_LEN - 1024) * record);
}
