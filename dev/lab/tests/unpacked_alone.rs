//! Unpacked programs on a machine that is not empty: with configuration, modules, users and data of
//! other versions of the same programs, all of them unusable, they do what they do without.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::Process;
use lab::skip::Missing;
use lab::unpacked::Unpacked;
use lab::{Finished, require, skip};

use crate::export::Folder;
use crate::scan_servers::packages;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(400);

fn run(command: &mut Command) -> Finished {
    Process::spawn(command).unwrap().wait(LIMIT).unwrap()
}

/// All that a shell sees: the root directory, users, variables, sockets, what is given to it, and
/// the processes of its namespace.
const LOOK: &str = r#"
ls /
cut -d: -f1 /etc/passwd | head -2
env | cut -d= -f1 | grep -v -e '^_$' -e PWD -e OLDPWD -e SHLVL | sort
find / -xdev -type s
find /run /tmp -type f
cat "$1"
test ! -e "$2"
ls -d /proc/[0-9]* | wc -l
"#;

#[test]
fn an_unpacked_program_sees_what_it_is_given() {
    require!(skip::root(), packages().map(drop));
    let folder = Folder::new("alone");
    let (given, other) = (folder.file("given"), folder.file("other"));
    for file in [&given, &other] {
        std::fs::write(file, "text\n").unwrap();
    }
    let shell = packages().unwrap().with(&given).with_processes();
    let mut command = shell.with_variable("GIVEN", "1").command(None);
    command.args(["-euc", LOOK, "sh", &given, &other]);
    command.env("QEMU_MODULE_DIR", "/nowhere");
    let seen = run(&mut command).checked().unwrap().stdout;
    let expected = format!(
        "bin\ndev\netc\nlib\nlib64\nproc\nrun\nsbin\nsys\ntmp\nusr\nvar\nroot\nnobody\nGIVEN\n\
         HOME\nLC_ALL\nPATH\nTZ\n{given}\ntext\n"
    );
    let rest = seen.strip_prefix(&expected);
    let rest = rest.unwrap_or_else(|| panic!("{seen}\nexpected:\n{expected}"));
    // The shell, and the programs of its last line.
    let count: u32 = rest.trim().parse().unwrap();
    assert!(count <= 4, "{count} processes");
}

/// QEMU, as `cargo xtask lab` has unpacked it.
fn qemu() -> Result<Unpacked, Missing> {
    lab::unpacked::namespaces()?;
    lab::vm::qemu().ok_or_else(|| Missing::Machine("QEMU (cargo xtask lab boots 1)".into()))
}

/// To list its devices it loads all its modules.
#[test]
fn qemu_loads_its_own_modules() {
    require!(qemu().map(drop));
    let mut command = qemu().unwrap().command(None);
    let listed = run(command.args(["-device", "help"])).checked().unwrap();
    assert!(listed.stdout.contains("name \"igb\""), "{}", listed.stdout);
    // Of a module.
    let name = "name \"virtio-gpu-pci\"";
    assert!(listed.stdout.contains(name), "{}", listed.stdout);
    assert_eq!(listed.stderr, "");
}

/// Files of programs that are installed, and variables of their users. No version of a program can
/// read them.
const FILES: &[&str] = &[
    "/etc/bro/networks.cfg",
    "/etc/dovecot/dovecot.conf",
    "/etc/ld.so.conf.d/zz-other.conf",
    "/etc/mosquitto/mosquitto.conf",
    "/etc/my.cnf",
    "/etc/mysql/my.cnf",
    "/etc/mysql/mariadb.cnf",
    "/etc/nginx/nginx.conf",
    "/etc/postfix/main.cf",
    "/etc/postfix/master.cf",
    "/etc/postfix/dynamicmaps.cf",
    "/etc/postgresql-common/createcluster.conf",
    "/etc/redis/redis.conf",
    "/etc/snort/snort.conf",
    "/etc/ssh/sshd_config",
    "/etc/suricata/suricata.yaml",
    "/etc/suricata/threshold.config",
    "/etc/vsftpd.conf",
    "/usr/lib/dovecot/modules/lib01_acl_plugin.so",
    "/usr/lib/mysql/plugin/auth_socket.so",
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "/usr/lib/postfix/libpostfix-global.so",
    "/usr/lib/postgresql/17/lib/plpgsql.so",
    "/usr/lib/snort_dynamicpreprocessor/libsf_ssl_preproc.so",
    "/usr/lib/x86_64-linux-gnu/daq/daq_pcap.so",
    "/usr/lib/x86_64-linux-gnu/libmariadb.so.3",
    "/usr/share/bro/base/init-bare.bro",
    "/usr/share/mysql/errmsg.sys",
    "/usr/share/nginx/modules-available/mod-stream.conf",
    "/usr/share/postfix/main.cf.dist",
    "/usr/share/postfix/master.cf.dist",
    "/usr/share/qemu/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/seabios/bios-256k.bin",
    "/var/lib/mysql/ibdata1",
    "/var/spool/postfix/pid/master.pid",
];
const VARIABLES: &[&str] = &[
    "MAIL_CONFIG",
    "MYSQL_HOME",
    "PGDATA",
    "PGHOST",
    "QEMU_MODULE_DIR",
    "BROPATH",
    "OPENSSL_CONF",
    "PERL5LIB",
];

/// Modules of an installed QEMU, by the names that this one looks for.
const MODULES: &str = "/usr/lib/x86_64-linux-gnu/qemu";

/// Tests of unpacked programs, one of each.
const TESTS: &[&str] = &[
    "bro_dropin::bro_on_a_queue_of_a_cluster_writes_the_logs_of_one_that_reads_the_capture",
    "scan_servers::dovecot_says_its_greetings",
    "scan_servers::mariadb_says_its_version",
    "scan_servers::mosquitto_accepts_a_client_without_a_name",
    "scan_servers::nginx_says_its_version_title_and_certificate",
    "scan_servers::openssh_says_its_version_and_host_key",
    "scan_servers::postfix_says_its_greeting",
    "scan_servers::postgresql_says_how_clients_authenticate",
    "scan_servers::redis_says_its_version",
    "scan_servers::vsftpd_says_its_greeting",
    "snort_dropin::snort_on_a_queue_of_a_cluster_has_the_alerts_of_one_that_reads_the_capture",
    "suricata_queues::suricata_reads_queues_by_libpcap",
    "unpacked_alone::qemu_loads_its_own_modules",
];

/// Makes writable copies of directories in the mount namespace of the shell, writes each file of
/// the list `$1` in them, adds users that have other numbers than those of the packages, and
/// executes the rest.
const PLANT: &str = r#"
list=$1
shift
over=$(mktemp -d)
mount -t tmpfs none "$over"
for name in etc usr var; do
    mkdir -p "$over/$name/upper" "$over/$name/work"
    mount -t overlay -o "lowerdir=/$name,upperdir=$over/$name/upper,workdir=$over/$name/work" \
        none "/$name"
done
umount -l "$over"
rmdir "$over"
while read -r file; do
    mkdir -p "${file%/*}"
    rm -rf "$file"
    echo 'a file of another version }{ = [' > "$file"
done < "$list"
id=700
for name in www-data sshd postfix postgres dovecot dovenull mysql mosquitto ftp; do
    id=$((id + 1))
    sed -i "/^$name:/d" /etc/passwd /etc/group
    echo "$name:x:$id:$id::/nowhere:/bin/false" >> /etc/passwd
    echo "$name:x:$id:" >> /etc/group
done
exec "$@"
"#;

/// Checks that copies of the directories can be made.
fn overlays() -> Result<(), Missing> {
    skip::lab()?;
    let list = TempFile::new("none");
    std::fs::write(list.path(), "").unwrap();
    match run(planted(list.path()).arg("true")).success() {
        true => Ok(()),
        false => Err(Missing::Machine("overlay file systems over /usr".into())),
    }
}

fn planted(list: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-euc", PLANT, "sh"]);
    command.arg(list);
    command
}

#[test]
fn programs_work_beside_unusable_ones_of_the_same_name() {
    require!(overlays(), packages().map(drop), qemu().map(drop));
    require!(Unpacked::find("bro", "usr/bin/bro").map(drop));
    require!(Unpacked::find("snort", "usr/sbin/snort").map(drop));
    require!(Unpacked::find("suricata", "usr/bin/suricata").map(drop));
    let mut files: Vec<String> = FILES.iter().map(|&file| file.to_owned()).collect();
    let modules = qemu().unwrap().packages().join(&MODULES[1..]);
    for module in std::fs::read_dir(&modules).unwrap() {
        let name = module.unwrap().file_name();
        files.push(format!("{MODULES}/{}", name.to_str().unwrap()));
    }
    let list = TempFile::new("list");
    std::fs::write(list.path(), files.join("\n") + "\n").unwrap();
    let mut command = planted(list.path());
    command.arg(std::env::current_exe().unwrap());
    command.arg("--exact").args(TESTS);
    for name in VARIABLES {
        command.env(name, "/etc/postfix");
    }
    let finished = run(&mut command);
    let all = format!("{}{}", finished.stdout, finished.stderr);
    let passed = format!("test result: ok. {} passed; 0 failed; ", TESTS.len());
    assert!(finished.success() && all.contains(&passed), "{all}");
    assert!(!all.contains("SKIPPED: "), "{all}");
}
