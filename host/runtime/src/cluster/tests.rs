//! Clusters over a capture file, with readers in the same process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use port::PortOptions;
use ring::shared::{Ready, Request, connect};
use sys::ErrorKind;
use sys::memfd::Access;

use super::*;
use crate::filter::Expression;

mod cleanup;

/// A capture file that is deleted on drop.
struct Input(PathBuf);

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ethernet packets with UDP over IPv4, packet `number` of flow `number % 50`, in both directions.
fn packet(number: u32) -> Vec<u8> {
    let flow = (number % 50) as u16;
    let mut ends = [[10, 0, 0, 1, 0x10, flow as u8], [10, 0, 0, 2, 0, 53]];
    if number / 50 % 2 == 1 {
        ends.reverse();
    }
    let [from, to] = ends;
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend(&from[..4]);
    bytes.extend(&to[..4]);
    bytes.extend(&from[4..]);
    bytes.extend(&to[4..]);
    bytes.extend([0, 12, 0, 0]);
    bytes.extend(number.to_be_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes[42..].first_chunk().unwrap())
}

fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{what}-{}-{number}", std::process::id())
}

/// A capture file (pcap, link type Ethernet) of `count` packets.
fn input(count: u32) -> Input {
    input_of((0..count).map(|number| (number, packet(number))))
}

/// A capture file of packets with their times, in microseconds.
fn input_of(packets: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Input {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (time_us, bytes) in packets {
        let len = bytes.len() as u32;
        for word in [1_700_000_000, time_us, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(bytes);
    }
    let path = std::env::temp_dir().join(unique("cluster") + ".pcap");
    std::fs::write(&path, file).unwrap();
    Input(path)
}

fn setup(input: &Input, applications: &[(&str, u32)]) -> Setup {
    let applications = applications
        .iter()
        .map(|&(name, queue_count)| Application::new(name, queue_count));
    Setup {
        name: unique("c"),
        inputs: vec![input.0.to_str().unwrap().into()],
        applications: applications.collect(),
        ring_len: 64,
        filter: Expression::new(""),
        merge: None,
        returns: Vec::new(),
        options: PortOptions::default(),
        allow: Vec::new(),
        user: None,
    }
}

/// Reads a queue to its end; returns its number and those of its packets.
fn read(path: PathBuf, request: Request) -> (u32, Vec<u32>) {
    let (mut peer, terms) = connect(&path, Access::Read, &request).unwrap();
    let mut numbers = Vec::new();
    while peer.wait(Duration::from_secs(60)).unwrap() != Ready::End {
        while let Some(frame) = peer.take() {
            let bytes = peer.pool().bytes(&frame);
            assert_eq!(bytes, packet(number_of(bytes)));
            numbers.push(number_of(bytes));
            peer.give(frame).unwrap();
        }
    }
    (terms.queue, numbers)
}

/// What this process sends into a `memory:` input reaches the readers, without a copy.
#[test]
fn a_program_sends_into_a_ring_that_is_an_input() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    const COUNT: u32 = 5000;
    let unused = Input(PathBuf::new());
    for balance in [Balance::Flow, Balance::RoundRobin] {
        let mut setup = setup(&unused, &[("ids", 3)]);
        setup.inputs = vec!["memory:?ring=64".into()];
        setup.applications[0].balance = balance.clone();
        let mut opened = open(&setup).unwrap();
        let mut senders = opened.take_senders();
        assert_eq!((senders.len(), opened.take_senders().len()), (1, 0));
        let mut tx = senders.remove(0);
        let path = opened.path().to_owned();
        let readers: Vec<_> = (0..3)
            .map(|queue| {
                let path = path.clone();
                thread::spawn(move || read(path, Request::Queue(queue)))
            })
            .collect();
        let sender = thread::spawn(move || {
            let mut number = 0;
            while number < COUNT {
                let mut batch = tx.reserve(64).unwrap();
                while number < COUNT && batch.write(&packet(number)) {
                    number += 1;
                }
                batch.submit().unwrap();
                tx.flush().unwrap();
                tx.wait(false, Duration::from_secs(60)).unwrap();
            }
        });
        let outcome = run(opened, &Options::default(), &Stop::new(), |_| {});
        sender.join().unwrap();
        let read = |reader: thread::JoinHandle<(u32, Vec<u32>)>| reader.join().unwrap().1;
        let seen: Vec<Vec<u32>> = readers.into_iter().map(read).collect();
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert_eq!((outcome.imbalance(), outcome.totals.copied), (0, 0));
        for numbers in &seen {
            assert!(numbers.is_sorted(), "{balance:?}");
        }
        if matches!(balance, Balance::RoundRobin) {
            for (queue, numbers) in seen.iter().enumerate() {
                let turns: Vec<u32> = (queue as u32..COUNT).step_by(3).collect();
                assert_eq!(*numbers, turns);
            }
        }
        let mut all = seen.concat();
        all.sort_unstable();
        assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
    }
}

/// All applications receive all packets of a file, which waits for them: the rings are shorter.
#[test]
fn every_application_receives_every_packet_and_flows_stay_whole() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    const COUNT: u32 = 5000;
    let input = input(COUNT);
    let opened = open(&setup(&input, &[("ids", 3), ("flows", 1)])).unwrap();
    let path = opened.path().to_owned();
    let readers: Vec<_> = [
        Request::Application("ids".into()),
        Request::Application("ids".into()),
        Request::Queue(2),
        Request::Application("flows".into()),
    ]
    .into_iter()
    .map(|request| {
        let path = path.clone();
        thread::spawn(move || read(path, request))
    })
    .collect();
    let outcome = run(opened, &Options::default(), &Stop::new(), |_| {});
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let mut seen: Vec<(u32, Vec<u32>)> = readers
        .into_iter()
        .map(|reader| reader.join().unwrap())
        .collect();
    seen.sort();
    let queues: Vec<u32> = seen.iter().map(|(queue, _)| *queue).collect();
    assert_eq!(queues, [0, 1, 2, 3]);
    let all: Vec<u32> = (0..COUNT).collect();
    assert_eq!(seen[3].1, all);
    let mut together: Vec<u32> = seen[..3]
        .iter()
        .flat_map(|(_, seen)| seen.clone())
        .collect();
    together.sort_unstable();
    assert_eq!(together, all);
    // Both directions of a flow are in one queue, in order.
    let mut queue_of = HashMap::new();
    for (queue, numbers) in &seen[..3] {
        assert!(!numbers.is_empty() && numbers.is_sorted());
        for number in numbers {
            assert_eq!(queue_of.entry(number % 50).or_insert(queue), &queue);
        }
    }
    assert_eq!((outcome.imbalance(), outcome.ended), (0, Ended::Input));
    let totals = outcome.totals;
    assert_eq!((totals.adopted, totals.copied), (5000, 5000));
    for queue in &outcome.queues {
        let counts = queue.counts;
        assert_eq!(
            (counts.returned, counts.dropped, counts.lost),
            (counts.handed, 0, 0)
        );
        assert_eq!(queue.readers, 1);
    }
    assert!(!path.exists());
}

#[test]
fn the_last_packet_requested_is_the_last_and_a_full_queue_drops_its_own() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let input = input(5000);
    let mut setup = setup(&input, &[("a", 2), ("b", 1)]);
    for application in &mut setup.applications {
        application.when_full = Some(WhenFull::Drop);
        application.balance = Balance::RoundRobin;
    }
    let opened = open(&setup).unwrap();
    let options = Options {
        count: Some(301),
        ..Options::default()
    };
    // No reader: each queue keeps as many as it holds.
    let outcome = run(opened, &options, &Stop::new(), |_| {});
    assert_eq!((outcome.ended, outcome.imbalance()), (Ended::Finished, 0));
    let counts: Vec<_> = outcome
        .queues
        .iter()
        .map(|queue| (queue.counts.handed, queue.counts.dropped))
        .collect();
    assert_eq!(counts, [(64, 87), (64, 86), (64, 237)]);
    assert_eq!(outcome.totals.adopted, 301);
}

#[test]
fn impossible_topologies_are_refused_before_anything_is_opened() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let input = input(1);
    let good = setup(&input, &[("a", 1)]);
    let apps = |list: &[(&str, u32)]| setup(&input, list).applications;
    let with = |change: &dyn Fn(&mut Setup)| {
        let mut setup = good.clone();
        change(&mut setup);
        open(&setup).err().map(|error| error.kind())
    };
    let refused: [&dyn Fn(&mut Setup); 9] = [
        &|setup| setup.name = "../x".into(),
        &|setup| setup.applications.clear(),
        &|setup| setup.applications = apps(&[("a", 1), ("a", 2)]),
        &|setup| setup.applications = apps(&[("7", 1)]),
        &|setup| setup.applications = apps(&[("a", 0)]),
        &|setup| setup.applications = apps(&[("a", 60), ("b", 5)]),
        &|setup| setup.ring_len = 0,
        &|setup| setup.ring_len = 1 << 21,
        &|setup| setup.inputs.push(format!("ring:{}/0", setup.name)),
    ];
    for (number, change) in refused.iter().enumerate() {
        assert_eq!(with(change), Some(ErrorKind::InvalidInput), "case {number}");
    }
    let running = open(&good).unwrap();
    assert_eq!(with(&|_| {}), Some(ErrorKind::Busy));
    // A path that does not exist; the socket of the first cluster stays.
    assert!(with(&|setup| setup.inputs = vec!["/missing.pcap".into()]).is_some());
    assert!(running.path().exists());
    drop(running);
    assert_eq!(with(&|_| {}), None);
}

/// Runs a cluster of short rings over `count` packets without readers; returns its outcome.
fn run_alone(count: u32, change: impl FnOnce(&mut Vec<Application>)) -> Outcome {
    let input = input(count);
    let mut setup = setup(&input, &[]);
    setup.ring_len = 1024;
    change(&mut setup.applications);
    for application in &mut setup.applications {
        application.when_full.get_or_insert(WhenFull::Drop);
    }
    let opened = open(&setup).unwrap();
    let outcome = run(opened, &Options::default(), &Stop::new(), |_| {});
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.imbalance(), 0);
    outcome
}

fn handed(outcome: &Outcome) -> Vec<u64> {
    let queues = outcome.queues.iter();
    queues.map(|queue| queue.counts.handed).collect()
}

/// Flow `n` has source port 0x1000 + n in one direction, and this as destination in the other.
#[test]
fn filters_and_tables_choose_applications_and_queues() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let text = "10.0.0.1 1\n10.0.0.0/24 0";
    let tables = [text, "192.0.2.0/24 0"].map(|text| Table::parse("t", text).unwrap());
    let outcome = run_alone(500, |applications| {
        applications.push(Application {
            filter: "port 4096 or port 4097".into(),
            ..Application::new("filtered", 1)
        });
        let filters = ["port 4096", "port 4097 or port 4096", "tcp", "port 4099"];
        applications.push(Application {
            balance: Balance::Filters(filters.map(Expression::from).to_vec()),
            ..Application::new("split", 4)
        });
        for (name, table) in ["table", "none"].into_iter().zip(tables) {
            applications.push(Application {
                balance: Balance::Table(Arc::new(table)),
                ..Application::new(name, 2)
            });
        }
    });
    assert_eq!(handed(&outcome), [20, 10, 10, 0, 10, 0, 500, 0, 0]);
    let filtered: Vec<u64> = outcome
        .applications
        .iter()
        .map(|it| it.counts.filtered)
        .collect();
    assert_eq!(filtered, [480, 470, 0, 500]);
}

#[test]
fn packets_without_room_go_to_another_queue_of_an_application_that_spills() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    // All packets are between the same two hosts.
    let outcome = run_alone(4000, |applications| {
        applications.push(Application {
            balance: Balance::Addresses,
            when_full: Some(WhenFull::Spill),
            ..Application::new("spills", 3)
        });
        applications.push(Application {
            balance: Balance::Addresses,
            ..Application::new("drops", 3)
        });
    });
    let counts = handed(&outcome);
    assert_eq!(counts[..3], [1024; 3]);
    assert_eq!(counts[3..].iter().sum::<u64>(), 1024);
    let dropped: u64 = outcome.queues[..3].iter().map(|it| it.counts.dropped).sum();
    assert_eq!(dropped, 4000 - 3 * 1024);
    let spilled: Vec<u64> = outcome
        .applications
        .iter()
        .map(|it| it.counts.spilled)
        .collect();
    assert_eq!(spilled, [2048, 0]);
}

#[test]
fn a_wrong_filter_of_an_application_is_refused_before_the_start() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let input = input(1);
    let mut setup = setup(&input, &[("a", 1)]);
    setup.applications[0].filter = "port nowhere-to-be-found".into();
    let error = open(&setup).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// A cluster that is drained ends after its readers have read what was in their queues.
#[test]
fn a_drained_cluster_waits_for_its_readers() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let input = input(5000);
    let setup = setup(&input, &[("a", 1)]);
    let opened = open(&setup).unwrap();
    let path = opened.path().to_owned();
    let (mut peer, _) = thread::scope(|scope| {
        let (options, stop) = (Options::default(), Stop::new());
        let run_until = stop.clone();
        let cluster = scope.spawn(move || run(opened, &options, &run_until, |_| {}));
        let (mut peer, terms) = connect(&path, Access::Read, &Request::Any).unwrap();
        assert_eq!(peer.wait(Duration::from_secs(60)).unwrap(), Ready::Packets);
        let name = setup.name.clone();
        let drain = scope.spawn(move || drain(&name, 60).unwrap());
        // The queue is full, and nothing is read until the cluster has been told to end.
        let end = Instant::now() + Duration::from_secs(60);
        while !stop.is_set() {
            assert!(Instant::now() < end, "the request has not arrived");
            thread::sleep(Duration::from_millis(1));
        }
        let mut count = 0;
        while peer.wait(Duration::from_secs(60)).unwrap() != Ready::End {
            while let Some(frame) = peer.take() {
                count += 1;
                peer.give(frame).unwrap();
            }
        }
        let status = drain.join().unwrap();
        let outcome = cluster.join().unwrap();
        assert_eq!((outcome.imbalance(), outcome.ended), (0, Ended::Stopped));
        let counts = status.queues[0].counts;
        assert_eq!((counts.returned, counts.waiting()), (count, 0));
        assert_eq!(outcome.queues[0].counts, counts);
        (peer, terms)
    });
    assert!(peer.take().is_none());
}
