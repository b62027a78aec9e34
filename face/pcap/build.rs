//! Sets the soname under which Debian's programs look for libpcap. A file named `libpcap.so.1` is
//! found by its file name, whatever the soname is.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
