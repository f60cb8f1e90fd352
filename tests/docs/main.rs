//! What README and docs say of files is true.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod languages;
mod links;
mod pictures;
mod quotes;
mod verification;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn in_the_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The files in a folder and in those below it that end so.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![in_the_project(folder)], vec![]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty());
    files
}

/// The pages in docs, with their names.
fn guide() -> Vec<(String, String)> {
    let page = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        (file.display().to_string(), text)
    };
    files("docs", "md").into_iter().map(page).collect()
}

/// README.md and the pages in docs, with their names.
fn pages() -> Vec<(String, String)> {
    let readme = in_the_project("README.md");
    let text = fs::read_to_string(&readme).unwrap();
    let mut pages = guide();
    pages.push((readme.display().to_string(), text));
    pages
}

fn is_definition(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

/// The definitions of links in a text, `[label]: target`, by their labels.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
        .collect()
}

/// Without line breaks and indentation.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
