//! masscan's `--ping`: echo requests beside the probes of ports, if there are any.

use std::ffi::OsString;

/// The placeholder that [`complete`] replaces.
pub(super) const PING: &str = "--ping";

/// Replaces `--ping` by the probes that masscan sends with these arguments: echo requests, and SYNs
/// and UDP packets to the ports of `-p`.
pub(super) fn complete(arguments: &mut Vec<OsString>) {
    let count = arguments.len();
    arguments.retain(|word| word != PING);
    if arguments.len() == count {
        return;
    }
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let words: Vec<String> = arguments.iter().map(text).collect();
    let mut ports = None;
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).map_or("", String::as_str);
        let value = match word.as_str() {
            "-p" | "--ports" | "--top-ports" => Some(next),
            _ => ["--ports=", "--top-ports=", "-p"]
                .iter()
                .find_map(|name| word.strip_prefix(name)),
        };
        ports = value.map(str::to_owned).or(ports);
    }
    arguments.push("--probe=echo".into());
    let has_others = words.iter().any(|word| word.starts_with("--probe"));
    if let Some(ports) = ports.filter(|_| !has_others) {
        arguments.push("--probe=syn".into());
        if ports.contains("U:") {
            arguments.push("--probe=udp".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_requests_do_not_replace_the_probes_of_ports() {
        for (line, added) in [
            (&["--ping", "192.0.2.1"][..], &["--probe=echo"][..]),
            (&["--ping", "-p80"], &["--probe=echo", "--probe=syn"]),
            (&["-p", "80", "--ping"], &["--probe=echo", "--probe=syn"]),
            (
                &["--ping", "--ports=U:53"],
                &["--probe=echo", "--probe=syn", "--probe=udp"],
            ),
            (&["--ping", "-p80", "--probe=ack"], &["--probe=echo"]),
            (&["-p80"], &[]),
        ] {
            let mut words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let kept = words.iter().filter(|word| *word != PING).count();
            complete(&mut words);
            assert_eq!(words[kept..], *added, "{line:?}");
        }
    }
}
