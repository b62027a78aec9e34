//! Idle time of a processor, measured by a thread of lowest priority that counts. On some kernels
//! the kernel's own idle time includes interrupts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;

use super::cards::run;

/// The thread; it ends on drop.
pub struct Spare {
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spare {
    /// Starts it on a processor.
    pub fn on(cpu: usize) -> Result<Self> {
        let (count, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counter, flag) = (count.clone(), stop.clone());
        let (output, word) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let pinned = sys::affinity::pin_current_thread(cpu);
            // The last component of the link is the thread ID (proc(5)).
            let _ = output.send(pinned.map(|()| std::fs::read_link("/proc/thread-self")));
            while !flag.load(Ordering::Relaxed) {
                // One writer.
                counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        });
        let place = word.recv()???;
        let number = place.file_name().unwrap_or_default().to_string_lossy();
        // With niceness 19 it gets less than a fiftieth of the time of others.
        run("renice", &["-n", "19", "-p", &number])?;
        Ok(Self {
            count,
            stop,
            thread: Some(thread),
        })
    }

    /// The current count.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
