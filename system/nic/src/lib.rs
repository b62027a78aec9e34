//! Properties and features of network interfaces, as the kernel reports them; and binding cards to
//! vfio-pci and back, the only change that this crate makes.
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
