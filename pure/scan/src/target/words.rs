//! Splits a line of targets into words: at commas and blanks, except where nmap's octets
//! (`192.0.2.1,2,7`), a list of ports (`192.0.2.7:80,443`) or a range with blanks around its dash
//! (`192.0.2.1 - 192.0.2.9`) go on.

/// How far a list of octets may reach: four with all 256 values each.
const OCTETS_LEN_MAX: usize = 4 * 4 * 256;

/// The words of one line of a file; `#` begins a comment.
pub fn words_of(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line.split('#').next().unwrap_or_default();
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_separator);
        if rest.is_empty() {
            return None;
        }
        let (word, after) = rest.split_at(word_len(rest));
        rest = after;
        Some(word)
    })
}

fn is_separator(letter: char) -> bool {
    letter == ',' || is_blank(letter)
}

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n')
}

/// Length of the first word of a text, which begins with one.
fn word_len(text: &str) -> usize {
    let len = octets_len(text).unwrap_or_else(|| ports_len(text));
    range_len(text, len)
}

/// Length up to the next separator.
fn piece_len(text: &str) -> usize {
    text.find(is_separator).unwrap_or(text.len())
}

/// The next piece after a comma, and where it begins.
fn piece_after_comma(text: &str, at: usize) -> Option<(usize, &str)> {
    let rest = text.get(at..)?.strip_prefix(',')?;
    Some((at + 1, &rest[..piece_len(rest)]))
}

/// Length of nmap's octets at the start of a text: numbers, dashes and asterisks between three dots
/// and any commas. `None` if there are none.
fn octets_len(text: &str) -> Option<usize> {
    let is_octets = |piece: &str| {
        let is_part = |byte: u8| byte.is_ascii_digit() || b".-*".contains(&byte);
        !piece.is_empty() && piece != "-" && piece.bytes().all(is_part)
    };
    let dots = |piece: &str| piece.bytes().filter(|byte| *byte == b'.').count();
    let first = &text[..piece_len(text)];
    let (mut len, mut dot_count) = (first.len(), dots(first));
    if !is_octets(first) {
        return None;
    }
    while let Some((at, piece)) = piece_after_comma(text, len) {
        if !is_octets(piece) || dot_count + dots(piece) > 3 || len > OCTETS_LEN_MAX {
            break;
        }
        (len, dot_count) = (at + piece.len(), dot_count + dots(piece));
    }
    (dot_count == 3).then_some(len)
}

/// Length of the first piece; with the ports that follow it after commas if it ends in one.
fn ports_len(text: &str) -> usize {
    let mut len = piece_len(text);
    if super::split_pair(&text[..len]).is_none_or(|(_, port)| port.is_empty()) {
        return len;
    }
    while let Some((at, piece)) = piece_after_comma(text, len) {
        let number = piece.split('/').next().unwrap_or_default();
        let is_port = |byte: u8| byte.is_ascii_digit() || byte == b'-';
        if number.is_empty() || !number.bytes().all(is_port) {
            break;
        }
        len = at + piece.len();
    }
    len
}

/// Length of a word of this length with the end of its range, if a dash follows it.
fn range_len(text: &str, len: usize) -> usize {
    let is_start = |word: &str| word.contains(['.', ':']) && !word.contains('/');
    let after = &text[len..];
    let rest = after.trim_start_matches(is_blank);
    let dash = match text[..len].strip_suffix('-') {
        Some(start) if is_start(start) && rest.len() < after.len() => rest,
        _ if is_start(&text[..len]) && rest.len() < after.len() => match rest.strip_prefix('-') {
            Some(rest) => rest,
            None => return len,
        },
        _ => return len,
    };
    let end = dash.trim_start_matches(is_blank);
    match piece_len(end) {
        0 => len,
        end_len => text.len() - end.len() + end_len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&str> {
        words_of(line).collect()
    }

    #[test]
    fn commas_and_blanks_separate_words() {
        let line = "192.0.2.1, 192.0.2.0/24\thost.example,2001:db8::1 ,, # 192.0.2.9";
        let expected = ["192.0.2.1", "192.0.2.0/24", "host.example", "2001:db8::1"];
        assert_eq!(words(line), expected);
        assert_eq!(
            words("192.0.2.1 443 80/tcp"),
            ["192.0.2.1", "443", "80/tcp"]
        );
        assert!(words(" ,\r\n").is_empty());
    }

    #[test]
    fn octets_go_on_after_commas() {
        for word in [
            "198.18.4.1,2,7",
            "10.0,1.5.*",
            "10.0.0.1,3-5,9-",
            "1,2.3.4.5",
            "192.0.2.1,443",
        ] {
            assert_eq!(words(word), [word]);
        }
        assert_eq!(words("10.0.0.1,10.0.0.2"), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(words("10.0.0.1,2, 7"), ["10.0.0.1,2", "7"]);
        assert_eq!(words("10.0.0.1,2,x"), ["10.0.0.1,2", "x"]);
        assert_eq!(words("10.0.0.1-10.0.0.5,7"), ["10.0.0.1-10.0.0.5", "7"]);
        assert_eq!(words("10.0.0.0/24,7"), ["10.0.0.0/24", "7"]);
        assert_eq!(words("80,443"), ["80", "443"]);
    }

    #[test]
    fn ports_go_on_after_commas() {
        for word in ["host:80,443", "10.0.0.1:80,90-99/tcp", "[2001:db8::1]:1,2"] {
            assert_eq!(words(word), [word]);
        }
        let line = "10.0.0.1:80,10.0.0.2,host:http,::1";
        assert_eq!(words(line), ["10.0.0.1:80", "10.0.0.2", "host:http", "::1"]);
    }

    #[test]
    fn ranges_may_have_blanks_around_their_dash() {
        for word in [
            "1.2.3.4 - 1.2.3.6",
            "1.2.3.4 -1.2.3.6",
            "1.2.3.4- 1.2.3.6",
            "1.2.3.4\t- 6",
            "::1 - ::9",
        ] {
            assert_eq!(words(word), [word]);
        }
        assert_eq!(words("10.0.0.0/24 - 9"), ["10.0.0.0/24", "-", "9"]);
        assert_eq!(words("10.0.0.1 -"), ["10.0.0.1", "-"]);
        assert_eq!(words("10.0.0.1-,10.0.0.9"), ["10.0.0.1-", "10.0.0.9"]);
    }

    #[test]
    fn words_are_parts_of_the_line_in_order() {
        const PARTS: [&str; 14] = [
            "10.0.0.1", "7", ",", " ", "-", "*", ":", "80", "x", "::1", "[", "]", ".", "/24",
        ];
        let mut state = 0x7a5e_1157_u64;
        for _ in 0..20_000 {
            let mut line = String::new();
            for _ in 0..12 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                line += PARTS[(state >> 33) as usize % PARTS.len()];
            }
            // Nothing but separators lies between two words.
            let mut rest = line.as_str();
            for word in words_of(&line) {
                let at = rest.find(word).expect("a part of the line");
                assert!(rest[..at].chars().all(is_separator), "{line:?}");
                rest = &rest[at + word.len()..];
            }
            assert!(rest.chars().all(is_separator), "{line:?}");
        }
    }
}
