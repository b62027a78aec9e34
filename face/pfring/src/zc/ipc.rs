//! A cluster is offered to other processes under its number, as `barewire cluster run` offers one:
//! a thread connects those that attach to its queues, and from the first of them on another passes
//! on what they send, so that no process that is slow to connect delays it.
//!
//! The threads end with the cluster, and handle no signal of the program. Only processes of the
//! same user and of root are admitted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring::shared::{Caller, Interface, Offer, Refusal, Request, Terms, path_of};
use ring::{Pool, PoolConfig};
use sys::descriptors::Credentials;
use sys::memfd::{Access, HugePages};
use sys::poll::Wanted;
use sys::{ErrorKind, Result};

use super::local::Looked;
use super::lock;
use super::queue::Queue;

/// Longest sleep: before a request to end is looked for, without processes that send, with some,
/// and shortly after a packet was sent.
const SLEEP_ALONE: Duration = Duration::from_millis(100);
const SLEEP_READERS: Duration = Duration::from_millis(10);
const SLEEP_SENDERS: Duration = Duration::from_millis(1);
const SLEEP_BUSY: Duration = Duration::from_micros(50);
/// For how long after a packet the thread sleeps shortly.
const BUSY_MAX: Duration = Duration::from_millis(100);
/// Interval at which processes are found that have exited.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Bounds of the number of frames shared with other processes.
const FRAME_COUNT_MIN: u32 = 4096;
const FRAME_COUNT_MAX: u32 = 1 << 17;
/// Frames of each queue in addition to those that can wait in it.
const FRAME_COUNT_MORE: u32 = 512;

/// Queues of a cluster.
pub(super) type Queues = Arc<Mutex<Vec<Arc<Queue>>>>;

/// The threads of a cluster.
pub(super) struct Ipc {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ipc {
    /// Offers the queues of cluster `id`. `None` if this process cannot: its user has no directory
    /// for sockets. Then the cluster is only for this process.
    ///
    /// # Errors
    /// `Busy` if another process offers a cluster of this number.
    pub fn start(id: u32, buffer_len: u32, queues: Queues) -> Result<Option<Self>> {
        let frame_len = buffer_len.next_power_of_two().clamp(2048, 4096);
        let offer = path_of(&id.to_string()).and_then(|path| {
            // Replaced when the first process attaches: most clusters are used by one process.
            let pool = Pool::new(PoolConfig {
                frame_count: 1,
                frame_len,
                huge_pages: HugePages::Never,
            })?;
            Offer::new(&pool, &path, Access::Read, false)
        });
        let offer = match offer {
            Ok(offer) => offer,
            Err(error) if error.kind() == ErrorKind::Busy => return Err(error),
            Err(_) => return Ok(None),
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let server = Server {
            id,
            frame_len,
            offer,
            queues,
            pool: None,
            is_over: Arc::clone(&is_over),
        };
        let started = start("pfring-zc-ipc", move || server.run());
        Ok(started.ok().map(|thread| Self {
            is_over,
            thread: Some(thread),
        }))
    }
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into());
    let body = move || sys::boundary::guard((), body);
    sys::signal::without_signals(|| thread.spawn(body))
}

impl Drop for Ipc {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    id: u32,
    frame_len: u32,
    offer: Offer,
    queues: Queues,
    /// Made when the first process attaches.
    pool: Option<Pool>,
    is_over: Arc<AtomicBool>,
}

/// Passes on what other processes send, and finds those that have exited.
fn pass_on(queues: &Queues, is_over: &AtomicBool) {
    let (mut sleep, mut checked) = (Duration::ZERO, Instant::now());
    let mut busy_until = checked;
    while !is_over.load(Ordering::Relaxed) {
        if !sleep.is_zero() {
            std::thread::sleep(sleep);
        }
        let now = Instant::now();
        let check = now >= checked + CHECK_EVERY;
        if check {
            checked = now;
        }
        let looked = look(queues, check);
        if looked.passed != 0 {
            busy_until = now + BUSY_MAX;
        }
        sleep = match looked {
            Looked { passed: 1.., .. } => Duration::ZERO,
            Looked {
                has_sender: true, ..
            } if now < busy_until => SLEEP_BUSY,
            Looked {
                has_sender: true, ..
            } => SLEEP_SENDERS,
            _ => SLEEP_READERS,
        };
    }
}

fn look(queues: &Queues, check: bool) -> Looked {
    let mut sum = Looked::default();
    // Not with the lock: another thread may create queues.
    let queues = lock(queues).clone();
    for local in queues.iter().filter_map(|queue| queue.as_local()) {
        let looked = local.look(check);
        sum.has_sender |= looked.has_sender;
        sum.passed += looked.passed;
    }
    sum
}

impl Server {
    fn run(mut self) {
        let mut passing = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let listener = self.offer.poll_fd();
            let mut wanted = [Wanted::readable(&listener)];
            if sys::poll::wait(&mut wanted, SLEEP_ALONE).is_err() {
                std::thread::sleep(SLEEP_ALONE);
            }
            if !wanted[0].is_ready() {
                continue;
            }
            self.accept();
            if passing.is_none() && self.pool.is_some() {
                let (queues, is_over) = (self.queues.clone(), Arc::clone(&self.is_over));
                passing = start("pfring-zc-pass", move || pass_on(&queues, &is_over)).ok();
            }
        }
        if let Some(thread) = passing {
            let _ = thread.join();
        }
    }

    /// Connects a process that waits. One that is refused, or sends no request, is closed.
    fn accept(&mut self) {
        let own = Credentials::own().uid;
        match self.offer.next(|it| [0, own].contains(&it.uid)) {
            Ok(Some(caller)) => self.admit(caller),
            Ok(None) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Permission | ErrorKind::InvalidInput
                ) => {}
            // Of descriptors, for example: the process stays in line, and the socket readable.
            Err(_) => std::thread::sleep(SLEEP_SENDERS),
        }
    }

    fn admit(&mut self, caller: Caller) {
        let number = match &caller.request {
            Request::Queue(number) | Request::Send(number) => *number,
            Request::Status => {
                let queues = lock(&self.queues).iter().filter(|it| it.is_local()).count();
                return caller.answer(&format!("a cluster of PF_RING ZC with {queues} queues\n"));
            }
            _ => {
                let why = "a cluster of PF_RING ZC: name a queue by its number";
                return caller.refuse(Refusal::Invalid, why);
            }
        };
        let queues = lock(&self.queues).clone();
        let mut locals = queues.iter().filter(|queue| queue.is_local());
        let Some(local) = locals.nth(number as usize).and_then(|it| it.as_local()) else {
            return caller.refuse(Refusal::NotFound, &format!("there is no queue {number}"));
        };
        let pool = match self.pool() {
            Ok(pool) => pool,
            Err(error) => return caller.refuse(Refusal::Busy, error.why()),
        };
        let terms = Terms {
            queue: number,
            interfaces: vec![Interface {
                link_type: 1,
                name: format!("zc:{}", self.id),
            }],
        };
        local.admit(caller, &self.offer, &pool, &terms);
    }

    /// The frames shared with other processes.
    fn pool(&mut self) -> Result<Pool> {
        if let Some(pool) = &self.pool {
            return Ok(pool.clone());
        }
        let queues = lock(&self.queues).clone();
        let lens = queues.iter().filter_map(|queue| queue.as_local());
        let count = lens.fold(0_u32, |sum, queue| {
            sum.saturating_add(queue.len())
                .saturating_add(FRAME_COUNT_MORE)
        });
        let pool = Pool::new(PoolConfig {
            frame_count: count.clamp(FRAME_COUNT_MIN, FRAME_COUNT_MAX),
            frame_len: self.frame_len,
            huge_pages: HugePages::Try,
        })?;
        self.offer.set_pool(&pool, Access::Read)?;
        self.pool = Some(pool.clone());
        Ok(pool)
    }
}
