//! The next event of a file with any number of interfaces.

use wire::file::{Event, FileError, FileErrorKind, Interface, Reader, pcapng};

/// The next event; the table of interfaces grows when it is full.
#[inline]
pub(super) fn next(
    reader: &mut Reader<Vec<Interface>>,
    bytes: &[u8],
) -> std::result::Result<Event, FileError> {
    let event = reader.next(bytes);
    match &event {
        Err(error) if matches!(error.kind, FileErrorKind::TooManyInterfaces(_)) => {}
        _ => return event,
    }
    let len = reader.table_mut().len();
    if len >= pcapng::INTERFACES_MAX {
        return event;
    }
    let len = (len * 2).min(pcapng::INTERFACES_MAX);
    reader.table_mut().resize(len, Interface::default());
    reader.next(bytes)
}
