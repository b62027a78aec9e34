//! System libraries that are loaded on demand, not linked: everything that does not need them works
//! without them.

use std::ffi::{CStr, c_void};

/// Opens the first of these libraries that is present. It is never closed, because addresses in it
/// are kept.
///
/// # Errors
/// In words, where none is present.
pub(crate) fn open(names: &[&CStr]) -> Result<*mut c_void, String> {
    for name in names {
        // SAFETY: the name is a C string. Opening runs the library's constructors, which is what
        // linking to it would do as well.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(handle);
        }
    }
    let first = names.first().map(|name| name.to_string_lossy());
    Err(format!("there is no {}", first.unwrap_or_default()))
}

/// Generates a struct `Library` of functions, and `Library::find`, which looks them up in an open
/// library. Each type must match the function of that name in the library's header.
macro_rules! functions {
    ($(#[$about:meta])* $($field:ident: $type:ty = $name:literal;)*) => {
        $(#[$about])*
        struct Library {
            $($field: $type,)*
        }

        impl Library {
            fn find(handle: *mut std::ffi::c_void) -> std::result::Result<Self, String> {
                let symbol = |name: &std::ffi::CStr| {
                    // SAFETY: the handle is open, the name a C string.
                    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    if address.is_null() {
                        return Err(format!("it has no {}", name.to_string_lossy()));
                    }
                    Ok(address)
                };
                Ok(Self {
                    // SAFETY: each type is that of the function of this name, as the author of the
                    // row must ensure; both sides are pointers to code.
                    $($field: unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void, $type>(symbol($name)?)
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;
