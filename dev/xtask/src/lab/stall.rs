//! Detects a guest whose kernel is stuck: one of its processors has been in the kernel for minutes.
//!
//! Seen with virtio-net: the kernel waits with interrupts off for the emulated IOMMU to complete an
//! invalidation. A program cannot keep a processor in the kernel, and the kernel cannot end the
//! program that waits there; so this is distinguished from a test that hangs.

/// Start of RCU's report of a stall; the number of the unfinished grace period follows.
const REPORT: &str = "detected stalls on CPUs/tasks";
const PERIOD: &str = ", g=";

/// Number of reports of the same stall: the first after 21 seconds, the others a minute apart. On a
/// busy machine a processor of the guest may get no time for the first.
const REPORTS: usize = 3;

/// The console's message for a stall that continues.
pub fn of(console: &str) -> Option<String> {
    let mut lines = console.lines();
    let (mut count, mut last) = (0, None);
    while let Some(line) = lines.next() {
        if !line.contains(REPORT) {
            continue;
        }
        // The processors first, then the reporter and the grace period.
        let period = lines.by_ref().take(8).find_map(|line| {
            let (_, rest) = line.split_once(PERIOD)?;
            rest.split(',').next()
        });
        (count, last) = match period {
            Some(period) if last == Some(period) => (count + 1, last),
            Some(period) => (1, Some(period)),
            None => (0, None),
        };
    }
    (count >= REPORTS).then(|| {
        format!("a processor of the guest is stuck in its kernel (RCU reported {count} times)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(at: u32, period: u32) -> String {
        format!(
            "[  {at}.486923] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n\
             [  {at}.489176] rcu: \t0-...0: (6 ticks this GP) idle=3dfc/1/0x4 softirq=16088/16089\n\
             [  {at}.489858] rcu: \t(detected by 1, t=5255 jiffies, g={period}, q=30 ncpus=2)\n"
        )
    }

    #[test]
    fn a_stall_that_continues_is_distinguished_from_others() {
        assert_eq!(of(""), None);
        let two = report(616, 34821) + &report(679, 34821);
        assert_eq!(of(&two), None);
        let three = two.clone() + "[  700.1] igb 0000:01:00.0: link is up\n" + &report(742, 34821);
        assert!(of(&three).unwrap().contains("3 times"));
        // One that ended, and others later.
        let others = two + &report(900, 40000) + &report(1200, 41000);
        assert_eq!(of(&others), None);
        // Truncated in the middle.
        assert_eq!(of(&three[..three.len() - 40]), None);
    }
}
