//! Man pages (man(7), groff_man(7)).

use clap::Command;

/// SEE ALSO by command. A command that is not listed refers only to its relatives.
const SEE_ALSO: &[(&str, &[&str])] = &[
    ("barewire", &["tcpdump(8)", "ethtool(8)", "ip-link(8)"]),
    (
        "barewire-capture",
        &["tcpdump(8)", "pcap-filter(7)", "tshark(1)"],
    ),
    ("barewire-cluster", &["ip-link(8)"]),
    ("barewire-cluster-drain", &["systemctl(1)"]),
    (
        "barewire-cluster-run",
        &["pcap-filter(7)", "packet(7)", "systemd.service(5)"],
    ),
    ("barewire-cluster-show", &["ss(8)"]),
    ("barewire-cluster-top", &["top(1)"]),
    ("barewire-completions", &["bash(1)"]),
    ("barewire-devices", &["ethtool(8)", "ip-link(8)"]),
    ("barewire-doctor", &["capabilities(7)", "sysctl(8)"]),
    ("barewire-filter", &["pcap-filter(7)", "tcpdump(8)"]),
    (
        "barewire-filter-compile",
        &["pcap-filter(7)", "iptables-extensions(8)", "bpf(2)"],
    ),
    ("barewire-filter-derive", &["pcap-filter(7)", "p0f(1)"]),
    ("barewire-filter-explain", &["pcap-filter(7)", "tcpdump(8)"]),
    ("barewire-filter-p0f", &["p0f(1)"]),
    ("barewire-filter-test", &["pcap-filter(7)", "tcpdump(8)"]),
    (
        "barewire-flows",
        &["pcap-filter(7)", "nfdump(1)", "systemd.service(5)"],
    ),
    ("barewire-flows-query", &["duckdb(1)"]),
    ("barewire-forward", &["pcap-filter(7)", "bridge(8)"]),
    (
        "barewire-guard",
        &["pcap-filter(7)", "iptables(8)", "nft(8)", "ip-link(8)"],
    ),
    ("barewire-guard-check", &["pcap-filter(7)"]),
    ("barewire-man", &["man(1)"]),
    ("barewire-nic", &["lspci(8)"]),
    (
        "barewire-nic-bind",
        &["driverctl(8)", "lspci(8)", "modprobe(8)"],
    ),
    ("barewire-nic-isolate", &["ethtool(8)"]),
    ("barewire-nic-list", &["lspci(8)"]),
    ("barewire-scan", &["masscan(8)", "nmap(1)", "zmap(1)"]),
    ("barewire-scan-merge", &["ndiff(1)"]),
    ("barewire-send", &["tcpreplay(1)", "trafgen(8)"]),
];

/// The file name and text of every page: of the command and of all nested commands that are not
/// hidden.
pub fn pages(command: Command) -> Vec<(String, String)> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, None, &mut pages);
    pages
}

fn add(command: &Command, parent: Option<&str>, pages: &mut Vec<(String, String)>) {
    let name = title(command);
    pages.push((format!("{name}.1"), page(command.clone(), parent)));
    for below in shown(command) {
        add(below, Some(&name), pages);
    }
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The name of a page: `barewire-nic-bind`.
fn title(command: &Command) -> String {
    let name = command.get_display_name();
    name.unwrap_or_else(|| command.get_name()).to_owned()
}

/// A man page. Three sections are not the generator's: its synopsis lists every flag and omits
/// arguments, its text below the options joins lines, and it has no references.
fn page(mut command: Command, parent: Option<&str>) -> String {
    let name = title(&command);
    let mut page = Vec::new();
    // Writing to memory cannot fail.
    let _ = clap_mangen::Man::new(command.clone())
        .source(concat!("barewire ", env!("CARGO_PKG_VERSION")))
        .render(&mut page);
    let page = String::from_utf8_lossy(&page);
    let usage = command.render_usage().to_string();
    let mut out = String::new();
    for (at, section) in page.split(".SH ").enumerate() {
        let (heading, _) = section.split_once('\n').unwrap_or((section, ""));
        match heading {
            _ if at == 0 => out += section,
            "SYNOPSIS" => out += &synopsis(&usage),
            "EXTRA" => {
                let notes = command.get_after_long_help().or(command.get_after_help());
                out += &notes_of(&notes.map(ToString::to_string).unwrap_or_default());
            }
            _ => out = out + ".SH " + section,
        }
    }
    let mut others: Vec<String> = parent
        .map(|parent| format!("{parent}(1)"))
        .into_iter()
        .collect();
    others.extend(shown(&command).map(|below| format!("{}(1)", title(below))));
    let row = SEE_ALSO.iter().find(|(of, _)| *of == name);
    others.extend(
        row.iter()
            .flat_map(|(_, pages)| pages.iter().map(|p| (*p).to_owned())),
    );
    let references: Vec<String> = others.iter().filter_map(|page| reference(page)).collect();
    if !references.is_empty() {
        out = out + ".SH \"SEE ALSO\"\n" + &references.join(",\n") + "\n";
    }
    out
}

/// Formats `tcpdump(8)` with the name in bold.
fn reference(page: &str) -> Option<String> {
    let (name, section) = page.split_once('(')?;
    Some(format!("\\fB{}\\fR({section}", literal(name)))
}

/// The synopsis, from the usage in the help.
fn synopsis(usage: &str) -> String {
    let lines: Vec<String> = usage
        .trim_start_matches("Usage:")
        .lines()
        .map(|line| literal(line.trim()))
        .collect();
    format!(".SH SYNOPSIS\n{}\n", lines.join("\n.br\n"))
}

/// The help text below the options: paragraphs, indented lines unchanged, and the examples under
/// their own heading.
fn notes_of(text: &str) -> String {
    let (mut out, mut has_heading, mut is_literal) = (String::new(), false, false);
    for line in text.lines() {
        let is_heading = line == "Examples:";
        let is_indented = line.starts_with("  ");
        if is_literal && !is_indented {
            out += ".fi\n.RE\n";
        }
        if is_heading {
            out += ".SH EXAMPLES\n";
        } else if !has_heading {
            out += ".SH NOTES\n";
        }
        has_heading = true;
        if is_indented && !is_literal {
            out += ".RS 4\n.nf\n";
        }
        is_literal = is_indented;
        if line.trim().is_empty() {
            out += ".PP\n";
        } else if !is_heading {
            out = out + &literal(line.strip_prefix("  ").unwrap_or(line)) + "\n";
        }
    }
    if is_literal {
        out += ".fi\n.RE\n";
    }
    out
}

/// Escapes text so that roff takes nothing for a request or an escape.
fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn named(name: &str) -> String {
        let pages = pages(crate::Cli::command());
        let found = pages.iter().find(|(file, _)| file == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    #[test]
    fn synopses_list_the_required_arguments() {
        for (name, usage) in [
            ("capture", "barewire capture [OPTIONS] PORT... [FILTER]..."),
            ("flows", "barewire flows [OPTIONS] PORT... [FILTER]..."),
            ("man", "barewire man <FOLDER>"),
        ] {
            let page = named(&format!("barewire-{name}.1"));
            let (_, synopsis) = page.split_once(".SH SYNOPSIS\n").unwrap();
            assert_eq!(synopsis.lines().next(), Some(usage), "{page}");
        }
    }

    #[test]
    fn every_command_has_a_page_with_see_also() {
        let pages = pages(crate::Cli::command());
        for (file, text) in &pages {
            let name = file.trim_end_matches(".1");
            assert!(SEE_ALSO.iter().any(|(of, _)| *of == name), "{name}");
            let (_, others) = text.split_once(".SH \"SEE ALSO\"\n").expect(name);
            let own = others.lines().filter(|line| line.contains("barewire"));
            for line in own {
                let page = line.replace("\\fB", "").replace("\\-", "-");
                let page = page.split("\\fR").next().unwrap();
                let file = format!("{page}.1");
                assert!(
                    pages.iter().any(|(name, _)| *name == file),
                    "{name}: {page}"
                );
            }
        }
        for (name, _) in SEE_ALSO {
            let file = format!("{name}.1");
            assert!(pages.iter().any(|(name, _)| *name == file), "{name}");
        }
        assert!(!pages.iter().any(|(name, _)| name.contains("nic-guard")));
    }

    #[test]
    fn examples_keep_their_lines() {
        let page = named("barewire-nic-bind.1");
        let (_, examples) = page.split_once(".SH EXAMPLES\n.RS 4\n.nf\n").expect(&page);
        assert!(examples.starts_with("barewire nic list\nbarewire nic bind vfio"));
        assert!(examples.contains("\n.fi\n.RE\n.SH "));
        let odd = notes_of("One.\n.two\n\nExamples:\n  a\\b -c");
        let expected =
            ".SH NOTES\nOne.\n\\&.two\n.PP\n.SH EXAMPLES\n.RS 4\n.nf\na\\eb \\-c\n.fi\n.RE\n";
        assert_eq!(odd, expected);
    }
}
