//! Any messages that a TLS 1.3 server encrypts, or any stream: the same is found in every cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    scan::laws::tls_input(input);
});
