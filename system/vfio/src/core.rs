//! The card itself, shared by the queues and the control side of a port.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::FrameCache;
use sys::eventfd::EventFd;
use sys::{Error, ErrorKind, Result};

use super::dma::PoolDma;
use super::driver::{
    Driver, DriverRx, DriverTx, Function, Health, Interrupt, LinkState, Queues, Settings,
};

/// Dropped when nothing has the card open any more: this returns a borrowed card to the kernel's
/// driver.
pub type Borrowed = Option<Box<dyn Any + Send + Sync>>;

/// A started card. Shut down when the last of queues and control is dropped, in any order.
pub struct Core<D: Driver> {
    // Dropped in this order: rings, the card, the frames, then the borrowed card.
    left: Mutex<Queues<D::Rx, D::Tx>>,
    driver: Mutex<D>,
    frames: Arc<PoolDma>,
    /// The card was found reset or removed, or is requested back.
    failed: AtomicBool,
    /// The card is requested back.
    wanted: AtomicBool,
    /// Event that signals the request.
    request: Option<Arc<EventFd>>,
    #[allow(dead_code, reason = "it works by being there")]
    borrowed: Borrowed,
}

/// A started card with its queues and its interrupts.
pub type Started<D> = (
    Core<D>,
    Vec<<D as Driver>::Rx>,
    Vec<<D as Driver>::Tx>,
    Vec<Interrupt>,
);

impl<D: Driver> Core<D> {
    /// Starts the card with all frames mapped.
    pub fn start(
        borrowed: Borrowed,
        driver: D,
        settings: &Settings,
        frames: Arc<PoolDma>,
    ) -> Result<Started<D>> {
        // From here on dropping the core stops the card, even if starting fails halfway.
        let core = Self {
            request: driver.function().request(),
            left: Mutex::new(Queues {
                rx: Vec::new(),
                tx: Vec::new(),
            }),
            driver: Mutex::new(driver),
            frames,
            failed: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            borrowed,
        };
        let mut interrupts = match settings.rx_count {
            0 => Vec::new(),
            count => core.driver().function().interrupts(count)?,
        };
        interrupts.truncate(settings.rx_count as usize);
        let queues = core
            .driver()
            .start(settings, &core.frames, interrupts.len() as u32)?;
        Ok((core, queues.rx, queues.tx, interrupts))
    }

    /// The driver, for the control side.
    pub fn driver(&self) -> MutexGuard<'_, D> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames that the card can access.
    pub fn frames(&self) -> &Arc<PoolDma> {
        &self.frames
    }

    /// The state of the link in words.
    pub fn link_text(&self) -> String {
        match self.driver().link() {
            LinkState { up: false, .. } => "down".into(),
            LinkState { speed_mbps: 0, .. } => "up".into(),
            LinkState {
                speed_mbps,
                full_duplex,
                ..
            } => {
                let duplex = if full_duplex { "full" } else { "half" };
                format!("{speed_mbps} Mbit/s, {duplex} duplex")
            }
        }
    }

    /// Stores the state that a queue found, and returns whether the port is no longer usable. For
    /// idle times: it is a system call.
    pub fn notice(&self, health: Health) -> bool {
        if self.request.as_ref().is_some_and(|event| event.take()) {
            self.wanted.store(true, Ordering::Relaxed);
            self.failed.store(true, Ordering::Relaxed);
        }
        if health != Health::Running {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.has_failed()
    }

    /// Whether the card was found reset or removed, or the kernel requests it back.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The corresponding error.
    #[cold]
    pub fn failure(&self, what: &str) -> Error {
        if self.wanted.load(Ordering::Relaxed) {
            let why = "the kernel requests the card back, to unplug it or to bind another driver, \
                and waits until the port is closed";
            return Error::new(ErrorKind::Gone, what, why)
                .with_hint("close the port, or end this program");
        }
        let why = match self.driver().health() {
            Health::Gone => "the card no longer responds",
            _ => "the card was reset by something else",
        };
        Error::new(ErrorKind::Gone, what, why).with_hint("open the port again")
    }

    /// Keeps what a closed queue leaves: the card may still write there.
    pub fn leave_rx(&self, queue: D::Rx) {
        self.left().rx.push(queue);
    }

    /// The same for a sending queue.
    pub fn leave_tx(&self, queue: D::Tx) {
        self.left().tx.push(queue);
    }

    fn left(&self) -> MutexGuard<'_, Queues<D::Rx, D::Tx>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Driver> Drop for Core<D> {
    fn drop(&mut self) {
        if !self.driver().shut_down() {
            // It may still write: frames that it held stay marked as the device's permanently,
            // which the pool's counts show, and are never handed out.
            return;
        }
        // The card accesses no memory any more: its frames are free.
        let mut cache = FrameCache::new(self.frames.pool().clone());
        let mut back = |index: u32| {
            // SAFETY: the card has been shut down, so it is done with the frame.
            unsafe { cache.reclaim(index) };
        };
        let mut left = self.left();
        for queue in &mut left.rx {
            queue.drain(&mut back);
        }
        for queue in &mut left.tx {
            queue.drain(&mut back);
        }
    }
}
