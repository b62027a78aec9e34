//! `barewire guard --detect` started in a flood, before it has learned what is normal.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::process::{Signal, barewire};
use lab::watch::Ending;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::guard_challenge::flooded;
use crate::guard_detect::{event, line};
use crate::guard_flood::{PORT, connect, flood, guard, route_back, serve, stop};

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
const BODY_LEN: usize = 200_000;
const DOWNLOADS: usize = 20;

/// An HTTP server that sends the same file to everybody, until `is_over`.
fn serve_file(listener: &TcpListener, is_over: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        std::thread::spawn(move || -> std::io::Result<()> {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LIMIT))?;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                request.push(byte[0]);
            }
            write!(
                stream,
                "HTTP/1.0 200 OK\r\nContent-Length: {BODY_LEN}\r\n\r\n"
            )?;
            stream.write_all(&vec![b'x'; BODY_LEN])?;
            // Until the client closes the connection.
            std::io::copy(&mut stream, &mut std::io::sink())?;
            Ok(())
        });
    }
}

/// Whether curl downloads the whole file within this time.
fn download(pair: &Pair, seconds: &str) -> bool {
    let url = format!("http://{}:{PORT}/file", pair.right.ipv4);
    let args = [
        "-s",
        "-m",
        seconds,
        "-o",
        "/dev/null",
        "-w",
        "%{size_download}",
        &url,
    ];
    let mut curl = pair.left.ns.spawn("curl", args).unwrap();
    let finished = curl.wait(LIMIT).unwrap();
    finished.success() && finished.stdout.trim() == BODY_LEN.to_string()
}

/// The arguments of the example in the help, for this interface.
fn example(pair: &Pair) -> Vec<String> {
    let help = pair.left.ns.exec(barewire().unwrap(), ["guard", "--help"]);
    let help = help.unwrap();
    let mut lines = help.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("barewire guard eth0 --detect install"));
    let words = line.unwrap_or_else(|| panic!("{help}")).split(' ').skip(1);
    let word = |word: &str| match word {
        "eth0" => pair.right.ifname.clone(),
        word => word.to_owned(),
    };
    words.map(word).collect()
}

/// A server without SYN cookies, on which a flood of SYNs has an effect: the listener's queue is so
/// short that it is full before the kernel reserves places for peers it knows
/// (`tcp_conn_request`).
#[test]
fn the_example_of_the_help_stops_a_running_flood() {
    require!(skip::lab());
    require!(skip::program("curl", "curl"));
    let pair = Veth::new().create().unwrap();
    route_back(&pair);
    for (name, value) in [
        ("net/ipv4/tcp_syncookies", "0"),
        ("net/core/somaxconn", "16"),
        ("net/ipv4/tcp_max_syn_backlog", "256"),
    ] {
        pair.right.ns.sysctl(name, value).unwrap();
    }
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve_file(&listener, &is_over));
        let _ending = Ending(&is_over);
        assert!(download(&pair, "60"), "without a flood");
        scope.spawn(|| flood(&pair, |_| is_over.load(Ordering::Relaxed)));
        let has_effect = (0..30).any(|_| !download(&pair, "2"));
        assert!(has_effect, "the flood does not stop downloads");
        let args = example(&pair);
        let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
        process.wait_stderr("until", LIMIT).unwrap();
        process.wait_stderr("installed", LIMIT).unwrap();
        let completed = (0..DOWNLOADS).filter(|_| download(&pair, "60")).count();
        assert_eq!(completed, DOWNLOADS, "{}", process.stderr());
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        let stderr = finished.checked().unwrap().stderr;
        assert!(stderr.contains("learning normal rates until"), "{stderr}");
        assert!(stderr.contains("drop \"detected flood 1\""), "{stderr}");
    });
}

/// SYNs with the options of the left end's kernel, from another network.
#[test]
fn a_rule_against_syns_like_a_clients_names_their_network() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    route_back(&pair);
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &is_over));
        let _ending = Ending(&is_over);
        flooded(&pair, || {
            let process = guard(&pair, &["--detect", "install"]);
            let rule = event(&process, "rule");
            let expression = rule["match"].as_str().unwrap();
            assert!(expression.contains("src net 198.18."), "{expression}");
            let connect = || (0..20).all(|_| connect(address).is_ok());
            assert!(pair.left.ns.run(connect).unwrap(), "{expression}");
            line(&process, |value| value["dropped"].as_u64() > Some(0));
            stop(process);
        });
    });
}

#[test]
fn what_is_learned_and_until_when_is_reported() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let settings = "warm-up=3s,most=50k/s";
    let process = guard(
        &pair,
        &["--detect", "propose", "--detect-settings", settings],
    );
    let learning = event(&process, "learning");
    assert_eq!(learning["seconds"], 3.0, "{learning}");
    assert_eq!(learning["half_open_least_pps"], 1_000.0, "{learning}");
    assert_eq!(learning["most_pps"], 50_000.0, "{learning}");
    let learned = event(&process, "learned");
    assert!(learned["destinations"].is_u64(), "{learned}");
    let stderr = process.stderr();
    assert!(stderr.contains(" UTC (3 s); until then"), "{stderr}");
    assert!(stderr.contains("learned "), "{stderr}");
    let lines: Vec<Value> = process
        .stdout()
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect();
    assert_eq!(lines[0]["event"], "learning", "{lines:?}");
    stop(process);
}
