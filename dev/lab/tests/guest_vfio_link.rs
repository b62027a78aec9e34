//! In the guest: a card in user space whose cable is unplugged, or that is reset from outside.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::vfio_card::stand::{ASKING, LIMIT, Stand, fact, number_among, take};
use crate::vfio_card::{Peer, VfioCard};
use lab::guest::{self, Pulled};
use lab::process::Process;
use port::PortEvent;
use sys::ErrorKind;

/// Checks at intervals of 10 ms in which nothing may happen: longer than a card needs to find its
/// link.
const LOOKS: u32 = 100;

/// Unplugs the cable of a card with the kernel's driver, and waits until that has noticed: the host
/// does not report when it is done.
fn unplugged(card: &str) -> Pulled<'_> {
    let kernel = Peer::up(card, 1500);
    let path = format!("/sys/class/net/{card}/carrier");
    let wait_for = |state: &str| {
        let until = Instant::now() + LIMIT;
        // It cannot be read while the interface is coming up (EINVAL).
        while std::fs::read_to_string(&path).map_or(true, |now| now.trim() != state) {
            assert!(
                Instant::now() < until,
                "{card}: the carrier is never {state}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Present at first: otherwise its absence proves nothing.
    wait_for("1");
    let pulled = Pulled::from(card);
    wait_for("0");
    drop(kernel);
    pulled
}

/// No cable at first, then one, then none during traffic, then one again.
fn wire(card: &str, peer: &str, more: &str) {
    let peer = Peer::up(peer, 1500);
    let pulled = unplugged(card);
    let bound = VfioCard::bind(card);
    let mut stand = Stand::on(peer, bound, more);
    assert_eq!(fact(&stand.port, "link"), "down");
    assert_eq!(stand.port.control.link_is_up(), Some(false));
    for _ in 0..LOOKS {
        stand.hand(4);
        let number = stand.number();
        let _ = stand.out.send(&stand.there().build(number, 60));
        assert_eq!(
            stand.look(Duration::from_millis(10)).len(),
            0,
            "without a wire"
        );
        assert_eq!(stand.port.control.event(), None);
    }
    assert_eq!(stand.port.control.link_is_up(), Some(false));
    // The account shows whether they were sent, and nothing waits forever.
    let _ = stand.port.tx[0]
        .wait(true, Duration::from_millis(100))
        .unwrap();
    stand.check_account();

    drop(pulled);
    stand.wait_for_event(PortEvent::LinkUp);
    assert_eq!(stand.port.control.link_is_up(), Some(true));
    stand.wait_for_wire();
    stand.both_ways(300);
    stand.check_account();

    // Packets are in flight in both directions when it is unplugged.
    let pulled = Pulled::from(card);
    let until = Instant::now() + LIMIT;
    let (mut sent, mut came) = (0, 0);
    loop {
        for number in stand.numbers(10) {
            let _ = stand.out.send(&stand.there().build(number, 100));
            sent += 1;
        }
        stand.hand(10);
        came += take(&mut stand.port).len();
        match stand.port.control.event() {
            Some(PortEvent::LinkDown) => break,
            other => assert_eq!(other, None),
        }
        assert!(Instant::now() < until, "the link stays up");
    }
    assert_eq!(stand.port.control.link_is_up(), Some(false));
    println!("{card}: {came} packets of {sent} came");
    while !stand.look(Duration::from_millis(20)).is_empty() {
        assert!(Instant::now() < until, "they come without an end");
    }
    for _ in 0..LOOKS {
        let number = stand.number();
        let _ = stand.out.send(&stand.there().build(number, 100));
        stand.hand(4);
        assert_eq!(
            stand.look(Duration::from_millis(1)).len(),
            0,
            "without a wire"
        );
        assert_eq!(stand.port.control.event(), None);
    }
    stand.check_account();

    drop(pulled);
    stand.wait_for_event(PortEvent::LinkUp);
    assert_eq!(stand.port.control.link_is_up(), Some(true));
    stand.wait_for_wire();
    stand.both_ways(300);
    stand.check_account();
    println!("{card}: {:?}", stand.port.control.account());
}

#[test]
fn an_igb_reports_link_changes() {
    lab::require!(guest::inside());
    wire("igb0", "igb1", "?queues=2");
}

#[test]
fn an_e1000_reports_link_changes() {
    lab::require!(guest::inside());
    wire("e1000-0", "e1000-1", "");
}

#[test]
fn a_virtio_net_reports_link_changes() {
    lab::require!(guest::inside());
    wire("virtio1", "virtio0", "");
}

/// QEMU (11.1) miscounts packets of packed rings that it drops without a link, and finds the ring
/// overfull afterwards: it requests a reset. A port on it reports this.
#[test]
fn a_virtio_net_with_packed_rings_continues_or_reports_that_it_needs_a_reset() {
    lab::require!(guest::inside());
    let mut stand = Stand::new(["virtio0", "virtio1"], "");
    assert_eq!(fact(&stand.port, "rings"), "packed");
    stand.wait_for_wire();
    stand.both_ways(100);
    let pulled = Pulled::from("virtio0");
    let until = Instant::now() + LIMIT;
    while stand.port.control.link_is_up() == Some(true) {
        assert!(Instant::now() < until, "the link stays up");
        stand.hand(10);
    }
    stand.hand(50);
    drop(pulled);
    while stand
        .into
        .receive(Duration::from_millis(1))
        .unwrap()
        .is_some()
    {
        assert!(Instant::now() < until, "they leave without an end");
    }
    let mut fresh = stand.numbers(1);
    // All packets sent from here on.
    fresh.end = ASKING;
    let error = loop {
        assert!(
            Instant::now() < until,
            "no packet leaves, and nobody says why"
        );
        let tried = stand
            .try_hand(10)
            .and_then(|()| stand.port.tx[0].wait(true, Duration::from_millis(20)));
        if let Err(error) = tried {
            break Some(error);
        }
        let left = stand.into.receive(Duration::from_millis(5)).unwrap();
        if left.is_some_and(|packet| number_among(&fresh, &packet).is_some()) {
            break None;
        }
    };
    stand.check_account();
    if let Some(error) = error {
        println!("virtio0: {error} (hint: {:?})", error.hint());
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert_eq!(error.hint(), Some("open the port again"));
        stand = stand.reopen("");
        stand.wait_for_wire();
    }
    stand.both_ways(200);
    stand.check_account();
}

/// The kernel's request to reset this function.
fn reset(card: &VfioCard) {
    let path = format!("/sys/bus/pci/devices/{}/reset", card.address);
    std::fs::write(&path, "1").unwrap_or_else(|e| panic!("{path}: {e}"));
}

/// A card is reset under traffic.
fn reset_under_us(card: &str, peer: &str, more: &str) {
    let mut stand = Stand::new([card, peer], more);
    stand.wait_for_wire();
    stand.both_ways(200);
    stand.check_account();
    let counters = stand.port.tx[0].counters().clone();
    stand.hand(50);
    reset(&stand.card);

    // The next wait without packets reports it; no call hangs.
    let until = Instant::now() + LIMIT;
    let error = loop {
        assert!(Instant::now() < until, "nobody notices");
        let number = stand.number();
        let _ = stand.out.send(&stand.there().build(number, 60));
        match stand.port.rx[0].wait(Duration::from_millis(10)) {
            Ok(_) => drop(stand.port.rx[0].receive()),
            Err(error) => break error,
        }
    };
    println!("{card}: {error} (hint: {:?})", error.hint());
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(
        error.to_string().contains("reset by something else"),
        "{error}"
    );
    assert_eq!(error.hint(), Some("open the port again"));
    // From then on every call reports it, and the control side once.
    for rx in &mut stand.port.rx {
        assert_eq!(rx.receive().err().map(|e| e.kind()), Some(ErrorKind::Gone));
    }
    let flushed = stand.port.tx[0].flush();
    assert_eq!(flushed.err().map(|e| e.kind()), Some(ErrorKind::Gone));
    let waited = stand.port.tx[0].wait(true, LIMIT);
    assert_eq!(waited.err().map(|e| e.kind()), Some(ErrorKind::Gone));
    let until = Instant::now() + LIMIT;
    while stand.port.control.event() != Some(PortEvent::DeviceGone) {
        assert!(Instant::now() < until, "the port does not tell");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stand.port.control.event(), None);
    stand.check_account();
    let handed = stand.handed;

    // Reopened, it works as before.
    let mut stand = stand.reopen(more);
    assert_eq!(counters.sent.get() + counters.failed.get(), handed);
    stand.wait_for_wire();
    stand.both_ways(200);
    stand.check_account();
}

#[test]
fn an_igb_that_is_reset_is_reported() {
    lab::require!(guest::inside());
    reset_under_us("igb0", "igb1", "?queues=2");
}

#[test]
fn a_virtio_net_that_is_reset_is_reported() {
    lab::require!(guest::inside());
    reset_under_us("virtio0", "virtio1", "");
}

#[test]
fn a_command_ends_when_its_card_is_reset() {
    lab::require!(guest::inside());
    let card = VfioCard::bind("igb0");
    let mut command = Command::new("barewire");
    let port = format!("vfio:{}", card.address);
    command.args(["capture", &port, "-w", "/dev/null"]);
    let mut capture = Process::spawn(&mut command).unwrap();
    capture.wait_stderr("listening on", LIMIT).unwrap();
    reset(&card);
    let ended = capture.wait(LIMIT).unwrap();
    println!("{}", ended.stderr);
    assert_eq!(ended.code(), Some(4), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("reset by something else"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("hint: open the port again"),
        "{}",
        ended.stderr
    );
}
