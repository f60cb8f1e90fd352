//! The Chinese pages name what the English ones name.

use std::fs;

use crate::{flat, in_the_project, is_definition};

/// The commands, names and outputs on a page: its blocks of code, and what stands between backticks.
fn code_on(page: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (index, part) in page.split("```").enumerate() {
        if index % 2 == 1 {
            // Without the language, which says more in the guide.
            code.push(flat(part.split_once('\n').unwrap().1));
            continue;
        }
        for line in part.lines().filter(|line| !is_definition(line)) {
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
