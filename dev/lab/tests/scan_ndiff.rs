//! nmap's ndiff on two different scans with banners.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::export::Folder;
use lab::process::barewire;
use lab::{Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(120);

/// The scan that is running: servers change with it.
static SCAN: AtomicU32 = AtomicU32::new(1);

/// Serves connections to a port of the right end until the test process ends.
fn serve(pair: &Pair, port: u16, reply: fn(&mut TcpStream, u32)) {
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            reply(&mut stream, SCAN.load(Ordering::Relaxed));
        }
    });
}

/// A greeting that stays, or becomes another version.
fn ssh(stream: &mut TcpStream, scan: u32) {
    let _ = stream.write_all(format!("SSH-2.0-OpenSSH_9.{scan}\r\n").as_bytes());
    let _ = stream.read_to_end(&mut Vec::new());
}

fn same(stream: &mut TcpStream, _: u32) {
    let _ = stream.write_all(b"220 mail.example \"ESMTP\" <ready> & waiting\r\n");
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Only a header that no line shows differs.
fn http(stream: &mut TcpStream, scan: u32) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let page = "<title>Same & so</title>";
    let head = format!("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: {scan}\r\nContent-Length: ");
    let _ = stream.write_all(format!("{head}{}\r\n\r\n{page}", page.len()).as_bytes());
}

/// Bytes that are no text, nor of a known protocol.
fn binary(stream: &mut TcpStream, scan: u32) {
    let _ = stream.write_all(&[0, scan as u8, 0xff, b'<', b'\\', 0x80]);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn scan(pair: &Pair, path: &str) {
    let target = pair.right.ipv4.to_string();
    let args = [
        "scan",
        &target,
        "-p",
        "21-25",
        "--banners",
        "--wait",
        "2",
        "-oX",
        path,
    ];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
}

fn ndiff(args: &[&str]) -> (Output, String) {
    let output = Command::new("ndiff").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn ndiff_reports_what_changed_between_two_scans() {
    require!(skip::lab());
    require!(skip::program("ndiff", "ndiff"));
    let (pair, folder) = (Veth::new().create().unwrap(), Folder::new("ndiff"));
    serve(&pair, 21, same);
    serve(&pair, 22, ssh);
    serve(&pair, 23, http);
    serve(&pair, 24, binary);
    let [first, again, second] =
        ["first.xml", "again.xml", "second.xml"].map(|name| folder.file(name));
    scan(&pair, &first);
    scan(&pair, &again);
    SCAN.store(2, Ordering::Relaxed);
    // A port that was closed.
    serve(&pair, 25, same);
    scan(&pair, &second);
    for more in [&[][..], &["-v"], &["--xml"], &["-v", "--xml"]] {
        for (other, code) in [(&first, 0), (&again, 0), (&second, 1)] {
            let (output, text) = ndiff(&[more, &[&first, other]].concat());
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.is_empty(), "{more:?} {other}: {error}");
            // With -v ndiff prints what is the same, too, and its exit code is 1 then.
            let is_verbose = more.contains(&"-v") && code == 0;
            let is_same = output.status.code() == Some(code) || is_verbose;
            // The start of a scan is another one; answers arrive in any order.
            assert!(
                is_same || (other == &again && output.status.code() == Some(1)),
                "{more:?} {other}: {:?}\n{text}",
                output.status
            );
        }
    }
    let (_, text) = ndiff(&[&first, &second]);
    for part in ["SSH-2.0-OpenSSH_9.1", "SSH-2.0-OpenSSH_9.2"] {
        assert!(text.contains(part), "{text}");
    }
    // Its parser, and the structure of a script's result.
    let check = "
import sys, xml.etree.ElementTree as xml
scripts = {}
for port in xml.parse(sys.argv[1]).getroot().iter('port'):
    for script in port.findall('script'):
        service = port.find('service')
        assert service.get('extrainfo') == script.get('output')
        scripts[port.get('portid')] = {e.get('key'): e.text for e in script.iter('elem')}
        assert script.get('id') == 'banner'
start = scripts['21']['start']
assert start == '220 mail.example \"ESMTP\" <ready> & waiting\\\\x0d\\\\x0a', scripts
assert scripts['22']['ssh_server'].endswith('OpenSSH_9.2'), scripts
assert scripts['23']['http_server'] == 'nginx', scripts
assert scripts['24']['start'] == '\\\\x00\\\\x02\\\\xff<\\\\\\\\\\\\x80', scripts
";
    let mut python = Command::new("python3");
    let output = python.args(["-c", check, &second]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}
