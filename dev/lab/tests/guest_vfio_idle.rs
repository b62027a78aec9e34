//! In the guest: a reader that has nothing to do sleeps until its card wakes it, and one that does
//! nothing loses packets that are counted.

mod vfio_card;

use std::collections::BTreeSet;
use std::time::Duration;

use lab::guest;
use lab::packet::number_of;
use nix::unistd::gettid;
use port::Ready;
use vfio_card::stand::{LIMIT, Stand};

/// Interrupts that the kernel has passed on for a card so far.
fn interrupts(address: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let lines = text.lines();
    let ours = lines.filter(|line| line.contains("vfio") && line.contains(address));
    // A number, a colon, and a count for each processor.
    let counts = ours.flat_map(|line| {
        let words = line.split_whitespace().skip(1);
        words.map_while(|word| word.parse::<u64>().ok())
    });
    counts.sum()
}

/// A number behind a word in a file of `/proc`.
fn number_behind(file: &str, word: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word} in {text}"))
        .trim()
        .parse()
        .unwrap()
}

/// Nanoseconds that this thread has had a processor (Documentation/scheduler/sched-stats.rst).
fn run_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// How often this thread went to sleep.
fn sleeps() -> u64 {
    number_behind("/proc/thread-self/status", "voluntary_ctxt_switches:")
}

/// Whether a thread of this process sleeps.
fn is_asleep(tid: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    // The name may have anything in it.
    text.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Packets, each sent to somebody who sleeps.
const ROUNDS: u64 = 10;

fn sleeps_until_woken(names: [&str; 2]) {
    let mut stand = Stand::new(names, "");
    stand.wait_for_wire();
    let address = stand.card.address.clone();

    // Nothing comes: few looks, and nearly no work.
    let (run, slept, idle) = (run_ns(), sleeps(), Duration::from_secs(2));
    assert_eq!(stand.port.rx[0].wait(idle).unwrap(), Ready::Timeout);
    let (run, slept) = (run_ns() - run, sleeps() - slept);
    println!(
        "{}: {slept} sleeps and {} us of work in 2 s",
        names[0],
        run / 1000
    );
    // It looks after the card twice a second.
    assert!((1..=40).contains(&slept), "{slept} sleeps in {idle:?}");
    assert!(
        run < idle.as_nanos() as u64 / 4,
        "{run} ns of work in {idle:?}"
    );

    let me = gettid().as_raw();
    let (there, before, mut woken) = (stand.there(), interrupts(&address), 0);
    for round in 0..ROUNDS {
        let (packet, out) = (there.build(round, 60), stand.peer.sender());
        let before = interrupts(&address);
        let sender = std::thread::spawn(move || {
            while !is_asleep(me) {
                std::thread::yield_now();
            }
            out.send(&packet).unwrap();
        });
        assert_eq!(stand.port.rx[0].wait(LIMIT).unwrap(), Ready::Packets);
        let got = vfio_card::stand::take(&mut stand.port);
        let numbers: Vec<_> = got.iter().map(|got| number_of(&got.bytes)).collect();
        assert_eq!(numbers, [Ok(round)]);
        woken += u64::from(interrupts(&address) > before);
        sender.join().unwrap();
    }
    let all = interrupts(&address) - before;
    println!(
        "{}: woken {woken} times in {ROUNDS}, by {all} interrupts",
        names[0]
    );
    // Twice a second it looks by itself, which a packet may just meet.
    assert!(woken > ROUNDS / 2, "woken by {woken} of {ROUNDS}");

    // While packets are taken without a wait no interrupt comes.
    let before = interrupts(&address);
    for round in 0..ROUNDS {
        stand.out.send(&there.build(round, 60)).unwrap();
        while vfio_card::stand::take(&mut stand.port).is_empty() {
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
fn an_e1000_wakes_its_reader_by_its_pin() {
    lab::require!(guest::inside());
    sleeps_until_woken(["e1000-0", "e1000-1"]);
}

#[test]
fn a_virtio_net_wakes_its_reader() {
    lab::require!(guest::inside());
    sleeps_until_woken(["virtio0", "virtio1"]);
}

/// Fills a card whose reader has stopped, and begins to read again; how many packets it says it has
/// lost, and how many came.
fn fill(stand: &mut Stand, count: u64, len: usize) -> [u64; 2] {
    stand.wait_for_wire();
    let there = stand.there();
    let before = stand.port.control.account().unwrap().rx_total();
    for number in 0..count {
        stand.out.send(&there.build(number, len)).unwrap();
    }
    // Read again until no more comes, each once. (Not in order: the kernel's driver has a sending
    // queue for each processor.)
    let mut seen = BTreeSet::new();
    loop {
        let got = stand.look(Duration::from_millis(200));
        if got.is_empty() {
            break;
        }
        for got in got {
            let number = number_of(&got.bytes).unwrap();
            assert_eq!(got.bytes.len(), len);
            assert!(number < count && seen.insert(number), "{number} twice");
        }
    }
    let came = seen.len() as u64;
    let account = stand.port.control.account().unwrap();
    println!("{came} of {count} came: {account:?}");
    let after = account.rx_total();
    assert_eq!(after.imbalance(), 0, "{account:?}");
    assert_eq!(after.delivered - before.delivered, came, "{account:?}");
    assert!(came < count, "nothing was lost");
    let lost = after.lost() - before.lost();
    // And it goes on.
    stand.both_ways(200);
    stand.check_account();
    // Each loss is told once.
    let account = stand.port.control.account().unwrap();
    assert_eq!(
        account.rx_total().lost() - before.lost(),
        lost,
        "{account:?}"
    );
    [lost, came]
}

#[test]
fn an_igb_goes_on_when_its_reader_does() {
    lab::require!(guest::inside());
    // One flow, so one of two queues, and the card goes on for the other one. QEMU's igb loses what
    // a queue has no descriptor for without a count in RQDPC or MPC: the models have it.
    let mut stand = Stand::new(["igb0", "igb1"], "?queues=2&ring=64");
    fill(&mut stand, 600, 100);
}

#[test]
fn an_e1000_counts_what_it_has_no_room_for() {
    lab::require!(guest::inside());
    // Five descriptors each: the ring has not room for the last one, and the card knows it.
    let mut stand = Stand::new(["e1000-0", "e1000-1"], "?ring=64");
    stand.peer.set_mtu(9000);
    const COUNT: u64 = 60;
    let [lost, came] = fill(&mut stand, COUNT, 9000);
    assert_eq!(
        lost + came,
        COUNT,
        "MPC: {:?}",
        stand.port.control.account()
    );
    // And to no other port.
    let mut stand = stand.reopen("");
    stand.both_ways(10);
    assert_eq!(stand.port.control.account().unwrap().rx_total().lost(), 0);
}

#[test]
fn a_virtio_net_goes_on_when_there_is_room_again() {
    lab::require!(guest::inside());
    // It counts nothing: what it had no buffer for is in nobody's account.
    let mut stand = Stand::new(["virtio0", "virtio1"], "?ring=64");
    fill(&mut stand, 3000, 100);
}
