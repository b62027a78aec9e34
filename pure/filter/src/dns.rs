//! DNS queries by name: a list of names compiled to classic BPF, and the same rules in user space.
//!
//! A packet matches if it is a query (QR clear) over UDP to port 53 whose first question has one of
//! the names, in any case, and one of the types. `*.example.com` is every name of exactly one more
//! label. Fragments do not match, nor do IPv6 packets with extension headers. The whole question
//! must be captured; lengths in the UDP header are ignored.

mod compile;
mod matching;
mod name;
mod set;
#[cfg(test)]
mod tests;

pub use compile::compile;
pub use matching::{matches, matches_any};
pub use name::{Name, QueryType};
pub use set::QuerySet;

/// Queries to match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queries {
    /// Any of these names.
    pub names: Vec<Name>,
    /// Any of these types; all types if empty.
    pub types: Vec<QueryType>,
}

/// IP versions that a program matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    #[default]
    Both,
}
