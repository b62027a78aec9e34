//! A Parquet file: row groups, and a footer with their positions.
//!
//! A row group is built in memory and appended whole. If the disk has no room for it, the file ends
//! with the groups before it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flow::encode::Sum;
use flow::encode::extra_fields::ExtraFields;
use flow::encode::measured::{Measure, MeasuredColumn};
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use crate::columns::{self, Column, Read, Row, Rows};
use crate::part::Part;
use crate::worker::Progress;

/// Number of rows converted to a column's values at a time.
const CHUNK_LEN: usize = 1024;
/// Maximum size of a dictionary in bytes; a column with more distinct values is written without.
const DICTIONARY_LEN: usize = 256 << 10;

/// The layout shared by all files.
pub(super) struct Layout {
    pub columns: Vec<Column>,
    /// Timestamps in nanoseconds instead of microseconds.
    is_nano: bool,
    schema: TypePtr,
    properties: Arc<WriterProperties>,
}

impl Layout {
    /// Whether a time is beyond those of its columns: nanoseconds end in 2262.
    pub fn clamps(&self, time_ns: u64) -> bool {
        self.is_nano && i64::try_from(time_ns).is_err()
    }

    /// Creates the layout of all files of a run.
    pub fn new(is_nano: bool, extra_fields: &ExtraFields) -> ParquetResult<Layout> {
        let columns = columns::columns(extra_fields);
        let fields = columns
            .iter()
            .map(|column| field(column, is_nano).map(Arc::new));
        let fields = fields.collect::<ParquetResult<Vec<_>>>()?;
        let schema = Type::group_type_builder("flow")
            .with_fields(fields)
            .build()?;
        Ok(Layout {
            columns,
            is_nano,
            schema: Arc::new(schema),
            properties: properties()?,
        })
    }
}

/// Properties of all files: compression, and what readers skip by.
pub(crate) fn properties() -> ParquetResult<Arc<WriterProperties>> {
    let level = ZstdLevel::try_new(1)?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("barewire ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_dictionary_page_size_limit(DICTIONARY_LEN)
        // Minimum and maximum of each column in each row group, by which readers skip. Those of
        // pages would be most of a small file.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    Ok(Arc::new(properties))
}

fn field(column: &Column, is_nano: bool) -> ParquetResult<Type> {
    let unsigned = |bits: i8| LogicalType::integer(bits, false);
    let (physical, logical) = match column.read {
        Read::Short(bits, _) => (Physical::INT32, Some(unsigned(bits))),
        Read::Long(_) => (Physical::INT64, Some(unsigned(64))),
        Read::Sent(_, of) if of.bits == 64 => (Physical::INT64, Some(unsigned(64))),
        Read::Sent(_, of) => (Physical::INT32, Some(unsigned(of.bits))),
        Read::Time(_) => {
            let unit = if is_nano {
                TimeUnit::NANOS
            } else {
                TimeUnit::MICROS
            };
            (Physical::INT64, Some(LogicalType::timestamp(true, unit)))
        }
        Read::Flag(_) => (Physical::BOOLEAN, None),
        Read::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Read::Address(_) => (Physical::FIXED_LEN_BYTE_ARRAY, None),
        Read::Measured(measured) => match measured.row.measure {
            Measure::Fraction(_) => (Physical::DOUBLE, None),
            Measure::List {
                bits, is_signed, ..
            } => return list_field(&column.name, bits, is_signed),
        },
    };
    let repetition = if column.is_optional {
        Repetition::OPTIONAL
    } else {
        Repetition::REQUIRED
    };
    let builder = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical);
    match column.read {
        Read::Address(_) => builder.with_length(16).build(),
        _ => builder.build(),
    }
}

/// A list of numbers, in the three levels that readers expect (Parquet, LogicalTypes.md, "Lists").
fn list_field(name: &str, bits: i8, is_signed: bool) -> ParquetResult<Type> {
    let element = Type::primitive_type_builder("element", Physical::INT32)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::integer(bits, is_signed)))
        .build()?;
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element)])
        .build()?;
    Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()
}

/// An open file.
pub(super) struct File {
    part: Part,
    writer: SerializedFileWriter<Vec<u8>>,
    layout: Arc<Layout>,
    /// Number of row groups on disk.
    group_count: usize,
    /// Records in them.
    pub held: Sum,
    /// A row group did not fit: nothing may follow.
    is_cut: bool,
}

impl File {
    /// Creates the file that will be named `path`.
    pub fn create(path: &Path, layout: &Arc<Layout>) -> io::Result<File> {
        let schema = layout.schema.clone();
        let writer = SerializedFileWriter::new(Vec::new(), schema, layout.properties.clone());
        Ok(File {
            part: Part::create(path)?,
            writer: writer.map_err(fault)?,
            layout: layout.clone(),
            group_count: 0,
            held: Sum::default(),
            is_cut: false,
        })
    }

    /// Bytes on disk.
    pub fn len(&self) -> u64 {
        self.part.len()
    }

    /// Number of row groups.
    pub fn group_count(&self) -> usize {
        self.group_count
    }

    /// Appends a row group, all of it or nothing. After an error the file takes no more. Each
    /// column counts as a step of progress.
    pub fn append(&mut self, rows: &Rows<'_>, progress: &Progress) -> io::Result<()> {
        if self.is_cut {
            return Err(io::Error::other("the file has ended"));
        }
        self.is_cut = true;
        self.encode(rows, progress).map_err(fault)?;
        self.writer.flush()?;
        let bytes = std::mem::take(self.writer.inner_mut());
        self.part.append(&bytes)?;
        self.is_cut = false;
        self.group_count += 1;
        rows.iter().for_each(|row| self.held.count(row.record));
        Ok(())
    }

    fn encode(&mut self, rows: &Rows<'_>, progress: &Progress) -> ParquetResult<()> {
        let layout = self.layout.clone();
        let mut group = self.writer.next_row_group()?;
        for column in &layout.columns {
            let Some(mut out) = group.next_column()? else {
                return Err(ParquetError::General("a column too many".into()));
            };
            write(column, &layout, rows, &mut out)?;
            out.close()?;
            progress.step();
        }
        group.close()?;
        Ok(())
    }

    /// Completes the file and renames it, if it is not empty. Returns its name and size.
    pub fn complete(mut self) -> io::Result<Option<(PathBuf, u64)>> {
        if self.group_count == 0 {
            return Ok(None);
        }
        let metadata = self.writer.finish().map_err(fault)?;
        let mut footer = std::mem::take(self.writer.inner_mut());
        if self.is_cut {
            footer = self.footer_of_whole(metadata).map_err(fault)?;
        }
        self.part.append(&footer)?;
        let len = self.part.len();
        self.part.complete().map(|path| Some((path, len)))
    }

    /// The footer without a row group that was not written.
    fn footer_of_whole(&self, metadata: ParquetMetaData) -> ParquetResult<Vec<u8>> {
        let mut builder = metadata.into_builder();
        let mut groups = builder.take_row_groups();
        groups.truncate(self.group_count);
        let metadata = builder.set_row_groups(groups).build();
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
        Ok(footer)
    }
}

/// Converts the library's error, which is never about the disk, for it writes into memory.
fn fault(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

/// Writes a column of a row group.
fn write(
    column: &Column,
    layout: &Layout,
    rows: &Rows<'_>,
    out: &mut SerializedColumnWriter<'_>,
) -> ParquetResult<()> {
    match column.read {
        Read::Short(_, read) => {
            values::<Int32Type>(column, rows, out, |row| read(row).map(|v| v as i32))
        }
        Read::Long(read) => {
            values::<Int64Type>(column, rows, out, |row| read(row).map(|v| v as i64))
        }
        Read::Time(read) => {
            let unit = if layout.is_nano { 1 } else { 1000 };
            values::<Int64Type>(column, rows, out, |row| {
                read(row).map(|time_ns| i64::try_from(time_ns / unit).unwrap_or(i64::MAX))
            })
        }
        Read::Flag(read) => values::<BoolType>(column, rows, out, |row| Some(read(row))),
        Read::Text(read) => values::<ByteArrayType>(column, rows, out, |row| {
            let mut text = Vec::new();
            read(row, &mut text).then(|| ByteArray::from(text))
        }),
        Read::Address(read) => values::<FixedLenByteArrayType>(column, rows, out, |row| {
            Some(FixedLenByteArray::from(read(row).to_vec()))
        }),
        Read::Sent(way, of) if of.bits == 64 => values::<Int64Type>(column, rows, out, |row| {
            columns::sent(row, way, of).map(|v| v as i64)
        }),
        Read::Sent(way, of) => values::<Int32Type>(column, rows, out, |row| {
            columns::sent(row, way, of).map(|v| v as i32)
        }),
        Read::Measured(measured) => match measured.row.measure {
            Measure::Fraction(_) => {
                values::<DoubleType>(column, rows, out, |row| columns::fraction(row, &measured))
            }
            Measure::List { .. } => lists(&measured, rows, out),
        },
    }
}

/// Writes a column of lists; an empty list is null.
fn lists(
    column: &MeasuredColumn,
    rows: &Rows<'_>,
    out: &mut SerializedColumnWriter<'_>,
) -> ParquetResult<()> {
    let (mut list, mut values) = (Vec::new(), Vec::new());
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    let mut rows = rows.iter().peekable();
    while rows.peek().is_some() {
        values.clear();
        definition.clear();
        repetition.clear();
        for row in rows.by_ref().take(CHUNK_LEN) {
            list.clear();
            columns::list(&row, column, &mut list);
            // The first entry of each row has repetition 0, null or not; a value has definition 2.
            definition.push(if list.is_empty() { 0 } else { 2 });
            repetition.push(0);
            definition.extend(list.iter().skip(1).map(|_| 2));
            repetition.extend(list.iter().skip(1).map(|_| 1));
            values.extend(list.iter().map(|value| *value as i32));
        }
        out.typed::<Int32Type>()
            .write_batch(&values, Some(&definition), Some(&repetition))?;
    }
    Ok(())
}

fn values<T: DataType>(
    column: &Column,
    rows: &Rows<'_>,
    out: &mut SerializedColumnWriter<'_>,
    read: impl Fn(&Row<'_>) -> Option<T::T>,
) -> ParquetResult<()> {
    let (mut values, mut levels) = (Vec::with_capacity(CHUNK_LEN), Vec::with_capacity(CHUNK_LEN));
    let mut rows = rows.iter().peekable();
    while rows.peek().is_some() {
        values.clear();
        levels.clear();
        for row in rows.by_ref().take(CHUNK_LEN) {
            let value = read(&row);
            levels.push(i16::from(value.is_some()));
            values.extend(value);
        }
        let levels = column.is_optional.then_some(&levels[..]);
        out.typed::<T>().write_batch(&values, levels, None)?;
    }
    Ok(())
}
