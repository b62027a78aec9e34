//! Tests of the modules, in files of their own: `tests/loom.rs` compiles the modules once more, and
//! must not find these in them.

mod attach;
mod bounds;
mod cursor;
mod pool;
mod random;
mod slot;
