//! The certificates of TLS servers in every format of `barewire scan`, compared with what
//! `openssl x509` says of them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 10_000;

/// Makes certificates in the directory `$1`, numbered from 0; writes how many.
const MAKE: &str = r##"
cd "$1"
n=0
make() {
    subject=$1 names=$2 key=$3
    shift 3
    cat > $n.cnf << END
[req]
distinguished_name=dn
prompt=no
x509_extensions=ext
${mask:-string_mask=utf8only}
[dn]
$(printf %b "$subject")
[ext]
$names
[dir]
O=Dir x
END
    eval "openssl genpkey $key -out $n.key" 2> /dev/null
    openssl req -new -x509 -utf8 -config $n.cnf -key $n.key -days 30 -out $n.pem "$@" 2> /dev/null
    n=$((n + 1))
}
ec="-algorithm EC -pkeyopt ec_paramgen_curve:"
rsa="-algorithm RSA -pkeyopt rsa_keygen_bits:"
many=subjectAltName=DNS:0.example
for i in $(seq 70); do many=$many,DNS:name-$i.example; done
make 'O=Only an organisation' '' "${ec}P-256" -sha256
make 'C=US\nO="Ex, +<x>;"\nOU="#lead"\nCN=tést' subjectAltName=DNS:a.example,DNS:*.b.example \
    "${ec}P-384" -sha384
mask=string_mask=MASK:0x800 make 'O=BMP žluť\nCN=x' '' "${ec}P-521" -sha512
mask=string_mask=MASK:0x100 make 'O=Universal ☃\nCN=x' '' "${rsa}1024" -sha1
mask=string_mask=MASK:0x4 make 'O=T61 é\nCN=x' '' "${rsa}3072" -sha256
make 'CN=many' "$many" "${rsa}2048" -sha256
kinds='subjectAltName=URI:https://a.example/x?y=1,email:me@a.example,IP:192.0.2.1'
kinds="$kinds,IP:2001:db8::1,RID:1.2.3.4,otherName:1.3.6.1.4.1.311.20.2.3;UTF8:u@a"
make 'CN=kinds' "$kinds,dirName:dir,DNS:z.example" "${ec}P-256" -sha256
make 'CN=pss' '' "${rsa}2048" -sha256 -sigopt rsa_padding_mode:pss
make 'CN=ed\n0.1.3.6.1.4.1.99999.1=own\nemailAddress=a@b.example\nserialNumber=7\nDC=example' \
    '' '-algorithm ED25519' -set_serial 0x8123456789abcdef8123456789abcdef
make 'CN=ed448' '' '-algorithm ED448' -set_serial 0
mask=string_mask=default make 'C=DE\nO=Old\n0.OU=one\n1.OU=+two\nCN=old' '' \
    "${rsa}2048" -md5 -set_serial -5
# Valid from 1955.
openssl req -new -config 0.cnf -key 0.key -out old.csr
mkdir ca && touch ca/index && echo 0123 > ca/serial
cat > ca.cnf << END
[ca]
default_ca=c
[c]
database=ca/index
serial=ca/serial
new_certs_dir=ca
default_md=sha256
policy=p
[p]
organizationName=optional
END
openssl ca -batch -config ca.cnf -cert 0.pem -keyfile 0.key -in old.csr -out $n.pem -notext \
    -startdate 550203040506Z -enddate 690101000000Z 2> /dev/null
cp 0.key $n.key
n=$((n + 1))
echo $n
"##;

/// What OpenSSL says of a certificate, under our names.
fn openssl(path: &Path) -> Vec<(&'static str, String)> {
    let run = |args: &[&str]| {
        let mut command = Command::new("openssl");
        let output = command
            .arg("x509")
            .arg("-noout")
            .args(args)
            .arg("-in")
            .arg(path)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let options = "esc_2253,esc_ctrl,use_quote,utf8,dump_nostr,dump_der,sep_comma_plus_space,sname";
    let args = [
        "-subject",
        "-issuer",
        "-serial",
        "-startdate",
        "-enddate",
        "-fingerprint",
    ];
    let text = run(&[
        &args[..],
        &["-sha256", "-dateopt", "iso_8601", "-nameopt", options],
    ]
    .concat());
    let mut found = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once('=').unwrap();
        found.push(match name {
            "subject" => ("tls_subject", value.to_owned()),
            "issuer" => ("tls_issuer", value.to_owned()),
            "serial" => ("tls_serial", value.to_owned()),
            "notBefore" => ("tls_not_before", value.replace(' ', "T")),
            "notAfter" => ("tls_not_after", value.replace(' ', "T")),
            _ => (
                "tls_certificate_sha256",
                value.replace(':', "").to_lowercase(),
            ),
        });
    }
    let text = run(&["-text"]);
    let after = |what: &str| {
        let at = text.find(what).unwrap_or_else(|| panic!("{what}: {text}")) + what.len();
        text[at..].lines().next().unwrap().trim().to_owned()
    };
    found.push(("tls_signature", after("Signature Algorithm:")));
    if text.contains("Public-Key: (") {
        let bits = after("Public-Key: (");
        found.push(("tls_key_bits", bits.split(' ').next().unwrap().to_owned()));
    }
    let key = match &*after("Public Key Algorithm:") {
        "rsaEncryption" => "rsa".to_owned(),
        "id-ecPublicKey" => "ec".to_owned(),
        other => other.to_lowercase(),
    };
    found.push(("tls_key_type", key));
    if text.contains("Subject Alternative Name") {
        let names = text.split("Subject Alternative Name:").nth(1).unwrap();
        let names: Vec<_> = names
            .trim_start()
            .lines()
            .next()
            .unwrap()
            .split(", ")
            .collect();
        found.push(("tls_san_count", names.len().to_string()));
    }
    found
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}

fn serve(pair: &Pair, folder: &Path, at: usize) -> Process {
    let mut command = pair.right.ns.command("openssl");
    let file = |ending: &str| format!("{at}.{ending}");
    let accept = format!("{}", usize::from(PORT) + at);
    command
        .current_dir(folder)
        .args(["s_server", "-quiet", "-accept", &accept]);
    // Weak keys are no matter here.
    command.args([
        "-cipher",
        "ALL:@SECLEVEL=0",
        "-cert",
        &file("pem"),
        "-key",
        &file("key"),
    ]);
    let mut server = Process::spawn_with_stdin(command.stdin(Stdio::piped())).unwrap();
    let since = Instant::now();
    let row = format!(":{:04X} ", usize::from(PORT) + at);
    let listens = || {
        let tables = ["tcp", "tcp6"].map(|name| format!("/proc/thread-self/net/{name}"));
        let tables = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        let is_row = |line: &str| line.contains(&row) && line.contains(" 0A ");
        tables.iter().any(|table| table.lines().any(is_row))
    };
    while !pair.right.ns.run(listens).unwrap() {
        assert!(server.running().unwrap(), "{at}: {}", server.stderr());
        assert!(since.elapsed() < LIMIT, "{at} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn certificates_of_every_kind_are_those_of_openssl_in_every_format() {
    require!(skip::lab(), skip::program("openssl", "openssl"));
    let folder = std::env::temp_dir().join(format!("barewire-kinds-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let made = Command::new("sh")
        .args(["-euc", MAKE, "sh"])
        .arg(&folder)
        .output()
        .unwrap();
    let count = String::from_utf8_lossy(&made.stdout)
        .trim()
        .parse::<usize>();
    let count = count.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&made.stderr)));
    let pair = Veth::new().offloads().create().unwrap();
    let mut servers: Vec<_> = (0..count).map(|at| serve(&pair, &folder, at)).collect();
    let out = folder.join("out");
    let all = format!("all:{}", out.display());
    let last = usize::from(PORT) + count - 1;
    let (ports, target) = (format!("{PORT}-{last}"), pair.right.ipv4.to_string());
    let hello = format!("{ports}=tls");
    let args = [
        "scan",
        &target,
        "-p",
        &ports,
        "--banners",
        "--wait",
        "2",
        "--json",
    ];
    let args = [
        &args[..],
        &["--rate", "1000", "--hello", &hello, "--output", &all],
    ]
    .concat();
    let mut scan = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = scan.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let banners: Vec<Value> = lines.filter(|line| line["type"] == "banner").collect();
    let formats = ["xml", "gnmap", "list", "json", "ndjson", "csv", "sql"];
    let files = formats.map(|ending| {
        let path = out.with_extension(ending);
        let text = std::fs::read_to_string(&path);
        (
            ending,
            text.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
    });
    for at in 0..count {
        let port = usize::from(PORT) + at;
        let banner = banners.iter().find(|banner| banner["port"] == port);
        let banner = banner.unwrap_or_else(|| panic!("{port}: {stdout}"));
        check(&folder, at, &banner["application"], &files);
    }
    check_names(&banners);
    for server in &mut servers {
        server.kill().unwrap();
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// Checks the fields found, and that each file has them.
fn check(folder: &Path, at: usize, found: &Value, files: &[(&str, String)]) {
    for (name, expected) in openssl(&folder.join(format!("{at}.pem"))) {
        assert_eq!(shown(&found[name]), expected, "{at} {name}: {found}");
    }
    let sum = found["tls_certificate_sha256"].as_str().unwrap();
    let serial = shown(&found["tls_serial"]);
    for (ending, text) in files {
        let line = text.lines().find(|line| line.contains(sum));
        let line = line.unwrap_or_else(|| panic!("{at} in {ending}: {text}"));
        assert!(
            line.contains(&serial) && line.contains("tls_key_bits"),
            "{ending} {line}"
        );
    }
}

/// Checks the alternative names.
fn check_names(banners: &[Value]) {
    let of = |subject: &str| {
        let found = banners.iter().map(|banner| &banner["application"]);
        let mut found = found.filter(|found| found["tls_subject"] == subject);
        found
            .next()
            .unwrap_or_else(|| panic!("{subject}: {banners:?}"))
    };
    let many = of("CN=many");
    assert_eq!(many["tls_san"].as_array().unwrap().len(), 64);
    assert_eq!(many["tls_san_count"], 71);
    let kinds = serde_json::json!([
        "https://a.example/x?y=1",
        "me@a.example",
        "192.0.2.1",
        "2001:db8::1",
        "RID:1.2.3.4",
        "othername:1.3.6.1.4.1.311.20.2.3:u@a",
        "DirName:O=Dir x",
        "z.example",
    ]);
    assert_eq!(of("CN=kinds")["tls_san"], kinds);
}
