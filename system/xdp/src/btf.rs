//! Reads the kernel's type information (BTF) for the ids of kernel functions
//! (`Documentation/bpf/btf.rst`).

use sys::{Error, ErrorKind, Result};

/// Path of the kernel's BTF (Linux 5.4, CONFIG_DEBUG_INFO_BTF).
pub const VMLINUX_PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_FUNC: u32 = 12;

/// Ids of these kernel functions, in the given order; `None` for a function that is missing.
///
/// # Errors
/// `Unsupported` if the kernel provides no BTF, `Damaged` if it cannot be read.
pub fn function_ids<const N: usize>(names: [&str; N]) -> Result<[Option<u32>; N]> {
    let what = "look up kernel functions";
    let bytes = std::fs::read(VMLINUX_PATH).map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let error = Error::from_io(what, e);
        if missing {
            error
                .with_kind(ErrorKind::Unsupported)
                .with_why(format!("this kernel has no {VMLINUX_PATH}"))
                .with_hint("use a kernel built with CONFIG_DEBUG_INFO_BTF=y")
        } else {
            error
        }
    })?;
    find(&bytes, names).ok_or_else(|| {
        Error::new(
            ErrorKind::Damaged,
            what,
            format!("{VMLINUX_PATH} ends early"),
        )
    })
}

/// Like [`function_ids`], on the given bytes; `None` if they are damaged.
pub fn find<const N: usize>(btf: &[u8], names: [&str; N]) -> Option<[Option<u32>; N]> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(
            btf.get(at..at.checked_add(4)?)?.try_into().ok()?,
        ))
    };
    if u16::from_ne_bytes(btf.get(..2)?.try_into().ok()?) != MAGIC {
        return None;
    }
    let section = |off_at: usize, len_at: usize| -> Option<&[u8]> {
        let start = word(4)?.checked_add(word(off_at)?)? as usize;
        btf.get(start..start.checked_add(word(len_at)? as usize)?)
    };
    let (types, strings) = (section(8, 12)?, section(16, 20)?);
    let mut ids = [None; N];
    // Id 0 is void and has no entry.
    let (mut rest, mut id) = (types, 1u32);
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<12>()?;
        let field = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let (name_off, info) = (field(0) as usize, field(4));
        let kind = info >> 24 & 0x1f;
        if kind == KIND_FUNC {
            let text = strings.get(name_off..)?;
            for (slot, name) in ids.iter_mut().zip(names) {
                if text.get(name.len()) == Some(&0) && text.starts_with(name.as_bytes()) {
                    *slot = Some(id);
                }
            }
        }
        rest = tail.get(trailer_len(kind, info & 0xffff)?..)?;
        id += 1;
    }
    Some(ids)
}

/// Length of the data after a type's common header.
fn trailer_len(kind: u32, member_count: u32) -> Option<usize> {
    let (fixed, each) = match kind {
        1 | 14 | 17 => (4, 0),          // int, var, declaration tag
        3 => (12, 0),                   // array
        4 | 5 | 15 | 19 => (0, 12),     // struct, union, section, 64-bit enum
        6 | 13 => (0, 8),               // enum, function prototype
        2 | 7..=12 | 16 | 18 => (0, 0), // references, functions, float, type tag
        _ => return None,
    };
    Some(fixed + each * member_count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two types, an int and a function named `bw`.
    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        for word in [24u32, 0, 28, 28, 8] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [1u32, 1 << 24, 4, 32] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [5u32, 12 << 24, 1] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(b"\0int\0bw\0");
        bytes
    }

    #[test]
    fn functions_are_found_by_their_whole_name() {
        assert_eq!(
            find(&sample(), ["bw", "b", "bwx", "int"]),
            Some([Some(2), None, None, None])
        );
    }

    #[test]
    fn truncation_is_detected_at_every_length() {
        let bytes = sample();
        for len in 0..bytes.len() - 1 {
            // Cut anywhere, a section is out of range.
            assert_eq!(find(&bytes[..len], ["bw"]), None, "{len}");
        }
    }

    #[test]
    fn functions_of_the_running_kernel_are_found() {
        if !std::path::Path::new(VMLINUX_PATH).exists() {
            skip::skip!("no {VMLINUX_PATH}");
        }
        let ids = function_ids(["schedule", "there_is_no_such_function"]).unwrap();
        assert!(ids[0].is_some() && ids[1].is_none(), "{ids:?}");
    }
}
