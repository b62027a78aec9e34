//! `barewire scan --banners` against servers on the kernel's TCP, on a veth pair with default
//! offloads and without firewall rules.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::packet::Raw;
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip};
use serde_json::Value;
use wire::{Dissection, LinkType, dissect};

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 128 addresses of the right end.
const HOSTS: &str = "198.18.4.0/25";

fn network() -> Pair {
    let pair = Veth::new().offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn scan(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["scan", "--json", "--wait", "2", "--banners"], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

/// Parses banners and totals.
fn parsed(finished: Finished) -> (Vec<Value>, Value) {
    let stdout = finished.checked().unwrap().stdout;
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut lines: Vec<Value> = stdout.lines().map(parse).collect();
    let totals = lines.pop().expect("totals");
    assert_eq!(totals["type"], "totals");
    lines.retain(|line| line["type"] == "banner");
    (lines, totals)
}

/// Starts a server on all addresses of the right end; each connection is passed to `serve`.
fn serve(pair: &Pair, port: u16, serve: fn(TcpStream)) {
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    std::thread::spawn(move || {
        // Runs until the test process ends, as all connections do.
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Waits until something listens on a port of the right end.
fn wait_bound(pair: &Pair, port: u16) {
    let since = Instant::now();
    let row = format!(":{port:04X} ");
    let is_bound = || {
        let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let tables = ["tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
        tables.iter().any(|table| table.contains(&row))
    };
    while !pair.right.ns.run(is_bound).unwrap() {
        assert!(since.elapsed() < LIMIT, "nothing listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Greets as OpenSSH does, and waits for the client to close.
fn ssh(mut stream: TcpStream) {
    let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Reads a request, answers in pieces, and closes.
fn http(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        request.push(byte[0]);
    }
    assert!(request.starts_with(b"GET / HTTP/1.1\r\nHost: 198.18.4."));
    let body = format!("<title>front page</title>{}", "x".repeat(5_000));
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: test/1.0\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
}

/// Sends nothing.
fn silent(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Sends a letter every tenth of a second until the client closes.
fn tarpit(mut stream: TcpStream) {
    while stream.write_all(b"z").is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Counts the resets that arrive at the right end while `body` runs.
fn resets<T: Send>(pair: &Pair, body: impl FnOnce() -> T + Send) -> (T, usize) {
    let right = &pair.right;
    let raw = right.ns.run(|| Raw::open(&right.ifname)).unwrap().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut count = 0;
            loop {
                let is_over = over.load(Ordering::Acquire);
                match raw.receive(Duration::from_millis(50)).unwrap() {
                    Some(packet) => {
                        let mut found = Dissection::EMPTY;
                        dissect(LinkType::ETHERNET, &packet, packet.len() as u32, &mut found);
                        let is_reset = found.ip_protocol == 6 && found.tcp_flags & 4 != 0;
                        count += usize::from(is_reset);
                    }
                    None if is_over => return count,
                    None => {}
                }
            }
        });
        let result = body();
        over.store(true, Ordering::Release);
        (result, watcher.join().unwrap())
    })
}

#[test]
fn banners_are_read_from_every_service_without_resets_by_the_kernel() {
    require!(skip::lab());
    let pair = network();
    serve(&pair, 22, ssh);
    serve(&pair, 80, http);
    let args = [HOSTS, "-p", "22,80", "--rate", "5000"];
    let (finished, resets) = resets(&pair, || scan(&pair, &args).wait(LIMIT).unwrap());
    let (banners, totals) = parsed(finished);
    assert_eq!(banners.len(), 256, "{totals}");
    for banner in &banners {
        let found = &banner["application"];
        match banner["port"].as_u64() {
            Some(22) => {
                assert_eq!(found["protocol"], "ssh");
                assert_eq!(found["ssh_server"], "SSH-2.0-OpenSSH_9.2p1 Debian-2");
                assert_eq!(found["ssh_client"], Value::Null, "our own");
            }
            _ => {
                assert_eq!(found["http_status"], 200, "{banner}");
                assert_eq!(found["http_server"], "test/1.0");
                assert_eq!(banner["title"], "front page");
            }
        }
    }
    assert_eq!(
        (&totals["lost"], &totals["complete"]),
        (&0.into(), &true.into())
    );
    assert_eq!(
        (&totals["sent"], &totals["open"]),
        (&256.into(), &256.into())
    );
    assert_eq!(resets, 0, "connections are closed in order");
    assert_eq!(pair.left.xdp().unwrap(), None);
}

#[test]
fn certificates_of_an_openssl_server_are_read() {
    require!(skip::lab(), skip::program("openssl", "openssl"));
    let pair = network();
    let (key, cert) = (
        lab::oracle::TempFile::new("key"),
        lab::oracle::TempFile::new("pem"),
    );
    let (key, cert) = (key.path().to_str().unwrap(), cert.path().to_str().unwrap());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "30", "-subj", "/CN=banner.example"])
        .args(["-addext", "subjectAltName=DNS:banner.example,IP:198.18.4.1"])
        .args(["-keyout", key, "-out", cert])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    // It ends when its standard input is closed.
    let args = ["s_server", "-quiet", "-accept", "443", "-key", key];
    let mut command = pair.right.ns.command("openssl");
    let command = command
        .args(args)
        .args(["-cert", cert])
        .stdin(Stdio::piped());
    let mut server = Process::spawn_with_stdin(command).unwrap();
    wait_bound(&pair, 443);
    let pem = lab::oracle::TempFile::new("chain");
    let pem = pem.path().to_str().unwrap();
    let args = ["198.18.4.1-198.18.4.2", "-p", "443", "-oP", pem];
    let (banners, totals) = parsed(scan(&pair, &args).wait(LIMIT).unwrap());
    assert_eq!(banners.len(), 2, "{totals}");
    // Both services have the same certificate.
    let text = std::fs::read_to_string(pem).unwrap();
    assert_eq!(
        text.matches("-----BEGIN CERTIFICATE-----").count(),
        1,
        "{text}"
    );
    let print = |file: &str| {
        let args = ["x509", "-noout", "-fingerprint", "-sha256", "-in", file];
        let output = Command::new("openssl").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(print(pem), print(cert));
    let digits = print(pem)
        .trim()
        .rsplit('=')
        .next()
        .unwrap()
        .replace(':', "");
    assert!(
        text.contains(&format!("sha256:{}", digits.to_lowercase())),
        "{text}"
    );
    let found = &banners[0]["application"];
    assert_eq!(found["tls_subject"], "CN=banner.example", "{found}");
    assert_eq!(found["tls_issuer"], "CN=banner.example");
    assert_eq!(found["tls_version"], "1.3");
    assert_eq!(
        found["tls_san"],
        serde_json::json!(["banner.example", "198.18.4.1"])
    );
    server.kill().unwrap();
}

#[test]
fn connections_to_silent_services_and_tarpits_time_out() {
    require!(skip::lab());
    let pair = network();
    serve(&pair, 25, silent);
    serve(&pair, 21, tarpit);
    let args = ["198.18.4.0/28", "-p", "21,25", "--rate", "1000"];
    let args = [&args[..], &["--banner-timeout", "3"]].concat();
    let finished = scan(&pair, &args).wait(LIMIT).unwrap();
    // Those of connections that are still open are not unrelated.
    let is_status = |line: &&str| line.contains("\"type\":\"status\"");
    let last = finished.stdout.lines().rfind(is_status).unwrap();
    let status: Value = serde_json::from_str(last).unwrap();
    let of = |name: &str| status[name].as_u64().unwrap();
    assert!(of("unrelated") * 2 <= of("received"), "{status}");
    let (banners, totals) = parsed(finished);
    // After silence, a second connection speaks TLS.
    assert_eq!(totals["connections"], 48, "{totals}");
    assert_eq!(
        (&totals["banners"], &totals["silent"]),
        (&16.into(), &32.into())
    );
    for banner in &banners {
        assert_eq!(
            (&banner["port"], &banner["end"]),
            (&21.into(), &"timeout".into())
        );
        assert!(banner["start"].as_str().unwrap().starts_with('z'));
    }
}

#[test]
fn an_interrupted_scan_resets_its_connections() {
    require!(skip::lab());
    let pair = network();
    serve(&pair, 25, silent);
    let args = ["198.18.4.0/28", "-p", "25", "--rate", "1000"];
    let args = [&args[..], &["--banner-timeout", "60"]].concat();
    let (finished, resets) = resets(&pair, || {
        let mut process = scan(&pair, &args);
        process.wait_stderr("waiting", LIMIT).unwrap();
        process.stop(Signal::SIGINT, LIMIT).unwrap()
    });
    let (banners, totals) = parsed(finished);
    assert_eq!(
        (banners.len(), &totals["silent"]),
        (0, &16.into()),
        "{totals}"
    );
    let counts = (&totals["complete"], &totals["sent"]);
    assert_eq!(counts, (&true.into(), &16.into()), "{totals}");
    assert_eq!(resets, 16);
}

#[test]
fn services_beyond_the_connection_limit_are_counted() {
    require!(skip::lab());
    let pair = network();
    serve(&pair, 25, silent);
    let args = ["198.18.4.0/28", "-p", "25", "--rate", "1000"];
    let args = [&args[..], &["--banner-timeout", "2", "--connections", "5"]].concat();
    let (_, totals) = parsed(scan(&pair, &args).wait(LIMIT).unwrap());
    let counts = (
        &totals["connections"],
        &totals["not_connected"],
        &totals["open"],
    );
    // After silence, a second connection to each of the five speaks TLS.
    assert_eq!(counts, (&10.into(), &11.into(), &16.into()), "{totals}");
}
