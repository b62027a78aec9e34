//! What a network interface is and can do, read from the kernel; nothing is changed.
#![forbid(unsafe_code)]

mod holder;
mod interface;

pub use holder::XdpHolder;
pub use interface::{Interface, has_default_route, interface, interfaces};
