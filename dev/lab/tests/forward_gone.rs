//! `barewire forward` whose interface is deleted while packets pass: it ends with code 4, the error
//! has the reason, and every packet is accounted for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::forward::{LIMIT, Path, X, Y, totals};
use lab::packet::{Raw, Udp};
use lab::watch::Ending;
use lab::{Veth, require, skip};

/// Minimum number of packets forwarded before the interface is deleted.
const PACKETS_MIN: u64 = 1000;

/// Sends from A until A's interface is deleted, and deletes an interface of the box after enough
/// packets have arrived at B.
fn delete_under_load(path: &Path, name: &str) {
    let udp = Udp::between(path.a(), path.b()).flows(16);
    let out = path.a().ns.run(|| Raw::sender(&path.a().ifname));
    let out = out.unwrap().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                // It fails when the other end is deleted.
                if is_over.load(Ordering::Relaxed) || out.send(&udp.build(number, 60)).is_err() {
                    return;
                }
            }
        });
        let _ending = Ending(&is_over);
        let until = Instant::now() + LIMIT;
        while path.b().counters().unwrap().rx_packets < PACKETS_MIN {
            assert!(Instant::now() < until, "no packets come");
        }
        path.ns().ip(["link", "delete", name]).unwrap();
    });
}

fn ends_with_code_4(scheme: &str, deleted: &str, more: &[&str]) {
    let path = Path::new(&Veth::new());
    let [x, y] = [X, Y].map(|name| format!("{scheme}:{name}"));
    let mut forward = path.forward(&[&[&*x, &*y], more].concat());
    delete_under_load(&path, deleted);
    let finished = forward.process.wait(LIMIT).unwrap();
    let what = format!("{scheme} {deleted} {more:?}: {finished:?}");
    assert_eq!(finished.code(), Some(4), "{what}");
    assert!(
        finished.stderr.contains("the interface has been deleted"),
        "{what}"
    );
    assert!(finished.stderr.contains("hint:"), "{what}");
    let error = totals(&finished.stdout)["error"].to_string();
    assert!(error.contains("has been deleted"), "{what}");
}

#[test]
fn a_forwarder_whose_interface_is_deleted_ends_with_code_4() {
    require!(skip::lab());
    for scheme in ["afxdp", "afpacket"] {
        for deleted in [X, Y] {
            ends_with_code_4(scheme, deleted, &[]);
            ends_with_code_4(scheme, deleted, &["--both"]);
        }
    }
}
