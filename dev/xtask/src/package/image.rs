//! A container image in an archive (OCI Image Format Specification 1.1: image-layout, manifest,
//! config, layer), for `podman load`, `skopeo copy oci-archive:` and `docker load`. One layer: the
//! program, the libraries it is linked with, and libpcap, which filters need.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Parts;
use super::archive::tar;
use super::tree::{Tree, gzip};
use crate::run::quietly;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The CAs that TLS exports trust without `ca=`.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Loaded on demand, so ldd does not list it.
const LIBPCAP: &str = "libpcap.so.0.8";

/// Builds the image.
pub fn make(parts: &Parts) -> Result<()> {
    let files = Tree::new(parts.work.join("image-files"))?;
    files.copy(&parts.binary, "usr/bin/barewire", 0o755)?;
    for folder in ["etc", "tmp", "usr/lib", "usr/lib64", "var/lib/barewire"] {
        files.folder(folder)?;
    }
    // As usual: exports and captures of any user may be written there.
    fs::set_permissions(files.root().join("tmp"), Permissions::from_mode(0o1777))?;
    // As in Debian, so that the loader finds libraries under both names.
    for (target, link) in [
        ("usr/bin", "bin"),
        ("usr/lib", "lib"),
        ("usr/lib64", "lib64"),
    ] {
        files.link(target, link)?;
    }
    let passwd = "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n";
    files.text(passwd, "etc/passwd", 0o644)?;
    files.text("root:x:0:\nnogroup:x:65534:\n", "etc/group", 0o644)?;
    let doc = "usr/share/doc/barewire/THIRD-PARTY-LICENSES";
    files.bytes(&parts.notices, doc, 0o644)?;
    libraries(parts, &files)?;
    match Path::new(CA_BUNDLE).is_file() {
        true => files.copy(
            Path::new(CA_BUNDLE),
            CA_BUNDLE.trim_start_matches('/'),
            0o644,
        )?,
        false => println!("warning: no {CA_BUNDLE}: exports by TLS need ca="),
    }

    let layer = parts.work.join("layer.tar");
    tar(files.root(), &["."], &layer, parts.epoch)?;
    let plain_digest = digest(&layer)?;
    let layout = Layout(Tree::new(parts.work.join("image"))?);
    let layer = layout.blob(LAYER, &gzip(&fs::read(&layer)?)?)?;
    let config = layout.json(CONFIG, &config(parts, &plain_digest)?)?;
    let manifest = layout.json(
        MANIFEST,
        &json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        }),
    )?;
    layout.finish(parts, manifest)
}

/// The configuration of a container, and the digest of the unpacked layer.
fn config(parts: &Parts, layer: &str) -> Result<Value> {
    let created = parts.date("+%Y-%m-%dT%H:%M:%SZ")?;
    Ok(json!({
        // Debian's names of 64-bit architectures are those of Go, which the specification uses.
        "architecture": parts.arch,
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/bin/barewire"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/var/lib/barewire",
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "barewire",
                "org.opencontainers.image.version": parts.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created": created, "created_by": "cargo xtask package" }],
    }))
}

/// The directory that is packed.
struct Layout(Tree);

impl Layout {
    /// Adds bytes under their digest; returns their descriptor.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> Result<Value> {
        self.0.bytes(bytes, "blob", 0o644)?;
        let file = self.0.root().join("blob");
        let digest = digest(&file)?;
        self.0.folder("blobs/sha256")?;
        let name = digest.trim_start_matches("sha256:");
        fs::rename(&file, self.0.root().join("blobs/sha256").join(name))?;
        Ok(json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() }))
    }

    fn json(&self, media_type: &str, value: &Value) -> Result<Value> {
        self.blob(media_type, value.to_string().as_bytes())
    }

    fn finish(self, parts: &Parts, mut manifest: Value) -> Result<()> {
        manifest["platform"] = json!({ "architecture": parts.arch, "os": "linux" });
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": parts.version });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        self.0.text(&index.to_string(), "index.json", 0o644)?;
        self.0
            .text("{\"imageLayoutVersion\":\"1.0.0\"}", "oci-layout", 0o644)?;
        let members = ["oci-layout", "index.json", "blobs"];
        tar(
            self.0.root(),
            &members,
            &parts.named(".oci.tar"),
            parts.epoch,
        )
    }
}

fn digest(file: &Path) -> Result<String> {
    let printed = quietly(Command::new("sha256sum").arg("--").arg(file))?;
    let sum = printed.split_whitespace().next().context("sha256sum")?;
    Ok(format!("sha256:{sum}"))
}

/// Copies the libraries of the program and of libpcap, each with the copyright of its package.
fn libraries(parts: &Parts, files: &Tree) -> Result<()> {
    let mut wanted = needed(&parts.binary)?;
    ensure!(!wanted.is_empty(), "ldd names no library of the program");
    match libpcap()? {
        Some(path) => {
            wanted.extend(needed(&path)?);
            wanted.insert(path);
        }
        None => eprintln!("warning: no {LIBPCAP} here: the image has no filter expressions"),
    }
    for path in &wanted {
        let text = path.to_string_lossy();
        let to = match text.strip_prefix("/usr/") {
            Some(_) => text.trim_start_matches('/').to_owned(),
            None => format!("usr{text}"),
        };
        files.copy(path, &to, 0o755)?;
        let Some(package) = package_of(path) else {
            eprintln!("warning: no package owns {text}: its copyright is not in the image");
            continue;
        };
        let copyright = format!("usr/share/doc/{package}/copyright");
        let from = Path::new("/").join(&copyright);
        if from.is_file() {
            files.copy(&from, &copyright, 0o644)?;
        }
    }
    Ok(())
}

/// The libraries that the loader would load with a file, itself included.
fn needed(file: &Path) -> Result<BTreeSet<PathBuf>> {
    let printed = quietly(Command::new("ldd").arg(file))?;
    ensure!(
        !printed.contains("not found"),
        "{}: {printed}",
        file.display()
    );
    Ok(paths(&printed))
}

/// Paths in ldd's output: `libc.so.6 => /lib/…/libc.so.6 (0x…)`, `/lib64/ld-… (0x…)`.
fn paths(printed: &str) -> BTreeSet<PathBuf> {
    printed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

fn libpcap() -> Result<Option<PathBuf>> {
    let printed = quietly(Command::new("/sbin/ldconfig").arg("-p"))?;
    let line = printed
        .lines()
        .find(|line| line.trim().starts_with(LIBPCAP));
    Ok(line.and_then(|line| Some(PathBuf::from(line.rsplit_once("=> ")?.1.trim()))))
}

/// The Debian package that contains a file. It may be registered under either path of a merged
/// `/usr`.
fn package_of(path: &Path) -> Option<String> {
    let text = path.to_string_lossy();
    let other = match text.strip_prefix("/usr/") {
        Some(rest) => format!("/{rest}"),
        None => format!("/usr{text}"),
    };
    let printed = [text.into_owned(), other]
        .iter()
        .find_map(|path| quietly(Command::new("dpkg").args(["-S", path])).ok())?;
    Some(printed.split([':', ',']).next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_the_output_of_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f12)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f34)\n";
        let found: Vec<_> = paths(printed).into_iter().collect();
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(paths("\tstatically linked\n").is_empty());
    }

    #[test]
    fn the_owner_of_a_library_is_known_on_debian() {
        let paths = needed(Path::new("/bin/sh")).unwrap_or_default();
        let libc = paths.iter().find(|path| path.ends_with("libc.so.6"));
        let (Some(libc), true) = (libc, crate::run::which("dpkg").is_some()) else {
            skip::skip!("needs dpkg and a shell that is linked with libc.so.6");
        };
        assert_eq!(package_of(libc).as_deref(), Some("libc6"));
    }
}
