//! Fields reported about databases and other services.

use super::Case;
use super::Field::*;

pub const SERVICES: &[Case] = &[
    (
        "mysql",
        "mysql",
        &[
            (MysqlProtocol, "10"),
            (MysqlVersion, "5.5.5-10.11.6-MariaDB-0+deb12u1"),
            (MysqlCapabilities, "2181036030"),
            (MysqlAuth, "mysql_native_password"),
            (MysqlUser, "alice"),
            (MysqlDatabase, "sales"),
            (MysqlResult, "0"),
        ],
    ),
    (
        "mysql-denied",
        "mysql",
        &[
            (MysqlVersion, "8.0.36"),
            (MysqlAuth, "caching_sha2_password"),
            (MysqlUser, "alice"),
            (MysqlDatabase, "sales"),
            (MysqlResult, "1045"),
        ],
    ),
    (
        "mysql-tls",
        "mysql",
        &[
            (MysqlVersion, "8.0.36"),
            (MysqlUser, "-"),
            (TlsSni, "example.org"),
            (TlsCipher, "4865"),
        ],
    ),
    (
        "mysql-old",
        "mysql",
        &[
            (MysqlVersion, "4.0.30-log"),
            (MysqlAuth, "-"),
            (MysqlUser, "bob"),
            (MysqlDatabase, "stock"),
            (MysqlResult, "0"),
        ],
    ),
    (
        "mysql-blocked",
        "mysql",
        &[(MysqlVersion, "-"), (MysqlResult, "1130")],
    ),
    ("mysql-not", "unknown", &[]),
    (
        "postgresql",
        "postgresql",
        &[
            (PostgresqlUser, "alice"),
            (PostgresqlDatabase, "sales"),
            (PostgresqlAuth, "SCRAM-SHA-256"),
            (PostgresqlVersion, "15.6 (Debian 15.6-0+deb12u1)"),
            (PostgresqlError, "-"),
        ],
    ),
    (
        "postgresql-denied",
        "postgresql",
        &[
            (PostgresqlUser, "bob"),
            (PostgresqlDatabase, "-"),
            (PostgresqlAuth, "md5"),
            (PostgresqlError, "28P01"),
        ],
    ),
    (
        "postgresql-tls",
        "postgresql",
        &[(TlsSni, "example.org"), (TlsCipher, "4865")],
    ),
    (
        "postgresql-old",
        "postgresql",
        &[(PostgresqlError, "0A000")],
    ),
    ("postgresql-gss", "postgresql", &[(PostgresqlAuth, "-")]),
    ("postgresql-cancel", "postgresql", &[(PostgresqlUser, "-")]),
    (
        "redis",
        "redis",
        &[(RedisCommand, "INFO"), (RedisVersion, "7.0.15")],
    ),
    (
        "redis-hello",
        "redis",
        &[(RedisCommand, "hello"), (RedisVersion, "7.2.4")],
    ),
    (
        "redis-denied",
        "redis",
        &[
            (RedisCommand, "AUTH"),
            (RedisError, "WRONGPASS"),
            (RedisVersion, "-"),
        ],
    ),
    (
        "redis-get",
        "redis",
        &[(RedisCommand, "GET"), (RedisVersion, "-")],
    ),
    ("memcached", "memcached", &[(MemcachedVersion, "1.6.18")]),
    (
        "memcached-stats",
        "memcached",
        &[(MemcachedVersion, "1.5.6")],
    ),
    ("memcached-get", "memcached", &[(MemcachedVersion, "-")]),
    (
        "memcached-server",
        "memcached",
        &[(MemcachedVersion, "1.4.0")],
    ),
    ("memcached-not", "unknown", &[]),
    (
        "memcached-udp",
        "memcached",
        &[(MemcachedVersion, "1.6.18")],
    ),
    (
        "memcached-udp-stats",
        "memcached",
        &[(MemcachedVersion, "1.5.6")],
    ),
    (
        "vnc",
        "vnc",
        &[(VncVersion, "003.008"), (VncSecurity, "19,1,2,16")],
    ),
    (
        "vnc-3.3",
        "vnc",
        &[(VncVersion, "003.008"), (VncSecurity, "2")],
    ),
    (
        "vnc-refused",
        "vnc",
        &[(VncVersion, "005.000"), (VncSecurity, "0")],
    ),
    (
        "vnc-silent",
        "vnc",
        &[(VncVersion, "003.007"), (VncSecurity, "-")],
    ),
    ("vnc-not", "unknown", &[]),
    (
        "telnet",
        "telnet",
        &[(TelnetOption, "do 24"), (TelnetText, "Debian GNU/Linux")],
    ),
    (
        "telnet-text",
        "telnet",
        &[(TelnetOption, "will 3"), (TelnetText, "Router Password:")],
    ),
    ("telnet-long", "telnet", &[(TelnetOption, "will 3")]),
    ("telnet-not", "unknown", &[]),
    (
        "snmp",
        "snmp",
        &[
            (SnmpVersion, "2"),
            (
                SnmpSysDescr,
                "Linux router 6.1.0-18-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)",
            ),
            (SnmpEngine, "-"),
        ],
    ),
    ("snmp-1", "snmp", &[(SnmpVersion, "1"), (SnmpSysDescr, "-")]),
    (
        "snmp-3",
        "snmp",
        &[(SnmpVersion, "3"), (SnmpEngine, "80001f880461626364")],
    ),
    ("snmp-trap", "snmp", &[(SnmpVersion, "2")]),
    ("snmp-not", "unknown", &[]),
];
