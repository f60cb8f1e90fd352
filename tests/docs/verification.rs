//! What the page on verification says is what the program has, and what its files have counted.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;

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

/// What the program wrote: a file's name without its end, and what is in it.
fn runs() -> Vec<(String, Value)> {
    let mut files = files("docs/verification", "json");
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(file).unwrap();
        (name, serde_json::from_str(&text).unwrap())
    };
    files.iter().map(read).collect()
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn count(run: &Value, field: &str) -> String {
    grouped(run[field].as_u64().unwrap())
}

fn one_place(number: &Value) -> String {
    format!("{:.1}", number.as_f64().unwrap())
}

fn minutes(run: &Value) -> String {
    format!("{:.1}", run["seconds"].as_f64().unwrap() / 60.0)
}

fn not_announced(run: &Value) -> String {
    grouped(u64::try_from(run["not_announced"].as_array().unwrap().len()).unwrap())
}

/// All numbers in it.
fn sum(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => fields.values().map(sum).sum(),
        other => other.as_u64().unwrap_or(0),
    }
}

fn rows(name: &str, run: &Value) -> Vec<String> {
    let Some(threads) = run["threads"].as_u64() else {
        let first = [
            name.to_owned(),
            run["seed"].to_string(),
            minutes(run),
            run["workers"].to_string(),
            run["rounds"].to_string(),
            count(run, "pairs_in_all"),
            count(run, "faults_in_all"),
            run["kinds"].to_string(),
            grouped(sum(&run["announced"])),
            not_announced(run),
        ];
        let second = [
            name.to_owned(),
            count(run, "deaths_timed"),
            count(run, "deaths_late"),
            format!("{} ms", one_place(&run["worst_time_to_free_ms"])),
            count(run, "holds_halted_past_their_lease"),
            count(run, "writes_at_the_resource"),
            count(run, "stale_writes_refused"),
            count(run, "waits_judged"),
            format!("{} ms", one_place(&run["longest_wait_ms"])),
        ];
        return vec![first.join(" | "), second.join(" | ")];
    };
    let pairs = [
        name.to_owned(),
        run["seed"].to_string(),
        minutes(run),
        threads.to_string(),
        count(run, "pairs_in_all"),
        count(run, "pairs_without_hand_over"),
        format!("{} ms", one_place(&run["longest_wait_ms"])),
        not_announced(run),
    ];
    let mut rows = vec![pairs.join(" | ")];
    for (what, growth) in run["grows"].as_object().unwrap() {
        let (end, hour) = (&growth["at_the_end"], &growth["an_hour"]);
        rows.push([name, what, &one_place(end), &one_place(hour)].join(" | "));
    }
    rows
}

#[test]
fn the_figures_on_the_page_are_those_that_the_program_wrote() {
    let (page, runs) = (page(), runs());
    for (name, run) in &runs {
        for row in rows(name, run) {
            assert!(
                page.contains(&format!("| {row} |\n")),
                "not on the page: {row}"
            );
        }
    }
    let of_kind = |field: &str, kind: &str| -> u64 {
        let of_runs = runs.iter().map(|(_, run)| sum(&run[field][kind]));
        of_runs.sum()
    };
    let kinds = page.lines().filter_map(|line| line.strip_prefix("| `"));
    for line in kinds.filter(|line| line.split(" | ").count() == 5) {
        let kind = line.split('`').next().unwrap();
        let (made, broken) = (of_kind("faults", kind), of_kind("announced", kind));
        let figures = format!("| {} | {} |", grouped(made), grouped(broken));
        assert!(line.ends_with(&figures), "{kind}: {figures}");
    }
}

/// Other processes of a test, which it starts by itself, are left out as well.
#[test]
fn every_test_that_is_left_out_says_by_which_command_it_is_run() {
    let mut commands = 0;
    for file in files("tests", "rs").into_iter().chain(files("src", "rs")) {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().map(str::trim) {
            let Some(reason) = line.strip_prefix("#[ignore") else {
                continue;
            };
            let is_other_process = reason.starts_with(" = \"the other process of the test");
            let has_command = reason.contains("cargo test ") && reason.contains("-- --ignored");
            assert!(
                is_other_process || has_command,
                "{}: {line}",
                file.display()
            );
            commands += usize::from(has_command);
        }
    }
    assert!(commands > 20);
}
