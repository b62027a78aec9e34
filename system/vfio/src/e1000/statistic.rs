//! Statistics registers (13.7), which are cleared by reading. Not on every e1000: QEMU's keeps
//! some, including MPC, which no reset clears either.

use super::super::registers::Registers;

/// Number of further reads, without delay, of a register that is nonzero for the first time.
const LOOKS: usize = 3;

/// A statistics register.
pub(super) struct Statistic {
    offset: u32,
    kind: Kind,
}

/// Its behaviour when read.
enum Kind {
    /// Unknown: it was 0 so far.
    Unknown,
    Clears,
    /// It keeps its value, which was this at the last read.
    Keeps(u32),
}

impl Statistic {
    pub(super) fn new(offset: u32) -> Self {
        let kind = Kind::Unknown;
        Self { offset, kind }
    }

    /// The count since the last read.
    pub(super) fn more(&mut self, registers: &impl Registers) -> u64 {
        let read = || registers.read32(self.offset);
        let now = read();
        // A removed card has counted nothing, and its registers are invalid.
        if now == u32::MAX {
            return 0;
        }
        match self.kind {
            Kind::Unknown if now == 0 => 0,
            Kind::Unknown => {
                let again: [u32; LOOKS] = std::array::from_fn(|_| read());
                if again.contains(&u32::MAX) {
                    return now.into();
                }
                // If it were cleared, each microsecond would have to count as much as all the time
                // before.
                if again.iter().all(|&count| count >= now) {
                    self.kind = Kind::Keeps(again[LOOKS - 1]);
                    return again[LOOKS - 1].into();
                }
                self.kind = Kind::Clears;
                u64::from(now) + again.iter().map(|&count| u64::from(count)).sum::<u64>()
            }
            Kind::Clears => now.into(),
            Kind::Keeps(last) => match now.checked_sub(last) {
                Some(more) => {
                    self.kind = Kind::Keeps(now);
                    more.into()
                }
                // It was counting faster than it was read: a decrease means that it was cleared.
                None => {
                    self.kind = Kind::Clears;
                    now.into()
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A register, and whether reading clears it.
    #[derive(Clone)]
    struct One(Arc<AtomicU32>, bool);

    impl Registers for One {
        fn len(&self) -> u32 {
            4
        }
        fn read8(&self, _: u32) -> u8 {
            u8::MAX
        }
        fn read16(&self, _: u32) -> u16 {
            u16::MAX
        }
        fn read32(&self, _: u32) -> u32 {
            match self.1 {
                true => self.0.swap(0, Ordering::Relaxed),
                false => self.0.load(Ordering::Relaxed),
            }
        }
        fn write8(&self, _: u32, _: u8) {}
        fn write16(&self, _: u32, _: u16) {}
        fn write32(&self, _: u32, _: u32) {}
    }

    #[test]
    fn packets_are_counted_once_whether_or_not_reading_clears() {
        for clears in [true, false] {
            let register = One(Arc::default(), clears);
            let mut statistic = Statistic::new(0);
            let mut sum = 0;
            for more in [0, 1, 0, 0, 7, 7, 0, 100_000, 3] {
                register.0.fetch_add(more, Ordering::Relaxed);
                let counted = statistic.more(&register);
                assert_eq!(counted, more.into(), "clears: {clears}");
                sum += counted;
            }
            assert_eq!(sum, 100_018);
            // A first read, which is not counted, clears earlier counts.
            let register = One(Arc::new(48.into()), clears);
            let mut statistic = Statistic::new(0);
            statistic.more(&register);
            assert_eq!(statistic.more(&register), 0);
            register.0.fetch_add(5, Ordering::Relaxed);
            assert_eq!(statistic.more(&register), 5);
            // A card that is gone.
            register.0.store(u32::MAX, Ordering::Relaxed);
            assert_eq!(statistic.more(&register), 0);
            // It is back with its previous value.
            register
                .0
                .store(if clears { 0 } else { 53 }, Ordering::Relaxed);
            assert_eq!(statistic.more(&register), 0);
        }
    }
}
