//! Packet sizes: single, a range, weighted lists, and the simple IMIX.
//!
//! The simple IMIX is 7 packets of 40 bytes of IP, 4 of 576 and 1 of 1500. On Ethernet these are 64
//! (padded), 594 and 1518 bytes with the frame check sequence, so 60, 590 and 1514 in the lengths
//! used here and in capture files. (Some testers use 570 with the check sequence for the middle
//! one: that is `60*7,566*4,1514`.)

use crate::range::{Order, Range, Walk};
use crate::rng::Rng;
use crate::{Error, Result};

/// Maximum packet length: a full IPv4 datagram after Ethernet header and tags.
const PACKET_LEN_MAX: u64 = 65_535 + 14 + 64;

/// Maximum sum of weights.
const WEIGHT_SUM_MAX: usize = 4096;

/// Lengths of generated packets, without the frame check sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// As short as headers and payload allow, padded to Ethernet's minimum of 60 bytes.
    #[default]
    Shortest,
    /// All sizes of a range.
    Range(Range),
    /// A cycle of sizes in which each occurs as often as its weight, evenly mixed.
    Cycle(Vec<u32>),
}

impl Sizes {
    /// Seven packets of 60, four of 590 and one of 1514 bytes.
    pub fn imix() -> Self {
        Self::Cycle(mix(&[(60, 7), (590, 4), (1514, 1)]))
    }

    /// Parses `60`, `60-1514`, `60,590,1514`, `60*7,590*4,1514` (with weights), `imix`.
    ///
    /// # Errors
    /// The error names the invalid item.
    pub fn parse(text: &str) -> Result<Self> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Self::imix());
        }
        if !text.contains('*') {
            return Range::numbers(text, PACKET_LEN_MAX).map(Self::Range);
        }
        let mut weighted = Vec::new();
        for item in text.split(',') {
            let bad = || {
                let why = format!("{item:?} is not a size from 1 to {PACKET_LEN_MAX} and a weight");
                Error::new(why).with_hint("write SIZE*WEIGHT, for example 60*7,590*4,1514*1")
            };
            let (size, weight) = item.split_once('*').unwrap_or((item, "1"));
            let size: u32 = size.trim().parse().map_err(|_| bad())?;
            let weight: usize = weight.trim().parse().map_err(|_| bad())?;
            if size == 0 || u64::from(size) > PACKET_LEN_MAX || weight == 0 {
                return Err(bad());
            }
            weighted.push((size, weight));
            if weighted.iter().map(|w| w.1).fold(0, usize::saturating_add) > WEIGHT_SUM_MAX {
                return Err(Error::new(format!(
                    "the weights add up to more than {WEIGHT_SUM_MAX}"
                )));
            }
        }
        Ok(Self::Cycle(mix(&weighted)))
    }

    /// The shortest size; `None` for [`Sizes::Shortest`].
    pub fn min(&self) -> Option<usize> {
        match self {
            Self::Shortest => None,
            Self::Range(range) => Some(range.min() as usize),
            Self::Cycle(sizes) => sizes.iter().min().map(|s| *s as usize),
        }
    }

    /// The longest size; `None` for [`Sizes::Shortest`].
    pub fn max(&self) -> Option<usize> {
        match self {
            Self::Shortest => None,
            Self::Range(range) => Some(range.max() as usize),
            Self::Cycle(sizes) => sizes.iter().max().map(|s| *s as usize),
        }
    }

    /// The mean length in bytes; `None` for [`Sizes::Shortest`].
    pub fn mean(&self) -> Option<f64> {
        match self {
            Self::Shortest => None,
            Self::Range(range) => {
                let count = range.last_index() as usize + 1;
                let sum: f64 = (0..count).map(|i| range.get(i as u128) as f64).sum();
                Some(sum / count as f64)
            }
            Self::Cycle(sizes) => {
                Some(sizes.iter().map(|s| f64::from(*s)).sum::<f64>() / sizes.len() as f64)
            }
        }
    }
}

/// Spreads each size evenly over the cycle: at each step every size gains its weight, and the one
/// with the most is used and loses the sum of all weights.
fn mix(weighted: &[(u32, usize)]) -> Vec<u32> {
    let sum: usize = weighted.iter().map(|w| w.1).sum();
    let mut credit = vec![0i64; weighted.len()];
    let mut cycle = Vec::with_capacity(sum);
    for _ in 0..sum {
        let mut best = 0;
        for (i, (_, weight)) in weighted.iter().enumerate() {
            credit[i] += *weight as i64;
            if credit[i] > credit[best] {
                best = i;
            }
        }
        credit[best] -= sum as i64;
        cycle.push(weighted[best].0);
    }
    cycle
}

/// Iteration over sizes.
#[derive(Clone, Debug)]
pub(crate) enum SizeWalk {
    Fixed(usize),
    Range(Walk),
    Cycle {
        sizes: Vec<u32>,
        at: usize,
        order: Order,
    },
}

impl SizeWalk {
    pub(crate) fn new(sizes: &Sizes, shortest: usize, order: Order) -> Self {
        match sizes {
            Sizes::Shortest => Self::Fixed(shortest),
            Sizes::Range(range) => match range.single() {
                Some(size) => Self::Fixed(size as usize),
                None => Self::Range(Walk::new(range.clone(), order)),
            },
            Sizes::Cycle(sizes) => Self::Cycle {
                sizes: sizes.clone(),
                at: 0,
                order,
            },
        }
    }

    #[inline]
    pub(crate) fn next(&mut self, rng: &mut Rng) -> usize {
        match self {
            Self::Fixed(size) => *size,
            Self::Range(walk) => walk.next(rng) as usize,
            Self::Cycle { sizes, at, order } => {
                if *order == Order::Random {
                    *at = rng.up_to(sizes.len() as u128 - 1) as usize;
                    return sizes[*at] as usize;
                }
                let size = sizes[*at];
                *at += 1;
                if *at == sizes.len() {
                    *at = 0;
                }
                size as usize
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(walk: &mut SizeWalk, size: usize, of: usize) -> usize {
        let mut rng = Rng::new(1);
        (0..of).filter(|_| walk.next(&mut rng) == size).count()
    }

    #[test]
    fn imix_is_seven_four_one() {
        let sizes = Sizes::parse("IMIX").unwrap();
        for (size, share) in [(60, 7), (590, 4), (1514, 1)] {
            let mut walk = SizeWalk::new(&sizes, 0, Order::Sequential);
            assert_eq!(count(&mut walk, size, 1200), share * 100);
            let mut walk = SizeWalk::new(&sizes, 0, Order::Random);
            let seen = count(&mut walk, size, 120_000);
            assert!(seen.abs_diff(share * 10_000) < 500, "{size}: {seen}");
        }
        // Mixed, not in three blocks.
        let Sizes::Cycle(cycle) = &sizes else {
            panic!()
        };
        assert!(cycle.windows(3).any(|w| w == [60, 590, 60]), "{cycle:?}");
        let mean = sizes.mean().unwrap();
        assert!((mean - 4294.0 / 12.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn texts() {
        let range = Sizes::parse("60-64").unwrap();
        assert_eq!(
            (range.min(), range.max(), range.mean()),
            (Some(60), Some(64), Some(62.0))
        );
        let list = Sizes::parse("100*2,200").unwrap();
        assert_eq!(list, Sizes::Cycle(vec![100, 200, 100]));
        for bad in [
            "",
            "0*3",
            "60*0",
            "60*x",
            "99999*1",
            "60*9999,1",
            "100000",
            "60-",
        ] {
            assert!(Sizes::parse(bad).is_err(), "{bad}");
        }
    }
}
