//! The functions of libpcap, as C calls them.
//!
//! Rules for all of them: pointers may be null unless the original crashes on null in its first
//! line too, and then they are refused here; a panic ends at the boundary ([`guard`]); a handle is
//! borrowed only while no function of the program runs, so that callbacks may use it.
//!
//! What the callers must keep to, as with the original: pointers are null or valid, a handle is not
//! used after `pcap_close`, and by one thread at a time but for `pcap_breakloop`.

mod datalink;
mod devices;
mod dump;
mod filter;
mod guard;
mod live;
mod names;
mod open;
mod raw;
mod read;
mod stream;
#[cfg(test)]
mod tests;
mod texts;
