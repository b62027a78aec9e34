//! Arithmetic and comparisons (RFC 9669, sections 4.1 to 4.3).

type Result<T> = core::result::Result<T, &'static str>;

/// `BPF_END`: converts to a byte order; with 64 bits always swaps.
pub(super) fn swap(value: u64, bits: i32, is_wide: bool, to_be: bool) -> Result<u64> {
    if is_wide && to_be {
        return Err("unknown swap");
    }
    let is_swapped = is_wide || to_be == cfg!(target_endian = "little");
    Ok(match (bits, is_swapped) {
        (16, true) => (value as u16).swap_bytes().into(),
        (32, true) => (value as u32).swap_bytes().into(),
        (64, true) => value.swap_bytes(),
        (16, false) => (value as u16).into(),
        (32, false) => (value as u32).into(),
        (64, false) => value,
        _ => return Err("swaps an odd width"),
    })
}

/// Computes the result of an operation. Signed division and sign-extending moves have an offset.
pub(super) fn alu(
    op: u8,
    off: i16,
    is_wide: bool,
    (a, b): (u64, u64),
    by_constant: bool,
) -> Result<u64> {
    let is_divided = matches!(op, 0x30 | 0x90);
    match (op, off) {
        (0x30 | 0x90, 0 | 1) | (_, 0) => {}
        (0xb0, 8 | 16) if !by_constant => {}
        (0xb0, 32) if !by_constant && is_wide => {}
        _ => return Err("unknown offset of arithmetic"),
    }
    let divisor_is_0 = if is_wide { b == 0 } else { b as u32 == 0 };
    if by_constant && is_divided && divisor_is_0 {
        return Err("divides by a constant 0");
    }
    if by_constant && matches!(op, 0x60 | 0x70 | 0xc0) && b > if is_wide { 63 } else { 31 } {
        return Err("shifts too far");
    }
    if op == 0xb0 && off != 0 {
        let extended = match off {
            8 => i64::from(b as i8),
            16 => i64::from(b as i16),
            _ => i64::from(b as i32),
        };
        return Ok(if is_wide {
            extended as u64
        } else {
            u64::from(extended as u32)
        });
    }
    if is_divided && off == 1 {
        return Ok(divide_signed(op, is_wide, a, b));
    }
    match is_wide {
        true => alu64(op, a, b),
        false => alu32(op, a as u32, b as u32).map(u64::from),
    }
}

fn divide_signed(op: u8, is_wide: bool, a: u64, b: u64) -> u64 {
    let is_division = op == 0x30;
    if is_wide {
        let (a, b) = (a as i64, b as i64);
        (match (b, is_division) {
            (0, true) => 0,
            (0, false) => a,
            (_, true) => a.wrapping_div(b),
            (_, false) => a.wrapping_rem(b),
        }) as u64
    } else {
        let (a, b) = (a as i32, b as i32);
        u64::from(match (b, is_division) {
            (0, true) => 0,
            (0, false) => a as u32,
            (_, true) => a.wrapping_div(b) as u32,
            (_, false) => a.wrapping_rem(b) as u32,
        })
    }
}

fn alu32(op: u8, a: u32, b: u32) -> Result<u32> {
    Ok(match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b).unwrap_or(0),
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(b).unwrap_or(a),
        0xa0 => a ^ b,
        0xb0 => b,
        0xc0 => (a as i32).wrapping_shr(b) as u32,
        _ => return Err("unknown arithmetic"),
    })
}

fn alu64(op: u8, a: u64, b: u64) -> Result<u64> {
    Ok(match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b).unwrap_or(0),
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b as u32),
        0x70 => a.wrapping_shr(b as u32),
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(b).unwrap_or(a),
        0xa0 => a ^ b,
        0xb0 => b,
        0xc0 => (a as i64).wrapping_shr(b as u32) as u64,
        _ => return Err("unknown arithmetic"),
    })
}

/// Whether the condition of a jump is true.
pub(super) fn holds(cond: u8, is_wide: bool, one: u64, two: u64) -> Result<bool> {
    // With 32 bits, the upper halves are dropped; the sign is then that of the lower half.
    let (a, b) = match is_wide {
        true => (one, two),
        false => (u64::from(one as u32), u64::from(two as u32)),
    };
    let (signed_a, signed_b) = match is_wide {
        true => (one as i64, two as i64),
        false => (i64::from(one as i32), i64::from(two as i32)),
    };
    Ok(match cond {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0x50 => a != b,
        0x60 => signed_a > signed_b,
        0x70 => signed_a >= signed_b,
        0xa0 => a < b,
        0xb0 => a <= b,
        0xc0 => signed_a < signed_b,
        0xd0 => signed_a <= signed_b,
        _ => return Err("unknown condition"),
    })
}
