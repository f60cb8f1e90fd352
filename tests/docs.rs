//! What README and docs say of files is true.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn in_the_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// README.md and the pages in docs, with their names.
fn pages() -> Vec<(String, String)> {
    let mut files = vec![in_the_project("README.md")];
    for entry in fs::read_dir(in_the_project("docs")).unwrap() {
        files.push(entry.unwrap().path());
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    let page = |file: PathBuf| {
        (
            file.display().to_string(),
            fs::read_to_string(&file).unwrap(),
        )
    };
    files.into_iter().map(page).collect()
}

#[test]
fn the_code_in_the_readme_is_that_of_the_examples() {
    let readme = fs::read_to_string(in_the_project("README.md")).unwrap();
    let blocks = readme.split("```rust\n").skip(1);
    let code: Vec<_> = blocks
        .filter_map(|block| block.split("```").next())
        .collect();
    assert_eq!(code.len(), 2);
    for (code, example) in code.iter().zip(["quick_start", "book_lock"]) {
        let path = in_the_project(&format!("examples/{example}.rs"));
        let example = fs::read_to_string(path).unwrap();
        assert!(
            code.contains("fn main") && example.ends_with(code),
            "{code}"
        );
    }
}

#[test]
fn the_readme_shows_what_the_simulation_printed() {
    let readme = fs::read_to_string(in_the_project("README.md")).unwrap();
    let from_heading = readme
        .split("Counts are per second, the book's too; waits are per purchase.\n")
        .nth(1)
        .unwrap();
    let table = from_heading.split("```").next().unwrap();
    for way in ["WATCH", "market lock", "item lock"] {
        let rows: Vec<_> = table
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix(way))
            .collect();
        assert_eq!(rows.len(), 3, "{way}: one for each load");
        for row in rows {
            let ours = row.split('|').next().unwrap();
            let figures = ours.split_whitespace().filter(|word| *word != "ms");
            let read = figures
                .map(str::parse::<f64>)
                .collect::<Result<Vec<_>, _>>();
            assert!(read.is_ok_and(|read| read.len() == 5), "{way}: {ours}");
        }
    }
    assert!(table.contains("the sum of funds is unchanged"));
}

#[test]
fn every_file_that_a_page_names_is_there() {
    for (name, text) in pages() {
        for word in text.split(|sign: char| sign.is_whitespace() || "`()|,;".contains(sign)) {
            let is_path = ["src/", "tests/", "examples/", "docs/", ".ci/"]
                .iter()
                .any(|start| word.starts_with(start));
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
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            let page = Path::new(&name).parent().unwrap().join(target);
            assert!(
                target.is_empty() || target.contains("://") || page.exists(),
                "{name} links to {target}"
            );
        }
    }
}

/// The Lua files of the recipes, by their paths below `src/recipes`.
fn scripts() -> BTreeMap<String, String> {
    let recipes = in_the_project("src/recipes");
    let (mut folders, mut scripts) = (vec![recipes.clone()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                let name = path.strip_prefix(&recipes).unwrap().display().to_string();
                scripts.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(!scripts.is_empty());
    scripts
}

#[test]
fn every_line_of_lua_on_a_page_stands_in_a_script() {
    let scripts: String = scripts().into_values().collect();
    for (name, text) in pages() {
        for block in text.split("```lua\n").skip(1) {
            let code = block.split("```").next().unwrap();
            assert!(scripts.contains(code), "{name} quotes {code}");
        }
    }
}
