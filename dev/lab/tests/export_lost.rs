//! Exports that lose records end the command with a separate exit code.

use std::process::Command;

use crate::export::{Folder, LIMIT, flood, tcp_port, udp_port, wait_bound};
use lab::process::{Process, barewire};
use lab::{Finished, require, skip};

/// Runs `barewire flows` with this destination on a capture of 500 flows.
fn export_to(folder: &Folder, url: &str, options: &[&str]) -> Finished {
    let input = folder.0.join("input.pcap");
    if !input.exists() {
        std::fs::write(&input, flood(500)).unwrap();
    }
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--table-size", "64k", "--export", url]);
    command.args(options).arg(&input);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

/// A host that cannot exist. A label of 64 characters fits into no query (RFC 1035 §2.3.4), so that
/// the C library fails at once, whatever the resolver.
fn unknown_host() -> String {
    format!("{}.invalid", "x".repeat(64))
}

#[test]
fn lost_exports_have_their_own_exit_code() {
    let folder = Folder::new("lost");
    let (refused, unreachable) = (tcp_port(), udp_port());
    let unknown = unknown_host();
    for url in [
        format!("json:tcp://127.0.0.1:{refused}?wait=1s"),
        format!("ipfix:tcp://127.0.0.1:{refused}?wait=1s"),
        format!("ipfix:udp://127.0.0.1:{unreachable}?mtu=512"),
        format!("ipfix:tcp://{unknown}?wait=1s"),
        "csv:/dev/full?wait=1s".into(),
    ] {
        for options in [&["--plain"][..], &["--json"]] {
            let finished = export_to(&folder, &url, options);
            assert_eq!(finished.code(), Some(5), "{url}: {}", finished.stderr);
            let text = &finished.stderr;
            let error = format!("barewire: cannot export all records: {url}: ");
            assert!(text.contains(&error), "{url}: {text}");
            assert!(text.contains("\nhint: check the collector"), "{text}");
        }
    }
    // What a format cannot hold is not a loss, nor is a file.
    let kept = folder.0.join("kept.csv");
    let finished = export_to(&folder, &format!("csv:{}", kept.display()), &["--plain"]);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
}

/// The server's certificate is from an authority that the system does not know.
#[test]
fn a_collector_that_is_not_trusted_is_a_lost_export() {
    require!(skip::program("openssl", "openssl"));
    let folder = Folder::new("untrusted");
    let path = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (key, pem) = (path("key.pem"), path("cert.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj"]);
    command.args(["/CN=localhost", "-keyout", &key, "-out", &pem]);
    let made = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    made.checked().unwrap();
    let port = tcp_port();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-accept", &port.to_string()]);
    command.args(["-key", &key, "-cert", &pem]);
    let mut server = Process::spawn(&mut command).unwrap();
    wait_bound("tcp", port);
    let url = format!("ipfix:tls://localhost:{port}?wait=1s");
    let finished = export_to(&folder, &url, &["--plain"]);
    drop(server.kill());
    assert_eq!(finished.code(), Some(5), "{}", finished.stderr);
    let text = &finished.stderr;
    assert!(text.contains("its certificate is not trusted"), "{text}");
    assert!(!text.contains("OtherError"), "{text}");
}

/// A damaged capture takes precedence over the loss, which is in the account.
#[test]
fn a_damaged_input_takes_precedence_over_a_lost_export() {
    let folder = Folder::new("lost-damaged");
    let input = folder.0.join("input.pcap");
    let mut capture = flood(10);
    capture.truncate(capture.len() - 3);
    std::fs::write(&input, capture).unwrap();
    let finished = export_to(&folder, "csv:/dev/full?wait=1s", &["--plain"]);
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("not exported: write failed"));
}
