//! `cargo xtask picture`: makes the picture in README.md from the program. The live view runs on a
//! pseudo-terminal while the demo's traffic is replayed; its screen becomes SVG.

mod screen;
mod svg;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::pty::{Winsize, openpty};

use crate::demo::{PROBED, Running, Traffic, join, wait_attached};
use crate::netns::{Netns, sweep};
use crate::run::{cargo, need_root, no_more, root, take_option, target_dir, visibly};
use screen::Screen;

/// Path of the picture in README.md.
const PLACE: &str = "docs/pictures/flows.svg";

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (110, 32);

/// How long the program may take to end.
const LIMIT: Duration = Duration::from_secs(15);

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let given = take_option(&mut args, "--binary")?.map(PathBuf::from);
    let seconds = match take_option(&mut args, "--seconds")? {
        Some(text) => text
            .parse()
            .with_context(|| format!("not a number: {text}"))?,
        None => 8,
    };
    let out = match take_option(&mut args, "--out")? {
        Some(out) => PathBuf::from(out),
        None => root().join(PLACE),
    };
    no_more(&args)?;
    need_root("picture")?;
    let binary = match given {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            visibly(cargo().args(["build", "--release", "--package", "barewire-cli"]))?;
            target_dir()?.join("release/barewire")
        }
    };
    sweep()?;
    let (sender, probed) = (Netns::new()?, Netns::new()?);
    join(&sender, &probed, 2)?;
    let (mut view, mut terminal) = start(&probed, &binary)?;
    wait_attached(&mut view, &probed)?;
    let traffic = Traffic::demo(binary);
    let mut send = traffic.start(&sender)?;
    let screen = terminal.follow(Duration::from_secs(seconds))?;
    send.end()?;
    terminal.keys.write_all(b"q")?;
    terminal.rest();
    let status = view.wait(LIMIT)?;
    ensure!(status.success(), "barewire flows: {status}");
    ensure!(!screen.is_empty(), "the live view drew nothing");
    std::fs::write(&out, svg::of(&screen)).with_context(|| out.display().to_string())?;
    println!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}

/// The master side of the pseudo-terminal.
struct Terminal {
    screen: Screen,
    output: Receiver<Vec<u8>>,
    keys: File,
}

/// Starts the live view on its own terminal, which is also its controlling terminal: the program
/// reads the size from that one.
fn start(ns: &Netns, binary: &std::path::Path) -> Result<(Running, Terminal)> {
    let (columns, rows) = SIZE;
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).context("a pseudo-terminal")?;
    let mut command: Command = ns.command("setsid");
    command.args(["--ctty", "--wait"]).arg(binary);
    command.args(["flows", &format!("afxdp:{PROBED}"), "--decode", "all"]);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command.stdin(Stdio::from(pty.slave.try_clone()?));
    command.stdout(Stdio::from(pty.slave.try_clone()?));
    command.stderr(Stdio::from(pty.slave));
    let view = Running::spawn("barewire flows", &mut command)?;
    // From here on only the program has the other side open, so its end is noticed.
    drop(command);
    let keys = File::from(pty.master);
    let mut reader = keys.try_clone()?;
    let (bytes, output) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // An error is the end: no process has the other side open.
        while let Ok(len @ 1..) = reader.read(&mut buffer) {
            if bytes.send(buffer[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    let screen = Screen::new(columns.into(), rows.into());
    let terminal = Terminal {
        screen,
        output,
        keys,
    };
    Ok((view, terminal))
}

impl Terminal {
    /// Reads what is drawn for this long; returns the screen then.
    fn follow(&mut self, time: Duration) -> Result<Screen> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.screen.feed(&bytes),
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(self.screen.clone()),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("the live view ended early:\n{}", self.screen.text())
                }
            }
        }
    }

    /// Discards remaining output, so that the program can end.
    fn rest(&mut self) {
        let until = Instant::now() + LIMIT;
        while self
            .output
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .is_ok()
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readmes_picture_is_made_by_this_task() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.contains(PLACE));
        let picture = std::fs::read_to_string(root().join(PLACE)).unwrap();
        let mark = svg::MARK;
        assert!(
            picture.contains(mark),
            "{PLACE} is not made by `cargo xtask picture`"
        );
    }
}
