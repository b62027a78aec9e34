//! Decodes exported records, for tests and collectors.

pub mod ipfix;
