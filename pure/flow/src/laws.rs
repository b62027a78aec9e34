//! Laws: properties that hold for every input. Tests and fuzz targets call them; they panic if a
//! law is violated. Enabled by the feature `laws`, which is off by default.

use crate::decode::ipfix::{DataRecord, Decoder, FIELD_MAX, Header, TEMPLATE_MAX};

/// Reads any bytes as a stream of IPFIX messages, up to the first damage, within limits.
pub fn ipfix_input(input: &[u8]) {
    let mut decoder = Decoder::new();
    let mut rest = input;
    while let Ok(header) = Header::parse(rest) {
        let (message, behind) = rest.split_at(header.len);
        let mut shown = 0;
        let result = decoder.message(message, &mut |record| {
            shown += record.bytes().len();
            one_record(record);
        });
        assert!(shown <= message.len(), "bytes shown twice");
        assert!(decoder.template_count() <= TEMPLATE_MAX);
        if result.is_err() {
            return;
        }
        assert_eq!(result, Ok(header));
        rest = behind;
    }
}

fn one_record(record: &DataRecord<'_>) {
    assert!(!record.bytes().is_empty());
    let (mut count, mut len) = (0, 0);
    for (field, value) in record.values() {
        count += 1;
        len += value.len();
        let found = record.get(field.enterprise, field.id);
        assert!(found.is_some());
        assert!(record.unsigned(field.enterprise, field.id).is_none() || value.len() < 1 << 16);
    }
    assert!(count <= FIELD_MAX && record.scope_count <= count);
    assert!(len <= record.bytes().len());
}
