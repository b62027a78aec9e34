//! The sending end on the loopback interface in a private namespace.

use ring::PoolConfig;

use super::*;
use crate::backend::afxdp::control::{Control, QueueView};
use crate::backend::afxdp::socket::{self, SocketSpec};

fn sender() -> Tx {
    let config = PoolConfig {
        frame_count: 256,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config).unwrap();
    let spec = SocketSpec {
        ifindex: 1,
        queue_index: 0,
        has_rx: false,
        has_tx: true,
        ring_len: 64,
        tx_len: 64,
        fill_count: 0,
        zero_copy: false,
        multi_buffer: false,
        need_wakeup: true,
    };
    let (shared, _, parts) = socket::open(&pool, &spec).unwrap().into_ends();
    Tx::new(parts.unwrap(), shared, pool, false, Arc::default())
}

/// Sets loopback up or down in this thread's namespace.
fn set_loopback(is_up: bool) {
    let mut name = [0; libc::IFNAMSIZ];
    name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    let flags = if is_up {
        libc::IFF_UP as libc::c_short
    } else {
        0
    };
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // SAFETY: a plain socket, and a request that lives across the call.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let result = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
        result
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A process that holds the RTNL lock delays the kernel's answer, but no packets.
#[test]
fn a_flush_does_not_wait_for_the_kernels_answer() {
    let body = || {
        let mut tx = sender();
        let shared = tx.shared.clone();
        let held = shared.hold_answers();
        let (done, ended) = std::sync::mpsc::channel();
        let flushing = thread::spawn(move || {
            let error = tx.kick().unwrap_err();
            done.send((error.kind(), tx.shared.is_asking())).unwrap();
            // A caller that waits for room gets the answer, or waits no longer than requested.
            let waited = tx.wait(false, Duration::from_millis(1)).unwrap_err();
            done.send((waited.kind(), tx.shared.is_asking())).unwrap();
            tx
        });
        let limit = Duration::from_secs(60);
        for _ in 0..2 {
            let found = ended.recv_timeout(limit).expect("it does not wait");
            assert_eq!(found, (ErrorKind::Down, true));
        }
        drop(held);
        let mut tx = flushing.join().unwrap();
        let until = Instant::now() + limit;
        while tx.shared.is_asking() {
            assert!(Instant::now() < until, "no answer");
            thread::sleep(NAP);
        }
        // Down, and there.
        assert_eq!(tx.kick().unwrap_err().kind(), ErrorKind::Down);
    };
    if let Err(error) = sys::netns::in_new(body) {
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        skip::record("a_flush_does_not_wait_for_the_kernels_answer", error);
    }
}

/// The query waits for a lock that others may hold for seconds.
#[test]
fn an_interface_that_stays_down_is_not_queried_at_each_flush() {
    let body = || {
        let mut tx = sender();
        let kick = |tx: &mut Tx| assert_eq!(tx.kick().unwrap_err().kind(), ErrorKind::Down);
        kick(&mut tx);
        assert!(tx.asked_at.is_some(), "it may just be going away");
        // No time has passed since this one, however slow the machine.
        let later = Instant::now() + Duration::from_secs(3600);
        tx.asked_at = Some(later);
        for _ in 0..100 {
            kick(&mut tx);
            assert_eq!(tx.asked_at, Some(later));
        }
        let earlier = later - Duration::from_secs(3600) - ASK_EVERY;
        tx.asked_at = Some(earlier);
        kick(&mut tx);
        assert!(tx.asked_at.unwrap() > earlier);
        // Up and down again: it may be going away once more.
        tx.asked_at = Some(later);
        set_loopback(true);
        tx.kick().unwrap();
        assert_eq!(tx.asked_at, None);
        set_loopback(false);
        kick(&mut tx);
        assert!(tx.asked_at.is_some_and(|at| at < later));
    };
    if let Err(error) = sys::netns::in_new(body) {
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        let name = "an_interface_that_stays_down_is_not_queried_at_each_flush";
        skip::record(name, error);
    }
}

/// The queue's own checks leave the kernel none to refuse, so one is written past them.
#[test]
fn descriptors_that_the_kernel_refuses_are_failed_packets() {
    let body = || {
        set_loopback(true);
        let mut tx = sender();
        let view = QueueView {
            shared: tx.shared.clone(),
            rx: None,
            tx: Some(tx.counters.clone()),
        };
        let account = || Control::tx_account(&view).unwrap().unwrap();
        assert_eq!((account().sent, account().failed), (0, 0));
        let extra_fields = Descriptor {
            addr: u64::MAX,
            len: 60,
            options: 0,
        };
        tx.tx.write(tx.staged, extra_fields);
        tx.staged += 1;
        // It, as any packet that was submitted, and five before it.
        tx.counters.sent.add(6);
        tx.publish();
        tx.kick().unwrap();
        assert_eq!((account().sent, account().failed), (5, 1));
        assert_eq!(account().queue_index, 0);
    };
    if let Err(error) = sys::netns::in_new(body) {
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        let name = "descriptors_that_the_kernel_refuses_are_failed_packets";
        skip::record(name, error);
    }
}
