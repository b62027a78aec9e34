//! Tests of the modules, in separate files: `tests/loom.rs` compiles the modules again, without
//! their tests.

mod attach;
mod bounds;
mod cursor;
mod holder;
mod pool;
mod random;
mod shared;
mod slot;
