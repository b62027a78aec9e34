//! The system's librdkafka: a producer for Apache Kafka.
//!
//! It is loaded on demand, not linked, as [`libpcap`](crate::libpcap) is: without it only Kafka
//! exports are unavailable. Everything used here is in librdkafka 1.0 (rdkafka.h) and later.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::dynamic::{self, functions};
use crate::{Error, ErrorKind, Result};

const NAMES: [&CStr; 2] = [c"librdkafka.so.1", c"librdkafka.so"];

/// `RD_KAFKA_PRODUCER`.
const PRODUCER: c_int = 0;
/// `RD_KAFKA_CONF_OK`.
const CONF_OK: c_int = 0;
/// `RD_KAFKA_PARTITION_UA`: the library chooses.
const ANY_PARTITION: i32 = -1;
/// `RD_KAFKA_MSG_F_COPY`: the library copies the message.
const COPY: c_int = 0x2;
/// `RD_KAFKA_RESP_ERR__QUEUE_FULL`.
const QUEUE_FULL: c_int = -184;
/// `RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT`.
const PURGE_ALL: c_int = 0x3;
/// Size of the buffer for the text of an error.
const TEXT_LEN: usize = 512;

/// Types whose layout is not known here: `rd_kafka_conf_t`, `rd_kafka_t`, `rd_kafka_topic_t`.
#[repr(C)]
struct Opaque {
    opaque: [u8; 0],
}

/// `rd_kafka_message_t`.
#[repr(C)]
struct Message {
    error: c_int,
    topic: *mut Opaque,
    partition: i32,
    payload: *mut c_void,
    payload_len: usize,
    key: *mut c_void,
    key_len: usize,
    offset: i64,
    /// The tag passed with the message.
    tag: *mut c_void,
}

type Reported = unsafe extern "C" fn(*mut Opaque, *const Message, *mut c_void);
type Failed = unsafe extern "C" fn(*mut Opaque, c_int, *const c_char, *mut c_void);
type Log = unsafe extern "C" fn(*const Opaque, c_int, *const c_char, *const c_char);

type ConfNew = unsafe extern "C" fn() -> *mut Opaque;
type ConfDestroy = unsafe extern "C" fn(*mut Opaque);
type ConfSet =
    unsafe extern "C" fn(*mut Opaque, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
type ConfSetOpaque = unsafe extern "C" fn(*mut Opaque, *mut c_void);
type ConfSetReported = unsafe extern "C" fn(*mut Opaque, Reported);
type ConfSetFailed = unsafe extern "C" fn(*mut Opaque, Failed);
type ConfSetLog = unsafe extern "C" fn(*mut Opaque, Option<Log>);
type New = unsafe extern "C" fn(c_int, *mut Opaque, *mut c_char, usize) -> *mut Opaque;
type TopicNew = unsafe extern "C" fn(*mut Opaque, *const c_char, *mut Opaque) -> *mut Opaque;
type Destroy = unsafe extern "C" fn(*mut Opaque);
type Produce = unsafe extern "C" fn(
    *mut Opaque,
    i32,
    c_int,
    *const c_void,
    usize,
    *const c_void,
    usize,
    *mut c_void,
) -> c_int;
type Poll = unsafe extern "C" fn(*mut Opaque, c_int) -> c_int;
type Purge = unsafe extern "C" fn(*mut Opaque, c_int) -> c_int;
type LastError = unsafe extern "C" fn() -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = unsafe extern "C" fn() -> *const c_char;

functions! {
    /// The functions that we use, with librdkafka's signatures (rdkafka.h, which keeps them
    /// compatible).
    conf_new: ConfNew = c"rd_kafka_conf_new";
    conf_destroy: ConfDestroy = c"rd_kafka_conf_destroy";
    conf_set: ConfSet = c"rd_kafka_conf_set";
    conf_set_opaque: ConfSetOpaque = c"rd_kafka_conf_set_opaque";
    conf_set_reported: ConfSetReported = c"rd_kafka_conf_set_dr_msg_cb";
    conf_set_failed: ConfSetFailed = c"rd_kafka_conf_set_error_cb";
    conf_set_log: ConfSetLog = c"rd_kafka_conf_set_log_cb";
    new: New = c"rd_kafka_new";
    topic_new: TopicNew = c"rd_kafka_topic_new";
    topic_destroy: Destroy = c"rd_kafka_topic_destroy";
    destroy: Destroy = c"rd_kafka_destroy";
    produce: Produce = c"rd_kafka_produce";
    poll: Poll = c"rd_kafka_poll";
    purge: Purge = c"rd_kafka_purge";
    last_error: LastError = c"rd_kafka_last_error";
    error_text: ErrorText = c"rd_kafka_err2str";
    version: Version = c"rd_kafka_version_str";
}

impl Library {
    fn open() -> std::result::Result<Self, String> {
        Self::find(dynamic::open(&NAMES)?)
    }

    fn text(&self, error: c_int) -> String {
        // SAFETY: any number may be given; the text is static.
        let text = unsafe { CStr::from_ptr((self.error_text)(error)) };
        text.to_string_lossy().into_owned()
    }
}

fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(|why| {
        let what = "open librdkafka, which exports to Kafka";
        Error::new(ErrorKind::Unsupported, what, why.clone())
            .with_hint("apt-get install librdkafka1")
    })
}

/// The library's own description of its version.
///
/// # Errors
/// `Unsupported` if the library is not present.
pub fn version() -> Result<String> {
    let library = library()?;
    // SAFETY: no precondition; the text is static.
    let text = unsafe { CStr::from_ptr((library.version)()) };
    Ok(text.to_string_lossy().into_owned())
}

/// What the library has reported since the last call.
#[derive(Debug, Default)]
pub struct Reports {
    /// Tags of messages that have been delivered (`true`), and of those that will not be.
    pub messages: Vec<(usize, bool)>,
    /// The most recent failure, as text.
    pub last_error: Option<String>,
}

/// A producer for one topic. Messages are copied into its queue; [`Producer::poll`] reports whether
/// each was delivered.
pub struct Producer {
    library: &'static Library,
    handle: *mut Opaque,
    topic: *mut Opaque,
    /// The library's callbacks use its address.
    reports: Box<Mutex<Reports>>,
}

// SAFETY: librdkafka's handles may be used by any thread (rdkafka.h, INTRODUCTION.md "Threads and
// callbacks"); the reports are behind a lock.
unsafe impl Send for Producer {}

/// Why a message was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The library's queue is full: try again after [`Producer::poll`].
    Full,
    /// It will never be accepted, with the reason.
    Wrong(String),
}

/// The error for a producer that cannot be created.
fn wrong(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "set up Kafka", why)
}

fn string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| wrong("a zero byte".into()))
}

/// The text that the library has written.
fn words(text: &[c_char; TEXT_LEN]) -> String {
    // SAFETY: it was zeros, and the library ends what it writes with one.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_string_lossy().into_owned()
}

/// A configuration, destroyed on drop unless a producer has taken it over.
struct Conf {
    library: &'static Library,
    conf: *mut Opaque,
}

impl Conf {
    fn new(properties: &[(&str, &str)]) -> Result<Conf> {
        let library = library()?;
        let mut pairs = Vec::new();
        for (name, value) in properties {
            pairs.push((string(name)?, string(value)?));
        }
        // SAFETY: no precondition.
        let conf = unsafe { (library.conf_new)() };
        let conf = Conf { library, conf };
        let mut text: [c_char; TEXT_LEN] = [0; TEXT_LEN];
        for (name, value) in &pairs {
            // SAFETY: conf is live, the strings are C strings, the text has the stated length.
            let status = unsafe {
                (library.conf_set)(
                    conf.conf,
                    name.as_ptr(),
                    value.as_ptr(),
                    text.as_mut_ptr(),
                    TEXT_LEN,
                )
            };
            if status != CONF_OK {
                return Err(wrong(words(&text)));
            }
        }
        Ok(conf)
    }
}

impl Drop for Conf {
    fn drop(&mut self) {
        // SAFETY: live, as it was not taken, and not used after this.
        unsafe { (self.library.conf_destroy)(self.conf) };
    }
}

impl Producer {
    /// Checks the names and values of properties one by one, without starting anything.
    ///
    /// # Errors
    /// As [`Producer::new`].
    pub fn check(properties: &[(&str, &str)], topic: &str) -> Result<()> {
        string(topic)?;
        Conf::new(properties).map(drop)
    }

    /// A producer with these properties (CONFIGURATION.md of librdkafka). The library starts
    /// threads, with the privileges of the calling one.
    ///
    /// # Errors
    /// `InvalidInput` with the library's words where a property is not known or not possible,
    /// `Unsupported` without the library.
    pub fn new(properties: &[(&str, &str)], topic: &str) -> Result<Producer> {
        let topic = string(topic)?;
        let conf = Conf::new(properties)?;
        let library = conf.library;
        let reports = Box::new(Mutex::new(Reports::default()));
        let mut text: [c_char; TEXT_LEN] = [0; TEXT_LEN];
        // SAFETY: conf is live. The callbacks have the signatures of rdkafka.h; the reports outlive
        // the handle, which is destroyed before them (`Drop`).
        let handle = unsafe {
            let reports: *const Mutex<Reports> = &*reports;
            (library.conf_set_opaque)(conf.conf, reports.cast_mut().cast());
            (library.conf_set_reported)(conf.conf, reported);
            (library.conf_set_failed)(conf.conf, failed);
            (library.conf_set_log)(conf.conf, None);
            (library.new)(PRODUCER, conf.conf, text.as_mut_ptr(), TEXT_LEN)
        };
        if handle.is_null() {
            // On failure we still own the configuration.
            return Err(wrong(words(&text)));
        }
        // The handle owns it now.
        std::mem::forget(conf);
        // SAFETY: the handle is live, the name a C string; no configuration of its own.
        let topic = unsafe { (library.topic_new)(handle, topic.as_ptr(), std::ptr::null_mut()) };
        if topic.is_null() {
            // SAFETY: no precondition.
            let why = library.text(unsafe { (library.last_error)() });
            // SAFETY: live, and not used after this.
            unsafe { (library.destroy)(handle) };
            return Err(wrong(why));
        }
        Ok(Producer {
            library,
            handle,
            topic,
            reports,
        })
    }

    /// Puts a message into the queue. The report about it has this tag.
    ///
    /// # Errors
    /// [`Refused`]; then there will be no report.
    pub fn produce(&self, message: &[u8], tag: usize) -> std::result::Result<(), Refused> {
        // SAFETY: the topic is live; the bytes are readable for their length and copied; the tag is
        // a number that the library only hands back.
        let status = unsafe {
            (self.library.produce)(
                self.topic,
                ANY_PARTITION,
                COPY,
                message.as_ptr().cast(),
                message.len(),
                std::ptr::null(),
                0,
                std::ptr::without_provenance_mut(tag),
            )
        };
        if status == 0 {
            return Ok(());
        }
        // SAFETY: no precondition; of this thread's last call.
        match unsafe { (self.library.last_error)() } {
            QUEUE_FULL => Err(Refused::Full),
            error => Err(Refused::Wrong(self.library.text(error))),
        }
    }

    /// Waits at most this long for reports, and returns those received.
    pub fn poll(&self, wait_ms: u32) -> Reports {
        // SAFETY: the handle is live; callbacks run here, in this thread.
        unsafe { (self.library.poll)(self.handle, wait_ms.min(60_000) as c_int) };
        std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops all messages that have not been delivered; their reports come with the next
    /// [`Producer::poll`].
    pub fn purge(&self) {
        // SAFETY: the handle is live.
        unsafe { (self.library.purge)(self.handle, PURGE_ALL) };
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // SAFETY: both are live and not used after this; after `destroy` no callback runs.
        unsafe {
            (self.library.topic_destroy)(self.topic);
            (self.library.destroy)(self.handle);
        }
    }
}

/// Called by the library when a message is delivered, or will not be.
unsafe extern "C" fn reported(_: *mut Opaque, message: *const Message, reports: *mut c_void) {
    // SAFETY: the library passes a message of its own for the call, and returns what
    // `conf_set_opaque` was given, a `Mutex<Reports>` that outlives the handle.
    let (message, reports) = unsafe { (&*message, &*reports.cast::<Mutex<Reports>>()) };
    let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = message.error == 0;
    reports.messages.push((message.tag.addr(), is_there));
    if !is_there && let Ok(library) = library() {
        reports.last_error = Some(library.text(message.error));
    }
}

/// Called by the library for failures that concern more than one message, such as unreachable
/// brokers.
unsafe extern "C" fn failed(_: *mut Opaque, _: c_int, reason: *const c_char, reports: *mut c_void) {
    // SAFETY: as above; the reason is a C string, or null.
    let reports = unsafe { &*reports.cast::<Mutex<Reports>>() };
    if reason.is_null() {
        return;
    }
    // SAFETY: not null, hence a C string.
    let reason = unsafe { CStr::from_ptr(reason) };
    let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    reports.last_error = Some(reason.to_string_lossy().into_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_the_librarys() {
        if let Err(error) = version() {
            assert!(
                error
                    .hint()
                    .is_some_and(|hint| hint.contains("librdkafka1"))
            );
            skip::skip!("{error}");
        }
        let error = Producer::new(&[("colour", "red")], "t").err().unwrap();
        assert!(error.why().contains("colour"), "{error}");
        let error = Producer::new(&[("acks", "many")], "t").err().unwrap();
        assert!(error.why().contains("acks"), "{error}");
        assert!(Producer::new(&[("acks", "all\0")], "t").is_err());
        // Also found before anything is started.
        assert!(Producer::check(&[("colour", "red")], "t").is_err());
        assert!(Producer::check(&[("acks", "all")], "t").is_ok());
    }

    /// No broker: the queue is bounded, and its messages return as lost.
    #[test]
    fn the_queue_is_bounded_and_every_message_has_a_report() {
        if let Err(error) = version() {
            skip::skip!("{error}");
        }
        let properties = [
            ("bootstrap.servers", "127.0.0.1:1"),
            ("queue.buffering.max.messages", "10"),
        ];
        let producer = Producer::new(&properties, "flows").unwrap();
        for tag in 1..=10 {
            assert_eq!(producer.produce(b"{}", tag), Ok(()));
        }
        assert_eq!(producer.produce(b"{}", 11), Err(Refused::Full));
        producer.purge();
        let mut lost = Vec::new();
        for _ in 0..100 {
            let reports = producer.poll(100);
            lost.extend(reports.messages);
            if lost.len() >= 10 {
                break;
            }
        }
        lost.sort_unstable();
        assert_eq!(lost, (1..=10).map(|tag| (tag, false)).collect::<Vec<_>>());
    }
}
