//! The live view on a terminal that is closed, resized, or used by another program for a while: on
//! a pseudo-terminal, and in tmux.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::export::Folder;
use lab::packet::pour;
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::pty::{Winsize, openpty};

/// Time limit of a test that might hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a condition.
fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The other side of a terminal. The program's output is read all the time.
pub struct Pty {
    master: File,
    printed: Arc<Mutex<String>>,
}

impl Pty {
    /// A terminal of 80 by 24, and streams for a program on it.
    pub fn open() -> (Pty, [Stdio; 3]) {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        // Other tests start programs at the same time.
        for end in [&pty.master, &pty.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        let stream = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let streams = [(); 3].map(|()| stream(&pty.slave));
        let pty = Pty {
            master: File::from(pty.master),
            printed: Arc::default(),
        };
        (pty, streams)
    }

    /// Reads until `text` arrives, after what was read before.
    pub fn wait_for(&mut self, text: &str) {
        let mut part = [0; 4096];
        let until = Instant::now() + LIMIT;
        loop {
            {
                let mut printed = self.printed.lock().unwrap();
                if let Some(at) = printed.find(text) {
                    printed.drain(..at + text.len());
                    return;
                }
            }
            let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            let left = until.saturating_duration_since(Instant::now());
            let _ = poll(&mut ready, left.as_millis() as u16);
            assert!(Instant::now() < until, "no {text:?}");
            let len = self.master.read(&mut part).unwrap_or(0);
            let mut printed = self.printed.lock().unwrap();
            assert_ne!(len, 0, "no {text:?} in {printed:?}");
            printed.push_str(&String::from_utf8_lossy(&part[..len]));
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }
}

/// The state of a process (proc_pid_stat(5)), `X` once there is none.
fn state_of(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.trim().chars().next().unwrap_or('X')
}

/// The one child of a process (proc_pid_children(5)).
fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap().trim().parse().unwrap()
}

fn csv_in(folder: &Folder) -> (PathBuf, String) {
    let path = folder.0.join("flows.csv");
    let export = format!("csv:{}", path.display());
    (path, export)
}

/// Lines of a CSV file after its header, and their packets.
fn packets_in(path: &PathBuf) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    let at = names.iter().position(|name| *name == "packets").unwrap();
    lines
        .map(|line| line.split(',').nth(at).unwrap().parse::<u64>().unwrap())
        .sum()
}

/// The terminal is not a controlling one, so that no signal reports its end: only reads and writes
/// do.
#[test]
fn a_closed_terminal_ends_the_view_in_order() {
    require!(skip::lab());
    for scheme in ["", "afxdp:"] {
        let pair = Veth::new().create().unwrap();
        let folder = Folder::new("gone");
        let (path, export) = csv_in(&folder);
        let port = format!("{scheme}{}", pair.right.ifname);
        let (mut pty, [stdin, stdout, _]) = Pty::open();
        let log = folder.0.join("log");
        let mut command = pair.right.ns.command(barewire().unwrap());
        command.args(["flows", &port, "--export", &export, "udp", "port", "9"]);
        command.stdin(stdin).stdout(stdout);
        command.stderr(File::create(&log).unwrap());
        command.env("TERM", "xterm-256color");
        let mut child = Reaped(command.spawn().unwrap());
        drop(command);
        pty.wait_for("destination");
        pour(&pair, 3, 300);
        pty.wait_for(&format!("{}:4000", pair.left.ipv4));
        drop(pty);
        let mut code = None;
        wait("it does not end", || {
            code = child.0.try_wait().unwrap();
            code.is_some()
        });
        let printed = std::fs::read_to_string(&log).unwrap();
        assert_eq!(code.unwrap().code(), Some(0), "{port}: {printed}");
        assert_eq!(packets_in(&path), 300, "{port}");
        assert!(printed.contains("300 in records"), "{port}: {printed}");
    }
}

/// Killed at the end of the test.
pub struct Reaped(pub std::process::Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell with job control on a controlling terminal.
#[test]
fn ctrl_z_restores_the_terminal_and_fg_redraws() {
    require!(skip::lab());
    require!(skip::program("bash", "bash"));
    let pair = Veth::new().create().unwrap();
    let (mut pty, [stdin, stdout, stderr]) = Pty::open();
    let mut command = pair.right.ns.command("setsid");
    command.args([
        "--ctty",
        "bash",
        "--norc",
        "--noprofile",
        "--noediting",
        "-i",
    ]);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command.env("TERM", "xterm-256color").env("PS1", "ready> ");
    sys::signal::with_default_actions(&mut command);
    let shell = Reaped(command.spawn().unwrap());
    drop(command);
    pty.wait_for("ready> ");
    let arguments = ["flows", &pair.right.ifname, "udp", "port", "9"];
    let line = format!(
        "{} {}\n",
        barewire().unwrap().display(),
        arguments.join(" ")
    );
    pty.press(&line);
    pty.wait_for("\u{1b}[?1049h");
    pty.wait_for("destination");
    let pid = child_of(shell.0.id());
    pour(&pair, 3, 300);
    pty.wait_for(&format!("{}:4000", pair.left.ipv4));
    for by_signal in [false, true] {
        match by_signal {
            false => pty.press("\u{1a}"),
            true => {
                let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
                nix::sys::signal::kill(pid, Signal::SIGTSTP).unwrap();
            }
        }
        pty.wait_for("\u{1b}[?1049l");
        pty.wait_for("Stopped");
        pty.wait_for("ready> ");
        assert_eq!(state_of(pid), 'T');
        // Echoed, since the terminal is no longer in raw mode.
        pty.press("echo $((6 * 7))\n");
        pty.wait_for("echo $((6 * 7))\r\n42\r\n");
        pty.wait_for("ready> ");
        pty.press("fg\n");
        pty.wait_for("\u{1b}[?1049h");
        // Everything is redrawn, although nothing has changed.
        pty.wait_for("barewire flows");
        pty.wait_for("destination");
        pty.wait_for(&format!("{}:4000", pair.left.ipv4));
    }
    // Stopped by SIGSTOP, so that the view could not restore the terminal.
    let id = nix::unistd::Pid::from_raw(pid.cast_signed());
    nix::sys::signal::kill(id, Signal::SIGSTOP).unwrap();
    pty.wait_for("ready> ");
    pty.press("fg\n");
    pty.wait_for("barewire flows");
    pty.wait_for("destination");
    pty.press("q");
    pty.wait_for("\u{1b}[?1049l");
    pty.wait_for("300 in records");
    pty.wait_for("ready> ");
    pty.press("echo code $?\n");
    pty.wait_for("\ncode 0");
}

/// A separate tmux server, ended with the test.
struct Tmux<'a> {
    pair: &'a Pair,
    socket: PathBuf,
}

impl Tmux<'_> {
    fn command(&self) -> Command {
        let mut command = self.pair.right.ns.command("tmux");
        command.args(["-f", "/dev/null", "-S"]).arg(&self.socket);
        command.env_remove("TMUX");
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let mut process = Process::spawn(self.command().args(args)).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        finished.checked().unwrap().stdout
    }

    /// The visible screen.
    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    fn wait_screen(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let until = Instant::now() + LIMIT;
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return;
            }
            assert!(Instant::now() < until, "{what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}

/// Returning to the same size may leave other content: tmux cuts off what does not fit.
#[test]
fn resizing_redraws_the_whole_screen() {
    require!(skip::lab());
    require!(skip::program("tmux", "tmux"));
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("tmux-size");
    let socket = folder.0.join("socket");
    let tmux = Tmux {
        pair: &pair,
        socket,
    };
    let program = format!(
        "exec {} flows {} udp port 9",
        barewire().unwrap().display(),
        pair.right.ifname
    );
    tmux.run(&["new-session", "-d", "-x", "100", "-y", "30", &program]);
    tmux.wait_screen("no picture", |screen| screen.contains("adds up"));
    pour(&pair, 3, 300);
    let source = format!("{}:4002", pair.left.ipv4);
    let is_whole = |screen: &str, width: usize| {
        let lines: Vec<&str> = screen.lines().collect();
        let clocks = lines
            .iter()
            .filter(|line| line.contains("barewire flows"))
            .count();
        let heads = lines
            .iter()
            .filter(|line| line.contains("destination"))
            .count();
        let title = lines
            .first()
            .is_some_and(|line| line.chars().count() + 1 >= width && line.contains(":0"));
        clocks == 1 && heads == 1 && title && screen.contains(&source) && screen.contains("adds up")
    };
    tmux.wait_screen("no picture", |screen| is_whole(screen, 100));
    // Pauses first: nothing changes any more, so nothing is redrawn by chance.
    tmux.run(&["send-keys", "Space"]);
    tmux.wait_screen("not paused", |screen| screen.contains("PAUSED"));
    for [width, height] in [[82, 20], [140, 44], [100, 30]] {
        let size = [width.to_string(), height.to_string()];
        tmux.run(&["resize-window", "-x", &size[0], "-y", &size[1]]);
        tmux.wait_screen("stale", |screen| is_whole(screen, width));
    }
    // Resized and back at once.
    tmux.run(&[
        "resize-window",
        "-x",
        "30",
        "-y",
        "8",
        ";",
        "resize-window",
        "-x",
        "100",
        "-y",
        "30",
    ]);
    tmux.wait_screen("stale", |screen| is_whole(screen, 100));
}

/// The golden screen of 80 by 24 as visible: the parts that do not change between runs.
#[test]
fn the_screen_of_80_by_24_is_as_drawn() {
    require!(skip::lab());
    require!(skip::program("tmux", "tmux"));
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("tmux-golden");
    let socket = folder.0.join("socket");
    let tmux = Tmux {
        pair: &pair,
        socket,
    };
    let program = format!(
        "exec {} flows {} udp port 9",
        barewire().unwrap().display(),
        pair.right.ifname
    );
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &program]);
    tmux.wait_screen("no picture", |screen| screen.contains("adds up"));
    pour(&pair, 3, 300);
    let source = format!("{}:4002", pair.left.ipv4);
    tmux.wait_screen("no flows", |screen| screen.contains(&source));
    tmux.run(&["send-keys", "Down"]);
    tmux.run(&["send-keys", "Space"]);
    tmux.wait_screen("not paused", |screen| screen.contains("PAUSED"));
    let screen = tmux.screen();
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines.len(), 24, "{screen}");
    let starts = format!(" barewire flows {} ", pair.right.ifname);
    assert!(lines[0].starts_with(&starts), "{screen}");
    assert!(
        lines[1].contains("pps") && lines[1].contains("none lost"),
        "{screen}"
    );
    assert!(lines[2].starts_with(" 3 flows live, "), "{screen}");
    assert!(
        lines[3].contains("bit/s│") && lines[4].contains("peak "),
        "{screen}"
    );
    assert_eq!(
        lines[6],
        "proto  source                destination           bit/s▾ → ← bit/s  bytes  time",
        "{screen}"
    );
    let mut flows: Vec<String> = lines[7..10]
        .iter()
        .map(|line| line[..50].to_owned())
        .collect();
    flows.sort();
    for (number, flow) in flows.iter().enumerate() {
        let source = format!("{}:{}", pair.left.ipv4, 4000 + number);
        let destination = format!("{}:9", pair.right.ipv4);
        assert_eq!(
            *flow,
            format!("udp    {source:21} {destination:21}"),
            "{screen}"
        );
    }
    // The host's own packets may be among those seen, and are filtered.
    assert!(lines[22].starts_with(" account: "), "{screen}");
    assert!(
        lines[22].contains(" seen, 0 lost, adds up, 300 delivered, 0 to host, "),
        "{screen}"
    );
    assert_eq!(
        lines[23], " PAUSED ? help q quit 1 flows  2 apps  3 talkers  4 losses  5 networks",
        "{screen}"
    );
}

/// Packets arrive until the flow is shown; then it ends, stays a while in grey, and is removed.
#[test]
fn ended_flows_turn_grey_and_disappear() {
    require!(skip::lab());
    require!(skip::program("tmux", "tmux"));
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("tmux-grey");
    let socket = folder.0.join("socket");
    let tmux = Tmux {
        pair: &pair,
        socket,
    };
    let program = format!(
        "unset NO_COLOR; exec {} flows {} --idle-timeout 3s udp port 9",
        barewire().unwrap().display(),
        pair.right.ifname
    );
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &program]);
    tmux.wait_screen("no picture", |screen| screen.contains("adds up"));
    let source = format!("{}:4000", pair.left.ipv4);
    wait("it is not shown", || {
        pour(&pair, 1, 10);
        tmux.screen().contains(&source)
    });
    let is_grey = |screen: String| {
        let line = screen.lines().find(|line| line.contains(&source));
        line.map(|line| line.contains("\u{1b}[90m") || line.contains("38;5;8m"))
    };
    wait("it does not turn grey", || {
        is_grey(tmux.run(&["capture-pane", "-p", "-e"])) == Some(true)
    });
    wait("it does not go", || {
        is_grey(tmux.run(&["capture-pane", "-p", "-e"])).is_none()
    });
}

/// With tmux the view loses its terminal and gets `SIGHUP`, both at once.
#[test]
fn the_view_ends_in_order_when_tmux_is_killed() {
    require!(skip::lab());
    require!(skip::program("tmux", "tmux"));
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("tmux-killed");
    let socket = folder.0.join("socket");
    let (path, export) = csv_in(&folder);
    let tmux = Tmux {
        pair: &pair,
        socket,
    };
    let program = format!(
        "exec {} flows {} --export {export} udp port 9",
        barewire().unwrap().display(),
        pair.right.ifname
    );
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &program]);
    tmux.wait_screen("no picture", |screen| screen.contains("adds up"));
    pour(&pair, 3, 300);
    let source = format!("{}:4002", pair.left.ipv4);
    tmux.wait_screen("no flows", |screen| screen.contains(&source));
    let pid: u32 = tmux
        .run(&["display", "-p", "#{pane_pid}"])
        .trim()
        .parse()
        .unwrap();
    tmux.run(&["kill-server"]);
    wait("it does not end", || matches!(state_of(pid), 'X' | 'Z'));
    assert_eq!(packets_in(&path), 300);
}
