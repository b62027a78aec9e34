//! Lists of addresses as text: a prefix (`192.0.2.0/24`), or a first and a last address, and their
//! data, separated by tabs or commas. iptoasn.com (start, end, number, country, name), DB-IP's
//! country and network lists, MaxMind's network lists, and routing table dumps have this form. If
//! ranges overlap, the narrower one wins.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of ranges in a list.
const RANGES_MAX: usize = 4 << 20;
/// Maximum line length in bytes.
const LINE_MAX: usize = 4096;
/// Maximum length of a stored name in bytes; longer ones are cut.
pub(super) const NAME_MAX: usize = 128;

/// The data of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// The autonomous system, or 0.
    pub asn: u32,
    /// The country, or zeros.
    pub country: [u8; 2],
    /// The first text that is neither.
    pub name: Option<Arc<str>>,
}

/// A range and the index of its row. IPv4 addresses are the lower 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u128,
    last: u128,
    row: u32,
}

/// An IPv4 range, packed.
type Four = (u32, u32, u32);

/// A list of ranges.
#[derive(Debug, Default)]
pub struct Ranges {
    four: Vec<Four>,
    six: Vec<Range>,
    rows: Vec<Row>,
}

impl Ranges {
    /// Reads a list.
    ///
    /// # Errors
    /// The line and the problem.
    pub fn parse(text: &[u8]) -> Result<Ranges, String> {
        let (mut four, mut six) = (Vec::new(), Vec::new());
        let mut numbers: HashMap<Row, u32> = HashMap::new();
        let mut rows = Vec::new();
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let wrong = |why: &str| format!("line {}: {why}", at + 1);
            if line.len() > LINE_MAX {
                return Err(wrong("the line is too long"));
            }
            let line = String::from_utf8_lossy(line);
            let line = line.trim_matches(['\u{feff}', '\r', ' ']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields = split(line);
            let (is_six, first, last, rest) = match addresses(&fields) {
                Ok(range) => range,
                // Column names.
                Err(why) if at == 0 && why == NONE => continue,
                Err(why) => return Err(wrong(why)),
            };
            let row = Row::of(&fields[rest..]);
            let number = match numbers.get(&row) {
                Some(number) => *number,
                None => {
                    let number = rows.len() as u32;
                    rows.push(row.clone());
                    numbers.insert(row, number);
                    number
                }
            };
            if four.len() + six.len() >= RANGES_MAX {
                return Err(wrong("there are more than four million ranges"));
            }
            let list = if is_six { &mut six } else { &mut four };
            list.push(Range {
                first,
                last,
                row: number,
            });
        }
        if four.is_empty() && six.is_empty() {
            return Err("it contains no address ranges".into());
        }
        let pack = |range: Range| (range.first as u32, range.last as u32, range.row);
        Ok(Ranges {
            four: flat(four).into_iter().map(pack).collect(),
            six: flat(six),
            rows,
        })
    }

    /// Looks up an address.
    pub fn find(&self, addr: IpAddr) -> Option<&Row> {
        let row = match addr {
            IpAddr::V4(v4) => {
                let number = u32::from(v4);
                let at = self.four.partition_point(|range| range.0 <= number);
                let (_, last, row) = self.four.get(at.checked_sub(1)?)?;
                (number <= *last).then_some(*row)?
            }
            IpAddr::V6(v6) => {
                let number = u128::from(v6);
                let at = self.six.partition_point(|range| range.first <= number);
                let range = self.six.get(at.checked_sub(1)?)?;
                (number <= range.last).then_some(range.row)?
            }
        };
        self.rows.get(row as usize)
    }

    /// Memory in bytes.
    pub fn memory_len(&self) -> usize {
        let names = self.rows.iter().filter_map(|row| row.name.as_deref());
        self.four.capacity() * size_of::<Four>()
            + self.six.capacity() * size_of::<Range>()
            + self.rows.capacity() * size_of::<Row>()
            + names.map(str::len).sum::<usize>()
    }
}

impl Row {
    /// Parses the fields after the addresses.
    fn of(fields: &[String]) -> Row {
        let mut row = Row::default();
        let mut has_asn = false;
        for field in fields {
            let digits = field.strip_prefix("AS").unwrap_or(field);
            let is_code = field.len() == 2 && field.bytes().all(|b| b.is_ascii_uppercase());
            if !has_asn && let Ok(asn) = digits.parse::<u32>() {
                row.asn = asn;
                has_asn = true;
            } else if matches!(field.as_str(), "" | "-" | "None" | "ZZ") {
                // Unknown; DB-IP writes ZZ.
            } else if is_code && row.country == [0; 2] {
                row.country.copy_from_slice(field.as_bytes());
            } else if row.name.is_none() {
                row.name = Some(cut(field).into());
            }
        }
        // iptoasn.com: not announced.
        if has_asn && row.asn == 0 {
            row.name = None;
        }
        row
    }

    /// Whether the row describes a network, not a place.
    pub fn is_of_network(&self) -> bool {
        self.asn != 0
    }
}

/// A name cut to [`NAME_MAX`].
pub(super) fn cut(name: &str) -> &str {
    let end = (0..=NAME_MAX.min(name.len())).rev();
    let mut ends = end.filter(|at| name.is_char_boundary(*at));
    &name[..ends.next().unwrap_or(0)]
}

/// The fields of a line, separated by tabs, or by commas with quotes (RFC 4180).
pub(super) fn split(line: &str) -> Vec<String> {
    let clean = |field: &str| field.trim().to_owned();
    if line.contains('\t') {
        return line.split('\t').map(clean).collect();
    }
    let (mut fields, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            // A doubled quote stands for one; the name is usable without.
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => {
                fields.push(clean(&field));
                field.clear();
            }
            letter => field.push(letter),
        }
    }
    fields.push(clean(&field));
    fields
}

/// Why a line is invalid.
const NONE: &str = "it does not start with a prefix, or with a first and a last address";

/// Whether it is IPv6, the first and last address, and the number of fields they took.
fn addresses(fields: &[String]) -> Result<(bool, u128, u128, usize), &'static str> {
    let first = fields.first().ok_or(NONE)?;
    if let Some((addr, len)) = first.split_once('/') {
        let addr = address(addr).ok_or(NONE)?;
        let bits = if addr.is_ipv6() { 128 } else { 32 };
        let len = len.parse::<u32>().ok().filter(|len| *len <= bits);
        let len = len.ok_or("the prefix length is invalid")?;
        let host = u128::MAX.checked_shr(128 - (bits - len)).unwrap_or(0);
        let number = number(addr);
        let (is_six, first, last) = range(addr.is_ipv6(), number & !host, number | host);
        return Ok((is_six, first, last, 1));
    }
    let first = address(first).ok_or(NONE)?;
    let last = fields.get(1).and_then(|f| address(f)).ok_or(NONE)?;
    if first.is_ipv6() != last.is_ipv6() || last < first {
        return Err("the last address does not follow the first");
    }
    let (is_six, first, last) = range(first.is_ipv6(), number(first), number(last));
    Ok((is_six, first, last, 2))
}

/// An address; IPv4 also as one number.
fn address(text: &str) -> Option<IpAddr> {
    match text.parse::<u32>() {
        Ok(number) => Some(IpAddr::V4(number.into())),
        Err(_) => text.parse().ok(),
    }
}

fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// Whether a range is IPv6, its first and its last address. One within `::ffff:0:0/96` is IPv4.
fn range(is_six: bool, first: u128, last: u128) -> (bool, u128, u128) {
    const MAPPED: u128 = 0xffff << 32;
    const FOUR: u128 = u32::MAX as u128;
    if is_six && first & !FOUR == MAPPED && last & !FOUR == MAPPED {
        return (false, first & FOUR, last & FOUR);
    }
    (is_six, first, last)
}

/// Sorted ranges that do not overlap: if several cover an address, the one that starts last wins,
/// of those the shortest, and of equal ones the last in the file.
fn flat(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_by_key(|range| (range.first, std::cmp::Reverse(range.last)));
    let mut out: Vec<Range> = Vec::new();
    // Ranges that cover the next address: the bottom one is the widest.
    let mut open: Vec<Range> = Vec::new();
    let mut next = 0_u128;
    for range in ranges {
        close(&mut open, &mut next, Some(range.first), &mut out);
        next = next.max(range.first);
        open.push(range);
    }
    close(&mut open, &mut next, None, &mut out);
    out.shrink_to_fit();
    out
}

/// Outputs what lies before `until`, or everything.
fn close(open: &mut Vec<Range>, next: &mut u128, until: Option<u128>, out: &mut Vec<Range>) {
    while let Some(top) = open.last().copied() {
        let continues = until.is_some_and(|until| top.last >= until);
        let last = match until {
            Some(until) if continues => match until.checked_sub(1) {
                Some(last) => last,
                None => return,
            },
            _ => top.last,
        };
        if *next <= last {
            match out.last_mut() {
                Some(before)
                    if before.row == top.row && before.last.checked_add(1) == Some(*next) =>
                {
                    before.last = last;
                }
                _ => out.push(Range {
                    first: *next,
                    last,
                    row: top.row,
                }),
            }
            match last.checked_add(1) {
                Some(behind) => *next = behind,
                // The last possible address.
                None => return open.clear(),
            }
        }
        if continues {
            return;
        }
        open.pop();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn asn(ranges: &Ranges, addr: &str) -> Option<u32> {
        ranges.find(addr.parse().unwrap()).map(|row| row.asn)
    }

    #[test]
    fn lists_of_all_formats_are_read() {
        let text = "network,autonomous_system_number,autonomous_system_organization\r\n\
                    192.0.2.0/24,64500,\"Example, Inc.\"\n# remark\n\n\
                    198.51.100.0\t198.51.100.255\t64501\tDE\tNETZ Netz GmbH\n\
                    3405803776,3405804031,AS64502,name\n\
                    2001:db8::,2001:db8:0:ffff:ffff:ffff:ffff:ffff,FR,Paris\n\
                    10.0.0.0\t10.255.255.255\t0\tNone\tNot routed\n";
        let ranges = Ranges::parse(text.as_bytes()).unwrap();
        let find = |addr: &str| ranges.find(addr.parse().unwrap());
        let row = find("192.0.2.255").unwrap();
        assert_eq!(
            (row.asn, row.name.as_deref()),
            (64500, Some("Example, Inc."))
        );
        let row = find("198.51.100.0").unwrap();
        assert_eq!((row.asn, &row.country), (64501, b"DE"));
        assert_eq!(row.name.as_deref(), Some("NETZ Netz GmbH"));
        assert_eq!(find("203.0.113.7").unwrap().asn, 64502);
        let row = find("2001:db8::1").unwrap();
        assert_eq!((&row.country, row.name.as_deref()), (b"FR", Some("Paris")));
        assert!(!row.is_of_network());
        assert_eq!(find("10.1.1.1"), Some(&Row::default()));
        for nobody in ["192.0.3.0", "11.0.0.0", "2001:db9::", "0.0.0.0"] {
            assert_eq!(find(nobody), None, "{nobody}");
        }
    }

    /// Within IPv6, and in a range that begins or ends next to them.
    #[test]
    fn ipv4_mapped_addresses_are_ipv4() {
        let text = "::ffff:192.0.2.0/120,1\n::,::ffff:ffff:ffff,2\n::ffff:0:0/95,3\n\
                    ::ffff:203.0.113.0,::ffff:203.0.113.9,4\n";
        let ranges = Ranges::parse(text.as_bytes()).unwrap();
        assert_eq!(asn(&ranges, "192.0.2.255"), Some(1));
        assert_eq!(asn(&ranges, "192.0.3.0"), None);
        assert_eq!(asn(&ranges, "::5"), Some(2));
        assert_eq!(asn(&ranges, "::fffe:0:1"), Some(3));
        assert_eq!(asn(&ranges, "203.0.113.9"), Some(4));
    }

    #[test]
    fn the_code_for_no_country_gives_none() {
        let ranges = Ranges::parse(b"192.0.2.0/24,ZZ\n198.51.100.0/24,ZZ,DE\n").unwrap();
        let find = |addr: &str| ranges.find(addr.parse().unwrap()).unwrap();
        assert_eq!(find("192.0.2.1"), &Row::default());
        assert_eq!(&find("198.51.100.1").country, b"DE");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, words) in [
            ("", "no address ranges"),
            ("start,end\n", "no address ranges"),
            (
                "192.0.2.0/24,1\n192.0.2.0/33,1\n",
                "line 2: the prefix length",
            ),
            (
                "192.0.2.0/33,1\n192.0.2.0/24,1\n",
                "line 1: the prefix length",
            ),
            ("192.0.2.0/24,1\nabc\n", "line 2: it does not start"),
            (
                "192.0.2.0/24,1\n192.0.2.9,192.0.2.8,1\n",
                "does not follow the first",
            ),
            (
                "192.0.2.0/24,1\n192.0.2.9,::1,1\n",
                "does not follow the first",
            ),
        ] {
            let error = Ranges::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let long = [&b"192.0.2.0/24,1,"[..], &[b'x'; 5000]].concat();
        assert!(Ranges::parse(&long).unwrap_err().contains("too long"));
    }

    /// Compared with the simple method: of all ranges that cover an address, the right one.
    #[test]
    fn the_narrowest_of_several_ranges_wins() {
        let mut seed = 0x9e37_79b9_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..300 {
            let mut prefixes = Vec::new();
            let mut text = String::new();
            for number in 1..=random(40) + 1 {
                let len = random(33) as u32;
                let host = u32::MAX.checked_shr(len).unwrap_or(0);
                let first = (random(1 << 32) as u32 & 0xc000_00ff) & !host;
                prefixes.push((first, first | host, number as u32));
                text += &format!("{}/{len}\t{number}\n", Ipv4Addr::from(first));
            }
            let ranges = Ranges::parse(text.as_bytes()).unwrap();
            assert!(ranges.four.is_sorted() && ranges.four.iter().all(|r| r.0 <= r.1));
            let ends = prefixes
                .iter()
                .flat_map(|p| [p.0, p.1, p.0.wrapping_sub(1), p.1.wrapping_add(1)]);
            for addr in ends.collect::<Vec<_>>() {
                let over = prefixes.iter().filter(|p| (p.0..=p.1).contains(&addr));
                let narrowest = over.min_by_key(|p| (p.1 - p.0, std::cmp::Reverse(p.2)));
                let expected = narrowest.map(|p| p.2);
                assert_eq!(
                    asn(&ranges, &Ipv4Addr::from(addr).to_string()),
                    expected,
                    "{text}"
                );
            }
        }
    }

    /// Invalid bytes cause no panic.
    #[test]
    fn any_bytes_give_a_result_or_an_error() {
        let good = b"0.0.0.0/0,1,AA,x\n::/0\t2\tBB\n255.255.255.255,255.255.255.255,3\n";
        assert_eq!(
            asn(&Ranges::parse(good).unwrap(), "255.255.255.255"),
            Some(3)
        );
        for at in 0..good.len() {
            for byte in [0, b'\n', b',', b'/', b'9', b'"', 0xff] {
                let mut bytes = good.to_vec();
                bytes[at] = byte;
                if let Ok(ranges) = Ranges::parse(&bytes) {
                    for addr in ["0.0.0.0", "255.255.255.255", "::", "ffff::"] {
                        let _ = asn(&ranges, addr);
                    }
                }
            }
        }
    }
}
