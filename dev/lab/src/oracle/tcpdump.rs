//! tcpdump: which packets an expression matches, and a capture of an interface.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::checked;
use crate::netns::Netns;
use crate::process::{Finished, Process, Signal};

/// How long tcpdump may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(20);

/// The lines that `tcpdump -r FILE EXPRESSION` prints, without name resolution, one per packet
/// (shorter with `-t` and `-q` in `options`).
///
/// # Errors
/// If the expression is refused or the file is not a capture.
pub fn lines(file: &Path, options: &[&str], expression: &str) -> Result<Vec<String>> {
    let mut command = Command::new("tcpdump");
    // Privileges are kept, so that it can read a file in a directory of root.
    command
        .args(["-n", "-Z", "root", "-r"])
        .arg(file)
        .args(options)
        .arg(expression);
    Ok(checked(&mut command, file)?
        .lines()
        .map(str::to_owned)
        .collect())
}

/// A capture that runs until [`Capture::stop`].
#[derive(Debug)]
pub struct Capture {
    process: Process,
}

impl Capture {
    /// Starts `tcpdump -i IFNAME -w FILE` in a namespace and waits until it listens. Packets are
    /// written immediately, in full length, with nanosecond timestamps and without promiscuous
    /// mode.
    ///
    /// # Errors
    /// If tcpdump does not start.
    pub fn start(ns: &Netns, ifname: &str, file: &Path, expression: &str) -> Result<Capture> {
        let nanoseconds = "--time-stamp-precision=nano";
        let args = [
            "-i",
            ifname,
            "-p",
            "-U",
            "-n",
            "-B",
            "65536",
            "-Z",
            "root",
            nanoseconds,
            "-w",
        ];
        let args = args.map(OsStr::new).into_iter();
        let process = ns.spawn(
            "tcpdump",
            args.chain([file.as_os_str(), OsStr::new(expression)]),
        )?;
        process.wait_stderr("listening on", LIMIT)?;
        Ok(Capture { process })
    }

    /// Stops the capture. tcpdump's own counts are on standard error of the result.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn stop(mut self) -> Result<Finished> {
        self.process.stop(Signal::SIGINT, LIMIT)?.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{TempFile, tshark};
    use crate::packet::{Raw, Udp};
    use crate::{Veth, skip};

    #[test]
    fn a_capture_holds_what_was_sent() {
        crate::require!(
            skip::lab(),
            skip::program("tcpdump", "tcpdump"),
            skip::program("tshark", "tshark")
        );
        let pair = Veth::new().create().unwrap();
        let file = TempFile::new(".pcap");
        let end = &pair.right;
        let capture = Capture::start(&end.ns, &end.ifname, file.path(), "udp port 9").unwrap();
        let sender = pair
            .left
            .ns
            .run(|| Raw::sender(&pair.left.ifname))
            .unwrap()
            .unwrap();
        let plan = Udp::between(&pair.left, &pair.right).flows(2);
        for number in 0..10 {
            sender
                .send(&plan.build(number, 60 + number as usize))
                .unwrap();
        }
        // tcpdump reads its ring when a block is full or a timer expires, and drops what is in the
        // ring at SIGINT: wait until the file has everything.
        let whole = 24 + (0..10).map(|number| 16 + 60 + number).sum::<u64>();
        for _ in 0..1000 {
            if file.path().metadata().unwrap().len() == whole {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let account = capture.stop().unwrap().stderr;
        assert!(account.contains("10 packets captured"), "{account}");
        let rows = tshark::fields(file.path(), &["frame.len", "udp.srcport"], &[]).unwrap();
        let expected = (0..10).map(|n| vec![(60 + n).to_string(), (4000 + n % 2).to_string()]);
        assert_eq!(rows, expected.collect::<Vec<_>>());
        let matched = lines(file.path(), &["-t"], "udp src port 4001").unwrap();
        assert_eq!(matched.len(), 5);
        assert!(
            matched[0].starts_with("IP 10.77.0.1.4001 > 10.77.0.2.9: UDP"),
            "{matched:?}"
        );
    }
}
