//! In the guest: an idle reader sleeps until its card wakes it, and a stalled one loses packets,
//! which are counted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::vfio_card::stand::{LIMIT, Stand, number_among, take};
use lab::guest;
use nix::unistd::gettid;
use port::Ready;

/// Interrupts that the kernel has passed on for a card so far.
fn interrupts(address: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let lines = text.lines();
    let ours = lines.filter(|line| line.contains("vfio") && line.contains(address));
    // A number, a colon, and a count per processor.
    let counts = ours.flat_map(|line| {
        let words = line.split_whitespace().skip(1);
        words.map_while(|word| word.parse::<u64>().ok())
    });
    counts.sum()
}

/// The number after a word in a file of `/proc`.
fn number_behind(file: &str, word: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word} in {text}"))
        .trim()
        .parse()
        .unwrap()
}

/// How often this thread went to sleep.
fn sleeps() -> u64 {
    number_behind("/proc/thread-self/status", "voluntary_ctxt_switches:")
}

/// Whether a thread of this process is sleeping.
fn is_asleep(tid: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    // The name may contain anything.
    text.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Number of packets that wake a sleeping receiver.
const ROUNDS: u64 = 10;

/// Maximum number of packets for that: twice a second a reader checks by itself, and may just meet
/// one.
const ROUNDS_MAX: u64 = 10 * ROUNDS;

fn sleeps_until_woken(names: [&str; 2]) {
    let mut stand = Stand::new(names, "");
    stand.wait_for_wire();
    let address = stand.card.address.clone();

    // No packets arrive: few checks.
    let (idle, until) = (Duration::from_secs(2), Instant::now() + LIMIT);
    let slept = loop {
        let before = sleeps();
        if stand.port.rx[0].wait(idle).unwrap() == Ready::Timeout {
            break sleeps() - before;
        }
        take(&mut stand.port);
        assert!(Instant::now() < until, "something comes again and again");
    };
    println!("{}: {slept} sleeps in {idle:?}", names[0]);
    // It checks the card twice a second.
    assert!((1..=40).contains(&slept), "{slept} sleeps in {idle:?}");

    let me = gettid().as_raw();
    let (there, before) = (stand.there(), interrupts(&address));
    let (mut rounds, mut woken) = (0, 0);
    while woken < ROUNDS {
        assert!(rounds < ROUNDS_MAX, "woken by {woken} of {rounds}");
        rounds += 1;
        let ours = stand.numbers(1);
        let (packet, out) = (there.build(ours.start, 60), stand.peer.sender());
        let before = interrupts(&address);
        let sender = std::thread::spawn(move || {
            let until = Instant::now() + LIMIT;
            while !is_asleep(me) {
                assert!(Instant::now() < until, "nobody goes to sleep");
                std::thread::yield_now();
            }
            out.send(&packet).unwrap();
        });
        // Woken by that packet alone, unless something arrives late.
        let until = Instant::now() + LIMIT;
        loop {
            assert_eq!(stand.port.rx[0].wait(LIMIT).unwrap(), Ready::Packets);
            let got = take(&mut stand.port);
            let is_ours = |packet: &[u8]| number_among(&ours, packet).is_some();
            if got.iter().any(|got| is_ours(&got.bytes)) {
                break;
            }
            assert!(Instant::now() < until, "it never came");
        }
        woken += u64::from(interrupts(&address) > before);
        sender.join().unwrap();
    }
    let all = interrupts(&address) - before;
    println!(
        "{}: woken {woken} times in {rounds}, by {all} interrupts",
        names[0]
    );

    // While packets are received without waiting there are no interrupts.
    let (before, until) = (interrupts(&address), Instant::now() + LIMIT);
    for number in stand.numbers(ROUNDS) {
        stand.out.send(&there.build(number, 60)).unwrap();
        while take(&mut stand.port).is_empty() {
            assert!(Instant::now() < until, "it never came");
            std::thread::yield_now();
        }
    }
    let polled = interrupts(&address) - before;
    assert!(polled <= 1, "{polled} interrupts while polling");
    stand.check_account();
}

#[test]
fn an_igb_wakes_its_reader() {
    lab::require!(guest::inside());
    sleeps_until_woken(["igb0", "igb1"]);
}

#[test]
fn an_e1000_wakes_its_reader_by_pin_interrupt() {
    lab::require!(guest::inside());
    sleeps_until_woken(["e1000-0", "e1000-1"]);
}

#[test]
fn a_virtio_net_wakes_its_reader() {
    lab::require!(guest::inside());
    sleeps_until_woken(["virtio0", "virtio1"]);
}

/// Fills a card whose reader has stopped, and resumes reading; returns how many packets it reports
/// as lost, and how many arrived. These are all of them if it counts what it loses.
fn fill(stand: &mut Stand, count: u64, len: usize, counts: bool) -> [u64; 2] {
    stand.wait_for_wire();
    let there = stand.there();
    let before = stand.port.control.account().unwrap().rx_total();
    let ours = stand.numbers(count);
    for number in ours.clone() {
        stand.out.send(&there.build(number, len)).unwrap();
    }
    // Read until no more arrive, each once. (Not in order: the kernel's driver has a transmit queue
    // per processor.)
    let (mut taken, mut seen) = (0, BTreeSet::new());
    let until = Instant::now() + LIMIT;
    let account = loop {
        let got = stand.look(Duration::from_millis(200));
        for got in &got {
            taken += 1;
            let Some(number) = number_among(&ours, &got.bytes) else {
                continue;
            };
            assert_eq!(got.bytes.len(), len);
            assert!(seen.insert(number), "{number} twice");
        }
        let account = stand.port.control.account().unwrap();
        let known = account.rx_total().lost() - before.lost() + seen.len() as u64;
        if got.is_empty() && (known >= count || !counts) {
            break account;
        }
        assert!(
            Instant::now() < until,
            "{known} of {count} are known of: {account:?}"
        );
    };
    let came = seen.len() as u64;
    println!("{came} of {count} came: {account:?}");
    let after = account.rx_total();
    assert_eq!(after.imbalance(), 0, "{account:?}");
    assert_eq!(after.delivered - before.delivered, taken, "{account:?}");
    assert!(came < count, "nothing was lost");
    let lost = after.lost() - before.lost();
    // And it continues.
    stand.both_ways(200);
    stand.check_account();
    // Each loss is reported once.
    let account = stand.port.control.account().unwrap();
    assert_eq!(
        account.rx_total().lost() - before.lost(),
        lost,
        "{account:?}"
    );
    [lost, came]
}

#[test]
fn an_igb_continues_when_its_reader_does() {
    lab::require!(guest::inside());
    // One flow, so one of two queues, and the card continues on the other one. QEMU's igb loses
    // packets without a descriptor and does not count them in RQDPC or MPC: the models do.
    let mut stand = Stand::new(["igb0", "igb1"], "?queues=2&ring=64");
    fill(&mut stand, 600, 100, false);
}

#[test]
fn an_e1000_counts_packets_without_room() {
    lab::require!(guest::inside());
    // Five descriptors each: the ring has no room for the last one, and the card counts it.
    let mut stand = Stand::new(["e1000-0", "e1000-1"], "?ring=64");
    stand.peer.set_mtu(9000);
    const COUNT: u64 = 60;
    let [lost, came] = fill(&mut stand, COUNT, 9000, true);
    assert_eq!(
        lost + came,
        COUNT,
        "MPC: {:?}",
        stand.port.control.account()
    );
    // And on no other port.
    let mut stand = stand.reopen("");
    stand.both_ways(10);
    assert_eq!(stand.port.control.account().unwrap().rx_total().lost(), 0);
}

#[test]
fn a_virtio_net_continues_when_there_is_room_again() {
    // A hub of QEMU's queues packets for which there is no room; the host's bridge and its TAP do
    // not.
    lab::require!(guest::inside(), guest::two_queues());
    // It counts nothing: packets without a buffer are in no account.
    let mut stand = Stand::new(["virtio0", "virtio1"], "?ring=64");
    fill(&mut stand, 3000, 100, false);
}
