//! Values of file options: sizes and permissions.

/// Parses a size as tcpdump does: millions of bytes, or powers of two with a suffix.
pub fn parse_size(value: &str) -> std::result::Result<u64, String> {
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let suffix = &value[digits.len()..].to_ascii_lowercase();
    let unit = match suffix.as_str() {
        "" => 1_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit {suffix:?}: use k, m, g, KiB, MiB, GiB, kB, MB or GB"
            ));
        }
    };
    let size = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    size.filter(|&size| size != 0)
        .ok_or_else(|| "expected a size above 0".to_owned())
}

/// Parses permissions as chmod does, without set-user-ID, set-group-ID and sticky bit.
pub fn parse_mode(value: &str) -> std::result::Result<u32, String> {
    match u32::from_str_radix(value, 8) {
        Ok(mode) if mode <= 0o777 && !value.starts_with('+') => Ok(mode),
        _ => Err("expected permissions in octal, such as 600, 640 or 666".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("0640"), Ok(0o640));
        for bad in ["", "rw", "8", "1000", "-1", "+7"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_parsed_as_in_tcpdump() {
        assert_eq!(parse_size("1"), Ok(1_000_000));
        assert_eq!(parse_size("2k"), Ok(2048));
        assert_eq!(parse_size("3MiB"), Ok(3 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("5MB"), Ok(5_000_000));
        for bad in [
            "",
            "0",
            "k",
            "-1",
            "1x",
            "99999999999999999999",
            "18446744073709551615g",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
