//! The end of destinations: waits for their threads and, once a stop was requested, only briefly
//! for a stalled destination.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use flow::encode::Sum;

use crate::account::{Account, DropReason};
use crate::exporters::Handle;
use crate::worker::{Shared, lock};

/// Interval at which threads are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How much longer than its thread's own limit a destination is waited for; the thread detects the
/// same stall unless it is blocked in a call.
const GRACE: Duration = Duration::from_millis(50);
/// How long to wait for a stalled destination after a stop was requested: with everything else, the
/// run ends within a second.
const ASKED_MAX: Duration = Duration::from_millis(700);
/// How long to wait after its last step, if that is later: while it accepts data it may continue.
const STALL_ASKED: Duration = Duration::from_millis(300);

/// How long to wait for a destination. All waits count from the moment of the stop request, so that
/// consecutive ones do not add up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Limit after its last step, before a stop is requested.
    pub(crate) unasked: Duration,
    /// Limit after its last step and the stop request, with `wait=` and for files. Otherwise
    /// [`ASKED_MAX`], or [`STALL_ASKED`] after the last step.
    pub(crate) asked: Option<Duration>,
}

impl Patience {
    /// The remaining wait; zero if it is over. The start of the wait may count as the last step.
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

/// The last step seen of a destination.
struct Watch {
    steps: u64,
    since: Instant,
}

/// Waits until the threads have ended. Once `asked_at` returns the time of the stop request, a
/// thread that makes no progress for as long as [`Handle::patience`] allows is abandoned, with an
/// account of what it has not sent.
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
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Whether the thread has ended or was abandoned.
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
    // The thread has already seen a state this old, unless it is blocked in a call.
    let now = Instant::now();
    let earlier = now.checked_sub(GRACE).unwrap_or(now);
    if asked.is_some() && handle.patience.left(asked, watch.since, earlier).is_zero() {
        leave(handle);
        return true;
    }
    handle.thread = Some(thread);
    false
}

/// Abandons a destination's thread, and counts what it has not sent. What it does later goes into
/// an account that is not read.
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

    /// Time limit of a test that might hang.
    const LIMIT: Duration = Duration::from_secs(60);

    /// All waits end at the same moment, even if they start one after another.
    #[test]
    fn waits_count_from_the_stop_request() {
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

    /// A sink whose calls return when the other end of `release` is dropped.
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

    /// The input is a file: its reader waits for the destination until a stop is requested.
    #[test]
    fn a_blocked_call_does_not_delay_the_end() {
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

    /// A slow sink.
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

    /// In total it takes longer than the limit for a stalled destination.
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
