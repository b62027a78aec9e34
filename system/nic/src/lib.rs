//! Properties and features of network interfaces, read from the kernel; and binding cards to
//! vfio-pci and back, which is the only change made here.
#![forbid(unsafe_code)]

pub mod bind;
mod card;
mod holder;
mod host_dependency;
mod interface;

pub use card::{Card, cards, cards_in};
pub use holder::XdpHolder;
pub use host_dependency::{Session, has_default_route, host_dependency, session_through};
pub use interface::{Interface, interface, interfaces};
