//! Idle time of a processor: a thread of lowest priority that counts. The kernel's own word on idle
//! time has interrupts in it on some kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;

use super::cards::run;

/// The thread; it ends when this is dropped.
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
        let (said, word) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let pinned = sys::affinity::pin_current_thread(cpu);
            // The link's last part is the thread's number (proc(5)).
            let _ = said.send(pinned.map(|()| std::fs::read_link("/proc/thread-self")));
            while !flag.load(Ordering::Relaxed) {
                // One writer.
                counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        });
        let place = word.recv()???;
        let number = place.file_name().unwrap_or_default().to_string_lossy();
        // The kernel gives one of 19 less than a fiftieth of what it gives others.
        run("renice", &["-n", "19", "-p", &number])?;
        Ok(Self {
            count,
            stop,
            thread: Some(thread),
        })
    }

    /// How far it has come.
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
