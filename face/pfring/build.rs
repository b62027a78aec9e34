//! Sets the soname. masscan opens `libpfring.so`; programs that are linked to this build look for
//! the soname, which is the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpfring.so");
}
