//! Signals that ask a program to end, to reload its configuration, or to print its totals.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Result};

/// Signals that arrive this soon after the first one count as the same request. `timeout(1)` sends
/// two at once, to the process and to its group.
const SAME_REQUEST_NS: u64 = 1_000_000_000;

/// The signals that end the program.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static RELOAD: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static TOTALS: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// When the first signal arrived, by the monotonic clock; 0 before.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Which signal that was; 0 before.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// The flag that `SIGINT`, `SIGTERM` and `SIGHUP` set from now on; there is one per process,
/// however often this is called. A signal that arrives a second or more after the first one ends
/// the process at once, so that a program that does not check the flag can still be ended.
///
/// A `SIGHUP` that is ignored (as under `nohup`) stays ignored. System calls are restarted.
///
/// # Errors
/// If a handler cannot be installed.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = REQUESTED.get_or_init(Arc::default).clone();
    for signal in SIGNALS {
        if signal != libc::SIGHUP || !is_ignored(signal) {
            install(signal, handle)?;
        }
    }
    Ok(flag)
}

/// Runs `body` with all signals of this thread blocked. A thread that it starts inherits that, and
/// never runs a signal handler of the program.
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set; the other is initialised if the call succeeds, which
    // it does for a valid operation and set.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = body();
    if changed == 0 {
        // SAFETY: the set of before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// The flag that `SIGHUP` sets from now on, instead of ending the program: a service reloads its
/// configuration. To be called after [`stop_flag`].
///
/// Also where `SIGHUP` was ignored: a service started by `nohup` is meant to outlive the terminal,
/// and it does, because the signal no longer ends it.
///
/// # Errors
/// If the handler cannot be installed.
pub fn reload_flag() -> Result<Arc<AtomicBool>> {
    let flag = RELOAD.get_or_init(Arc::default).clone();
    install(libc::SIGHUP, handle_reload)?;
    Ok(flag)
}

/// A signal handler: it may interrupt anything.
extern "C" fn handle_reload(_: libc::c_int) {
    // Set before the handler is installed, so it is present.
    if let Some(flag) = RELOAD.get() {
        flag.store(true, Ordering::Relaxed);
    }
}

/// The flag that `SIGUSR1` sets from now on, instead of killing the process: it requests a report
/// of totals, as for dd and tcpdump.
///
/// # Errors
/// If the handler cannot be installed.
pub fn totals_flag() -> Result<Arc<AtomicBool>> {
    let flag = TOTALS.get_or_init(Arc::default).clone();
    install(libc::SIGUSR1, handle_totals)?;
    Ok(flag)
}

/// Whether totals were requested, but not the end: then a sleep that the signal interrupted is
/// continued.
pub fn is_totals_only() -> bool {
    let is_asked = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
    TOTALS.get().is_some_and(is_asked) && first().is_none()
}

/// A signal handler: it may interrupt anything.
extern "C" fn handle_totals(_: libc::c_int) {
    // Set before the handler is installed, so it is present.
    if let Some(flag) = TOTALS.get() {
        flag.store(true, Ordering::Relaxed);
    }
}

/// The signal that set the flag first, if one has.
pub fn first() -> Option<i32> {
    match FIRST.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// When the signal that set the flag first arrived, if one has.
pub fn first_at() -> Option<Instant> {
    match FIRST_NS.load(Ordering::Relaxed) {
        0 => None,
        first_ns => {
            let ago = Duration::from_nanos(now_ns().saturating_sub(first_ns));
            Instant::now().checked_sub(ago)
        }
    }
}

/// Sends a signal to a process (kill(2)).
///
/// # Errors
/// `NotFound` if there is none of this number, `Permission` if it belongs to another user.
pub fn send(pid: u32, signal: i32) -> Result<()> {
    let what = || format!("send signal {signal} to process {pid}");
    // Zero and negative numbers would address groups of processes.
    let pid = match i32::try_from(pid) {
        Ok(pid) if pid > 0 => pid,
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                what(),
                "no such number",
            ));
        }
    };
    // SAFETY: no memory is touched.
    match unsafe { libc::kill(pid, signal) } {
        -1 => Err(Error::last_os(what())),
        _ => Ok(()),
    }
}

/// Starts a program with the default action for the signals that this process ignores because it
/// was started that way (by `nohup`, or in the background by a shell without job control). Ignored
/// signals are inherited, and a shell cannot trap signals that were ignored when it started.
pub fn with_default_actions(command: &mut Command) {
    let ignored = SIGNALS.map(|signal| is_ignored(signal).then_some(signal));
    if ignored.iter().all(Option::is_none) {
        return;
    }
    let reset = move || {
        for signal in ignored.into_iter().flatten() {
            // SAFETY: no handler is set, and no memory is touched.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only signal(2) is called, which signal-safety(7) lists.
    unsafe { command.pre_exec(reset) };
}

/// Whether a signal is ignored.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zero is a valid `sigaction`; the call writes the structure given.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Installs a handler that restarts system calls.
pub(crate) fn install(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> Result<()> {
    // SAFETY: zero is a valid `sigaction` (default action, empty mask); the call reads the
    // structure given; all handlers do only what a signal handler may.
    let result = unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as *const () as libc::sighandler_t;
        new.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &new, std::ptr::null_mut())
    };
    if result < 0 {
        return Err(Error::last_os("install signal handlers"));
    }
    Ok(())
}

/// The monotonic clock, which [`Instant`] uses as well; never 0. signal-safety(7) lists the call.
fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes into `now` only.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

/// A signal handler: it may interrupt anything, so it uses only atomics and calls that
/// signal-safety(7) lists.
extern "C" fn handle(signal: libc::c_int) {
    let now_ns = now_ns();
    let first = FIRST_NS.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    let is_same = first.map_or_else(
        |first_ns| now_ns.saturating_sub(first_ns) < SAME_REQUEST_NS,
        |_| true,
    );
    if is_same {
        let _ = FIRST.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
        // Set before the handlers are installed, so it is present.
        if let Some(flag) = REQUESTED.get() {
            flag.store(true, Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: both calls may be made in a handler; the signal is delivered when this one returns.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
