//! The boundary of a library that other programs load: catches panics, which would otherwise end
//! the program, and keeps the cancellation of threads (`pthread_cancel`) out of the library.
//!
//! A cancelled thread unwinds its stack (glibc: nptl/unwind.c), and the C library ends the program
//! if somebody catches that on the way, as [`guard`] would. So a thread is not cancelled while it
//! is in the library, but when it waits the next time ([`cancellation_point`]).

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Once, OnceLock};

thread_local! {
    /// Nesting depth of this thread's calls into the library.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Suppresses the message of a panic within the library: standard error belongs to the program.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                before(info);
            }
        }));
    });
}

/// `PTHREAD_CANCEL_DISABLE` of pthread.h.
const CANCEL_DISABLE: c_int = 1;

// Not in the libc crate for this target.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// `__libc_single_threaded` of glibc (sys/single_threaded.h, since 2.32), not 0 as long as the
/// process has no other thread; `None` with C libraries that lack it.
fn single_threaded() -> Option<&'static AtomicU8> {
    static FOUND: OnceLock<Option<&'static AtomicU8>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the name is a C string.
        let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: null or a `char` of the C library, which is never unloaded.
        unsafe { place.cast::<AtomicU8>().as_ref() }
    })
}

/// Whether the process has no other thread, as far as the C library knows: nobody else can cancel
/// this one or use its streams.
#[inline]
pub fn is_single_threaded() -> bool {
    single_threaded().is_some_and(|place| place.load(Ordering::Relaxed) != 0)
}

/// Keeps this thread from being cancelled; returns the state before, if another thread could cancel
/// it.
fn disable_cancellation() -> Option<c_int> {
    (!is_single_threaded()).then(|| set_cancel_state(CANCEL_DISABLE))
}

/// Sets whether this thread can be cancelled; returns the state before.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = CANCEL_DISABLE;
    // SAFETY: it writes one number; no other state can be passed than one from pthread.h or from
    // this function.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs a function's body, in which the thread is not cancelled; returns `failed` if it panics.
pub fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    silence();
    let before = disable_cancellation();
    let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(body));
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    if let Some(before) = before {
        set_cancel_state(before);
    }
    result.unwrap_or(failed)
}

/// As [`guard`], in fewer instructions, for a body without system calls: nothing of it is a
/// cancellation point. The message of a panic is not suppressed.
#[inline]
pub fn guard_brief<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// Ends this thread here if it was cancelled.
///
/// # Safety
/// Unwinding skips no destructor and no [`guard`]: between the program's frames and this call are
/// only functions with the ABI "C-unwind" or Rust's, without values to drop.
#[inline]
pub unsafe fn cancellation_point() {
    // SAFETY: the caller's promise.
    unsafe { pthread_testcancel() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_return_value() {
        assert_eq!(guard(-1, || 5), 5);
        assert_eq!(guard(-1, || [1][std::env::args().count() + 9]), -1);
        assert_eq!(DEPTH.with(Cell::get), 0);
    }
}
