//! What a page names is there, and is a link that leads somewhere, in the repository and in rustdoc.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::{definitions, files, guide, in_the_project, is_definition, pages, quotes::scripts};

#[test]
fn every_file_that_a_page_names_is_there() {
    for (name, text) in pages() {
        for word in text.split(|sign: char| sign.is_whitespace() || "`()|,;".contains(sign)) {
            let is_path = ["src/", "tests/", "examples/", "docs/", ".ci/"]
                .iter()
                .any(|start| word.starts_with(start));
            // The package does not have it.
            let is_path = is_path && (!word.starts_with(".ci/") || in_the_project(".ci").exists());
            if is_path {
                let path = word.split('#').next().unwrap().trim_end_matches(['.', ':']);
                assert!(in_the_project(path).exists(), "{name} names {path}");
            }
        }
    }
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    for (name, text) in pages() {
        let inline = text.split("](").skip(1);
        let inline = inline.map(|link| link.split(')').next().unwrap());
        for link in inline.chain(definitions(&text).into_values()) {
            let target = link.split('#').next().unwrap();
            let page = Path::new(&name).parent().unwrap().join(target);
            assert!(
                target.is_empty() || target.contains("://") || page.exists(),
                "{name} links to {target}"
            );
        }
    }
}

/// In rustdoc a link to a file leads nowhere: src/guide.rs says where its label leads there.
#[test]
fn every_page_and_every_link_of_a_page_is_known_to_the_guide() {
    let mut guides = fs::read_to_string(in_the_project("src/guide.rs")).unwrap();
    guides += &fs::read_to_string(in_the_project("src/guide/links.md")).unwrap();
    guides += &fs::read_to_string(in_the_project("src/guide/pictures.md")).unwrap();
    let known = definitions(&guides);
    let mut everywhere = BTreeMap::new();
    for (name, text) in guide() {
        let path = Path::new(&name).strip_prefix(in_the_project("docs"));
        let page = format!("\"../docs/{}\"", path.unwrap().display());
        assert!(guides.contains(&page), "src/guide.rs does not list {page}");
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            assert!(
                target.starts_with('#') || target.contains("://"),
                "{name}: ({target}) leads nowhere in rustdoc: write a [label], as src/guide.rs says"
            );
        }
        let labels = definitions(&text);
        for link in text.split("][").skip(1) {
            let label = link.split(']').next().unwrap();
            assert!(
                labels.contains_key(label),
                "{name} does not define [{label}]"
            );
        }
        for (label, target) in labels {
            if target.contains("://") {
                continue;
            }
            assert!(
                known.contains_key(label),
                "src/guide.rs does not define [{label}], which is on {name}"
            );
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let file = Path::new(&name).parent().unwrap().join(file);
            let leads_to = (file.canonicalize().unwrap(), place.to_owned());
            let before = everywhere
                .entry(label.to_owned())
                .or_insert(leads_to.clone());
            assert_eq!(*before, leads_to, "[{label}] on {name} and before");
        }
    }
    for script in scripts().into_keys() {
        assert!(
            guides.contains(&format!("    \"{script}\",")),
            "src/guide.rs does not list {script}"
        );
    }
}

/// The names of all tests, without those that a recipe or another file of the library has too.
fn names_of_tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")) {
        let text = fs::read_to_string(file).unwrap();
        for test in text.split("#[test]").skip(1) {
            let name = test.split("fn ").nth(1).unwrap_or_default();
            names.extend(name.split('(').next().map(str::to_owned));
        }
    }
    for file in files("src", "rs") {
        for part in &file.with_extension("") {
            names.remove(part.to_str().unwrap());
        }
    }
    names
}

/// Which places of a page are code of their own and no link, outside of headings, blocks and definitions.
fn names_without_a_link(page: &str) -> Vec<&str> {
    let texts = page.split("```").step_by(2);
    let lines = texts.flat_map(str::lines);
    let lines = lines.filter(|line| !line.starts_with('#') && !is_definition(line));
    let mut names = Vec::new();
    for line in lines {
        let parts: Vec<_> = line.split('`').collect();
        for (before, name) in parts.iter().zip(&parts[1..]).step_by(2) {
            if !before.ends_with('[') {
                names.push(*name);
            }
        }
    }
    names
}

#[test]
fn every_file_function_and_test_that_a_page_names_is_a_link() {
    let links = fs::read_to_string(in_the_project("src/guide/links.md")).unwrap();
    let known = definitions(&links);
    let tests = names_of_tests();
    for (page, text) in pages() {
        // Of the changelog's names some are those of before.
        if page.ends_with("changelog.md") {
            continue;
        }
        for name in names_without_a_link(&text) {
            let folder = name.split('/').next().unwrap();
            let is_file = name.contains('/')
                && ["src", "tests", "examples"].contains(&folder)
                && in_the_project(name).exists();
            let is_known = known.contains_key(format!("`{name}`").as_str());
            assert!(
                !(is_file || tests.contains(name) || is_known),
                "{page}: `{name}` is no link: write [`{name}`] and its definition at the end"
            );
        }
    }
}

/// In the guide such a link leads to the page of the files.
#[test]
fn every_test_and_example_that_a_page_links_to_is_listed() {
    let links = fs::read_to_string(in_the_project("src/guide/links.md")).unwrap();
    let list = fs::read_to_string(in_the_project("docs/files.md")).unwrap();
    for (label, target) in definitions(&links) {
        if target.starts_with("crate::guide::files") {
            let file = label.trim_matches('`').trim_end_matches('/');
            assert!(list.contains(file), "docs/files.md does not list {file}");
        }
    }
}
