//! Numbers and flows in words.

use flow::top::Total;

/// A count and what is counted, in the singular or the plural: `1 packet`, `2 packets`.
pub fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// A number with an SI prefix and a unit: `14.88 Mpps`.
pub fn si(value: f64, unit: &str) -> String {
    let (scale, prefix) = match value.abs() {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let number = value / scale;
    if prefix.is_empty() && number.fract() == 0.0 {
        format!("{number} {unit}")
    } else {
        format!("{number:.2} {prefix}{unit}")
    }
}

/// A count of bytes in binary units: `16.0 MiB`.
pub fn bytes(value: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut number = value as f64;
    let mut at = 0;
    while number >= 1024.0 && at + 1 < units.len() {
        number /= 1024.0;
        at += 1;
    }
    if at == 0 {
        format!("{value} B")
    } else {
        format!("{number:.1} {}", units[at])
    }
}

/// The IP protocol's name, or its number.
pub fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".into(),
        2 => "igmp".into(),
        4 => "ipip".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        41 => "ipv6".into(),
        47 => "gre".into(),
        50 => "esp".into(),
        51 => "ah".into(),
        58 => "icmp6".into(),
        89 => "ospf".into(),
        103 => "pim".into(),
        112 => "vrrp".into(),
        132 => "sctp".into(),
        136 => "udpl".into(),
        other => other.to_string(),
    }
}

/// Source and destination of a flow: address and, where there are ports, port.
pub fn ends(total: &Total) -> (String, String) {
    let key = &total.key;
    let end = |side| {
        let addr = key.addr(side);
        match key.protocol() {
            6 | 17 | 132 | 136 if key.ip_version() == 6 => format!("[{addr}]:{}", key.port(side)),
            6 | 17 | 132 | 136 => format!("{addr}:{}", key.port(side)),
            _ => addr.to_string(),
        }
    };
    let mut source = end(total.initiator);
    if let Some(kind) = key.icmp_type(total.initiator) {
        source += &format!(" type {kind}");
    }
    (source, end(total.initiator.other()))
}

/// A duration in its shortest form.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{}.{:03} s", seconds, ns / 1_000_000 % 1000),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!(
            "{}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        ),
    }
}

/// A line of JSON without its line feed, in which characters that a terminal would act on or that
/// cannot be seen are written by their numbers ([`inspect::is_unprintable`]): names of interfaces
/// come from capture files, reasons of failures from collectors.
pub fn json_line(value: &serde_json::Value) -> String {
    let text = value.to_string();
    if !text.contains(inspect::is_unprintable) {
        return text;
    }
    // Outside of strings there are none.
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match inspect::is_unprintable(letter) {
            false => line.push(letter),
            true => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    line.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_one_are_singular() {
        let counts = [0, 1, 2].map(|count| counted(count, "packet"));
        assert_eq!(counts, ["0 packets", "1 packet", "2 packets"]);
    }

    #[test]
    fn json_lines_contain_no_control_characters() {
        let name = "a\u{9b}2J\u{202e}b\u{e0041}\n\u{e9}";
        let value = serde_json::json!({ "name": name });
        let line = json_line(&value);
        assert!(!line.contains(inspect::is_unprintable), "{line:?}");
        assert!(
            line.contains("\\u009b2J\\u202eb") && line.contains('\u{e9}'),
            "{line}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).unwrap(),
            value
        );
    }

    #[test]
    fn numbers_carry_units() {
        assert_eq!(si(14_880_000.0, "pps"), "14.88 Mpps");
        assert_eq!(si(12.0, "pps"), "12 pps");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(16 << 20), "16.0 MiB");
    }
}
