//! The generated programs, one file each.

pub mod guard;
pub mod redirect;
pub(crate) mod transmit;
