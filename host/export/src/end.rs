//! The end of destinations: their threads are waited for, and once somebody has asked for the end,
//! no longer than a destination that takes nothing deserves.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flow::encode::Sum;

use crate::account::{Account, DropReason};
use crate::exporters::Handle;
use crate::worker::{Shared, lock};

/// How often threads are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How much longer than its thread a destination is waited for, which sees the same stall itself
/// unless a call holds it up.
const GRACE: Duration = Duration::from_millis(500);

/// The last step of a destination.
struct Watch {
    steps: u64,
    since: Instant,
}

/// Waits until the threads have ended. Once `is_asked` says that somebody asks for the end, a
/// thread that makes no step for [`Handle::wait_asked`] is left behind, with an account of what it
/// has not sent.
pub(crate) fn wait(handles: Vec<&mut Handle>, is_asked: &dyn Fn() -> bool) {
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
        if asked.is_none() && is_asked() {
            asked = Some(Instant::now());
            for (_, handle) in &left {
                handle.shared.is_asked.store(true, Ordering::Relaxed);
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
    let limit = handle.wait_asked + GRACE;
    if asked.is_some_and(|asked| watch.since.max(asked).elapsed() >= limit) {
        leave(handle);
        return true;
    }
    handle.thread = Some(thread);
    false
}

/// Counts what the thread of a destination has not sent. What it may do later goes into an account
/// that nobody reads.
fn leave(handle: &mut Handle) {
    handle.tell();
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
    account.last_failure =
        Some("it stopped accepting data, and the probe was asked to stop".into());
    account.is_connected = false;
    handle.shared = Arc::new(Shared {
        account: Mutex::new(account),
        ..Shared::default()
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;
    use crate::exporters::Observed;
    use crate::exporters::tests::{records, with_sink};
    use crate::sink::{Sent, Sink};

    /// Longer than anything here takes, unless it hangs.
    const LIMIT: Duration = Duration::from_secs(60);

    /// A call to it comes back when the other end of `release` is dropped.
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

    /// The input is a file: its reader waits for the destination until somebody asks for the end.
    #[test]
    fn a_call_that_does_not_come_back_does_not_hold_up_the_end() {
        let (called, is_called) = channel();
        let (hold, release) = channel();
        let sink = Box::new(Stuck { called, release });
        let mut exporters = with_sink("ipfix:tcp://127.0.0.1:1?queue=256", sink);
        let asked = Arc::new(AtomicBool::new(false));
        let flag = asked.clone();
        exporters.end_when(move || flag.load(Ordering::Relaxed));
        exporters.start().unwrap();
        let (done, ended) = channel();
        thread::spawn(move || {
            for (record, reason) in records(4000) {
                exporters.ended(&record, reason);
            }
            let _ = done.send(exporters.finish(Observed::default()).remove(0).1);
        });
        is_called.recv_timeout(LIMIT).expect("something is sent");
        asked.store(true, Ordering::Relaxed);
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
        exporters.end_when(|| true);
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
