//! Interfaces of several files under the numbers of one port.

use std::collections::HashMap;

use sys::{Error, ErrorKind, Result};

/// Link type and name.
type Interface = (u16, String);

/// All interfaces of the inputs. Those with the same link type and name in different files are one;
/// several of them in one file stay apart.
#[derive(Default)]
pub(super) struct Interfaces {
    /// By what an interface is, and how many like it its file has before it: its number.
    numbers: HashMap<(Interface, u32), u16>,
}

/// The interfaces of one file.
#[derive(Default)]
pub(super) struct Numbers {
    /// By index in the file, the number in the port.
    in_port: Vec<u16>,
    /// How many there are of each kind.
    counts: HashMap<Interface, u32>,
    /// Some number differs from its index.
    differ: bool,
}

impl Interfaces {
    /// Gives the next interfaces of a file their numbers in `known`, which is appended to.
    ///
    /// # Errors
    /// `Unsupported` for more than 65,536; those before it have numbers.
    pub(super) fn number(
        &mut self,
        met: Vec<Interface>,
        file: &mut Numbers,
        known: &mut Vec<Interface>,
    ) -> Result<()> {
        for interface in met {
            let count = file.counts.entry(interface.clone()).or_default();
            let key = (interface, *count);
            let number = match self.numbers.get(&key) {
                Some(number) => *number,
                None => {
                    let number = u16::try_from(known.len()).map_err(|_| {
                        let why = format!("more than {} interfaces in all inputs", known.len());
                        Error::new(ErrorKind::Unsupported, "merge files", why)
                    })?;
                    known.push(key.0.clone());
                    self.numbers.insert(key, number);
                    number
                }
            };
            *count += 1;
            file.differ |= usize::from(number) != file.in_port.len();
            file.in_port.push(number);
        }
        Ok(())
    }
}

impl Numbers {
    /// How many interfaces have a number.
    pub(super) fn len(&self) -> usize {
        self.in_port.len()
    }

    /// Whether each number is the index in the file.
    #[inline]
    pub(super) fn are_the_same(&self) -> bool {
        !self.differ
    }

    /// The number of the interface of this index.
    #[inline]
    pub(super) fn of(&self, index: u16) -> u16 {
        // A packet of a file that describes no interface has index 0, as one port's has.
        self.in_port.get(usize::from(index)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(link: u16, name: &str) -> Interface {
        (link, name.to_owned())
    }

    #[test]
    fn the_same_interface_of_two_files_is_one() {
        let (mut all, mut known) = (Interfaces::default(), Vec::new());
        let mut files: [Numbers; 3] = Default::default();
        let [left, right, raw] = [
            interface(1, "left"),
            interface(1, "right"),
            interface(101, "left"),
        ];
        let mut number = |file: usize, met: &[&Interface]| {
            let met = met.iter().copied().cloned().collect();
            all.number(met, &mut files[file], &mut known).unwrap();
        };
        number(0, &[&left, &right]);
        number(1, &[&right, &raw]);
        // Twice in one file they are two, whichever file has them.
        number(2, &[&left, &left]);
        number(1, &[&left]);
        number(0, &[&left]);
        let names = [&left, &right, &raw, &left];
        assert_eq!(known.iter().collect::<Vec<_>>(), names);
        assert_eq!(files[0].in_port, [0, 1, 3]);
        assert_eq!(files[1].in_port, [1, 2, 0]);
        assert_eq!(files[2].in_port, [0, 3]);
        assert_eq!(files[1].of(1), 2);
        assert!(!files[0].are_the_same() && !files[1].are_the_same());
    }

    #[test]
    fn numbers_end_at_65536() {
        let (mut all, mut known) = (Interfaces::default(), Vec::new());
        let mut file = Numbers::default();
        let met = vec![interface(1, "x"); 1 << 16];
        all.number(met, &mut file, &mut known).unwrap();
        assert!(file.are_the_same());
        let more = vec![interface(1, "y")];
        let error = all.number(more, &mut file, &mut known).unwrap_err();
        assert!(error.to_string().contains("65536"), "{error}");
        assert_eq!((file.len(), known.len()), (1 << 16, 1 << 16));
    }
}
