//! Suites that every row of a table must pass, so that nothing can be added without being tested.

pub mod port;
