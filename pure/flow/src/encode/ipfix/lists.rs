//! The fields of `--fields` in IPFIX: numbers as barewire's own elements, lists as `basicList`s
//! (RFC 6313 §4.5.1) of them. The number of a reverse element has [`OWN_REVERSE`] added.

use super::write::variable;
use crate::element::{Element, OWN_REVERSE, VARIABLE_LEN, reverse_name};
use crate::encode::extra_fields::ExtraFields;
use crate::encode::measured::{self, Measure, MeasuredColumn};
use crate::extra::Extra;
use crate::key::Side;
use crate::record::Record;

/// Registered number of `basicList`.
const BASIC_LIST: u16 = 291;

/// Semantic `ordered` (RFC 6313 §4.4.5).
const ORDERED: u8 = 4;

/// Columns of a record of both directions, or of one.
pub(super) fn columns(
    extra_fields: &ExtraFields,
    is_both: bool,
) -> impl Iterator<Item = MeasuredColumn> + use<> {
    measured::columns(extra_fields).filter(move |column| is_both || !column.is_reverse)
}

/// Encoding of a list's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListSize {
    /// Numbers with the length of their element.
    Natural,
    /// Numbers with the shortest sufficient length (RFC 7011 §6.2).
    Reduced,
    /// No numbers.
    Empty,
}

/// Whether it is the list that is longer than all others together.
pub(super) fn is_byte_histogram(column: &MeasuredColumn) -> bool {
    column.row.name == "byte_histogram"
}

fn id(column: &MeasuredColumn) -> u16 {
    let reverse = if column.is_reverse { OWN_REVERSE } else { 0 };
    column.row.element.id | reverse
}

/// Number and length of the column in a template, and its enterprise.
pub(super) fn specifier(column: &MeasuredColumn, own: u32) -> ((u16, u16), u32) {
    match column.row.measure {
        Measure::List { .. } => ((BASIC_LIST, VARIABLE_LEN), 0),
        Measure::Fraction(_) => ((id(column), column.row.element.len), own),
    }
}

/// The elements of the columns, including those within lists: number, name, description.
pub(super) fn own_elements(
    extra_fields: &ExtraFields,
    is_biflow: bool,
) -> impl Iterator<Item = (u16, String, &'static Element)> + use<> {
    columns(extra_fields, is_biflow).map(|column| {
        let element = &column.row.element;
        let name = match column.is_reverse {
            true => reverse_name(element.name),
            false => element.name.to_owned(),
        };
        (id(&column), name, element)
    })
}

/// Appends a value. A number that was not measured is NaN, and such a list is empty. `numbers` is a
/// scratch buffer.
pub(super) fn put(
    column: &MeasuredColumn,
    (record, extra, side): (&Record, &Extra<'_>, Side),
    (own, size): (u32, ListSize),
    numbers: &mut Vec<i64>,
    out: &mut Vec<u8>,
) {
    let read = match column.row.measure {
        Measure::List { read, .. } => read,
        Measure::Fraction(read) => {
            let value = read(record, extra, side).unwrap_or(f64::NAN);
            return out.extend(value.to_be_bytes());
        }
    };
    numbers.clear();
    if size != ListSize::Empty {
        read(record, extra, side, &mut |number| numbers.push(number));
    }
    let len: u16 = match numbers.iter().copied().max().unwrap_or(0) {
        _ if size == ListSize::Natural => column.row.element.len,
        // Signed numbers are directions, for which one byte is enough.
        ..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    };
    variable(out, |out| {
        out.push(ORDERED);
        super::write::specifier(out, id(column), len, own);
        for number in numbers.iter() {
            out.extend(&number.to_be_bytes()[8 - usize::from(len)..]);
        }
    });
}

#[cfg(test)]
mod tests;
