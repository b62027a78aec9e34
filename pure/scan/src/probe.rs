//! The kinds of probes.

use crate::port::Protocol;

/// What is sent to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Probe {
    /// A TCP SYN.
    Syn,
}

impl Probe {
    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Syn => "syn",
        }
    }

    /// The protocol that the probe's ports are of.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Syn => Protocol::Tcp,
        }
    }
}
