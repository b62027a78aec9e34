//! `barewire scan --banners` against TLS servers of OpenSSL that accept only one version, cipher
//! suite or group: the certificates are OpenSSL's.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes, in the directory `$1`, a root and an intermediate authority, and for each further
/// argument a key of that kind and a certificate, named by its place. That of `large` has more than
/// 16 KiB.
const MAKE: &str = r#"
cd "$1"
shift
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
    -subj /CN=root.example -keyout root.key -out root.pem
sign() {
    name=$1 issuer=$2 extension=$3
    shift 3
    openssl req -new -newkey "$@" -nodes -subj /CN=$name.example -keyout $name.key -out $name.csr
    echo "$extension" > $name.ext
    openssl x509 -req -in $name.csr -CA $issuer.pem -CAkey $issuer.key -days 30 \
        -CAcreateserial -extfile $name.ext -out $name.pem
}
sign middle root basicConstraints=critical,CA:true ec -pkeyopt ec_paramgen_curve:P-384
cat middle.pem root.pem > chain.pem
at=0
for kind; do
    names=subjectAltName=DNS:case-$at.example,IP:192.0.2.$at
    case $kind in
        ecdsa) set -- ec -pkeyopt ec_paramgen_curve:P-256 ;;
        ed25519) set -- ed25519 ;;
        *) set -- rsa:2048 ;;
    esac
    if [ $kind = large ]; then
        for number in $(seq 700); do
            names=$names,DNS:name-number-$number-of-many.example
        done
    fi
    sign case-$at middle $names "$@"
    at=$((at + 1))
done
"#;

/// A server, at the address with its place as last number.
struct Case {
    /// Of the key.
    kind: &'static str,
    /// Options of the server.
    args: &'static [&'static str],
    /// What is expected.
    suite: Option<u64>,
    version: &'static str,
    is_retried: bool,
}

const fn case(kind: &'static str, args: &'static [&'static str]) -> Case {
    Case {
        kind,
        args,
        suite: None,
        version: "1.3",
        is_retried: false,
    }
}

const fn suite(kind: &'static str, args: &'static [&'static str], suite: u64) -> Case {
    Case {
        suite: Some(suite),
        ..case(kind, args)
    }
}

const fn retried(kind: &'static str, args: &'static [&'static str]) -> Case {
    Case {
        is_retried: true,
        ..case(kind, args)
    }
}

const AES_128: &[&str] = &["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"];
const AES_256: &[&str] = &["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"];
const CHACHA20: &[&str] = &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"];

const CASES: &[Case] = &[
    suite("rsa", AES_128, 0x1301),
    suite("rsa", AES_256, 0x1302),
    suite("rsa", CHACHA20, 0x1303),
    suite("ecdsa", AES_128, 0x1301),
    suite("ecdsa", AES_256, 0x1302),
    suite("ecdsa", CHACHA20, 0x1303),
    case("ed25519", &["-tls1_3"]),
    case("large", &["-tls1_3"]),
    case("rsa", &["-tls1_3", "-groups", "P-256"]),
    retried("rsa", &["-tls1_3", "-groups", "P-384"]),
    retried(
        "ecdsa",
        &[
            "-tls1_3",
            "-groups",
            "P-521",
            "-ciphersuites",
            "TLS_AES_256_GCM_SHA384",
        ],
    ),
    // Records of 512 bytes, with padding.
    case(
        "rsa",
        &["-tls1_3", "-max_send_frag", "512", "-record_padding", "600"],
    ),
    // Both versions, and only the older one.
    case("ecdsa", &[]),
    Case {
        version: "1.2",
        ..case("ecdsa", &["-tls1_2"])
    },
];

fn addr(at: usize) -> String {
    format!("198.18.4.{}", at + 1)
}

/// Starts a server; returns when it listens.
fn serve(pair: &Pair, folder: &Path, at: usize, case: &Case) -> Process {
    let mut command = pair.right.ns.command("openssl");
    let file = |ending: &str| format!("case-{at}.{ending}");
    command
        .current_dir(folder)
        .args(["s_server", "-quiet", "-alpn", "http/1.1"]);
    command.args([
        "-accept",
        &format!("{}:443", addr(at)),
        "-cert_chain",
        "chain.pem",
    ]);
    command.args(["-cert", &file("pem"), "-key", &file("key")]);
    // It ends when its standard input is closed.
    let command = command.args(case.args).stdin(Stdio::piped());
    let mut server = Process::spawn_with_stdin(command).unwrap();
    let since = Instant::now();
    let to = (addr(at).parse::<Ipv4Addr>().unwrap(), 443);
    let connects = || TcpListener::bind(to).is_err();
    while !pair.right.ns.run(connects).unwrap() {
        assert!(server.running().unwrap(), "{at}: {}", server.stderr());
        assert!(since.elapsed() < LIMIT, "nothing listens at {to:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// The certificate in a file, as OpenSSL writes it.
fn pem(folder: &Path, name: &str) -> String {
    let mut command = Command::new("openssl");
    let command = command.current_dir(folder);
    let output = command
        .args(["x509", "-in", &format!("{name}.pem")])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn check(found: &Value, at: usize, case: &Case) {
    let what = format!("{at}, {} {:?}: {found}", case.kind, case.args);
    assert_eq!(found["protocol"], "tls", "{what}");
    assert_eq!(found["tls_version"], case.version, "{what}");
    assert_eq!(
        found["tls_subject"],
        format!("CN=case-{at}.example"),
        "{what}"
    );
    assert_eq!(found["tls_issuer"], "CN=middle.example", "{what}");
    assert_eq!(found["tls_san"][0], format!("case-{at}.example"), "{what}");
    assert_eq!(found["tls_alpn_chosen"], "http/1.1", "{what}");
    assert_eq!(!found["tls_retry"].is_null(), case.is_retried, "{what}");
    if let Some(suite) = case.suite {
        assert_eq!(found["tls_cipher"], format!("0x{suite:04x}"), "{what}");
    }
}

#[test]
fn certificates_of_tls_1_3_servers_are_openssls() {
    require!(skip::lab(), skip::program("openssl", "openssl"));
    let folder = std::env::temp_dir().join(format!("barewire-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new("sh");
    command.args(["-euc", MAKE, "sh"]).arg(&folder);
    let made = command
        .args(CASES.iter().map(|case| case.kind))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let pair = Veth::new().offloads().create().unwrap();
    pair.add_hosts("198.18.4.0/27").unwrap();
    let start = |(at, case): (usize, &Case)| serve(&pair, &folder, at, case);
    let mut servers: Vec<_> = CASES.iter().enumerate().map(start).collect();
    let written = folder.join("written");
    let targets = format!("198.18.4.1-198.18.4.{}", CASES.len());
    let args = [
        "scan",
        "--json",
        "--wait",
        "2",
        "--banners",
        "-p",
        "443",
        &targets,
    ];
    let args = [&args[..], &["-oP", written.to_str().unwrap()]].concat();
    let mut scan = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = scan.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let banners: Vec<Value> = lines.filter(|line| line["type"] == "banner").collect();
    assert_eq!(banners.len(), CASES.len(), "{stdout}");
    let written = std::fs::read_to_string(written).unwrap();
    for (at, case) in CASES.iter().enumerate() {
        let is_it = |banner: &&Value| banner["address"] == addr(at);
        let banner = banners.iter().find(is_it).unwrap();
        check(&banner["application"], at, case);
        assert!(
            written.contains(&pem(&folder, &format!("case-{at}"))),
            "{at}"
        );
    }
    for name in ["middle", "root"] {
        assert!(written.contains(&pem(&folder, name)), "{name}");
    }
    let large = CASES.iter().position(|case| case.kind == "large").unwrap();
    assert!(pem(&folder, &format!("case-{large}")).len() > 22_000);
    assert_eq!(
        written.matches("BEGIN CERTIFICATE").count(),
        CASES.len() + 2
    );
    for server in &mut servers {
        server.kill().unwrap();
    }
    let _ = std::fs::remove_dir_all(&folder);
}
