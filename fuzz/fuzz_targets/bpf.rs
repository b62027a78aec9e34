//! Any filter on any packet: refused, or run with one verdict by interpreter, translations and
//! machine code.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bpf::laws::filter_input(input);
    if let Some((program, packet)) = bpf::laws::program_of(input) {
        let wire_len = packet.len() as u32;
        let expected = bpf::vm_cbpf::run(&program, packet, wire_len) != 0;
        let matcher = port::Matcher::new(program);
        assert_eq!(matcher.selects(packet, wire_len), expected);
    }
});
