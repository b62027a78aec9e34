//! Writes eBPF programs as relocatable ELF objects (gABI chapter 4, machine `EM_BPF`), which libbpf
//! can load, and therefore `ip`, `tc` and `bpftool`.
//!
//! An object contains one program, in a section named after its type (`xdp`, `tc`, `socket`), its
//! license in the section `license`, and a symbol for each. There are no maps and no relocations.

use alloc::vec::Vec;

use crate::ebpf::Insn;

/// Symbol of the program.
pub const PROGRAM: &str = "filter";
/// License of generated programs.
pub const LICENSE: &str = "Dual BSD/GPL";

const HEADER_LEN: usize = 64;
const SECTION_LEN: usize = 64;
const SYMBOL_LEN: usize = 24;
const ELF64: u8 = 2;
const RELOCATABLE: u16 = 1;
const EM_BPF: u16 = 247;
/// Section types.
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
/// Section flags: writable, occupies memory, contains instructions.
const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const EXEC: u64 = 4;
/// Types of global symbols: data, and a function.
const GLOBAL_OBJECT: u8 = 0x11;
const GLOBAL_FUNC: u8 = 0x12;

/// A section header; fields that are not set are 0.
#[derive(Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    offset: usize,
    len: usize,
    link: u32,
    info: u32,
    align: u64,
    entry_len: usize,
}

/// Returns the object file of a program, in native byte order. libbpf takes the program's type from
/// the name of the section.
pub fn write(section: &str, insns: &[Insn]) -> Vec<u8> {
    let mut file = Vec::from([0; HEADER_LEN]);
    for insn in insns {
        file.extend(insn.to_word().to_ne_bytes());
    }
    let program = Section {
        kind: PROGBITS,
        flags: ALLOC | EXEC,
        offset: HEADER_LEN,
        len: file.len() - HEADER_LEN,
        align: 8,
        ..Section::default()
    };
    let license = append(&mut file, &[LICENSE.as_bytes(), &[0]].concat(), 1);
    let license = Section {
        kind: PROGBITS,
        flags: ALLOC | WRITE,
        ..license
    };
    let mut names = Vec::from([0]);
    let mut name = |text: &str| {
        let at = names.len() as u32;
        names.extend(text.as_bytes());
        names.push(0);
        at
    };
    let sections = [section, "license", ".strtab", ".symtab"].map(&mut name);
    let symbols = [PROGRAM, "_license"].map(&mut name);
    let strings = append(&mut file, &names, 1);
    let mut table = Vec::from([0; SYMBOL_LEN]);
    symbol(&mut table, symbols[0], GLOBAL_FUNC, 1, program.len);
    symbol(&mut table, symbols[1], GLOBAL_OBJECT, 2, license.len);
    let table = append(&mut file, &table, 8);
    let mut list = [
        Section::default(),
        program,
        license,
        Section {
            kind: STRTAB,
            ..strings
        },
        Section {
            kind: SYMTAB,
            link: 3,
            // Index of the first symbol that is not local.
            info: 1,
            entry_len: SYMBOL_LEN,
            ..table
        },
    ];
    for (section, name) in list[1..].iter_mut().zip(sections) {
        section.name = name;
    }
    pad(&mut file, 8);
    let start = file.len();
    for section in &list {
        section.put(&mut file);
    }
    file[..HEADER_LEN].copy_from_slice(&header(start, list.len()));
    file
}

fn pad(file: &mut Vec<u8>, align: usize) {
    file.resize(file.len().next_multiple_of(align), 0);
}

/// Appends the contents of a section, aligned.
fn append(file: &mut Vec<u8>, bytes: &[u8], align: usize) -> Section {
    pad(file, align);
    let offset = file.len();
    file.extend(bytes);
    Section {
        offset,
        len: bytes.len(),
        align: align as u64,
        ..Section::default()
    }
}

/// Appends a symbol at the start of a section (`Elf64_Sym`).
fn symbol(table: &mut Vec<u8>, name: u32, info: u8, section: u16, len: usize) {
    table.extend(name.to_ne_bytes());
    table.extend([info, 0]);
    table.extend(section.to_ne_bytes());
    table.extend(0u64.to_ne_bytes());
    table.extend((len as u64).to_ne_bytes());
}

impl Section {
    /// Appends the section header (`Elf64_Shdr`).
    fn put(&self, file: &mut Vec<u8>) {
        file.extend([self.name, self.kind].map(u32::to_ne_bytes).as_flattened());
        let place = [self.flags, 0, self.offset as u64, self.len as u64];
        file.extend(place.map(u64::to_ne_bytes).as_flattened());
        file.extend([self.link, self.info].map(u32::to_ne_bytes).as_flattened());
        let shape = [self.align, self.entry_len as u64];
        file.extend(shape.map(u64::to_ne_bytes).as_flattened());
    }
}

/// Returns an `Elf64_Ehdr` with the section headers at `start`.
fn header(start: usize, count: usize) -> Vec<u8> {
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut out = Vec::from([0x7f, b'E', b'L', b'F', ELF64, order, 1, 0]);
    out.extend([0; 8]);
    out.extend([RELOCATABLE, EM_BPF].map(u16::to_ne_bytes).as_flattened());
    out.extend(1u32.to_ne_bytes());
    let places = [0, 0, start as u64];
    out.extend(places.map(u64::to_ne_bytes).as_flattened());
    out.extend(0u32.to_ne_bytes());
    let (section, strings) = (SECTION_LEN as u16, 3);
    let sizes = [HEADER_LEN as u16, 0, 0, section, count as u16, strings];
    out.extend(sizes.map(u16::to_ne_bytes).as_flattened());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asm::Asm;
    use crate::ebpf::Reg::R0;

    #[test]
    fn sections_are_inside_the_file_and_aligned() {
        let mut asm = Asm::new();
        asm.mov(R0, 2);
        asm.exit();
        let file = write("xdp", &asm.finish().unwrap());
        let word = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let start = word(0x28);
        assert_eq!(file.len(), start + 5 * SECTION_LEN);
        for index in 1..5 {
            let at = start + index * SECTION_LEN;
            let (offset, len) = (word(at + 0x18), word(at + 0x20));
            assert!(offset >= HEADER_LEN && offset + len <= start, "{index}");
            assert_eq!(offset % word(at + 0x30), 0, "{index}");
        }
        let program = start + SECTION_LEN;
        assert_eq!((word(program + 0x18), word(program + 0x20)), (64, 16));
        assert_eq!(&file[80..93], b"Dual BSD/GPL\0");
    }
}
