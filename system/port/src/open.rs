//! Opens ports by name with the backends of this crate.

use ring::{Pool, PoolConfig};
use sys::Result;

use crate::backend;
use crate::options::PortOptions;
use crate::port::Port;
use crate::registry::{Backend, PortName, Registry};

/// All backends. A new one is a file in `backend/` and a row here.
pub const BACKENDS: &[Backend] = &[
    backend::memory::BACKEND,
    backend::afxdp::BACKEND,
    backend::afpacket::BACKEND,
    backend::xdplive::BACKEND,
    backend::vfio::BACKEND,
    backend::ring::BACKEND,
    backend::vm::BACKEND,
    backend::netfilter::LOG,
    backend::netfilter::QUEUE,
    backend::file::BACKEND,
];

impl Default for Registry {
    fn default() -> Self {
        Self::with(BACKENDS)
    }
}

impl PortName {
    /// Like [`Registry::parse`], with the backends of this crate.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown scheme; lists the known ones.
    pub fn parse(name: &str) -> Result<Self> {
        Registry::default().parse(name)
    }

    /// The row of its backend, if that is in this crate.
    pub fn backend(&self) -> Option<&'static Backend> {
        BACKENDS.iter().find(|row| row.scheme == self.scheme)
    }
}

/// Opens a port by name. Options in the name override the given ones.
///
/// # Errors
/// Each states what was tried, why it failed, and a hint.
pub fn open(name: &str, options: &PortOptions) -> Result<Port> {
    Registry::default().open(name, options)
}

/// Opens several ports as one; a single name as [`open`] does.
///
/// Capture files are merged: the port returns their packets in timestamp order, those with equal
/// times in the order of the names, and a packet without a time right after the previous one in its
/// file. Interfaces of the same name and link type in different files are one interface.
///
/// The queues of other ports stay separate: they are numbered consecutively over all ports, and
/// each port is an interface.
///
/// # Errors
/// As [`open`]; `InvalidInput` for no name, for files mixed with other ports, and for an interface
/// named twice.
pub fn open_all(names: &[&str], options: &PortOptions) -> Result<Port> {
    Registry::default().open_all(names, options)
}

/// Creates one pool for several ports, to be passed to each in [`PortOptions::pool`], so that
/// packets move from one to the other without a copy. `None` if fewer than two of them have frames.
///
/// # Errors
/// As [`open`], for what can be detected before anything is opened; `NoSpace` if memory is short.
pub fn shared_pool(ports: &[(&str, &PortOptions)]) -> Result<Option<Pool>> {
    Registry::default().shared_pool(ports)
}

/// Number and length of the frames that a port gives to its device, for a pool that the caller
/// creates. `None` for a port that copies packets into a pool, if it uses one at all.
///
/// # Errors
/// As [`open`], for what can be detected before anything is opened.
pub fn frames_of(name: &str, options: &PortOptions) -> Result<Option<PoolConfig>> {
    Registry::default().frames_of(name, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Intake;
    use crate::options::Direction;
    use crate::registry::{Plain, Target};

    #[test]
    fn each_row_has_the_kind_of_its_targets() {
        for row in BACKENDS {
            let name = PortName::parse(&format!("{}:x", row.scheme)).unwrap();
            let found = name.backend().unwrap();
            assert_eq!(found.scheme, row.scheme);
            match row.plain {
                Plain::Files => assert_eq!(row.target, Target::File),
                Plain::Interfaces => assert_eq!(row.target, Target::Interface),
                Plain::Never => {}
            }
        }
        let target = |name: &str| PortName::parse(name).unwrap().backend().unwrap().target;
        assert_eq!(target("eth0"), Target::Interface);
        assert_eq!(target("xdplive:eth0"), Target::Interface);
        assert_eq!(target("vfio:0000:01:00.0"), Target::Device);
        assert_eq!(target("memory:"), Target::New);
    }

    #[test]
    fn a_port_reports_what_happens_to_unclaimed_packets() {
        let port = open("memory:a", &PortOptions::default()).unwrap();
        assert_eq!(port.control.describe().intake, Intake::Waiting);
        let path =
            std::env::temp_dir().join(format!("barewire-intake-{}.pcap", std::process::id()));
        let writing = PortOptions {
            direction: Direction::Tx,
            ..PortOptions::default()
        };
        let path = path.to_str().unwrap();
        for options in [writing, PortOptions::default()] {
            let port = open(path, &options).unwrap();
            assert_eq!(port.control.describe().intake, Intake::File);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn names_are_parsed() {
        let name = PortName::parse("memory:a?batch=32&outgoing=no").unwrap();
        assert_eq!(
            (name.scheme, name.target.as_str(), name.queue),
            ("memory", "a", None)
        );
        assert_eq!(name.options.len(), 2);
        assert_eq!(PortName::parse("eth0").unwrap().scheme, "afpacket");
        assert_eq!(PortName::parse("-").unwrap().scheme, "file");
        assert_eq!(PortName::parse("x.pcapng.zst").unwrap().scheme, "file");
        assert_eq!(PortName::parse("./x").unwrap().scheme, "file");
        assert!(
            PortName::parse("warp:eth0")
                .unwrap_err()
                .hint()
                .unwrap()
                .contains("memory")
        );
        assert!(PortName::parse("").is_err());
    }
}
