//! Queues by name: peers that connect to a socket, are refused, or are killed.

use super::*;
use crate::shared::{Caller, Interface, Offer, Refusal, Terms, status};

/// Returns an unused path for a socket.
fn path(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("bw-ring-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// The terms of all queues of these tests.
pub(super) fn terms() -> Terms {
    Terms {
        queue: 0,
        interfaces: vec![Interface {
            link_type: 1,
            name: "test0".into(),
        }],
    }
}

/// Waits until a process connects.
fn accept<T>(offer: &Offer, mut next: impl FnMut() -> sys::Result<Option<T>>) -> T {
    loop {
        let fd = offer.poll_fd();
        let mut wanted = [sys::poll::Wanted::readable(&fd)];
        sys::poll::wait(&mut wanted, LONG).unwrap();
        assert!(wanted[0].is_ready(), "nobody connects");
        if let Some(accepted) = next().unwrap() {
            return accepted;
        }
    }
}

/// Waits until process `pid` connects.
fn caller(offer: &Offer, pid: i32) -> Caller {
    accept(offer, || offer.next(|process| process.pid == pid))
}

/// Consumers connect to the queue by name, one after the other; all but the last are killed.
#[test]
fn the_next_consumer_connects_by_name_and_continues() {
    let pool = pool(96);
    let mut cache = FrameCache::new(pool.clone());
    let path = path("name");
    let offer = Offer::new(&pool, &path, Access::Read, false).unwrap();
    let connect = || {
        let (numbers, pipe) = std::io::pipe().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::shared::child", "--nocapture"])
            .env(CHILD, "1")
            .env(NAME, &path)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        descriptors::send(&ours, b"n", &[pipe.as_fd()]).unwrap();
        (child, File::from(OwnedFd::from(numbers)))
    };
    let pid = |child: &Child| child.id().cast_signed();
    let (mut child, mut numbers) = connect();
    let mut owner = OwnerEnd::new(&pool, 32, None).unwrap();
    // Before the first consumer, packets wait in the queue.
    assert!(hand(&mut owner, &mut cache, 0));
    let first = caller(&offer, pid(&child));
    offer.admit(first, &mut owner, &terms()).unwrap();
    let (mut sent, mut seen) = (1, Vec::new());
    for kill in 0..4 {
        let mut wanted = 100_u32;
        while wanted != 0 {
            while hand(&mut owner, &mut cache, sent) {
                sent += 1;
            }
            owner.flush();
            wanted = wanted.saturating_sub(owner.collect(&mut cache).frames);
            std::thread::yield_now();
        }
        if kill == 3 {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        seen.extend(rest(numbers));
        wait_for_end(&owner);
        let recovered = owner.recover(&mut cache).unwrap();
        assert_eq!(pool.counts().peer, recovered.kept);
        (child, numbers) = connect();
        let next = caller(&offer, pid(&child));
        offer.admit(next, &mut owner, &terms()).unwrap();
    }
    owner.close();
    assert!(child.wait().unwrap().success());
    drop((owner, offer));
    seen.extend(rest(numbers));
    assert!(seen.is_sorted_by(|a, b| a < b), "twice, or out of order");
    assert!(sent - seen.len() as u64 <= 3);
    assert!(!path.exists(), "the socket goes with the offer");
    drop(cache);
    assert_eq!(pool.counts().free, 96);
}

#[test]
fn names_in_use_and_processes_without_permission_are_refused() {
    let (pool, path) = (pool(8), path("busy"));
    let new = || Offer::new(&pool, &path, Access::Read, false);
    // The socket of an owner that was killed is replaced; a regular file is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    while UnixStream::connect(&path).is_ok() {
        // A child of another test has inherited the socket until its exec.
        std::thread::yield_now();
    }
    let offer = new().unwrap();
    assert_eq!(new().err().unwrap().kind(), ErrorKind::Busy);
    let failed = |access| {
        let connected = connect(&path, access, &Request::Queue(3));
        connected.err().map(|error| error.kind())
    };
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| failed(Access::Read));
        // The refused second offer has also connected, and has closed its connection.
        let refused = || match offer.next(|_| false) {
            Err(error) => Ok(Some(error.kind())),
            Ok(_) => Ok(None),
        };
        for _ in 0..2 {
            assert_eq!(accept(&offer, refused), ErrorKind::Permission);
        }
        assert_eq!(peer.join().unwrap(), Some(ErrorKind::Permission));
        // The owner states why there is no queue.
        let peer = scope.spawn(|| failed(Access::Read));
        let caller = accept(&offer, || offer.next(|_| true));
        assert_eq!(caller.request, Request::Queue(3));
        caller.refuse(Refusal::NotFound, "there are two queues");
        assert_eq!(peer.join().unwrap(), Some(ErrorKind::NotFound));
        // Frames that are offered read-only cannot be written.
        let writer = scope.spawn(|| failed(Access::Write));
        let mut end = OwnerEnd::new(&pool, 8, None).unwrap();
        let caller = accept(&offer, || offer.next(|_| true));
        offer.admit(caller, &mut end, &terms()).unwrap();
        assert_eq!(writer.join().unwrap(), Some(ErrorKind::Permission));
        // One that sends nothing does not delay the others for long.
        let silent = UnixStream::connect(&path).unwrap();
        let invalid = || match offer.next(|_| true) {
            Err(error) => Ok(Some(error.kind())),
            Ok(_) => Ok(None),
        };
        assert_eq!(accept(&offer, invalid), ErrorKind::InvalidInput);
        drop(silent);
        let reader = scope.spawn(|| status(&path).unwrap());
        accept(&offer, || offer.next(|_| true)).answer(&"status ".repeat(4000));
        assert_eq!(reader.join().unwrap(), "status ".repeat(4000));
    });
    drop(offer);
    std::fs::write(&path, b"a file").unwrap();
    assert!(new().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(pool.counts().free, 8);
}

/// An owner that listens and accepts nothing: connecting ends after its bound.
#[test]
fn a_full_queue_of_connections_does_not_block_a_peer() {
    let path = path("full");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match descriptors::connect(&path, Duration::from_millis(20)) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100_000);
    };
    assert_eq!(error.os_code(), Some(11), "{error}");
    drop(listener);
    std::fs::remove_file(&path).unwrap();
}

/// Environment variable of a child that offers queues as another user: the path.
const IMPOSTOR: &str = "BAREWIRE_RING_IMPOSTOR";

/// The child: listens, and answers nobody.
#[test]
fn child_listens() {
    let path = skip::child_body!(IMPOSTOR);
    let _listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    println!("listening");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Another user's process has taken the name: its pool is not opened, and the error says whose it
/// is. A second owner of the name is refused too.
#[test]
fn an_owner_of_another_user_is_refused() {
    use std::os::unix::process::CommandExt;
    if descriptors::Credentials::own().uid != 0 {
        skip::skip!("only root can start a process of another user");
    }
    let path = path("impostor");
    let program = std::env::temp_dir().join(format!("bw-ring-{}-program", std::process::id()));
    // The build directory may be root's only.
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut child = Command::new(&program)
        .args([
            "--exact",
            "tests::shared::names::child_listens",
            "--nocapture",
        ])
        .env(IMPOSTOR, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .uid(65534)
        .gid(65534)
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        let len = std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_ne!(len, 0, "the other process ended");
    }
    let whose = format!("process {} of user 65534", child.id());
    let refused = connect(&path, Access::Read, &Request::Any).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Permission);
    assert!(refused.why().contains(&whose), "{refused}");
    assert_eq!(status(&path).unwrap_err().kind(), ErrorKind::Permission);
    let taken = Offer::new(&pool(4), &path, Access::Read, false)
        .err()
        .unwrap();
    assert_eq!(taken.kind(), ErrorKind::Busy);
    assert!(taken.why().contains(&whose), "{taken}");
    drop(child.stdin.take());
    child.wait().unwrap();
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(&program);
}

/// Paths that are in use: the error says whose they are, and what to do.
#[test]
fn a_path_that_is_not_a_free_socket_is_refused_and_kept() {
    let path = path("squatted");
    let pool = pool(8);
    let refused = |why: &str| {
        let taken = Offer::new(&pool, &path, Access::Read, false);
        let taken = taken.err().unwrap();
        assert_eq!(taken.kind(), ErrorKind::Busy, "{taken}");
        assert!(taken.why().contains(why), "{taken}");
        assert!(taken.hint().unwrap().contains("another name"), "{taken}");
        assert!(path.symlink_metadata().is_ok(), "it was removed");
    };
    std::fs::write(&path, b"text").unwrap();
    refused("that is not a socket");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/missing", &path).unwrap();
    refused("that is not a socket");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("that is not a socket");
    std::fs::remove_dir(&path).unwrap();
    let other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    refused("of another kind");
    let attached = status(&path).unwrap_err();
    assert_eq!(attached.kind(), ErrorKind::InvalidInput, "{attached}");
    drop(other);
    std::fs::remove_file(&path).unwrap();
}
