//! What the page on verification says is what the program has, and what its files have counted.

use std::{collections::BTreeSet, fs};

use crate::{files, in_the_project};

fn page() -> String {
    fs::read_to_string(in_the_project("docs/verification.md")).unwrap()
}

/// The first word between quotes of every entry of a table: `of("name", …)`, or `("name", Checker::…)`.
fn names_in(source: &str, entry: &str) -> BTreeSet<String> {
    let text: String = source.split_whitespace().collect();
    let entries = text.split(entry).skip(1);
    let names = entries.filter_map(|after| Some(after.split_once('"')?.0.to_owned()));
    names.collect()
}

#[test]
fn every_kind_of_fault_is_on_the_page_and_no_other() {
    let mut made = BTreeSet::new();
    for file in files("examples/torture/faults", "rs") {
        made.extend(names_in(&fs::read_to_string(file).unwrap(), "of(\""));
    }
    let page = page();
    let faults = page.split("## The faults").nth(1).unwrap();
    let rows = faults.lines().filter_map(|line| line.strip_prefix("| `"));
    let told: BTreeSet<_> = rows
        .map(|row| row.split('`').next().unwrap().to_owned())
        .collect();
    assert!(made.len() >= 30);
    assert_eq!(made, told);
}

#[test]
fn every_bug_that_a_checker_has_to_find_is_on_the_page() {
    let source = fs::read_to_string(in_the_project("examples/torture/bug.rs")).unwrap();
    let table = source.split("];").next().unwrap();
    let bugs = names_in(table, "(\"");
    assert!(bugs.len() >= 12);
    let page = page();
    for bug in bugs {
        assert!(page.contains(&format!("`{bug}`")), "{bug}");
    }
}
