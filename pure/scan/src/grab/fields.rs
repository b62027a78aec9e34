//! What the decoders find out about a server, without what is known of the scanner itself.

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

/// Receives the findings about the server's data.
pub struct OfServer<'a>(pub &'a mut Application);

impl FieldSink for OfServer<'_> {
    fn named(&mut self, protocol: inspect::Protocol) {
        self.0.named(protocol);
    }

    fn field(&mut self, field: Field, value: Value<'_>) {
        if !OWN.contains(&field) {
            self.0.field(field, value);
        }
    }
}
