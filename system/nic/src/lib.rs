//! Properties and features of network interfaces, as the kernel reports them; and two changes of
//! cards that are undone: binding them to vfio-pci, and isolating a receive queue.
#![forbid(unsafe_code)]

pub mod bind;
mod card;
pub mod guardian;
mod holder;
mod host_dependency;
mod interface;
pub mod isolate;
mod records;

pub use card::{Card, cards, cards_in};
pub use holder::XdpHolder;
pub use host_dependency::{Session, has_default_route, host_dependency, session_through};
pub use interface::{Interface, interface, interfaces};
