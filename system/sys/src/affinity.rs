//! CPU affinity, priority, time slice and timer slack of threads.

use crate::{Error, Result};

/// Pins the calling thread to one processor.
///
/// # Errors
/// `InvalidInput` where the machine or the cpuset has no such processor.
pub fn pin_current_thread(cpu_index: usize) -> Result<()> {
    let what = || format!("pin a thread to CPU {cpu_index}");
    if cpu_index >= libc::CPU_SETSIZE as usize {
        let why = format!("the highest CPU number is {}", libc::CPU_SETSIZE - 1);
        return Err(Error::new(crate::ErrorKind::InvalidInput, what(), why));
    }
    // SAFETY: `cpu_set_t` is plain old data for which zero is valid; the index was checked against
    // its size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu_index, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result < 0 {
        Err(Error::last_os(what()))
    } else {
        Ok(())
    }
}

/// Sets how late the kernel may end sleeps of the calling thread, in order to end several at once
/// (`PR_SET_TIMERSLACK`, prctl(2)); the default is 50 µs.
///
/// # Errors
/// The system's error.
pub fn set_timer_slack(slack: std::time::Duration) -> Result<()> {
    // Zero would restore the default.
    let slack_ns = slack.as_nanos().clamp(1, i32::MAX as u128) as libc::c_ulong;
    // SAFETY: a plain system call with integers.
    if unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) } < 0 {
        return Err(Error::last_os("set the timer slack of a thread"));
    }
    Ok(())
}

/// Sets the time slice of the calling thread, with its policy and nice value as they are: a thread
/// that asks for a shorter slice than the running one takes its place when it wakes, instead of
/// waiting for the end of that one's (Documentation/scheduler/sched-eevdf.rst; since Linux 6.12,
/// 0.1 to 100 ms; ignored before).
///
/// # Errors
/// The system's error, for instance where a sandbox denies the call.
pub fn set_time_slice(slice: std::time::Duration) -> Result<()> {
    let what = "set the time slice of a thread";
    // SAFETY: `sched_attr` is plain old data for which zero is valid. The kernel writes at most the
    // size that it is given, and reads as much as `size` says; 0 is the calling thread.
    let result = unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>() as libc::c_uint;
        if libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) < 0 {
            return Err(Error::last_os(what));
        }
        attr.sched_runtime = slice.as_nanos() as u64;
        libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0)
    };
    if result < 0 {
        return Err(Error::last_os(what));
    }
    Ok(())
}

/// Gives the calling thread, and the processes it starts, the lowest priority. On Linux the nice
/// value belongs to the thread (setpriority(2), "C library/kernel differences").
///
/// # Errors
/// The system's error.
pub fn lower_priority_of_thread() -> Result<()> {
    // SAFETY: a plain system call with integers; 0 is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    if result < 0 {
        return Err(Error::last_os("lower the priority of a thread"));
    }
    Ok(())
}

/// The processors that this thread may run on, ascending.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: zero is a valid `cpu_set_t`; the kernel writes at most the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) < 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &set))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelVersion;

    /// Policy, nice value and slice of this thread.
    fn attributes() -> (u32, i32, u64) {
        // SAFETY: zero is a valid `sched_attr`; the kernel writes at most the size given.
        unsafe {
            let mut attr: libc::sched_attr = std::mem::zeroed();
            let size = size_of::<libc::sched_attr>();
            let result = libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0);
            assert_eq!(result, 0);
            (attr.sched_policy, attr.sched_nice, attr.sched_runtime)
        }
    }

    #[test]
    fn time_slice_changes_nothing_else() {
        std::thread::spawn(|| {
            lower_priority_of_thread().unwrap();
            let (policy, nice, before_ns) = attributes();
            set_time_slice(std::time::Duration::from_micros(100)).unwrap();
            let (policy_after, nice_after, slice_ns) = attributes();
            assert_eq!((policy, nice), (policy_after, nice_after));
            let has_slices = KernelVersion::running() >= Some(KernelVersion::new(6, 12));
            match has_slices {
                true => assert_eq!(slice_ns, 100_000),
                false => assert!([100_000, before_ns].contains(&slice_ns), "{slice_ns}"),
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pin_to_each_allowed_cpu() {
        for cpu in allowed_cpus() {
            std::thread::spawn(move || {
                pin_current_thread(cpu).unwrap();
                assert_eq!(allowed_cpus(), [cpu]);
            })
            .join()
            .unwrap();
        }
        assert!(pin_current_thread(1023).is_err());
        assert!(pin_current_thread(usize::MAX).is_err());
    }
}
