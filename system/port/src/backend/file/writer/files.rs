//! The files of a set: created, started with a header, ended; and the error if one cannot be
//! created.

use std::io;
use std::path::Path;

use sys::create::CreateOptions;
use sys::{Error, Result};
use wire::file::{pcap, pcapng};
use wire::{LinkType, Timestamp};

use super::super::input::Compression;
use super::super::output::Output;
use super::super::rotation::Sequence;
use super::{FileCompression, FileFormat, FileWriter, State, WriterOptions};

impl FileWriter {
    /// Checks that files of the set can be created later with the current privileges: creates one
    /// next to the first, and deletes it; also checks those that will be overwritten.
    ///
    /// # Errors
    /// `Permission`, and other errors of the system.
    pub fn check_later(options: &WriterOptions) -> Result<()> {
        if !options.rotation.is_on() {
            return Ok(());
        }
        let mut sequence = Sequence::new(&options.path, options.rotation);
        if let Some(start_s) = options.start_s {
            sequence.start(start_s);
        }
        for path in sequence.later() {
            if path.is_file() {
                let checked = making_of(options).check(&path);
                checked.map_err(|error| refused(&path, error, 1))?;
            }
        }
        let path = sequence.name();
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}", std::process::id()));
        let probe = path.with_file_name(name);
        making_of(options)
            .create_new(&probe)
            .map_err(|error| refused(&path, error, 1))?;
        std::fs::remove_file(&probe).map_err(|error| refused(&path, error, 1))
    }

    /// Creates the next file of the set, and gathers its header.
    pub(super) fn open(&mut self) -> Result<()> {
        let path = self.sequence.name();
        let compression = match self.options.compression {
            FileCompression::None => Compression::None,
            FileCompression::Gzip => Compression::Gzip,
            FileCompression::Zstd => Compression::Zstd,
        };
        let making = making_of(&self.options);
        let create = || {
            let output = Output::create(&path, compression, making)?;
            if let Some((uid, gid)) = self.options.owner {
                output.give_to(uid, gid)?;
            }
            Ok(output)
        };
        let output = create().map_err(|error: io::Error| {
            self.state = State::Failed;
            refused(&path, error, self.written.files)
        })?;
        self.written.files += 1;
        self.names.add(&path, self.options.rotation);
        self.output = Some((output, path));
        match self.options.format {
            FileFormat::Pcap(_) if self.interfaces.is_empty() => {}
            _ => self.head(),
        }
        Ok(())
    }

    /// Gathers the header of a file; for a pcap file, once the link type is known.
    pub(super) fn head(&mut self) {
        match self.options.format {
            FileFormat::Pcap(precision) => {
                let mut head = [0; pcap::HEADER_LEN];
                let link = LinkType(self.interfaces.first().map_or(1, |first| first.link_type));
                pcap::emit_header(&mut head, link, self.encoder.snaplen, precision);
                self.gathered.put(&head);
                self.has_head = true;
            }
            FileFormat::Pcapng if self.copies() => self.gathered.put(self.preamble.bytes()),
            FileFormat::Pcapng => {
                let (mut hardware, mut os) = ("", String::new());
                if self.options.is_live {
                    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
                    os = format!("Linux {}", release.unwrap_or_default().trim());
                    hardware = std::env::consts::ARCH;
                }
                let info = pcapng::SectionInfo {
                    hardware,
                    os: &os,
                    application: &self.options.application,
                    comment: "",
                };
                let texts = info.hardware.len() + os.len() + info.application.len();
                let mut block = vec![0; pcapng::text_block_len(texts)];
                let len = pcapng::emit_section(&mut block, &info).unwrap_or(0);
                self.gathered.put(&block[..len]);
                for index in 0..self.interfaces.len() {
                    self.interface_block(index);
                }
            }
        }
    }

    /// Gathers the block of a pcapng file that describes an interface.
    pub(super) fn interface_block(&mut self, index: usize) {
        let interface = &self.interfaces[index];
        let link = LinkType(interface.link_type);
        let mut info = pcapng::InterfaceInfo::new(link, self.encoder.snaplen, &interface.name);
        info.filter = &interface.filter;
        let texts = info.name.len() + info.filter.len();
        let mut block = vec![0; pcapng::text_block_len(texts)];
        let len = pcapng::emit_interface(&mut block, &info).unwrap_or(0);
        self.gathered.put(&block[..len]);
    }

    /// Ends the open file, and reports that it is complete.
    pub(super) fn rotate(&mut self) -> Result<()> {
        let path = self.output.as_ref().map(|(_, path)| path.clone());
        self.close()?;
        if let (Some(closed), Some(path)) = (&self.options.closed, path) {
            // The receiver of the result may have been dropped.
            let _ = closed.send(path);
        }
        Ok(())
    }

    /// Ends the open file.
    pub(super) fn close(&mut self) -> Result<()> {
        if self.output.is_none() {
            return Ok(());
        }
        match self.options.format {
            // A file without packets is also a capture.
            FileFormat::Pcap(_) if self.interfaces.is_empty() => self.head(),
            FileFormat::Pcap(_) => {}
            FileFormat::Pcapng => {
                for statistics in self.statistics.iter().flatten() {
                    let mut block = vec![0; pcapng::text_block_len(0)];
                    let time = Timestamp(self.last_ns);
                    let len = pcapng::emit_statistics(&mut block, statistics, time, "");
                    self.gathered.put(&block[..len.unwrap_or(0)]);
                }
            }
        }
        self.flush()?;
        if let Some((mut output, path)) = self.output.take() {
            let ended = output.end();
            self.written.bytes += output.len();
            ended.and_then(|()| output.close()).map_err(|error| {
                self.state = State::Failed;
                Error::from_io(format!("write {}", path.display()), error)
            })?;
        }
        Ok(())
    }
}

fn making_of(options: &WriterOptions) -> CreateOptions<'static> {
    CreateOptions {
        mode: options.mode,
        ..CreateOptions::PRIVATE
    }
}

/// Explains why a file cannot be created, and what to do.
fn refused(path: &Path, error: io::Error, files: u32) -> Error {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let hint = match error.raw_os_error() {
        Some(libc::ENOENT) if folder.is_dir() => "files cannot be created there".to_owned(),
        Some(libc::ENOENT) => format!("create the directory first: mkdir -p {}", folder.display()),
        Some(libc::EACCES | libc::EPERM) if files > 0 => format!(
            "with --user, later files are created by that user, who needs write permission in {}; \
             without --no-landlock, only directories in use at startup are writable",
            folder.display()
        ),
        Some(libc::EACCES | libc::EPERM) => {
            format!(
                "choose a directory that you can write to; {} is not",
                folder.display()
            )
        }
        None if error.to_string().contains("symbolic link") => {
            "give the path of the file itself, or remove the link".to_owned()
        }
        None if error.kind() == io::ErrorKind::PermissionDenied => {
            "choose a directory where only you can create files, or remove the existing file"
                .to_owned()
        }
        None if error.kind() == io::ErrorKind::NotConnected => {
            "start the reading program first".to_owned()
        }
        None if error.kind() == io::ErrorKind::InvalidInput => {
            "write to other names, or to another directory".to_owned()
        }
        Some(libc::EISDIR) => "give a file in it".to_owned(),
        Some(libc::EROFS) => "that file system is mounted read-only".to_owned(),
        _ => String::new(),
    };
    let error = Error::from_io(format!("write {}", path.display()), error);
    if hint.is_empty() {
        error
    } else {
        error.with_hint(hint)
    }
}
