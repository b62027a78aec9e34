//! Layers, the crates that may contain unsafe code, and external dependencies.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{File, Finding};

/// What a crate of each layer may use: whole layers, and single crates of others.
struct Layer {
    name: &'static str,
    layers: &'static [&'static str],
    crates: &'static [&'static str],
}

/// The table of STYLE.md. No layer may use `dev`, except `dev` itself.
const LAYERS: &[Layer] = &[
    Layer {
        name: "pure",
        layers: &["pure"],
        crates: &[],
    },
    Layer {
        name: "system",
        layers: &["system"],
        crates: &["pure/wire", "pure/bpf"],
    },
    Layer {
        name: "host",
        layers: &["pure", "system", "host"],
        crates: &[],
    },
    Layer {
        name: "face",
        layers: &["pure", "system", "host"],
        crates: &[],
    },
    Layer {
        name: "dev",
        layers: &["pure", "system", "host", "face", "dev"],
        crates: &[],
    },
];

/// A crate that the tests of every crate may use although it is in `dev`: it has no dependencies.
const FOR_ALL_TESTS: &str = "dev/skip";

/// The crates that may contain unsafe code.
const UNSAFE_CRATES: &[&str] = &[
    "system/sys",
    "system/ring",
    "system/vfio",
    "system/vhost",
    "system/port",
];

/// The crates that may contain unsafe code in one module: an interface called from C.
const UNSAFE_MODULES: &[(&str, &str)] = &[("face/pcap", "abi"), ("face/pfring", "abi")];

/// Edges between crates that the layers do not allow, dev-dependencies included: a crate that used
/// `dev/lab` in its own tests would be compiled twice, with different types.
pub fn layers(metadata: &Value) -> Vec<Finding> {
    let root = root_of(metadata);
    let mut findings = Vec::new();
    for package in packages(metadata) {
        let (manifest, directory) = place(package, &root);
        let Some(layer) = layer_of(&directory) else {
            findings.push(Finding::new(manifest, 0, "not in the folder of a layer"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(path) = dependency["path"].as_str() else {
                continue;
            };
            let target = relative(path, &root);
            let target_layer = layer_of(&target).map(|layer| layer.name);
            let by_layer = target_layer.is_some_and(|name| layer.layers.contains(&name));
            let by_name = layer.crates.iter().any(|name| target == Path::new(name));
            let for_tests = dependency["kind"] == "dev" && target == Path::new(FOR_ALL_TESTS);
            if !by_layer && !by_name && !for_tests {
                let what = format!(
                    "{} must not use {}: layer {} may use {}",
                    directory.display(),
                    target.display(),
                    layer.name,
                    [layer.layers, layer.crates].concat().join(", ")
                );
                findings.push(Finding::new(manifest.clone(), 0, what));
            }
        }
    }
    findings
}

/// Libraries and binaries outside the list that do not forbid unsafe code.
pub fn forbid_unsafe(metadata: &Value, files: &[File]) -> Vec<Finding> {
    let root = root_of(metadata);
    let mut findings = Vec::new();
    for package in packages(metadata) {
        let (_, directory) = place(package, &root);
        if UNSAFE_CRATES
            .iter()
            .any(|name| directory == Path::new(name))
        {
            continue;
        }
        for target in package["targets"].as_array().into_iter().flatten() {
            let shipped = ["lib", "bin", "cdylib", "staticlib", "proc-macro"];
            let kinds = target["kind"].as_array().into_iter().flatten();
            if !kinds
                .filter_map(Value::as_str)
                .any(|kind| shipped.contains(&kind))
            {
                continue;
            }
            let source = relative(target["src_path"].as_str().unwrap_or_default(), &root);
            let text = files.iter().find(|file| file.path == source);
            let text = text
                .and_then(|file| file.text.as_deref())
                .unwrap_or_default();
            let has = |wanted: &str| text.lines().any(|line| line.trim() == wanted);
            let module = UNSAFE_MODULES
                .iter()
                .find(|(name, _)| directory == Path::new(name));
            let is_checked = match module {
                None => has("#![forbid(unsafe_code)]"),
                Some((_, module)) => {
                    let allowed = format!("#[allow(unsafe_code)]\nmod {module};\n");
                    has("#![deny(unsafe_code)]")
                        && text.contains(&allowed)
                        && allowances(&directory, files) == 1
                }
            };
            if !is_checked {
                let what = format!(
                    "no #![forbid(unsafe_code)]; unsafe code lives in {}",
                    UNSAFE_CRATES.join(", ")
                );
                findings.push(Finding::new(source, 0, what));
            }
        }
    }
    findings
}

/// Number of places in a crate's files where unsafe code is allowed.
fn allowances(directory: &Path, files: &[File]) -> usize {
    let of_crate = files.iter().filter(|file| file.path.starts_with(directory));
    let texts = of_crate.filter_map(|file| file.text.as_deref());
    texts
        .map(|text| text.matches("allow(unsafe_code)").count())
        .sum()
}

/// External dependencies that `docs/decisions.md` does not name (in backquotes). Those of `dev` are
/// free, because they are not shipped.
pub fn outside_dependencies(metadata: &Value, files: &[File]) -> Vec<Finding> {
    let decisions = Path::new("docs/decisions.md");
    let decisions = files.iter().find(|file| file.path == decisions);
    let decisions = decisions
        .and_then(|file| file.text.as_deref())
        .unwrap_or_default();
    let root = root_of(metadata);
    let mut findings = BTreeSet::new();
    for package in packages(metadata) {
        let (manifest, directory) = place(package, &root);
        if layer_of(&directory).is_none_or(|layer| layer.name == "dev") {
            continue;
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let shipped = dependency["kind"] != "dev" && dependency["path"].is_null();
            if shipped && !decisions.contains(&format!("`{name}`")) {
                let what = format!("docs/decisions.md does not say why `{name}` is used");
                findings.insert(Finding::new(manifest.clone(), 0, what));
            }
        }
    }
    findings.into_iter().collect()
}

fn root_of(metadata: &Value) -> PathBuf {
    PathBuf::from(metadata["workspace_root"].as_str().unwrap_or_default())
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// Manifest and directory of a package, relative to the root.
fn place(package: &Value, root: &Path) -> (PathBuf, PathBuf) {
    let manifest = relative(package["manifest_path"].as_str().unwrap_or_default(), root);
    let directory = manifest.parent().unwrap_or(Path::new("")).to_owned();
    (manifest, directory)
}

fn relative(path: &str, root: &Path) -> PathBuf {
    let path = Path::new(path);
    path.strip_prefix(root).unwrap_or(path).to_owned()
}

fn layer_of(directory: &Path) -> Option<&'static Layer> {
    let first = directory.iter().next()?;
    LAYERS.iter().find(|layer| first == layer.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace in which the first crate uses the others.
    fn edge(from: &str, to: &[&str]) -> Value {
        let dependencies: Vec<_> = to
            .iter()
            .map(|to| json!({ "name": to, "path": format!("/repo/{to}"), "kind": null }))
            .collect();
        json!({
            "workspace_root": "/repo",
            "packages": [{
                "manifest_path": format!("/repo/{from}/Cargo.toml"),
                "dependencies": dependencies,
                "targets": [
                    { "kind": ["lib"], "src_path": format!("/repo/{from}/src/lib.rs") },
                    { "kind": ["test"], "src_path": format!("/repo/{from}/tests/alloc.rs") },
                ],
            }],
        })
    }

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.into(),
            len: text.len() as u64,
            text: Some(text.into()),
        }
    }

    #[test]
    fn planted_edges_are_reported_by_name() {
        let bad = [
            ("pure/flow", "system/port"),
            ("pure/flow", "host/runtime"),
            ("system/port", "pure/flow"),
            ("system/port", "host/runtime"),
            ("host/runtime", "face/cli"),
            ("face/cli", "face/pcap"),
            ("pure/wire", "dev/lab"),
            ("face/cli", "dev/lab"),
            ("elsewhere/x", "pure/wire"),
        ];
        for (from, to) in bad {
            let findings = layers(&edge(from, &[to]));
            assert_eq!(findings.len(), 1, "{from} -> {to}: {findings:?}");
            assert!(findings[0].to_string().contains(from), "{findings:?}");
        }
        let named = layers(&edge("pure/flow", &["pure/wire", "system/port"]));
        assert_eq!(named.len(), 1);
        assert!(
            named[0].what.contains("pure/flow must not use system/port"),
            "{named:?}"
        );
    }

    #[test]
    fn allowed_edges_are_accepted() {
        let good = [
            ("pure/flow", "pure/wire"),
            ("system/xdp", "pure/bpf"),
            ("system/port", "system/ring"),
            ("host/runtime", "system/port"),
            ("face/cli", "host/runtime"),
            ("dev/lab", "face/cli"),
            ("dev/bench", "dev/lab"),
        ];
        for (from, to) in good {
            assert_eq!(layers(&edge(from, &[to])), [], "{from} -> {to}");
        }
    }

    #[test]
    fn dev_dependencies_count() {
        let mut metadata = edge("pure/wire", &["dev/lab"]);
        metadata["packages"][0]["dependencies"][0]["kind"] = "dev".into();
        assert_eq!(layers(&metadata).len(), 1);
    }

    #[test]
    fn only_the_named_crates_may_hold_unsafe_code() {
        let with = |text| [file("pure/wire/src/lib.rs", text)];
        let metadata = edge("pure/wire", &[]);
        assert_eq!(
            forbid_unsafe(&metadata, &with("//! Doc.\n#![forbid(unsafe_code)]\n")),
            []
        );
        assert_eq!(
            forbid_unsafe(&metadata, &with("//! #![forbid(unsafe_code)] not\n")).len(),
            1
        );
        let metadata = edge("system/sys", &[]);
        assert_eq!(forbid_unsafe(&metadata, &[]), []);
    }

    #[test]
    fn an_interface_for_c_has_its_unsafe_code_in_one_module() {
        let metadata = edge("face/pcap", &[]);
        let root = |text| file("face/pcap/src/lib.rs", text);
        let good = root("#![deny(unsafe_code)]\n#[allow(unsafe_code)]\nmod abi;\n");
        assert_eq!(forbid_unsafe(&metadata, std::slice::from_ref(&good)), []);
        let bad = root("#![deny(unsafe_code)]\n#[allow(unsafe_code)]\nmod other;\n");
        assert_eq!(forbid_unsafe(&metadata, &[bad]).len(), 1);
        let more = file("face/pcap/src/x.rs", "#[allow(unsafe_code)]\nfn f() {}\n");
        assert_eq!(forbid_unsafe(&metadata, &[good, more]).len(), 1);
    }

    #[test]
    fn external_dependencies_need_a_decision() {
        let mut metadata = edge("face/cli", &["clap"]);
        metadata["packages"][0]["dependencies"][0]["path"] = Value::Null;
        let decisions = |text| [file("docs/decisions.md", text)];
        assert_eq!(outside_dependencies(&metadata, &decisions("clap")).len(), 1);
        assert_eq!(
            outside_dependencies(&metadata, &decisions("use `clap`")),
            []
        );
        metadata["packages"][0]["dependencies"][0]["kind"] = "dev".into();
        assert_eq!(outside_dependencies(&metadata, &[]), []);
    }
}
