//! What a network interface is and can do, read from the kernel; and cards that change hands, which
//! is all that is changed here.
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
