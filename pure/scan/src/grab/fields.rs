//! What the decoders find out about a server, without what is known of the scanner itself.

use std::net::IpAddr;

use inspect::{Application, Field, FieldSink, Value};

/// Fields that describe the scanner's own hello, and are not reported.
const OWN: &[Field] = &[
    Field::TlsAlpn,
    Field::TlsVersionOffered,
    Field::Ja3,
    Field::Ja4,
    Field::HttpMethod,
    Field::HttpHost,
    Field::HttpPath,
    Field::HttpAgent,
    Field::SshClient,
    Field::Hassh,
    Field::RdpRequested,
    Field::RtspMethod,
    Field::RtspUrl,
    Field::RedisCommand,
    Field::PostgresqlUser,
    Field::MqttVersion,
    Field::MqttClientId,
    Field::MqttKeepAliveS,
];

/// Fields of the certificate, which is read when it is whole.
pub const OF_CERTIFICATE: &[Field] = &[
    Field::TlsSubject,
    Field::TlsIssuer,
    Field::TlsNotBefore,
    Field::TlsNotAfter,
    Field::TlsSan,
    Field::TlsSanCount,
    Field::TlsSerial,
    Field::TlsSignature,
    Field::TlsKeyType,
    Field::TlsKeyBits,
    Field::TlsCertificateSha256,
];

/// Receives the findings about the server's data.
pub struct OfServer<'a> {
    pub application: &'a mut Application,
    /// Whether fields of its certificate are kept; a [`CertificateFields`] has them otherwise.
    pub keeps_certificate: bool,
}

impl FieldSink for OfServer<'_> {
    fn named(&mut self, protocol: inspect::Protocol) {
        self.application.named(protocol);
    }

    fn field(&mut self, field: Field, value: Value<'_>) {
        let is_kept = self.keeps_certificate || !OF_CERTIFICATE.contains(&field);
        if is_kept && !OWN.contains(&field) {
            self.application.field(field, value);
        }
    }
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Number(u64),
    Text(Box<[u8]>, bool),
    Digest([u8; 16]),
    Address(IpAddr),
}

/// Maximum length of all texts of a certificate in bytes: what follows is cut.
const TEXT_LEN_MAX: usize = 32 << 10;

/// The fields of a certificate, in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFields(Vec<(Field, Owned)>);

impl CertificateFields {
    /// Reads a certificate, or the beginning of one.
    pub fn of(der: &[u8]) -> Self {
        let mut fields = Self::default();
        // What was found in front of an error is valid.
        let _ = inspect::certificate(der, &mut fields);
        fields
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes of text that there is room for.
    fn room(&self) -> usize {
        let len = self.0.iter().map(|(_, owned)| match owned {
            Owned::Text(bytes, _) => bytes.len(),
            _ => 0,
        });
        TEXT_LEN_MAX.saturating_sub(len.sum())
    }

    /// All fields, in the order of the certificate.
    pub fn values(&self) -> Vec<(Field, Value<'_>)> {
        let value = |owned| match owned {
            &Owned::Number(number) => Value::Number(number),
            Owned::Text(bytes, is_cut) => Value::Text {
                bytes,
                is_cut: *is_cut,
            },
            &Owned::Digest(digest) => Value::Digest(digest),
            &Owned::Address(addr) => Value::Address(addr),
        };
        let fields = self.0.iter();
        fields
            .map(|(field, owned)| (*field, value(owned)))
            .collect()
    }
}

impl FieldSink for CertificateFields {
    fn named(&mut self, _: inspect::Protocol) {}

    fn field(&mut self, field: Field, value: Value<'_>) {
        let owned = match value {
            Value::Number(number) => Owned::Number(number),
            Value::Text { bytes, is_cut } => {
                let len = bytes.len().min(self.room());
                Owned::Text(bytes[..len].into(), is_cut || len < bytes.len())
            }
            Value::Digest(digest) => Owned::Digest(digest),
            Value::Address(addr) => Owned::Address(addr),
        };
        self.0.push((field, owned));
    }
}
