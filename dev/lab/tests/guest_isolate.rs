//! In the guest: `barewire nic isolate` on real drivers. The 82576 has RSS and no ntuple filters,
//! so that a queue can be taken out of RSS, and a class is refused.

use std::time::{Duration, Instant};

use lab::packet::pour;
use lab::process::{Finished, Process, Signal};
use lab::{Pair, guest};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// The isolated queue.
const QUEUE: &str = "1";

fn spawn(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["nic", "isolate", &pair.right.ifname], args].concat();
    pair.right.ns.spawn("barewire", args).unwrap()
}

fn isolate(pair: &Pair, args: &[&str]) -> Finished {
    spawn(pair, args).wait(LIMIT).unwrap()
}

/// What ethtool says of RSS, rules and the feature.
fn state(pair: &Pair) -> String {
    let name = &pair.right.ifname;
    let said = ["-x", "-n", "-k"].map(|flag| pair.right.ns.exec("ethtool", [flag, name]).unwrap());
    let ntuple = |line: &&str| line.contains("ntuple");
    let feature = said[2].lines().find(ntuple).unwrap_or_default();
    format!("{}\n{}\n{feature}", said[0], said[1])
}

/// The queues in the indirection table, as ethtool prints it.
fn queues(pair: &Pair) -> Vec<String> {
    let said = state(pair);
    let table = said.split("RSS hash key").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| {
        let (entry, queues) = line.split_once(':')?;
        entry.trim().parse::<u32>().ok()?;
        Some(queues.split_whitespace().map(str::to_owned))
    });
    let mut queues: Vec<_> = rows.flatten().collect();
    queues.sort();
    queues.dedup();
    queues
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Packets that each queue received of 256 packets in 64 flows.
fn received(pair: &Pair) -> [u64; 2] {
    let count = || {
        let counters = pair.right.driver_counters().unwrap();
        [0, 1].map(|queue| counters[&format!("rx_queue_{queue}_packets")])
    };
    // The card was reset, perhaps.
    for end in [&pair.left, &pair.right] {
        end.wait_up(Duration::from_secs(20)).unwrap();
    }
    let before = count();
    pour(pair, 64, 256);
    let since = || {
        let now = count();
        [now[0] - before[0], now[1] - before[1]]
    };
    wait_for("all packets", || since().iter().sum::<u64>() >= 256);
    since()
}

#[test]
fn a_queue_leaves_rss_and_returns() {
    lab::require!(guest::inside());
    let pair = Pair::of_cards("igb0", "igb1", 1500, 2).unwrap();
    let before = state(&pair);
    assert_eq!(queues(&pair), ["0", "1"]);
    assert!(received(&pair)[1] > 0);

    // Nothing changes if nothing is to be done.
    let steps = isolate(&pair, &["--queue", QUEUE, "--dry-run", "--json"]);
    let steps: Value = serde_json::from_str(&steps.checked().unwrap().stdout).unwrap();
    assert_eq!(steps["steps"][0]["step"], "indirection", "{steps}");
    assert_eq!(state(&pair), before);

    isolate(&pair, &["--queue", QUEUE]).checked().unwrap();
    assert_eq!(queues(&pair), ["0"]);
    assert_eq!(received(&pair)[1], 0);
    // Only once.
    let again = isolate(&pair, &["--queue", "0"]);
    assert_eq!(again.code(), Some(1));
    assert!(again.stderr.contains("--undo"), "{}", again.stderr);

    isolate(&pair, &["--undo"]).checked().unwrap();
    assert_eq!(state(&pair), before);
    assert!(received(&pair)[1] > 0);
    let again = isolate(&pair, &["--undo"]);
    assert_eq!(again.code(), Some(1), "{}", again.stderr);
}

#[test]
fn a_queue_returns_when_its_owner_ends() {
    lab::require!(guest::inside());
    let pair = Pair::of_cards("igb0", "igb1", 1500, 2).unwrap();
    let before = state(&pair);
    // A command, whose exit code is passed on.
    let name = pair.right.ifname.as_str();
    let script = format!("ethtool -x {name}; exit 7");
    let ran = isolate(&pair, &["--queue", QUEUE, "--run", "sh", "-c", &script]);
    assert_eq!(ran.code(), Some(7), "{}", ran.stderr);
    assert!(ran.stdout.contains("indirection table"), "{}", ran.stdout);
    assert!(!ran.stdout.contains(" 1  "), "{}", ran.stdout);
    assert_eq!(state(&pair), before);

    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut holder = spawn(&pair, &["--queue", QUEUE, "--until-exit"]);
        holder.wait_stderr("undo it", LIMIT).unwrap();
        assert_eq!(queues(&pair), ["0"]);
        for args in [&["--queue", "0"][..], &["--undo"]] {
            let refused = isolate(&pair, args);
            assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
            assert!(refused.stderr.contains("process"), "{}", refused.stderr);
        }
        holder.stop(signal, LIMIT).unwrap();
        wait_for("the table of before", || state(&pair) == before);
    }

    // If the helper is killed too, the record is left.
    let mut holder = spawn(&pair, &["--queue", QUEUE, "--until-exit"]);
    holder.wait_stderr("undo it", LIMIT).unwrap();
    pair.right
        .ns
        .exec("killall", ["-9", "nic-guardian"])
        .unwrap();
    holder.stop(Signal::SIGKILL, LIMIT).unwrap();
    assert_eq!(queues(&pair), ["0"]);
    isolate(&pair, &["--undo"]).checked().unwrap();
    assert_eq!(state(&pair), before);
}

#[test]
fn cards_that_cannot_are_refused_and_unchanged() {
    lab::require!(guest::inside());
    for (cards, expression, why) in [
        (["igb0", "igb1"], "udp dst port 53", "off [fixed]"),
        (["igb0", "igb1"], "not udp", "exclude none"),
        (["e1000-0", "e1000-1"], "", "no receive queues"),
    ] {
        let pair = Pair::of_cards(cards[0], cards[1], 1500, 2).unwrap();
        let expression = [expression];
        let words = &expression[..usize::from(!expression[0].is_empty())];
        let refused = isolate(&pair, &[&["--queue", QUEUE], words].concat());
        assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
        let undone = isolate(&pair, &["--undo"]);
        assert!(undone.stderr.contains("none of its"), "{}", undone.stderr);
    }
}
