//! Properties and features of network interfaces, read from the kernel; and binding cards to
//! vfio-pci and back, which is the only change made here.
#![forbid(unsafe_code)]

pub mod bind;
mod card;
mod holder;
mod interface;
mod lifeline;

pub use card::{Card, cards, cards_in};
pub use holder::XdpHolder;
pub use interface::{Interface, interface, interfaces};
pub use lifeline::{Session, has_default_route, lifeline, session_through};
