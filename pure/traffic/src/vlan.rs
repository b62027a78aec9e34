//! Parses the VLAN tags to add to packets.

use crate::{Error, Result};

/// Maximum number of tags on a packet.
pub(crate) const TAG_COUNT_MAX: usize = 4;

/// A VLAN tag (IEEE 802.1Q §9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Tag protocol: 0x8100, 0x88a8 or another.
    pub tpid: u16,
    /// Priority, drop eligibility and id.
    pub tci: u16,
}

impl Tag {
    /// Parses a stack, outermost tag first: `100`, `200,100`, `0x88a8:200,100@5` (`@` before the
    /// priority).
    ///
    /// The last tag is a customer tag (0x8100); those before it are service tags (0x88a8), unless
    /// specified otherwise.
    ///
    /// # Errors
    /// The error names the invalid item.
    pub fn parse_stack(text: &str) -> Result<Vec<Tag>> {
        let items: Vec<&str> = text.split(',').collect();
        if items.len() > TAG_COUNT_MAX {
            return Err(Error::new(format!("more than {TAG_COUNT_MAX} VLAN tags")));
        }
        let last = items.len() - 1;
        let mut tags = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let bad = || {
                let why = format!("{item:?} is not a VLAN tag");
                Error::new(why).with_hint("write [TPID:]ID[@PRIORITY], for example 0x88a8:200@5")
            };
            let (tpid, rest) = match item.trim().split_once(':') {
                Some((tpid, rest)) => {
                    let digits = tpid.strip_prefix("0x").unwrap_or(tpid);
                    (u16::from_str_radix(digits, 16).map_err(|_| bad())?, rest)
                }
                None => (if i == last { 0x8100 } else { 0x88a8 }, item.trim()),
            };
            let (id, priority) = rest.split_once('@').unwrap_or((rest, "0"));
            let id: u16 = id.parse().map_err(|_| bad())?;
            let priority: u16 = priority.parse().map_err(|_| bad())?;
            // Below 0x600 the field would be a length (IEEE 802.3 §3.2.6).
            if id > 4095 || priority > 7 || tpid < 0x600 {
                return Err(bad());
            }
            let tci = priority << 13 | id;
            tags.push(Tag { tpid, tci });
        }
        Ok(tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks() {
        let tag = |tpid, tci| Tag { tpid, tci };
        assert_eq!(Tag::parse_stack("100").unwrap(), [tag(0x8100, 100)]);
        let two = Tag::parse_stack("200,100@5").unwrap();
        assert_eq!(two, [tag(0x88a8, 200), tag(0x8100, 5 << 13 | 100)]);
        assert_eq!(Tag::parse_stack("0x9100:7").unwrap(), [tag(0x9100, 7)]);
        for bad in ["", "4096", "1@8", "zz:1", "0x100:1", "1,2,3,4,5", "1,"] {
            assert!(Tag::parse_stack(bad).is_err(), "{bad}");
        }
    }
}
