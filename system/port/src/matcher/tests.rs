//! Machine code compared with the interpreter, on programs and packets from a fixed seed. Each
//! packet ends where the mapped memory ends: what reads past it ends the test.

use bpf::cbpf::{Insn, OPS};

use super::*;

/// Xorshift with a fixed seed: the same programs and packets in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// Constants at limits, small ones, arbitrary ones.
    fn constant(&mut self) -> u32 {
        match self.below(8) {
            0 => [
                0,
                1,
                31,
                0x7fff_fffa,
                0x7fff_fffb,
                0x7fff_ffff,
                0x8000_0000,
                u32::MAX,
            ][self.below(8) as usize],
            1 => self.next() as u32,
            2..5 => self.below(16) as u32,
            _ => self.below(70) as u32,
        }
    }

    fn program(&mut self) -> Option<Program> {
        let len = 1 + self.below(12);
        let mut insns: Vec<_> = (0..len)
            .map(|_| {
                let code = OPS[self.below(OPS.len() as u64) as usize].code;
                let [jt, jf] = [0; 2].map(|_: u8| self.below(3) as u8);
                Insn::new(code, jt, jf, self.constant())
            })
            .collect();
        insns.push(Insn::new(0x16, 0, 0, 0));
        Program::new(insns).ok()
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Tests in a row that end the filter or continue, as in most filters.
    fn run_of_tests(&mut self) -> Program {
        let insn = |code, k| Insn::new(code, 0, 0, k);
        let count = 1 + self.below(6);
        let (mut insns, mut jumps) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if self.below(4) == 0 {
                insns.push(insn(0xb1, self.below(4) as u32));
            }
            for _ in 0..[1, 1, 1, 2, 0][self.below(5) as usize] {
                let code = self.of(&[0x30, 0x28, 0x20, 0x50, 0x48, 0x40, 0x80]);
                insns.push(insn(code, self.below(14) as u32));
            }
            if self.below(3) == 0 {
                insns.push(insn(0x54, self.of(&[1, 3, 0xff, 0x100, 0x0101_0101, !1])));
            }
            jumps.push(insns.len());
            let k = self.of(&[0, 1, 2, 0x100, 0x101, 0x0101_0001, 9, 0x1_0000]);
            insns.push(insn(self.of(&[0x15, 0x15, 0x25, 0x35, 0x45]), k));
        }
        let end = insns.len();
        insns.extend([insn(0x06, 9), insn(0x06, 0)]);
        let last = jumps.len() - 1;
        for (number, at) in jumps.into_iter().enumerate() {
            let to = |result: u64| (end + result as usize - at - 1) as u8;
            let exits = [to(self.below(2)), to(self.below(2))];
            let side = self.below(3);
            if number == last || side == 0 {
                insns[at].jt = exits[0];
            }
            if number == last || side == 1 {
                insns[at].jf = exits[1];
            }
        }
        Program::new(insns).unwrap()
    }
}

#[test]
fn runs_of_tests_have_the_verdict_of_one_after_the_other() {
    let mut random = Random(0x5eed_cafe);
    let mut page = Page::new();
    let mut counts = [0; 2];
    for _ in 0..50_000 {
        let matcher = Matcher::new(random.run_of_tests());
        for _ in 0..4 {
            let len = random.below(26);
            let packet: Vec<u8> = (0..len).map(|_| random.of(&[0, 1, 1, 2])).collect();
            let packet = page.hold(&packet);
            let wire_len = packet.len() as u32 + random.below(3) as u32;
            let expected = vm_cbpf::run(matcher.program(), packet, wire_len);
            let result = matcher.run(packet, wire_len, &PacketInfo::UNKNOWN);
            let text = bpf::disasm::Classic(matcher.program().insns());
            assert_eq!(result, expected, "{packet:x?} of {wire_len}\n{text}");
            counts[usize::from(expected != 0)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 20_000), "{counts:?}");
}

#[test]
fn machine_code_and_interpreter_agree() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut page = Page::new();
    let (mut native, mut nonzero) = (0, 0);
    for _ in 0..200_000 {
        let Some(program) = random.program() else {
            continue;
        };
        let matcher = Matcher::new(program);
        native += u32::from(matcher.is_native());
        for _ in 0..3 {
            let packet: Vec<u8> = (0..random.below(80)).map(|_| random.next() as u8).collect();
            let packet = page.hold(&packet);
            let wire_len = packet.len() as u32 + random.below(3) as u32;
            let expected = vm_cbpf::run(matcher.program(), packet, wire_len);
            let result = matcher.run(packet, wire_len, &PacketInfo::UNKNOWN);
            let text = bpf::disasm::Classic(matcher.program().insns());
            assert_eq!(result, expected, "{packet:x?} of {wire_len}\n{text}");
            nonzero += u32::from(expected != 0);
        }
    }
    assert!(nonzero > 10_000, "{nonzero} results are not 0");
    if cfg!(target_arch = "x86_64") {
        assert!(native > 10_000, "{native} programs are machine code");
    }
}

/// A page behind which nothing is mapped: a packet that ends there cannot be read past its end.
struct Page(*mut u8);

const PAGE: usize = 4096;

impl Page {
    fn new() -> Page {
        // SAFETY: anonymous memory at a place of the kernel's choice.
        let pages = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(pages, libc::MAP_FAILED);
        // SAFETY: the second page of the two. It stays reserved, so that nothing else gets there.
        let code = unsafe { libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE) };
        assert_eq!(code, 0);
        Page(pages.cast())
    }

    /// Copies a packet to the end of the page.
    fn hold(&mut self, packet: &[u8]) -> &[u8] {
        assert!(packet.len() <= PAGE);
        // SAFETY: the last bytes of the page, which is mapped and only this value's.
        let place = unsafe {
            std::slice::from_raw_parts_mut(self.0.add(PAGE - packet.len()), packet.len())
        };
        place.copy_from_slice(packet);
        place
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: both pages, which nothing refers to any more.
        unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
    }
}

#[test]
fn packets_are_not_read_past_their_end() {
    let mut page = Page::new();
    for (load, width) in [
        (0x20, 4),
        (0x28, 2),
        (0x30, 1),
        (0x40, 4),
        (0x48, 2),
        (0x50, 1),
    ] {
        for index in 0..8 {
            let insns = vec![
                Insn::new(0x01, 0, 0, 0),
                Insn::new(load, 0, 0, index),
                Insn::new(0x06, 0, 0, 1),
            ];
            let matcher = Matcher::new(Program::new(insns).unwrap());
            for len in 0..12 {
                let packet = page.hold(&vec![0; len]);
                let is_there = index as usize + width <= len;
                assert_eq!(
                    matcher.selects(packet, 12),
                    is_there,
                    "{load:#x} {index} {len}"
                );
            }
        }
    }
}
