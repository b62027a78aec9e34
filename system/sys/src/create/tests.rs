//! Tests of files, links and pipes of this user and of others.

use std::os::unix::fs::{PermissionsExt, lchown, symlink};

use super::*;

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("barewire-create-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PRIVATE: CreateOptions<'_> = CreateOptions::PRIVATE;

#[test]
fn the_input_is_kept_by_any_name() {
    let folder = Folder::new("input");
    let [input, hard, link] = ["input", "hard", "link"].map(|name| folder.0.join(name));
    std::fs::write(&input, "kept").unwrap();
    std::fs::hard_link(&input, &hard).unwrap();
    symlink("input", &link).unwrap();
    let data = std::fs::metadata(&input).unwrap();
    let making = CreateOptions {
        keep: &[(data.dev(), data.ino())],
        ..PRIVATE
    };
    for path in [&input, &hard, &link] {
        for error in [
            making.create(path).unwrap_err(),
            making.check(path).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
    PRIVATE.check(&link).unwrap();
    assert_eq!(std::fs::read_to_string(&input).unwrap(), "kept");
}

#[test]
fn an_input_of_the_process_is_no_output() {
    let folder = Folder::new("kept");
    let [input, hard, link, other] =
        ["input", "hard", "link", "other"].map(|name| folder.0.join(name));
    std::fs::write(&input, "kept").unwrap();
    std::fs::hard_link(&input, &hard).unwrap();
    symlink("input", &link).unwrap();
    PRIVATE.check(&hard).unwrap();
    // Other tests of this process must not get its inode when it is deleted.
    std::mem::forget(std::fs::File::open(&input).unwrap());
    kept::keep_input(&link);
    // What is no regular file, or does not exist, is ignored.
    for path in ["/dev/null", "/no/such/file"] {
        kept::keep_input(Path::new(path));
    }
    for path in [&input, &hard, &link] {
        for error in [
            PRIVATE.create(path).unwrap_err(),
            PRIVATE.open(path).map(drop).unwrap_err(),
            PRIVATE.check(path).unwrap_err(),
        ] {
            assert!(kept::is_input_error(&error), "{error}");
            let error = crate::Error::from_io("write it", error);
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert_eq!(error.hint(), Some(kept::IsInput::HINT));
        }
    }
    let open = File::options().append(true).open(&hard).unwrap();
    kept::check_open_output(&open).unwrap_err();
    assert_eq!(std::fs::read_to_string(&input).unwrap(), "kept");
    kept::check_open_output(&PRIVATE.create(&other).unwrap()).unwrap();
    PRIVATE.create(Path::new("/dev/null")).unwrap();
    // A new file of the same name is another one.
    std::fs::remove_file(&input).unwrap();
    PRIVATE.create(&input).unwrap();
}

#[test]
fn new_files_are_private_unless_asked() {
    let folder = Folder::new("mode");
    for (name, mode) in [("a", 0o600), ("b", 0o400)] {
        let file = CreateOptions { mode, ..PRIVATE }
            .create(&folder.0.join(name))
            .unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, mode);
    }
    // One that is there keeps its permissions, and is emptied.
    let path = folder.0.join("c");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let file = PRIVATE.create(&path).unwrap();
    let data = file.metadata().unwrap();
    assert_eq!((data.mode() & 0o777, data.len()), (0o640, 0));
}

#[test]
fn a_pipe_of_this_process_has_a_name() {
    use std::io::{Read, Write};
    let folder = Folder::new("pipe");
    let (mut reader, pipe) = io::pipe().unwrap();
    let names = ["/proc/self/fd", "/dev/fd"].map(|fds| format!("{fds}/{}", pipe.as_raw_fd()));
    // A link to it, too: `/dev/stdout` is one.
    let link = folder.0.join("link");
    symlink(&names[0], &link).unwrap();
    for path in names.iter().map(Path::new).chain([link.as_path()]) {
        PRIVATE.create(path).unwrap().write_all(b"x").unwrap();
    }
    drop(pipe);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "xxx");
}

#[test]
fn links_of_other_users_are_not_followed() {
    let folder = Folder::new("link");
    let [file, link] = ["file", "link"].map(|name| folder.0.join(name));
    std::fs::write(&file, "kept").unwrap();
    symlink(&file, &link).unwrap();
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip::skip!("root, to make a link of another user");
    }
    lchown(&link, Some(12_345), None).unwrap();
    let error = PRIVATE.check(&link).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let error = PRIVATE.create(&link).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("user 12345 created"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    lchown(&link, Some(0), None).unwrap();
    PRIVATE.create(&link).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    let inner = folder.0.join("inner");
    symlink(&folder.0, &inner).unwrap();
    check_folder(&inner).unwrap();
    lchown(&inner, Some(12_345), None).unwrap();
    for path in [inner.clone(), inner.join("")] {
        let error = check_folder(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
    check_folder(&folder.0.join("none")).unwrap();
    // A link to a link is looked at as well, and a relative one is of its directory.
    let [first, loops] = ["first", "loops"].map(|name| folder.0.join(name));
    symlink("link", &first).unwrap();
    PRIVATE.create(&first).unwrap();
    lchown(&link, Some(12_345), None).unwrap();
    let error = PRIVATE.create(&first).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    symlink("loops", &loops).unwrap();
    let error = PRIVATE.create(&loops).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
}

fn make_pipe(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a string that ends in zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn no_call_waits_for_the_reader_of_a_pipe() {
    use std::io::{Read, Write};
    let folder = Folder::new("fifo");
    let pipe = folder.0.join("pipe");
    make_pipe(&pipe);
    let error = PRIVATE.create(&pipe).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
    assert!(PRIVATE.open_pipe(&pipe).unwrap().is_none());
    let mut options = File::options();
    let mut reader = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&pipe)
        .unwrap();
    assert!(PRIVATE.open_pipe(&pipe).unwrap().is_some());
    let mut writer = PRIVATE.create(&pipe).unwrap();
    // SAFETY: a plain system call on an open descriptor.
    let flags = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETFL) };
    assert_eq!(flags & libc::O_NONBLOCK, 0, "writes wait for room");
    writer.write_all(b"x").unwrap();
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    drop(reader);
    assert!(PRIVATE.open_pipe(&pipe).unwrap().is_none());
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let error = PRIVATE.open_pipe(&file).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn files_of_others_in_shared_folders_are_refused() {
    let folder = Folder::new("planted");
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip::skip!("root, to make a file of another user");
    }
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&folder.0, mode).unwrap();
    };
    let [file, pipe, link] = ["file", "pipe", "link"].map(|name| folder.0.join(name));
    std::fs::write(&file, "kept").unwrap();
    make_pipe(&pipe);
    symlink("file", &link).unwrap();
    for path in [&file, &pipe] {
        lchown(path, Some(12_345), None).unwrap();
    }
    let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
    for shared in [0o1777, 0o1770] {
        set_mode(shared);
        for path in [&file, &pipe, &link] {
            for error in [
                PRIVATE.create(path).unwrap_err(),
                PRIVATE.open(path).map(drop).unwrap_err(),
                PRIVATE.check(path).unwrap_err(),
            ] {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                assert!(
                    error.to_string().contains("user 12345 created it"),
                    "{error}"
                );
            }
        }
        PRIVATE.open_pipe(&pipe).unwrap_err();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    // The directory's owner could replace it anyway; and what is not sticky, anybody.
    lchown(&folder.0, Some(12_345), None).unwrap();
    PRIVATE.check(&file).unwrap();
    lchown(&folder.0, Some(0), None).unwrap();
    for mode in [0o1755, 0o777] {
        set_mode(mode);
        PRIVATE.check(&file).unwrap();
        PRIVATE.check(&pipe).unwrap();
    }
    // One's own.
    set_mode(0o1777);
    lchown(&file, Some(0), None).unwrap();
    PRIVATE.create(&link).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
}

#[test]
fn existing_files_are_recognized() {
    let folder = Folder::new("there");
    let file = folder.0.join("file");
    assert!(PRIVATE.open(&file).unwrap().is_new);
    std::fs::write(&file, "kept").unwrap();
    assert!(!PRIVATE.open(&file).unwrap().is_new);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let error = PRIVATE.create_new(&file).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    for (path, code) in [
        (folder.0.join("no/file"), libc::ENOENT),
        (folder.0.clone(), libc::EISDIR),
        (folder.0.join("sub/"), libc::EISDIR),
        (folder.0.join("."), libc::EISDIR),
        (PathBuf::new(), libc::ENOENT),
    ] {
        let error = PRIVATE.create(&path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(code), "{}", path.display());
    }
}
