//! Names and licences of all crates that are linked into the program: most licences require their
//! text to be included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::{cargo, quietly};

/// The crate of the program.
const PROGRAM: &str = "barewire-cli";

/// One text: a list of the crates, and each licence text once, with its crates.
pub fn collect() -> Result<Vec<u8>> {
    let host = quietly(crate::run::rustc().arg("-vV"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("the host in rustc -vV")?;
    let metadata = ["metadata", "--format-version=1", "--filter-platform", host];
    let metadata: Value = serde_json::from_str(&quietly(cargo().args(metadata))?)?;
    let linked = linked(&metadata)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let text = |name: &str| package[name].as_str().unwrap_or_default();
        // Crates of the workspace have no source.
        if !linked.contains(text("id")) || package["source"].is_null() {
            continue;
        }
        let name = format!("{} {}", text("name"), text("version"));
        list += &format!("{name}: {}\n", text("license"));
        let folder = Path::new(text("manifest_path"))
            .parent()
            .context("no folder")?;
        for licence in licences(folder)? {
            texts.entry(licence).or_default().push(name.clone());
        }
    }
    let mut out = format!("Crates that are part of barewire, and their licences.\n\n{list}");
    for (text, names) in &texts {
        out += &format!("\n{}\n{}\n\n{text}\n", "-".repeat(78), names.join(", "));
    }
    Ok(out.into_bytes())
}

/// IDs of the packages linked into the program: dependencies for building and testing are not
/// included.
fn linked(metadata: &Value) -> Result<BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("nodes")?;
    let by_id: BTreeMap<&str, &Value> = nodes
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let packages = metadata["packages"].as_array().context("packages")?;
    let program = packages.iter().find(|package| package["name"] == PROGRAM);
    let program = program
        .and_then(|package| package["id"].as_str())
        .context(PROGRAM)?;
    let mut found = BTreeSet::new();
    let mut open = vec![program];
    while let Some(id) = open.pop() {
        if !found.insert(id.to_owned()) {
            continue;
        }
        let node = by_id.get(id).with_context(|| format!("no node {id}"))?;
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.into_iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    Ok(found)
}

/// Licence texts in the directory of a crate, with line ends and margins normalized so that equal
/// texts of several crates are recognized.
fn licences(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"]
            .iter()
            .any(|start| name.starts_with(start));
        if is_licence && entry.file_type()?.is_file() {
            let text = fs::read(entry.path())?;
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            texts.push(lines.join("\n").trim().to_owned());
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_linked_dependencies_are_included() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages": [{"name": "barewire-cli", "id": "p"}], "resolve": {"nodes": [
                {"id": "p", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null}]},
                    {"pkg": "b", "dep_kinds": [{"kind": "build"}, {"kind": "dev"}]}]},
                {"id": "a", "deps": [{"pkg": "p", "dep_kinds": [{"kind": null}]}]},
                {"id": "b", "deps": []}]}}"#,
        )
        .unwrap();
        let found: Vec<String> = linked(&metadata).unwrap().into_iter().collect();
        assert_eq!(found, ["a", "p"]);
    }

    #[test]
    fn all_dependencies_have_licence_texts() {
        let text = String::from_utf8(collect().unwrap()).unwrap();
        for part in [
            "\nclap 4.",
            "\nrustls 0.23",
            "Permission is hereby granted",
            "Apache License",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("\nbarewire-"));
    }
}
