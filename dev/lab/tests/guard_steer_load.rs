//! `barewire guard --steer` on several queues, under more packets than its workers can handle, and
//! during reloads.

use std::collections::BTreeMap;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::packet::{Raw, number_of, pour};
use lab::process::Signal;
use lab::{Veth, require, skip};

use super::guard_live::reported;
use super::guard_steer::{WAYS, guard, number, random_bytes, stop, transfer};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn several_queues_return_each_flow_in_order() {
    require!(skip::lab());
    const COUNT: u64 = 6_000;
    const FLOWS: u16 = 32;
    let data = random_bytes(1 << 20);
    for (mode, way) in WAYS {
        let pair = Veth::new().queues(4).create().unwrap();
        let args = ["--mode", mode, "--give-back", way];
        let class = ["--steer", "udp dst port 9 or tcp"];
        let process = guard(&pair, &[&args[..], &class].concat());
        let on = match way {
            "tap" => "bw-right0",
            _ => &pair.right.ifname,
        };
        let receiver = pair.right.ns.run(|| Raw::open(on)).unwrap().unwrap();
        pour(&pair, FLOWS, COUNT);
        // The next number of each flow.
        let mut next: BTreeMap<u64, u64> = (0..FLOWS.into()).map(|flow| (flow, flow)).collect();
        for at in 0..COUNT {
            let packet = receiver.receive(LIMIT).unwrap();
            let packet = packet.unwrap_or_else(|| panic!("{mode} {way}: {at} arrived"));
            let number = number_of(&packet).unwrap();
            let expected = next.get_mut(&(number % u64::from(FLOWS))).unwrap();
            assert_eq!(number, *expected, "{mode} {way}");
            *expected += u64::from(FLOWS);
        }
        drop(receiver);
        if mode == "native" {
            let counters = pair.right.driver_counters().unwrap();
            let used = |queue: u32| counters[&format!("rx_queue_{queue}_xdp_redirect")] > 0;
            let used = (0..4).filter(|queue| used(*queue)).count();
            assert!(used > 1, "the packets are on one queue: {counters:?}");
        }
        transfer(&pair, &data);
        let totals = stop(process);
        let steer = &totals["steer"];
        assert_eq!(
            (&steer["lost"], &steer["failed"], &steer["dropped"]),
            (&0.into(), &0.into(), &0.into()),
            "{totals}"
        );
        assert!(number(&steer["given_back"]) > COUNT, "{totals}");
    }
}

/// A stopped process is the slowest worker.
#[test]
fn packets_too_many_for_the_workers_are_counted_and_all_others_pass() {
    require!(skip::lab());
    const COUNT: u64 = 40_000;
    for (mode, way) in WAYS {
        for queues in [1, 4] {
            let pair = Veth::new().queues(queues).create().unwrap();
            let args = ["--mode", mode, "--give-back", way];
            let class = ["--steer", "udp dst port 9", "--user-limit", "10M/s udp"];
            let process = guard(&pair, &[&args[..], &class].concat());
            process.suspend().unwrap();
            pour(&pair, 32, COUNT);
            // Not of the class: it does not notice.
            transfer(&pair, &random_bytes(200_000));
            process.signal(Signal::SIGCONT).unwrap();
            reported(&process, "steered", COUNT);
            // And the workers are back.
            pour(&pair, 32, 1_000);
            let line = reported(&process, "steered", COUNT + 1_000);
            let totals = stop(process);
            let steer = &totals["steer"];
            assert_eq!(totals["steered"], COUNT + 1_000, "{totals}");
            assert!(number(&steer["lost"]) > 0, "{mode} {way}: {totals}");
            assert!(number(&steer["given_back"]) >= 1_000, "{totals}");
            let returned = number(&steer["given_back"]);
            assert_eq!(number(&steer["rules"][0]["packets"]), returned, "{totals}");
            assert_eq!(steer["failed"], 0, "{totals}");
            assert_eq!(line["steer"]["workers"], queues, "{line}");
        }
    }
}

#[test]
fn reloads_during_a_transfer_lose_nothing() {
    require!(skip::lab());
    let data = random_bytes(8 << 20);
    for (mode, way) in WAYS {
        let pair = Veth::new().queues(2).offloads().gro().create().unwrap();
        let file = TempFile::new(".toml");
        let steer = "[[rule]]\nname = \"all\"\nmatch = \"tcp or udp\"\nverdict = \"user\"\n";
        let write = |text: &str| {
            // Never half a file.
            let new = TempFile::new(".new");
            std::fs::write(new.path(), text).unwrap();
            std::fs::rename(new.path(), file.path()).unwrap();
        };
        let rules = |at: u64| match at % 3 {
            0 => steer.to_owned(),
            1 => format!(
                "{steer}[[user]]\nmatch = \"udp dst port 9\"\nverdict = \"drop\"\n\
                 [[rule]]\nmatch = \"tcp\"\nverdict = \"count\"\npriority = -1\n"
            ),
            _ => "[[rule]]\nmatch = \"no such thing\"\nverdict = \"user\"\n".to_owned(),
        };
        write(&rules(0));
        let path = file.path().to_str().unwrap();
        let args = ["--mode", mode, "--give-back", way, "--rules", path];
        let process = guard(&pair, &args);
        let reloads = |text: &str, what: &str| text.matches(what).count() as u64;
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| transfer(&pair, &data));
            let mut at = 0;
            while !moving.is_finished() || at < 6 {
                at += 1;
                write(&rules(at));
                process.signal(Signal::SIGHUP).unwrap();
                let done = |text: &str| {
                    reloads(text, "reloaded: ") + reloads(text, "old rules stay in force")
                };
                for _ in 0..3_000 {
                    if done(&process.stderr()) >= at {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                assert!(done(&process.stderr()) >= at, "{}", process.stderr());
            }
            moving.join().unwrap();
        });
        let totals = stop(process);
        let steer = &totals["steer"];
        assert_eq!(totals["dropped"], 0, "{totals}");
        assert_eq!(
            (&steer["lost"], &steer["failed"], &steer["dropped"]),
            (&0.into(), &0.into(), &0.into()),
            "{mode} {way}: {totals}"
        );
    }
}
