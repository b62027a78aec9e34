//! In the guest: cards driven in user space, behind an emulated IOMMU. Two igb on one wire, taken
//! from the kernel's driver and returned.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::vfio::{Bound, fact, open, reported, wait_for_link};
use lab::packet::{Addresses, Raw, Udp, number_of};
use lab::process::{Process, Signal, own_test};
use lab::{Pair, guest};
use port::{Direction, Port, PortEvent, PortOptions};
use ring::{Pool, PoolConfig};
use sys::ErrorKind;

/// Time limit of any wait.
const LIMIT: Duration = Duration::from_secs(30);

const CARDS: [&str; 2] = ["igb0", "igb1"];

/// Packets from the first card to the second, or back.
fn plan(forth: bool) -> Udp {
    let ends = [([10, 77, 0, 1], 1), ([10, 77, 0, 2], 2)];
    let (from, to) = if forth {
        (ends[0], ends[1])
    } else {
        (ends[1], ends[0])
    };
    Udp {
        source_mac: [2, 0, 0, 0, 0, from.1],
        destination_mac: [2, 0, 0, 0, 0, to.1],
        addresses: Addresses::V4(from.0.into(), to.0.into()),
        source_port: 4000,
        destination_port: 9,
        flow_count: 64,
        vlan: None,
    }
}

/// Every length of a packet in turn.
fn len_of(number: u64) -> usize {
    60 + (number as usize * 7) % 1455
}

fn both() -> PortOptions {
    PortOptions {
        direction: Direction::Both,
        ..PortOptions::default()
    }
}

/// Sends these packets; the device may take its time.
fn send(port: &mut Port, packets: &[Vec<u8>]) {
    let tx = &mut port.tx[0];
    let end = Instant::now() + LIMIT;
    let mut sent = 0;
    while sent < packets.len() {
        assert!(
            Instant::now() < end,
            "{sent} of {} were sent",
            packets.len()
        );
        let mut batch = tx.reserve(64).unwrap();
        let before = sent;
        while sent < packets.len() && batch.write(&packets[sent]) {
            sent += 1;
        }
        batch.submit().unwrap();
        if sent == before {
            tx.wait(false, Duration::from_millis(5)).unwrap();
        }
    }
    tx.flush().unwrap();
}

/// Receives until `count` packets arrived on all queues; index of the queue and bytes of each.
fn receive(port: &mut Port, count: usize) -> Vec<(u32, Vec<u8>)> {
    let end = Instant::now() + LIMIT;
    let mut got = Vec::new();
    while got.len() < count && Instant::now() < end {
        for rx in &mut port.rx {
            let queue = rx.queue_index();
            let batch = rx.receive().unwrap();
            for packet in batch.iter() {
                let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
                assert_eq!(packet.wire_len() as usize, bytes.len());
                got.push((queue, bytes));
            }
        }
        if got.len() < count {
            port.rx[0].wait(Duration::from_millis(1)).unwrap();
        }
    }
    got
}

/// Sends numbered packets from one to the other and checks every byte of each.
fn carries(from: &mut Port, to: &mut Port, plan: &Udp, count: u64, len_of: fn(u64) -> usize) {
    let mut next = 0;
    let mut seen = vec![false; count as usize];
    while next < count {
        // The card has 64 KiB of its own, the rings much more; a slow guest gets no more at once.
        let some: Vec<_> = (next..count.min(next + 100))
            .map(|number| plan.build(number, len_of(number)))
            .collect();
        send(from, &some);
        for (_, bytes) in receive(to, some.len()) {
            let number = number_of(&bytes).unwrap();
            assert_eq!(bytes, plan.build(number, len_of(number)), "packet {number}");
            assert!(
                !std::mem::replace(&mut seen[number as usize], true),
                "{number} twice"
            );
        }
        next += some.len() as u64;
    }
    let missing = seen.iter().filter(|seen| !**seen).count();
    assert_eq!(missing, 0, "of {count} packets");
}

fn balanced(port: &mut Port, delivered: u64) {
    let account = port.control.account().unwrap();
    let total = account.rx_total();
    assert_eq!(total.imbalance(), 0, "{account:?}");
    assert_eq!(total.delivered, delivered, "{account:?}");
    assert_eq!(total.lost(), 0, "{account:?}");
}

#[test]
fn packets_pass_both_ways() {
    lab::require!(guest::inside());
    pass_both_ways("type1", "type 1");
    pass_both_ways("auto", "VFIO");
}

/// Debian's kernels have no iommufd for VFIO (`CONFIG_VFIO_DEVICE_CDEV`): there this is a skip.
#[test]
fn packets_pass_both_ways_by_iommufd() {
    lab::require!(guest::inside());
    let card = Bound::to_vfio(CARDS[0]).unwrap();
    let name = format!("vfio:{}?iommu=iommufd", card.address());
    if let Err(error) = port::open(&name, &both()).map(drop)
        && error.kind() == ErrorKind::Unsupported
    {
        assert!(error.hint().is_some(), "{}", reported(&error));
        lab::skip!(lab::skip::Missing::Machine(
            "a kernel with iommufd for VFIO devices (CONFIG_VFIO_DEVICE_CDEV)".into()
        ));
    }
    drop(card);
    pass_both_ways("iommufd", "iommufd");
}

fn pass_both_ways(through: &str, word: &str) {
    let cards = CARDS.map(|name| Bound::to_vfio(name).unwrap());
    let opened = cards
        .each_ref()
        .map(|card| port::open(&format!("vfio:{}?iommu={through}", card.address()), &both()));
    let [mut left, mut right] = opened.map(Result::unwrap);
    assert!(
        fact(&left, "reached by").contains(word),
        "{:?}",
        left.control.describe()
    );
    println!("{:?}", left.control.describe().facts);
    wait_for_link(&mut [&mut left, &mut right]);
    carries(&mut left, &mut right, &plan(true), 1500, len_of);
    carries(&mut right, &mut left, &plan(false), 1500, len_of);
    for port in [&mut left, &mut right] {
        balanced(port, 1500);
        assert_eq!(port.control.account().unwrap().tx_total().sent, 1500);
    }
}

#[test]
fn jumbo_packets_and_tags_pass() {
    lab::require!(guest::inside());
    let cards = CARDS.map(|name| Bound::to_vfio(name).unwrap());
    for frame_len in [2048, 4096] {
        let pool = Pool::new(PoolConfig {
            frame_count: 8192,
            frame_len,
            ..PoolConfig::default()
        })
        .unwrap();
        let options = PortOptions {
            pool: Some(pool.clone()),
            ..both()
        };
        let [mut left, mut right] = cards.each_ref().map(|card| open(card, "", &options));
        wait_for_link(&mut [&mut left, &mut right]);
        carries(&mut left, &mut right, &plan(true), 60, |number| {
            [9014, 1514, 2048, 2049, 60, 4096, 3073][number as usize % 7]
        });
        assert_eq!(right.capabilities.vlan, frame_len == 4096);
        let tagged = Udp {
            vlan: Some(0x123),
            ..plan(true)
        };
        send(&mut left, &[tagged.build(1, 200)]);
        let end = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < end, "the tagged packet never came");
            right.rx[0].wait(Duration::from_millis(10)).unwrap();
            let batch = right.rx[0].receive().unwrap();
            let Some(packet) = batch.iter().next() else {
                continue;
            };
            let mut expected = tagged.build(1, 200);
            // With the packet if there is room to insert it again.
            if frame_len == 4096 {
                let vlan = packet.vlan().expect("a tag beside the packet");
                assert_eq!((vlan.tpid, vlan.tci & 0xfff), (0x8100, 0x123));
                expected.drain(12..16);
            }
            assert_eq!(packet.bytes(), expected);
            break;
        }
        balanced(&mut right, 61);
        drop((left, right));
        assert_eq!(
            pool.counts().free,
            8192,
            "frames are out: {:?}",
            pool.counts()
        );
    }
}

#[test]
fn both_directions_of_a_flow_meet_on_one_of_four_queues() {
    lab::require!(guest::inside());
    let cards = CARDS.map(|name| Bound::to_vfio(name).unwrap());
    let mut left = open(
        &cards[0],
        "",
        &PortOptions {
            direction: Direction::Tx,
            ..both()
        },
    );
    let mut right = open(&cards[1], "?queues=4", &PortOptions::default());
    wait_for_link(&mut [&mut left, &mut right]);
    assert_eq!(right.rx.len(), 4);
    let mut by_flow = std::collections::BTreeMap::new();
    let mut used = BTreeSet::new();
    for number in 0..128_u64 {
        let mut there = plan(true).build(number, 100);
        send(&mut left, std::slice::from_ref(&there));
        // The response to it: addresses and ports swapped.
        let (source, destination): (Vec<u8>, Vec<u8>) =
            (there[26..30].into(), there[30..34].into());
        there[26..30].copy_from_slice(&destination);
        there[30..34].copy_from_slice(&source);
        let (source, destination): (Vec<u8>, Vec<u8>) =
            (there[34..36].into(), there[36..38].into());
        there[34..36].copy_from_slice(&destination);
        there[36..38].copy_from_slice(&source);
        send(&mut left, &[there]);
        let got = receive(&mut right, 2);
        assert_eq!(got.len(), 2, "flow {number}");
        assert_eq!(got[0].0, got[1].0, "flow {number}");
        let before = by_flow.insert(number % 64, got[0].0);
        assert!(
            before.is_none_or(|queue| queue == got[0].0),
            "flow {number} moved"
        );
        used.insert(got[0].0);
    }
    assert_eq!(used.len(), 4, "{by_flow:?}");
    balanced(&mut right, 256);
}

#[test]
fn the_iommu_blocks_a_wrong_dma_address() {
    lab::require!(guest::inside());
    let cards = CARDS.map(|name| Bound::to_vfio(name).unwrap());
    let pool = Pool::new(PoolConfig {
        frame_count: 4096,
        ..PoolConfig::default()
    })
    .unwrap();
    // A pattern in all frames, so that any write of the card is visible.
    let mut cache = ring::FrameCache::new(pool.clone());
    let mut frames = Vec::new();
    while let Some(mut frame) = cache.take() {
        pool.set_range(&mut frame, 0, pool.frame_len());
        pool.bytes_mut(&mut frame).fill(0xa7);
        frames.push(frame);
    }
    for frame in frames {
        cache.give(frame).unwrap();
    }
    drop(cache);
    let before = iommu_faults();
    let mut left = open(&cards[0], "", &both());
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..both()
    };
    // Every frame address given to the card is 64 GiB off.
    let mut right =
        port::testing::open_with_wrong_addresses(cards[1].address(), 64 << 30, &options).unwrap();
    wait_for_link(&mut [&mut left, &mut right]);
    let packets: Vec<_> = (0..200)
        .map(|number| plan(true).build(number, 300))
        .collect();
    send(&mut left, &packets);
    // The card believes that it has written them.
    let got = receive(&mut right, packets.len());
    assert!(!got.is_empty(), "the card gave no descriptor back");
    for (_, bytes) in &got {
        assert!(
            bytes.iter().all(|byte| *byte == 0xa7),
            "something was written: {bytes:02x?}"
        );
    }
    drop(right);
    let mut cache = ring::FrameCache::new(pool.clone());
    let mut count = 0;
    while let Some(mut frame) = cache.take() {
        pool.set_range(&mut frame, 0, pool.frame_len());
        assert!(
            pool.bytes(&frame).iter().all(|byte| *byte == 0xa7),
            "frame {}",
            frame.index()
        );
        count += 1;
    }
    assert_eq!(count, 4096, "all frames are back");
    let faults = iommu_faults() - before;
    println!("the IOMMU has reported {faults} faults");
    assert!(faults > 0, "the kernel has reported of no fault");
    // The same card with correct addresses, at once.
    let mut right = open(&cards[1], "", &both());
    wait_for_link(&mut [&mut left, &mut right]);
    carries(&mut left, &mut right, &plan(true), 200, len_of);
}

/// Faults of the IOMMU in the kernel's log.
fn iommu_faults() -> usize {
    let output = std::process::Command::new("dmesg").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter(|line| line.contains("DMAR") && line.contains("ault"))
        .count()
}

/// Set in a process that holds a port: its name.
const CHILD_VAR: &str = "BAREWIRE_VFIO_CHILD";

/// Code of the child: receives on a port without privileges until it is killed.
#[test]
fn child() {
    let name = ::skip::child_body!(CHILD_VAR);
    let mut port = port::open(&name, &both()).unwrap();
    sys::privileges::drop_privileges(None, &[]).unwrap();
    assert!(!sys::privileges::has(sys::privileges::Capability::NetAdmin));
    wait_for_link(&mut [&mut port]);
    println!("ready");
    let mut count = 0;
    loop {
        let got = port.rx[0].receive().unwrap().len();
        count += got;
        if got == 0 {
            port.rx[0].wait(Duration::from_millis(100)).unwrap();
        } else if count >= 50 {
            println!("received {count}");
        }
    }
}

#[test]
fn a_killed_process_leaves_no_dma_and_the_card_to_others() {
    lab::require!(guest::inside());
    let cards = CARDS.map(|name| Bound::to_vfio(name).unwrap());
    let name = format!("vfio:{}", cards[1].address());
    for round in 0..3 {
        let mut left = open(&cards[0], "", &both());
        let (program, args) = own_test(module_path!(), "child");
        let mut command = std::process::Command::new(program);
        command.args(args).env(CHILD_VAR, &name);
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait_stdout("ready", LIMIT).unwrap();
        wait_for_link(&mut [&mut left]);
        assert!(cards[1].is_bus_master(), "it moves packets");
        // In use: no other process gets it.
        let error = port::open(&name, &both()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{}", reported(&error));
        assert!(error.hint().is_some());
        let packets: Vec<_> = (0..100)
            .map(|number| plan(true).build(number, 100))
            .collect();
        send(&mut left, &packets);
        // Privileges are dropped, packets still arrive.
        process.wait_stdout("received", LIMIT).unwrap();
        // While packets arrive.
        send(&mut left, &packets);
        let finished = process.stop(Signal::SIGKILL, LIMIT).unwrap();
        assert_eq!(finished.signal(), Some(Signal::SIGKILL), "{finished:?}");
        assert!(
            !cards[1].is_bus_master(),
            "round {round}: it may still write memory"
        );
        send(&mut left, &packets);
        // At once again, in this process.
        let mut right = open(&cards[1], "", &both());
        wait_for_link(&mut [&mut left, &mut right]);
        carries(&mut left, &mut right, &plan(true), 200, len_of);
    }
    // And the kernel's driver takes both back, and passes packets.
    drop(cards);
    let pair = Pair::of_cards(CARDS[0], CARDS[1], 1500, 1).unwrap();
    let raw = pair.left.ns.run(|| Raw::sender(CARDS[0])).unwrap().unwrap();
    let listener = pair.right.ns.run(|| Raw::open(CARDS[1])).unwrap().unwrap();
    let kernel = Udp::between(&pair.left, &pair.right);
    raw.send(&kernel.build(7, 100)).unwrap();
    let got = listener.receive(Duration::from_secs(10)).unwrap();
    assert_eq!(got.as_deref().map(number_of), Some(Ok(7)));
}

#[test]
fn reasons_not_to_open_a_card_have_a_hint() {
    lab::require!(guest::inside());
    let failure = |name: &str| {
        let error = port::open(name, &both()).map(drop).unwrap_err();
        println!("{name}: {}", reported(&error));
        let hint = error
            .hint()
            .unwrap_or_else(|| panic!("no hint: {error}"))
            .to_owned();
        (error.kind(), error.to_string(), hint)
    };
    // The kernel's driver has it.
    let igb = sys::pci::PciFunction::of_interface(CARDS[0]).unwrap();
    let address = igb.address();
    let (kind, text, hint) = failure(&format!("vfio:{address}"));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(
        text.contains("driver igb") && text.contains(CARDS[0]),
        "{text}"
    );
    assert!(hint.contains("nic bind vfio"), "{hint}");
    // It does not exist, is not a network card, or the name is invalid.
    assert_eq!(failure("vfio:0000:ff:1f.7").0, ErrorKind::NotFound);
    assert_eq!(failure("vfio:igb0").0, ErrorKind::InvalidInput);
    let bridge = sys::pci::PciFunction::all().unwrap();
    let host = bridge
        .iter()
        .find(|pci| pci.class().is_ok_and(|class| class >> 16 == 6))
        .unwrap();
    let (kind, text, _) = failure(&format!("vfio:{}", host.address()));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("not a network card"), "{text}");
    // Without a driver.
    let bound = Bound::to_vfio(CARDS[0]).unwrap();
    igb.unbind().unwrap();
    let (kind, text, _) = failure(&format!("vfio:{address}"));
    assert_eq!(kind, ErrorKind::Busy, "{text}");
    igb.probe().unwrap();
    // More queues than it has.
    let text = failure_without_hint(&format!("vfio:{address}?queues=99"));
    assert!(text.contains("16"), "{text}");
    drop(bound);
}

fn failure_without_hint(name: &str) -> String {
    let options = PortOptions::default();
    port::open(name, &options)
        .map(drop)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_card_that_the_kernel_requests_back_is_released() {
    lab::require!(guest::inside());
    let card = Bound::to_vfio(CARDS[0]).unwrap();
    let igb = sys::pci::PciFunction::find(card.address()).unwrap();
    let mut port = open(&card, "", &both());
    // It waits in the kernel until no process has the card open.
    let taking = std::thread::spawn(move || igb.unbind());
    let end = Instant::now() + LIMIT;
    let error = loop {
        match port.rx[0].wait(Duration::from_millis(100)) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < end, "the port was not reported"),
        }
        port.rx[0].receive().map(drop).unwrap();
    };
    println!("{}", reported(&error));
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(
        error.to_string().contains("requests the card back"),
        "{error}"
    );
    // The control side checks from time to time only.
    let event = loop {
        if let Some(event) = port.control.event() {
            break event;
        }
        assert!(Instant::now() < end, "the control side was not reported");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(event, PortEvent::DeviceGone);
    assert!(!taking.is_finished(), "it does not wait for us");
    drop(port);
    taking.join().unwrap().unwrap();
    let igb = sys::pci::PciFunction::find(card.address()).unwrap();
    assert_eq!(igb.driver(), None);
    // For the process that binds it back.
    igb.probe().unwrap();
}
