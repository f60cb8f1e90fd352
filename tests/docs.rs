//! What README and docs say of files is true.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
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

/// The definitions of links in a text, `[label]: target`, by their labels.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
        .collect()
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

/// The Lua files of the recipes, by their paths below `src/recipes`.
fn scripts() -> BTreeMap<String, String> {
    let script = |path: PathBuf| {
        let name = path.strip_prefix(in_the_project("src/recipes")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        (name.display().to_string(), text)
    };
    files("src/recipes", "lua")
        .into_iter()
        .map(script)
        .collect()
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

/// Without line breaks and indentation.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_code_of_the_course_stands_in_a_file() {
    let code: Vec<String> = ["src", "examples"]
        .iter()
        .flat_map(|folder| files(folder, "rs"))
        .map(|file| flat(&fs::read_to_string(file).unwrap()))
        .collect();
    for (name, text) in guide() {
        if !name.ends_with("course.md") {
            continue;
        }
        let blocks = text.split("```rust,ignore\n").skip(1);
        for block in blocks {
            let quoted = flat(block.split("```").next().unwrap());
            assert!(
                code.iter().any(|file| file.contains(&quoted)),
                "{name} quotes {quoted}"
            );
        }
    }
}

/// The commands, names and outputs on a page: its blocks of code, and what stands between backticks.
fn code_on(page: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (index, part) in page.split("```").enumerate() {
        if index % 2 == 1 {
            // Without the language, which says more in the guide.
            code.push(flat(part.split_once('\n').unwrap().1));
            continue;
        }
        for line in part.lines().filter(|line| !line.contains("]: ")) {
            code.extend(line.split('`').skip(1).step_by(2).map(flat));
        }
    }
    code.sort();
    code
}

#[test]
fn both_languages_name_the_same_commands_and_names() {
    let read = |page: &str| fs::read_to_string(in_the_project(page)).unwrap();
    for page in ["course.md", "seed-map.md"] {
        let english = code_on(&read(&format!("docs/{page}")));
        let chinese = code_on(&read(&format!("docs/zh/{page}")));
        let missing: Vec<_> = english
            .iter()
            .filter(|code| !chinese.contains(code))
            .collect();
        let added: Vec<_> = chinese
            .iter()
            .filter(|code| !english.contains(code))
            .collect();
        assert!(
            missing.is_empty() && added.is_empty(),
            "docs/zh/{page} lacks {missing:#?} and has {added:#?}"
        );
        assert_eq!(english.len(), chinese.len(), "docs/zh/{page}");
    }
    // Of the README only a part is there in Chinese.
    let english = code_on(&read("README.md"));
    let chinese = code_on(&read("docs/zh/README.md"));
    let added: Vec<_> = chinese
        .iter()
        .filter(|code| !english.contains(code))
        .collect();
    assert!(added.is_empty(), "docs/zh/README.md has {added:#?}");
    assert!(chinese.len() >= 15, "docs/zh/README.md is too short");
}

/// The names of all tests.
fn names_of_tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")) {
        let text = fs::read_to_string(file).unwrap();
        for test in text.split("#[test]").skip(1) {
            let name = test.split("fn ").nth(1).unwrap_or_default();
            names.extend(name.split('(').next().map(str::to_owned));
        }
    }
    // A shorter one may well name something else, such as a recipe.
    names.retain(|name| name.matches('_').count() >= 2);
    names
}

/// Which places of a page are code of their own and no link, outside of headings, blocks and definitions.
fn names_without_a_link(page: &str) -> Vec<&str> {
    let texts = page.split("```").step_by(2);
    let lines = texts.flat_map(str::lines);
    let lines = lines.filter(|line| !line.starts_with('#') && !line.contains("]: "));
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
        // The README is for those who do not know the functions yet.
        let is_guide = !page.ends_with("README.md");
        for name in names_without_a_link(&text) {
            let folder = name.split('/').next().unwrap();
            let is_file = name.contains('/')
                && ["src", "tests", "examples"].contains(&folder)
                && in_the_project(name).exists();
            let is_known = known.contains_key(format!("`{name}`").as_str());
            assert!(
                !(is_file || tests.contains(name) || is_known && is_guide),
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
