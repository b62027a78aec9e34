//! Completion scripts. The generator knows flags and their values; interface names differ between
//! machines, so the scripts look them up when a key is pressed.

use std::collections::BTreeSet;

use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

/// Arguments that take an interface: the command's words, and the argument's identifier.
const INTERFACES: &[(&[&str], &str)] = &[
    (&["capture"], "words"),
    (&["capture"], "interface"),
    (&["devices"], "interface"),
    (&["flows"], "port"),
    (&["forward"], "from"),
    (&["forward"], "to"),
    (&["guard"], "interface"),
    (&["nic", "bind"], "card"),
    (&["scan"], "interface"),
    (&["send"], "names"),
];

/// For bash: the generator's function first, then the interfaces of /sys/class/net. A colon
/// separates words in bash, so `afxdp:et` arrives as `et`.
const BASH: &str = r#"
_barewire_interfaces() {
    _barewire "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" interfaces=()
    case "${COMP_WORDS[1]}" in
        @COMMANDS@) ;;
        *) return 0 ;;
    esac
    if [[ "${COMP_WORDS[1]}" == nic && "${COMP_WORDS[2]}" != bind ]]; then return 0; fi
    if [[ "${cur}" == -* || ${COMP_CWORD} -lt 2 ]]; then return 0; fi
    case "${prev}" in
        @TAKERS@) return 0 ;;
    esac
    if [[ "${cur}" == : ]]; then cur=""; fi
    local path
    for path in /sys/class/net/*; do
        if [[ -d "${path}" ]]; then interfaces+=("${path##*/}"); fi
    done
    COMPREPLY+=( $(compgen -W "${interfaces[*]}" -- "${cur}") $(compgen -f -- "${cur}") )
    compopt -o filenames 2>/dev/null
}
complete -F _barewire_interfaces -o bashdefault -o default barewire
"#;

/// For zsh: what the generator completes as host names are interfaces or files.
const ZSH: &str = r#"
(( $+functions[_barewire_interfaces] )) ||
_barewire_interfaces() {
    _alternative 'interfaces:interface:_net_interfaces' 'files:file:_files'
}
"#;

/// For fish: the generator omits positional arguments.
const FISH: &str = r#"
complete -c barewire -n "__fish_seen_subcommand_from @COMMANDS@" -a "(__fish_print_interfaces)"
"#;

/// The completion script of a shell.
pub fn script(shell: Shell, command: &Command) -> String {
    let mut command = command.clone();
    for (words, id) in INTERFACES {
        command = hinted(command, words, id);
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "barewire", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let commands: BTreeSet<&str> = INTERFACES.iter().map(|(words, _)| words[0]).collect();
    let commands: Vec<&str> = commands.into_iter().collect();
    match shell {
        Shell::Bash => {
            let own = BASH.replace("@COMMANDS@", &commands.join("|"));
            script + &own.replace("@TAKERS@", &takers(&command).join("|"))
        }
        Shell::Zsh => {
            // Above the first function, below the `#compdef` line and the one that loads colours.
            let script = script.replace("_hosts", "_barewire_interfaces");
            match script.split_once("\n_barewire() {") {
                Some((head, rest)) => format!("{head}{ZSH}\n_barewire() {{{rest}"),
                None => script,
            }
        }
        Shell::Fish => {
            let script = script.replace("__fish_print_hostnames", "__fish_print_interfaces");
            // Unquoted it starts a comment (clap_complete 4 does not handle that).
            let script = script.replace(" -s # ", " -s '#' ");
            script + &FISH.replace("@COMMANDS@", &commands.join(" "))
        }
        _ => script,
    }
}

/// Gives an argument a value hint that no other argument has, because the generator has none for
/// interfaces.
fn hinted(command: Command, words: &[&str], id: &str) -> Command {
    match words.split_first() {
        // `mut_arg` would move the argument behind the others, and reorder positional ones.
        None => command.mut_args(|arg| match arg.get_id() == id {
            true => arg.value_hint(ValueHint::Hostname),
            false => arg,
        }),
        Some((first, rest)) => command.mut_subcommand(first, |command| hinted(command, rest, id)),
    }
}

/// Flags followed by a value that is not an interface.
fn takers(command: &Command) -> Vec<String> {
    let mut all = BTreeSet::new();
    let below = command
        .get_subcommands()
        .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
    for arg in below
        .flat_map(Command::get_arguments)
        .filter(|arg| takes_other(arg))
    {
        all.extend(arg.get_long().map(|long| format!("--{long}")));
        all.extend(arg.get_short().map(|short| format!("-{short}")));
    }
    all.into_iter().collect()
}

fn takes_other(arg: &Arg) -> bool {
    let takes = arg.get_action().takes_values() && !arg.is_positional();
    takes && !arg.is_require_equals_set() && arg.get_value_hint() != ValueHint::Hostname
}

#[cfg(test)]
mod tests {
    use std::process::Command as Program;

    use clap::CommandFactory;

    use super::*;

    /// Completions that bash offers for these words, of which the last is incomplete.
    fn offered(words: &[&str]) -> Option<Vec<String>> {
        let script = script(Shell::Bash, &crate::Cli::command());
        let last = words.len() - 1;
        let ask = "COMP_CWORD=$1; shift; COMP_WORDS=(\"$@\"); \
                   _barewire_interfaces barewire \"${COMP_WORDS[COMP_CWORD]}\" \
                   \"${COMP_WORDS[COMP_CWORD-1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = Program::new("bash");
        bash.args(["--norc", "-c", &format!("{script}\n{ask}"), "bash"]);
        let output = bash.arg(last.to_string()).args(words).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(text.lines().map(str::to_owned).collect())
    }

    #[test]
    fn bash_completes_interfaces_for_ports() {
        if offered(&["barewire", "capture", "l"]).is_none() {
            skip::skip!("needs bash");
        }
        let ask = |words: &[&str]| offered(words).unwrap();
        for words in [
            &["barewire", "capture", "l"][..],
            &["barewire", "capture", "-i", "l"],
            &["barewire", "capture", "-n", "lo"],
            &["barewire", "devices", ""],
            &["barewire", "flows", "--json", "afxdp", ":", "l"],
            &["barewire", "flows", "afxdp", ":"],
            &["barewire", "forward", "eth0", "l"],
            &["barewire", "nic", "bind", "vfio", "l"],
            &["barewire", "send", "x.pcap", "l"],
        ] {
            let all = ask(words);
            assert!(all.iter().any(|word| word == "lo"), "{words:?}: {all:?}");
        }
        for words in [
            &["barewire", "l"][..],
            &["barewire", "capture", "-c", "l"],
            &["barewire", "capture", "--l"],
            &["barewire", "flows", "--sort", "l"],
            &["barewire", "nic", "l"],
            &["barewire", "doctor", "l"],
        ] {
            let all = ask(words);
            assert!(!all.iter().any(|word| word == "lo"), "{words:?}: {all:?}");
        }
        let flags = ask(&["barewire", "flows", "--dec"]);
        assert!(flags.iter().any(|word| word == "--decode"), "{flags:?}");
    }

    #[test]
    fn every_argument_in_the_completion_table_exists() {
        for (words, id) in INTERFACES {
            let command = crate::Cli::command();
            let found = words.iter().fold(&command, |command, word| {
                command.find_subcommand(word).expect(word)
            });
            assert!(
                found.get_arguments().any(|arg| arg.get_id() == id),
                "{words:?} {id}"
            );
        }
    }

    #[test]
    fn zsh_and_fish_complete_interfaces() {
        let of = |shell| script(shell, &crate::Cli::command());
        let (zsh, fish) = (of(Shell::Zsh), of(Shell::Fish));
        assert!(zsh.starts_with("#compdef barewire"), "{}", &zsh[..200]);
        assert!(zsh.contains(":_barewire_interfaces'"));
        assert!(zsh.contains("_net_interfaces") && !zsh.contains("_hosts"));
        assert!(fish.contains("from capture devices flows forward guard nic scan send"));
        assert!(!fish.contains("hostnames"));
    }
}
