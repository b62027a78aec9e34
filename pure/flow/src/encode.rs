//! Records as bytes. A format is a file in this folder.

pub mod json;
