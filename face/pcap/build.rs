//! Gives the library the name by which Debian's programs look for libpcap. The dynamic linker finds
//! a file called `libpcap.so.1` by its file name, whatever this name is.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
