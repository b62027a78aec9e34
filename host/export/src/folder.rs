//! Directories in which files are created while the probe runs, possibly as a user with fewer
//! privileges than the one that started it.

use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

use sys::{Error, ErrorKind, Result};

use crate::format::Make;
use crate::parquet;
use crate::part::{self, Part};
use crate::rotation::Pattern;
use crate::target::{Place, Target};
use crate::worker::now_ns;

/// User and group that own created directories.
pub(crate) type Owner = (u32, u32);

/// Files that a destination creates while the probe runs.
pub(crate) struct Later {
    /// The directory that is created at the start.
    pub(crate) folder: PathBuf,
    /// The path that a file created now would have.
    pub(crate) file: PathBuf,
}

impl Later {
    /// The later files of a target; `None` if its only file is created at the start, or there is
    /// none.
    pub(crate) fn of(target: &Target) -> Option<Later> {
        let Place::Path(path) = &target.place else {
            return None;
        };
        if matches!(target.format.make, Make::Store(_)) {
            return Some(Later {
                folder: path.clone(),
                file: parquet::first_file(path, target.options.partition),
            });
        }
        if !target.options.rotation.is_some() {
            return None;
        }
        // An invalid pattern is refused when the destination is opened.
        let file = Pattern::parse(path.to_str()?).ok()?.name(now_ns(), 1);
        Some(Later {
            folder: part::folder_of(&file).to_owned(),
            file,
        })
    }
}

/// Creates a directory and its missing parents. New ones are given to `owner`; existing ones stay
/// unchanged.
///
/// # Errors
/// If one cannot be created or its owner set, or if `folder` is another user's symbolic link.
pub(crate) fn create(folder: &Path, owner: Option<Owner>) -> io::Result<()> {
    sys::create::check_folder(folder)?;
    if folder.exists() && !folder.is_dir() {
        let why = "a file has this name, and the export needs a directory";
        return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
    }
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    for path in missing.into_iter().rev() {
        match DirBuilder::new().create(path) {
            Ok(()) => {}
            // Another process created it first: its owner is not changed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => continue,
            Err(error) => return Err(error),
        }
        if let Some((uid, gid)) = owner {
            // Replacing the directory by a link in the meantime has no effect.
            std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// Checks that a file can be created at `path` later, with the current privileges: creates one in
/// the deepest existing directory, and deletes it.
///
/// # Errors
/// `Permission` and other errors of the system.
pub(crate) fn check(path: &Path) -> Result<()> {
    let mut folder = part::folder_of(path);
    while !folder.exists() && folder != Path::new(".") {
        folder = part::folder_of(folder);
    }
    let name = path.file_name().unwrap_or_default();
    match Part::create(&folder.join(name)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = Error::from_io(format!("create files in {}", folder.display()), error);
            if error.kind() != ErrorKind::Permission {
                return Err(error);
            }
            Err(error.with_hint(format!(
                "the probe creates files while it runs, with --user as that user: choose a \
                 directory that user can write to, or change the owner of {}",
                folder.display()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_new_directories_get_the_owner() {
        let root = std::env::temp_dir().join(format!("barewire-folders-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let ours = fs::metadata(&root).unwrap();
        let folder = root.join("a/b");
        // Without root only the own user can be set as owner.
        let owner = if ours.uid() == 0 {
            (65534, 65534)
        } else {
            (ours.uid(), ours.gid())
        };
        create(&folder, Some(owner)).unwrap();
        create(&folder, Some((0, 0))).unwrap();
        for path in [&folder, &root.join("a")] {
            let data = fs::metadata(path).unwrap();
            assert_eq!((data.uid(), data.gid()), owner, "{}", path.display());
        }
        assert_eq!(fs::metadata(&root).unwrap().uid(), ours.uid());
        check(&folder.join("c/d/flows.csv")).unwrap();
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            0,
            "nothing is left behind"
        );
        fs::write(root.join("file"), "").unwrap();
        assert!(create(&root.join("file/x"), None).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
