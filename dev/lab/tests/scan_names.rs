//! `barewire scan --banners` speaks to targets by the names under which they were given, to TLS
//! servers on any port, and asks for TLS where a connection begins without it: real servers.

use std::io::Write as _;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::barewire;
use lab::{require, skip};
use serde_json::Value;

use crate::scan_servers::{Server, packages};

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// Two sites at one address, and TLS on ports that are not known for it.
const NGINX: &str = r#"
for name in one two; do
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 \
        -subj "/O=Site $name/CN=$name.example" -keyout /tmp/$name.key \
        -out /tmp/$name.pem 2> /dev/null
    mkdir /tmp/$name
    echo "<title>Site &ndash; $name</title>" > /tmp/$name/index.html
done
cat > /etc/nginx/nginx.conf << END
daemon off;
pid /run/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    server { listen 80 default_server; listen 6443 ssl default_server; server_name one.example;
        root /tmp/one; ssl_certificate /tmp/one.pem; ssl_certificate_key /tmp/one.key; }
    server { listen 80; listen 6443 ssl; server_name two.example;
        root /tmp/two; ssl_certificate /tmp/two.pem; ssl_certificate_key /tmp/two.key; }
}
END
openssl s_server -4 -quiet -www -accept 7000 -cert /tmp/two.pem \
    -key /tmp/two.key < /dev/null &
exec nginx
"#;

/// Scans with this file of hosts; returns the banners.
fn scan(server: &Server, hosts: &str, args: &[&str]) -> Vec<Value> {
    let file = TempFile::new("hosts");
    let mut out = std::fs::File::create(file.path()).unwrap();
    out.write_all(hosts.as_bytes()).unwrap();
    const RUN: &str = r#"mount --bind "$1" /etc/hosts; shift; exec "$@""#;
    let path = file.path().to_str().unwrap().to_owned();
    let program = barewire().unwrap();
    let program = program.to_str().unwrap();
    let own = [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-euc",
        RUN,
        "sh",
        &path,
    ];
    let all = [
        "scan",
        "--json",
        "--banners",
        "--wait",
        "2",
        "--rate",
        "1000",
    ];
    let args = [&own[..], &[program], &all, args].concat();
    let mut process = server.pair.left.ns.spawn("unshare", args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == "banner").collect()
}

#[test]
fn targets_are_spoken_to_by_name_and_tls_on_any_port() {
    require!(skip::lab(), packages().map(drop));
    let server = Server::start(NGINX, &[80, 6443, 7000]);
    let addr = server.pair.right.ipv4;
    let hosts = format!("{addr} two.example one.example\n");
    let of = |banners: &[Value], port: u16, name: Option<&str>| {
        let is_it = |one: &&Value| one["port"] == port && one["name"].as_str() == name;
        let found: Vec<_> = banners.iter().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{port} {name:?}: {banners:?}");
        found[0].clone()
    };
    let banners = scan(
        &server,
        &hosts,
        &["two.example", "one.example", "-p", "80,6443"],
    );
    assert_eq!(banners.len(), 4, "{banners:?}");
    for name in ["one", "two"] {
        let full = format!("{name}.example");
        let plain = of(&banners, 80, Some(&full));
        assert_eq!(plain["title"], format!("Site \u{2013} {name}"), "{plain}");
        let tls = of(&banners, 6443, Some(&full));
        let subject = format!("O=Site {name}, CN={full}");
        assert_eq!(tls["application"]["tls_subject"], subject, "{tls}");
    }
    // A server of one connection at a time.
    let banners = scan(&server, &hosts, &["two.example", "-p", "7000"]);
    let tls = &of(&banners, 7000, Some("two.example"))["application"];
    assert_eq!(tls["tls_subject"], "O=Site two, CN=two.example");
    // By its address, the default site.
    let text = addr.to_string();
    let banners = scan(&server, "", &[&text, "-p", "80,6443"]);
    assert_eq!(of(&banners, 80, None)["title"], "Site \u{2013} one");
    let tls = &of(&banners, 6443, None)["application"];
    assert_eq!(tls["tls_subject"], "O=Site one, CN=one.example");
    // What is said first can be given.
    let file = TempFile::new("hello");
    std::fs::write(file.path(), "GET /nothing HTTP/1.0\r\n\r\n").unwrap();
    let given = format!("80={}", file.path().display());
    let args = [
        &*text, "-p", "80,6443", "--hello", &given, "--hello", "6443=tls",
    ];
    let banners = scan(&server, "", &args);
    assert_eq!(of(&banners, 80, None)["application"]["http_status"], 404);
    let tls = &of(&banners, 6443, None)["application"];
    assert_eq!(tls["tls_subject"], "O=Site one, CN=one.example");
}

/// Servers that begin TLS when they are asked.
const PLAIN: &str = r#"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=later.example \
    -keyout /tmp/key.pem -out /tmp/cert.pem 2> /dev/null
chmod 644 /tmp/key.pem
chown postfix /var/lib/postfix
cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
cat > /etc/postfix/main.cf << END
compatibility_level=3.9
myhostname=mail.example.org
mydestination=
maillog_file=/dev/stdout
smtpd_tls_security_level=may
smtpd_tls_cert_file=/tmp/cert.pem
smtpd_tls_key_file=/tmp/key.pem
END
postfix start-fg &
cat > /tmp/dovecot << END
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
protocols = imap pop3
ssl = yes
ssl_server_cert_file = /tmp/cert.pem
ssl_server_key_file = /tmp/key.pem
log_path = /dev/stderr
mail_driver = maildir
mail_path = /tmp/mail
passdb static {
  password = test
}
userdb static {
}
END
dovecot -F -c /tmp/dovecot &
mkdir -p /run/vsftpd/empty
cat > /etc/vsftpd.conf << END
listen=YES
background=NO
secure_chroot_dir=/run/vsftpd/empty
ssl_enable=YES
rsa_cert_file=/tmp/cert.pem
rsa_private_key_file=/tmp/key.pem
END
vsftpd &
mkdir /tmp/mysql /tmp/pg
chown mysql /tmp/mysql
mariadbd --no-defaults --user=mysql --datadir=/tmp/mysql --socket=/tmp/socket \
    --bind-address=0.0.0.0 --skip-grant-tables --ssl-cert=/tmp/cert.pem --ssl-key=/tmp/key.pem &
run="chroot --userspec=postgres:postgres /"
bin=/usr/lib/postgresql/17/bin
cp /tmp/key.pem /tmp/pg.key
chown -R postgres:postgres /tmp/pg /tmp/pg.key
chmod 600 /tmp/pg.key
$run $bin/initdb -D /tmp/pg --auth-local=trust --auth-host=trust --no-sync > /dev/null
exec $run $bin/postgres -D /tmp/pg -c listen_addresses='*' -k /tmp -c ssl=on \
    -c ssl_cert_file=/tmp/cert.pem -c ssl_key_file=/tmp/pg.key
"#;

#[test]
fn servers_are_asked_for_tls() {
    require!(skip::lab(), packages().map(drop));
    let ports = [21, 25, 110, 143, 3306, 5432];
    let server = Server::start(PLAIN, &ports);
    let (banners, totals) = server.banners(&ports);
    let names = ["ftp", "smtp", "pop3", "imap", "mysql", "postgresql"];
    for (name, banner) in names.iter().zip(&banners) {
        let found = &banner["application"];
        assert_eq!(found["protocol"], *name, "{banner}");
        assert_eq!(
            found["tls_subject"], "CN=later.example",
            "{totals} {banner}"
        );
        assert!(found["tls_certificate_sha256"].is_string(), "{banner}");
        // What was sent before is not lost.
        match *name {
            "mysql" => assert!(found["mysql_version"].is_string(), "{banner}"),
            "postgresql" => {}
            _ => assert!(found["mail_greeting"].is_string(), "{banner}"),
        }
    }
}
