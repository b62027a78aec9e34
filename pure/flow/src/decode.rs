//! Exported records read back: what tests compare with, and what a collector begins with.

pub mod ipfix;
