//! Any bytes as what a netlink socket gives: messages, attributes, links, routes, refusals.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sys::netlink::laws::reply_input(input));
