//! The end of destinations: waits for their threads and, once the end was requested, only briefly
//! for a stalled destination.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use flow::encode::Sum;

use crate::account::{Account, DropReason};
use crate::exporters::Handle;
use crate::worker::{Shared, lock};

/// How often threads are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How much longer than its thread a destination is waited for, which sees the same stall itself
/// unless a call holds it up.
const GRACE: Duration = Duration::from_millis(50);
/// How long to wait for a stalled destination after the end was requested: with everything else,
/// the run ends within a second.
const ASKED_MAX: Duration = Duration::from_millis(700);
/// The same after its last step, where that was later: as long as it takes something it may
/// continue.
const STALL_ASKED: Duration = Duration::from_millis(300);

/// How long a destination is waited for. All waits count from the moment at which the end was
/// requested, so that waits one after the other do not add up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// After its last step, until the end is requested.
    pub(crate) unasked: Duration,
    /// After its last step and that moment, with `wait=` and for files. Others have until
    /// [`ASKED_MAX`], or [`STALL_ASKED`] after their last step.
    pub(crate) asked: Option<Duration>,
}

impl Patience {
    /// How much longer the wait may be; zero if it is over. The last step may as well be the
    /// beginning of the wait.
    pub(crate) fn left(
        &self,
        asked_at: Option<Instant>,
        last_step: Instant,
        now: Instant,
    ) -> Duration {
        let rest = |wait: Duration, since: Instant| {
            wait.saturating_sub(now.saturating_duration_since(since))
        };
        match (asked_at, self.asked) {
            (None, _) => rest(self.unasked, last_step),
            (Some(asked_at), Some(wait)) => rest(wait, asked_at.max(last_step)),
            (Some(asked_at), None) => rest(ASKED_MAX, asked_at).max(rest(STALL_ASKED, last_step)),
        }
    }
}

/// The last step of a destination.
struct Watch {
    steps: u64,
    since: Instant,
}

/// Waits until the threads have ended. Once `asked_at` has the time at which the end was requested,
/// a thread that makes no step while its [`Handle::patience`] lasts is left behind, with an account
/// of what it has not sent.
pub(crate) fn wait(handles: Vec<&mut Handle>, asked_at: &dyn Fn() -> Option<Instant>) {
    let watch = |handle: &mut Handle| {
        let steps = handle.shared.progress.count();
        let stall = handle.stall.filter(|(before, _)| *before == steps);
        let since = stall.map_or_else(Instant::now, |(_, since)| since);
        Watch { steps, since }
    };
    let mut left: Vec<_> = handles
        .into_iter()
        .map(|handle| (watch(handle), handle))
        .collect();
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none()
            && let Some(moment) = asked_at()
        {
            asked = Some(moment);
            for (_, handle) in &left {
                handle.shared.asked_at.get_or_init(|| moment);
            }
        }
        left.retain_mut(|(watch, handle)| !has_ended(handle, watch, asked));
        if left.is_empty() {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether the thread has ended, or was left behind.
fn has_ended(handle: &mut Handle, watch: &mut Watch, asked: Option<Instant>) -> bool {
    let Some(thread) = handle.thread.take() else {
        return true;
    };
    if thread.is_finished() {
        if thread.join().is_err() {
            let mut account = lock(&handle.shared.account);
            account.last_failure = Some("its thread panicked, a bug in barewire".into());
        }
        return true;
    }
    let progress = &handle.shared.progress;
    let steps = progress.count();
    if steps != watch.steps || progress.is_pausing() {
        (watch.steps, watch.since) = (steps, Instant::now());
    }
    // As things stood a little earlier the thread has seen them, unless a call holds it up.
    let now = Instant::now();
    let earlier = now.checked_sub(GRACE).unwrap_or(now);
    if asked.is_some() && handle.patience.left(asked, watch.since, earlier).is_zero() {
        leave(handle);
        return true;
    }
    handle.thread = Some(thread);
    false
}

/// Counts what the thread of a destination has not sent. What it may do later goes into an account
/// that is not read.
fn leave(handle: &mut Handle) {
    handle.report();
    let mut account: Account = lock(&handle.shared.account).clone();
    let mut done = account.exported;
    done.add(&account.dropped_total());
    let left = Sum {
        flows: account.offered.flows.saturating_sub(done.flows),
        packets: account.offered.packets.saturating_sub(done.packets),
        bytes: account.offered.bytes.wrapping_sub(done.bytes),
    };
    account.dropped[DropReason::Unreachable as usize].add(&left);
    account.failures += 1;
    account.last_failure = Some("it stopped accepting data, and the probe was stopped".into());
    account.is_connected = false;
    handle.shared = Arc::new(Shared {
        account: Mutex::new(account),
        ..Shared::default()
    });
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;
    use crate::exporters::Observed;
    use crate::exporters::tests::{records, with_sink};
    use crate::sink::{Sent, Sink};

    /// Longer than anything here takes, unless it hangs.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Where all waits begin one after the other, they are over at one moment.
    #[test]
    fn waits_count_from_the_moment_at_which_the_end_was_asked_for() {
        let asked_at = Instant::now();
        let at = |ms: u64| asked_at + Duration::from_millis(ms);
        let patience = Patience {
            unasked: Duration::from_secs(30),
            asked: None,
        };
        let left = |last_step, now| patience.left(Some(asked_at), last_step, now);
        let before = asked_at.checked_sub(Duration::from_secs(9)).unwrap();
        for began in [before, asked_at, at(100), at(400)] {
            assert_eq!(left(began, at(450)), Duration::from_millis(250));
            assert_eq!(left(began, at(700)), Duration::ZERO);
        }
        assert!(ASKED_MAX + GRACE <= Duration::from_millis(800));
        // A destination that makes progress gets more time.
        assert_eq!(left(at(5000), at(5100)), Duration::from_millis(200));
        assert_eq!(left(at(5000), at(5300)), Duration::ZERO);
        let now = before + Duration::from_secs(4);
        assert_eq!(patience.left(None, before, now), Duration::from_secs(26));
        let reported = Patience {
            asked: Some(Duration::from_secs(5)),
            ..patience
        };
        let left = reported.left(Some(asked_at), before, at(1000));
        assert_eq!(left, Duration::from_secs(4));
        let left = reported.left(Some(asked_at), at(500), at(1000));
        assert_eq!(left, Duration::from_millis(4500));
    }

    /// A call to it returns when the other end of `release` is dropped.
    struct Stuck {
        called: Sender<()>,
        release: Receiver<()>,
    }

    impl Sink for Stuck {
        fn connect(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn send(&mut self, _: &[u8]) -> Sent {
            let _ = self.called.send(());
            let _ = self.release.recv();
            Sent::Done
        }
    }

    /// The input is a file: its reader waits for the destination until the end is requested.
    #[test]
    fn a_call_that_does_not_come_back_does_not_hold_up_the_end() {
        let (called, is_called) = channel();
        let (hold, release) = channel();
        let sink = Box::new(Stuck { called, release });
        let mut exporters = with_sink("ipfix:tcp://127.0.0.1:1?queue=256", sink);
        let asked = Arc::new(OnceLock::new());
        let moment = asked.clone();
        exporters.end_when(move || moment.get().copied());
        exporters.start().unwrap();
        let (done, ended) = channel();
        thread::spawn(move || {
            for (record, reason) in records(4000) {
                exporters.ended(&record, reason);
            }
            let _ = done.send(exporters.finish(Observed::default()).remove(0).1);
        });
        is_called.recv_timeout(LIMIT).expect("something is sent");
        asked.set(Instant::now()).unwrap();
        let account = ended.recv_timeout(LIMIT).expect("an end");
        drop(hold);
        assert_eq!((account.offered.flows, account.exported.flows), (4000, 0));
        assert_eq!(account.waiting(), 0, "{account:?}");
        let dropped = |reason: DropReason| account.dropped[reason as usize].flows;
        assert!(dropped(DropReason::Unreachable) >= 256, "{account:?}");
        assert!(dropped(DropReason::QueueFull) >= 256, "{account:?}");
        let total = account.dropped_total();
        assert_eq!(total.packets, account.offered.packets);
        let why = account.last_failure.unwrap();
        assert!(why.contains("stopped accepting data"), "{why}");
    }

    /// Takes its time.
    struct Slow;

    impl Sink for Slow {
        fn connect(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn send(&mut self, _: &[u8]) -> Sent {
            thread::sleep(Duration::from_millis(100));
            Sent::Done
        }
    }

    /// It takes longer in all than the end waits while nothing is taken.
    #[test]
    fn a_slow_destination_gets_everything() {
        let mut exporters = with_sink("json:tcp://127.0.0.1:1?wait=5s", Box::new(Slow));
        let asked_at = Instant::now();
        exporters.end_when(move || Some(asked_at));
        exporters.start().unwrap();
        for (record, reason) in records(4000) {
            exporters.ended(&record, reason);
        }
        let (_, account) = exporters.finish(Observed::default()).remove(0);
        assert_eq!(account.exported.flows, 4000, "{account:?}");
        let least = (5.5 / 0.1) as u64;
        assert!(account.messages > least, "{} messages", account.messages);
    }
}
