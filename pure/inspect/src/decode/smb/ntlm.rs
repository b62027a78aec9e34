//! NTLM (MS-NLMP): the names in an AUTHENTICATE message (§2.2.1.3), whatever carries it: bare,
//! SPNEGO, or a Kerberos frame.

use super::{long, wide, word};
use crate::field::{Field, FieldSink};
use crate::text::Text;

const AUTHENTICATE: &[u8] = b"NTLMSSP\0\x03\0\0\0";
/// Offset of length, room and position of each name, and its field.
const NAMES: &[(usize, Field)] = &[
    (28, Field::SmbDomain),
    (36, Field::SmbUser),
    (44, Field::SmbWorkstation),
];
const FLAGS_AT: usize = 60;
const UNICODE: u32 = 1;

/// Reports the names, if the message is complete.
pub(super) fn report(bytes: &[u8], out: &mut dyn FieldSink) {
    let found = bytes
        .windows(AUTHENTICATE.len())
        .position(|window| window == AUTHENTICATE);
    let Some(message) = found.and_then(|at| bytes.get(at..)) else {
        return;
    };
    let is_wide = long(message, FLAGS_AT).is_none_or(|flags| flags & UNICODE != 0);
    for (at, field) in NAMES {
        let (Some(len), Some(start)) = (word(message, *at), long(message, at + 4)) else {
            return;
        };
        let start = start as usize;
        let Some(name) = message.get(start..start + usize::from(len)) else {
            continue;
        };
        let name = match is_wide {
            true => wide::<64>(name),
            false => {
                let mut text = Text::EMPTY;
                text.push(name);
                (!text.is_empty()).then_some(text)
            }
        };
        if let Some(name) = name {
            out.field(*field, name.value());
        }
    }
}
