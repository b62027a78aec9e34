//! The functions of libpcap, as C calls them.
//!
//! Rules for all of them: pointers may be null (where the original dereferences null at once, they
//! are refused here); a panic ends at the boundary ([`sys::boundary`]); a handle is borrowed only
//! while no function of the program runs, so that callbacks may use it.
//!
//! What callers must ensure, as with the original: pointers are null or valid; a handle is not used
//! after `pcap_close`, and by only one thread at a time except for `pcap_breakloop`.

mod datalink;
mod devices;
mod dump;
mod filter;
mod kinds;
mod live;
mod names;
mod network;
mod open;
mod raw;
mod read;
mod stream;
#[cfg(test)]
mod tests;
mod texts;
