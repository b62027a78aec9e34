//! Any datagrams (DNS, NTP, DHCP, SIP, QUIC as it is on the wire), also cut short.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| inspect::laws::datagrams(input));
