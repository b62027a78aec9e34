//! PF_RING ZC: threads that distribute packets over queues.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sys::boundary::guard;

use super::or_errno;
use super::zc_queue::shared;
use crate::ring::Outcome;
use crate::status::{INVALID_ARGUMENT, NO_MEMORY, NOT_SUPPORTED};
use crate::zc::buffer::{Buffer, Buffers};
use crate::zc::hash;
use crate::zc::queue::{MultiQueue, Queue};

/// `pfring_zc_distribution_func` and `pfring_zc_filtering_func`. Before PF_RING 8 they return 32
/// bits, and the others are undefined.
type Distribute = unsafe extern "C" fn(*mut Buffer, *mut Queue, *mut c_void) -> i64;
/// Such a function with its argument.
type Asked = (Option<Distribute>, *mut c_void);
/// `pfring_zc_idle_callback`.
type Idle = unsafe extern "C" fn();

/// Packets received from one queue before the next one.
const BURST: usize = 32;
/// Sleep without packets, unless the program wants none.
const NAP: Duration = Duration::from_micros(100);

/// A `pfring_zc_worker`.
pub struct Worker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where packets go.
enum Out {
    /// One of them, by number.
    Queues(Vec<Arc<Queue>>),
    /// Several, by a mask.
    Multi(*const MultiQueue),
    /// The only one.
    Fifo(Option<Arc<Queue>>),
}

/// What the program gives every worker.
struct Terms {
    pool: *const Buffers,
    idle: Option<Idle>,
    /// Which packets are distributed.
    filter: Asked,
    distribute: Asked,
    is_active: bool,
    cpu: i32,
}

/// What a thread does.
struct Work {
    inputs: Vec<Arc<Queue>>,
    out: Out,
    terms: Terms,
}

// SAFETY: the program passes its pointers for use by another thread; the state of pools and queues
// is behind locks.
unsafe impl Send for Work {}

impl Terms {
    fn new(
        pool: *const Buffers,
        idle: Option<Idle>,
        (filter, distribute): (Asked, Asked),
        is_active: u32,
        cpu: i32,
    ) -> Self {
        Self {
            pool,
            idle,
            filter,
            distribute,
            is_active: is_active != 0,
            cpu,
        }
    }

    /// Starts a worker. Null, with the reason in `errno`, if it cannot be.
    fn start(self, inputs: Outcome<Vec<Arc<Queue>>>, out: Outcome<Out>) -> *mut Worker {
        let work = inputs.and_then(|inputs| {
            let (out, terms) = (out?, self);
            Work { inputs, out, terms }.start()
        });
        or_errno(work)
    }
}

impl Work {
    /// The program's answer for a packet; `None` without a function.
    fn ask((ask, user): Asked, buffer: &mut Box<Buffer>, input: &Arc<Queue>) -> Option<i64> {
        let queue = Arc::as_ptr(input).cast_mut();
        // SAFETY: the program's function, with its own argument.
        Some(unsafe { ask?(&raw mut **buffer, queue, user) })
    }

    /// Passes a packet on; without room it is dropped, and counted there.
    fn pass(&self, buffer: &mut Box<Buffer>, input: &Arc<Queue>) {
        if Self::ask(self.terms.filter, buffer, input).is_some_and(|answer| answer as i32 == 0) {
            return;
        }
        let answer = Self::ask(self.terms.distribute, buffer, input);
        match &self.out {
            Out::Queues(queues) => {
                let by_hash =
                    || (hash::by_addresses(buffer.packet()) as usize % queues.len()) as i32;
                let at = answer.map_or_else(by_hash, |answer| answer as i32);
                if let Some(queue) = usize::try_from(at).ok().and_then(|at| queues.get(at)) {
                    let _ = queue.send(buffer, false);
                }
            }
            Out::Multi(multi) => {
                let mask = answer.map_or(u128::MAX, |mask| mask.cast_unsigned().into());
                // SAFETY: valid until the worker has ended, as the program must ensure.
                if let Some(multi) = unsafe { multi.as_ref() } {
                    multi.send(buffer, mask, false);
                }
            }
            Out::Fifo(Some(queue)) if answer.is_none_or(|it| it as i32 >= 0) => {
                let _ = queue.send(buffer, false);
            }
            Out::Fifo(_) => {}
        }
    }

    fn flush(&self) {
        match &self.out {
            Out::Queues(queues) => queues.iter().for_each(|queue| queue.flush()),
            Out::Fifo(queue) => queue.iter().for_each(|queue| queue.flush()),
            Out::Multi(_) => {}
        }
    }

    /// Receives from one queue after the other until the worker is killed.
    fn run(self, mut buffer: Box<Buffer>, is_over: &AtomicBool) {
        if let Ok(cpu) = usize::try_from(self.terms.cpu) {
            // A processor that does not exist: any.
            let _ = sys::affinity::pin_current_thread(cpu);
        }
        while !is_over.load(Ordering::Relaxed) {
            let mut count = 0;
            for input in &self.inputs {
                for _ in 0..BURST {
                    if input.receive(&mut buffer, false) != Ok(true) {
                        break;
                    }
                    count += 1;
                    self.pass(&mut buffer, input);
                }
            }
            if count != 0 {
                self.flush();
                continue;
            }
            if let Some(idle) = self.terms.idle {
                // SAFETY: the program's function.
                unsafe { idle() };
            }
            match self.terms.is_active {
                true => std::thread::yield_now(),
                false => std::thread::sleep(NAP),
            }
        }
        // SAFETY: as for the multi-queue.
        if let Some(pool) = unsafe { self.terms.pool.as_ref() } {
            pool.give(buffer);
        }
    }

    /// Starts the thread.
    fn start(self) -> Outcome<*const Worker> {
        // SAFETY: null or a pool of the program.
        let pool = unsafe { self.terms.pool.as_ref() }.ok_or(INVALID_ARGUMENT)?;
        let buffer = pool.take().ok_or(NO_MEMORY)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name("pfring-zc".into());
        let started = sys::signal::without_signals(|| {
            thread.spawn(move || guard((), || self.run(buffer, &watched)))
        });
        let worker = Worker {
            is_over,
            thread: Some(started.map_err(|_| NO_MEMORY)?),
        };
        Ok(Box::into_raw(Box::new(worker)).cast_const())
    }
}

/// # Safety
/// `inputs` is null or so many valid queues.
unsafe fn inputs(inputs: *const *const Queue, count: u32) -> Outcome<Vec<Arc<Queue>>> {
    // SAFETY: the caller's promise.
    let inputs = unsafe { shared(inputs, count) }?;
    match inputs.is_empty() {
        true => Err(INVALID_ARGUMENT),
        false => Ok(inputs),
    }
}

/// Distributes packets over queues: `distribute` returns the number of one, or a negative number
/// to drop the packet; without it, by the addresses. Both policies of receiving take up to 32
/// packets from a queue before the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_balancer(
    in_queues: *const *const Queue,
    out_queues: *const *const Queue,
    in_count: u32,
    out_count: u32,
    pool: *const Buffers,
    policy: u32,
    idle: Option<Idle>,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
) -> *mut Worker {
    // SAFETY: the same arguments.
    unsafe {
        pfring_zc_run_balancer_v2(
            in_queues,
            out_queues,
            in_count,
            out_count,
            pool,
            policy,
            idle,
            None,
            null_mut(),
            distribute,
            user,
            is_active,
            cpu,
        )
    }
}

/// Like [`pfring_zc_run_balancer`], for packets for which `filter` does not return 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_balancer_v2(
    in_queues: *const *const Queue,
    out_queues: *const *const Queue,
    in_count: u32,
    out_count: u32,
    pool: *const Buffers,
    _policy: u32,
    idle: Option<Idle>,
    filter: Option<Distribute>,
    filter_user: *mut c_void,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
) -> *mut Worker {
    guard(null_mut(), || {
        // SAFETY: so many queues of the program.
        let (from, to) = unsafe { (inputs(in_queues, in_count), inputs(out_queues, out_count)) };
        let asked = ((filter, filter_user), (distribute, user));
        let terms = Terms::new(pool, idle, asked, is_active, cpu);
        terms.start(from, to.map(Out::Queues))
    })
}

/// Sends packets to several queues: `distribute` returns a mask of them; without it, to all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_fanout(
    in_queues: *const *const Queue,
    multi: *const MultiQueue,
    in_count: u32,
    pool: *const Buffers,
    policy: u32,
    idle: Option<Idle>,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
) -> *mut Worker {
    // SAFETY: the same arguments.
    unsafe {
        pfring_zc_run_fanout_v2(
            in_queues,
            multi,
            in_count,
            pool,
            policy,
            idle,
            None,
            null_mut(),
            distribute,
            user,
            is_active,
            cpu,
        )
    }
}

/// Like [`pfring_zc_run_fanout`], for packets for which `filter` does not return 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_fanout_v2(
    in_queues: *const *const Queue,
    multi: *const MultiQueue,
    in_count: u32,
    pool: *const Buffers,
    _policy: u32,
    idle: Option<Idle>,
    filter: Option<Distribute>,
    filter_user: *mut c_void,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
) -> *mut Worker {
    guard(null_mut(), || {
        // SAFETY: so many queues of the program.
        let from = unsafe { inputs(in_queues, in_count) };
        let to = match multi.is_null() {
            true => Err(INVALID_ARGUMENT),
            false => Ok(Out::Multi(multi)),
        };
        let asked = ((filter, filter_user), (distribute, user));
        Terms::new(pool, idle, asked, is_active, cpu).start(from, to)
    })
}

/// Like [`pfring_zc_run_fanout_v2`], for up to 128 queues: without `distribute`, to all. Masks of
/// more than 64 bits are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_fanout_v3(
    in_queues: *const *const Queue,
    multi: *const MultiQueue,
    in_count: u32,
    pool: *const Buffers,
    policy: u32,
    idle: Option<Idle>,
    filter: Option<Distribute>,
    filter_user: *mut c_void,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
) -> *mut Worker {
    if distribute.is_some() {
        return or_errno(Err(NOT_SUPPORTED));
    }
    // SAFETY: the same arguments.
    unsafe {
        pfring_zc_run_fanout_v2(
            in_queues,
            multi,
            in_count,
            pool,
            policy,
            idle,
            filter,
            filter_user,
            None,
            user,
            is_active,
            cpu,
        )
    }
}

/// Collects the packets of several queues in one, in the order in which they are received; without
/// one, `distribute` processes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_run_fifo(
    in_queues: *const *const Queue,
    out_queue: *const Queue,
    in_count: u32,
    pool: *const Buffers,
    idle: Option<Idle>,
    distribute: Option<Distribute>,
    user: *mut c_void,
    is_active: u32,
    cpu: i32,
    _timer_cpu: i32,
) -> *mut Worker {
    guard(null_mut(), || {
        let out_count = u32::from(!out_queue.is_null());
        // SAFETY: so many queues of the program, and none or one.
        let (from, to) = unsafe {
            let to = shared(&raw const out_queue, out_count);
            (inputs(in_queues, in_count), to)
        };
        let to = to.map(|mut queues| Out::Fifo(queues.pop()));
        let asked = ((None, null_mut()), (distribute, user));
        Terms::new(pool, idle, asked, is_active, cpu).start(from, to)
    })
}

/// Ends a worker, and waits for its thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_kill_worker(worker: *mut Worker) {
    guard((), || {
        if worker.is_null() {
            return;
        }
        // SAFETY: of one of the functions above, and used no more.
        let mut worker = unsafe { Box::from_raw(worker) };
        worker.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = worker.thread.take() {
            let _ = thread.join();
        }
    });
}
