//! Port-wide numbers of the interfaces in several files.

use std::collections::HashMap;

use sys::{Error, ErrorKind, Result};

/// Link type and name.
type Interface = (u16, String);

/// All interfaces of the inputs. Those with the same link type and name in different files are one;
/// several of them in one file stay separate.
#[derive(Default)]
pub(super) struct Interfaces {
    /// Numbers by interface, and by how many equal ones precede it in its file.
    numbers: HashMap<(Interface, u32), u16>,
}

/// The interfaces of one file.
#[derive(Default)]
pub(super) struct Numbers {
    /// Port-wide numbers, by index in the file.
    in_port: Vec<u16>,
    /// Number of interfaces of each kind.
    counts: HashMap<Interface, u32>,
    /// Whether any number differs from its index.
    differ: bool,
}

impl Interfaces {
    /// Assigns numbers to the next interfaces of a file, appending new ones to `known`.
    ///
    /// # Errors
    /// `Unsupported` for more than 65,536; those before have numbers.
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
    /// Number of interfaces that have a number.
    pub(super) fn len(&self) -> usize {
        self.in_port.len()
    }

    /// Whether each number equals the index in the file.
    #[inline]
    pub(super) fn are_the_same(&self) -> bool {
        !self.differ
    }

    /// The number of the interface with this index.
    #[inline]
    pub(super) fn of(&self, index: u16) -> u16 {
        // A packet of a file without interface descriptions has index 0, as for a single file.
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
        // Twice in one file means two interfaces, in every file.
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
