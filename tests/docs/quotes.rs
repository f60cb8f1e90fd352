//! What a page quotes stands in the file that it is from.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{files, flat, guide, in_the_project, pages};

#[test]
fn the_code_in_the_readme_is_that_of_the_examples() {
    let readme = fs::read_to_string(in_the_project("README.md")).unwrap();
    let blocks = readme.split("```rust\n").skip(1);
    let code: Vec<_> = blocks
        .filter_map(|block| block.split("```").next())
        .collect();
    assert_eq!(code.len(), 4);
    for (code, example) in code
        .iter()
        .zip(["quick_start", "once_a_night", "wallet", "book_lock"])
    {
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

/// The Lua files of the recipes, by their paths below `src/recipes`.
pub(crate) fn scripts() -> BTreeMap<String, String> {
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
