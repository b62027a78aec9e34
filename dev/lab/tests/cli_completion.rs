//! Completion scripts, run by their shells. bash is tested with the package.

use std::process::Command;
use std::time::Duration;

use crate::export::Folder;
use crate::flow_terminal::{Pty, Reaped};
use lab::process::{Process, barewire};
use lab::{require, skip};

const LIMIT: Duration = Duration::from_secs(30);

/// Writes the script of a shell to a file of this name.
fn script(folder: &Folder, shell: &str, name: &str) -> String {
    let mut command = Command::new(barewire().unwrap());
    command.args(["completions", shell]);
    let done = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let path = folder.0.join(name);
    std::fs::write(&path, done.checked().unwrap().stdout).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn fish_completes_commands_flags_and_interfaces() {
    require!(skip::program("fish", "fish"));
    let folder = Folder::new("fish");
    let script = script(&folder, "fish", "barewire.fish");
    let complete = |line: &str| {
        let mut command = Command::new("fish");
        command.env("HOME", &folder.0);
        let run = format!("source {script}; complete -C {line:?}");
        let mut done = Process::spawn(command.args(["-c", &run])).unwrap();
        let done = done.wait(LIMIT).unwrap();
        // fish prints an error for a line that it does not understand.
        assert_eq!(done.stderr, "", "{line}");
        done.stdout
    };
    for (line, expected) in [
        ("barewire cap", "capture\tCapture packets"),
        ("barewire capture l", "lo\n"),
        ("barewire capture --numb", "--number\t"),
        ("barewire flows --dec", "--decode\t"),
        ("barewire nic bi", "bind\t"),
    ] {
        let found = complete(line);
        assert!(found.contains(expected), "{line}: {found}");
    }
}

#[test]
fn zsh_completes_commands_flags_and_interfaces() {
    require!(skip::program("zsh", "zsh"));
    let folder = Folder::new("zsh");
    script(&folder, "zsh", "_barewire");
    let (mut pty, [stdin, stdout, stderr]) = Pty::open();
    let mut command = Command::new("setsid");
    command.args(["--ctty", "zsh", "-f", "-i"]);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command.env("TERM", "dumb").env("HOME", &folder.0);
    let _shell = Reaped(command.spawn().unwrap());
    drop(command);
    let path = folder.0.display();
    pty.press(&format!(
        "unsetopt zle; fpath=({path} $fpath); autoload -Uz compinit; compinit -u -D; \
         PS1='rea''dy> '\n"
    ));
    pty.wait_for("ready> ");
    pty.press("setopt zle; unsetopt zle_bracketed_paste; echo li''ne\n");
    pty.wait_for("line");
    for (line, expected) in [
        ("barewire cap\t", "barewire capture "),
        ("barewire capture l\t", "capture lo"),
        ("barewire flows --deco\t", "flows --decode"),
        ("barewire nic bi\t", "nic bind"),
    ] {
        pty.wait_for("ready> ");
        pty.press(line);
        pty.wait_for(expected);
        // Clears the line.
        pty.press("\u{15}\n");
    }
}
