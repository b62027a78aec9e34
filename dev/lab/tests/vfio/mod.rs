//! Ports on cards of the guest that are bound to vfio-pci.

use std::time::{Duration, Instant};

pub use lab::guest::Bound;
use port::{Port, PortOptions};

/// Opens a port on a card; `more` is the rest of the name.
pub fn open(card: &Bound, more: &str, options: &PortOptions) -> Port {
    let name = format!("vfio:{}{more}", card.address());
    port::open(&name, options).unwrap_or_else(|error| panic!("{}", reported(&error)))
}

/// An error with its hint.
pub fn reported(error: &sys::Error) -> String {
    format!("{error} (hint: {})", error.hint().unwrap_or("none"))
}

/// A value of the description.
pub fn fact(port: &Port, what: &str) -> String {
    let facts = port.control.describe().facts;
    let found = facts.iter().find(|(name, _)| *name == what);
    found
        .unwrap_or_else(|| panic!("no {what} in {facts:?}"))
        .1
        .clone()
}

/// Waits until the links of all these ports are up.
pub fn wait_for_link(ports: &mut [&mut Port]) {
    let end = Instant::now() + Duration::from_secs(30);
    for port in ports {
        while !port.control.link_is_up().unwrap_or(true) {
            assert!(Instant::now() < end, "no link");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
