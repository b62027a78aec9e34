//! Any content of a split virtqueue: packets are read and sent, or the vring is broken.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    vhost::laws::vring_input(input);
});
