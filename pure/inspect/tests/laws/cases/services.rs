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
];
