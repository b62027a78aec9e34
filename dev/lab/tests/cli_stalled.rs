//! Readers of standard output that stall or fail: `--duration` and the first signal end the run,
//! and the command reports what was not written.

use std::io::{PipeReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::export::{Folder, flood};
use lab::Finished;
use lab::process::{Process, Signal, barewire};
use nix::fcntl::{FcntlArg, fcntl};

const LIMIT: Duration = Duration::from_secs(60);

/// More than a one-page pipe and the queues before it hold, in any format.
const FLOWS: u32 = 50_000;

fn input(folder: &Folder) -> String {
    let path = folder.0.join("input.pcap");
    std::fs::write(&path, flood(FLOWS)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// All ways in which packets and flows are written to standard output.
fn ways(input: &str) -> [Vec<&str>; 6] {
    [
        vec!["capture", "-r", input],
        vec!["capture", "-r", input, "--json"],
        vec!["capture", "-r", input, "-w", "-"],
        vec!["flows", input, "--table-size", "64k", "--json"],
        vec!["flows", input, "--table-size", "64k", "--top", "50000"],
        vec!["flows", input, "--table-size", "64k", "--export", "csv:-"],
    ]
}

/// A command whose standard output is a one-page pipe.
struct Stalled {
    process: Process,
    reader: PipeReader,
}

impl Stalled {
    fn start(args: &[&str]) -> Stalled {
        let (reader, writer) = std::io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        // The lab reads the outputs of what it starts, so the pipe is passed as standard input.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" >&0 </dev/null"]);
        command.arg(barewire().unwrap()).args(args);
        command.stdin(Stdio::from(writer));
        let process = Process::spawn_with_stdin(&mut command).unwrap();
        Stalled { process, reader }
    }

    /// The command ends although nothing is read.
    fn end(mut self) -> Finished {
        let finished = self.process.wait(LIMIT).unwrap();
        drop(self.reader);
        finished
    }
}

fn check(args: &[&str], finished: &Finished) {
    let text = &finished.stderr;
    let code = if args.contains(&"--export") { 5 } else { 1 };
    assert_eq!(finished.code(), Some(code), "{args:?}: {text}");
    let words = ["was not written", "packets are lost", "flows were lost"];
    assert!(
        words.iter().any(|words| text.contains(words)),
        "{args:?}: {text}"
    );
}

#[test]
fn duration_ends_a_run_whose_reader_stalls() {
    let folder = Folder::new("stalled");
    let input = input(&folder);
    for mut args in ways(&input) {
        args.extend(["--duration", "1"]);
        check(&args, &Stalled::start(&args).end());
    }
}

#[test]
fn the_first_signal_ends_a_run_whose_reader_stalls() {
    let folder = Folder::new("stalled");
    let input = input(&folder);
    for args in ways(&input) {
        let mut stalled = Stalled::start(&args);
        // More than a page: packets or flows, not just a heading.
        stalled.reader.read_exact(&mut [0; 8192]).unwrap();
        stalled.process.signal(Signal::SIGINT).unwrap();
        check(&args, &stalled.end());
    }
}

/// A full disk behind standard output is an error; a reader that closes the pipe is not.
#[test]
fn standard_output_that_fails_ends_the_run_in_order() {
    let folder = Folder::new("failing");
    let input = input(&folder);
    for args in ways(&input) {
        let start = |redirect: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exec \"$0\" \"$@\" {redirect}")]);
            command.arg(barewire().unwrap()).args(&args);
            command.stdin(Stdio::null());
            command
        };
        let mut command = start(">/dev/full");
        let full = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let code = if args.contains(&"--export") { 5 } else { 1 };
        assert_eq!(full.code(), Some(code), "{args:?}: {}", full.stderr);
        assert!(full.stderr.contains("No space left"), "{}", full.stderr);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = start(">&0 </dev/null");
        command.stdin(Stdio::from(writer));
        let mut left = Process::spawn_with_stdin(&mut command).unwrap();
        let left = left.wait(LIMIT).unwrap();
        assert_eq!(left.code(), Some(0), "{args:?}: {}", left.stderr);
    }
}
