//! Any messages of a vhost-user front-end, and any guest memory that they start vrings in.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    vhost::laws::message_input(input);
});
