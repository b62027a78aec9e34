//! Link types.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::ptr::null;

use super::raw::{Handle, allocated, bytes, free, with};
use crate::failure::{ERROR, Failure};
use crate::handle::Kind;
use crate::link;
use sys::boundary::guard;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_datalink(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            state.activated()?;
            Ok(state.dlt)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_datalink_ext(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            state.activated()?;
            Ok(state.dlt_ext)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_datalinks(p: *mut Handle, list: *mut *mut c_int) -> c_int {
    // SAFETY: a handle; a place for the list.
    unsafe {
        with(p, |state| {
            state.activated()?;
            if list.is_null() {
                return Err(Failure::new("no place for the list"));
            }
            let dlts = match &state.kind {
                Kind::Live(live) => live.dlts(),
                _ => vec![state.dlt],
            };
            let memory = allocated(&dlts);
            if memory.is_null() {
                return Err(Failure::system("malloc", libc::ENOMEM));
            }
            *list = memory;
            Ok(dlts.len() as c_int)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_free_datalinks(list: *mut c_int) {
    // SAFETY: what pcap_list_datalinks gave.
    unsafe { free(list) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_datalink(p: *mut Handle, dlt: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            if dlt == state.dlt && state.activated().is_ok() {
                return Ok(0);
            }
            if let Kind::Live(live) = &mut state.kind
                && live.dlts().contains(&dlt)
            {
                live.set_dlt(dlt)?;
                state.dlt = dlt;
                return Ok(0);
            }
            let text = match link::name(dlt) {
                Some(name) => format!(
                    "{} is not one of the DLTs supported by this device",
                    name.to_string_lossy()
                ),
                None => format!("DLT {dlt} is not one of the DLTs supported by this device"),
            };
            Err(Failure::new(text))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_datalink_name_to_val(name: *const c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a text.
        let name = unsafe { bytes(name) };
        name.and_then(link::of_name).unwrap_or(ERROR)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_datalink_val_to_name(dlt: c_int) -> *const c_char {
    link::name(dlt).map_or(null(), |name| name.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_datalink_val_to_description(dlt: c_int) -> *const c_char {
    link::description(dlt).map_or(null(), |text| text.as_ptr())
}

thread_local! {
    static NUMBER: RefCell<String> = const { RefCell::new(String::new()) };
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_datalink_val_to_description_or_dlt(dlt: c_int) -> *const c_char {
    guard(null(), || match link::description(dlt) {
        Some(text) => text.as_ptr(),
        None => NUMBER.with_borrow_mut(|text| {
            *text = format!("DLT {dlt}\0");
            text.as_ptr().cast()
        }),
    })
}
