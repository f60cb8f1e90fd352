//! Reads the access list in docs/guarantees.md.

use std::{fs, path::Path};

/// The rules in the table row for `what`.
pub fn rules(what: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guarantees.md");
    // The first column may contain a link.
    let text = fs::read_to_string(page).unwrap().replace(['[', ']'], "");
    let (_, list) = text.split_once("## The smallest access list").unwrap();
    let row = list
        .lines()
        .find(|line| line.starts_with(&format!("| {what}")));
    // A `|` inside a cell is escaped.
    let row = row.unwrap_or_default().replace("\\|", "\n");
    let words = row.rsplit('|').nth(1).unwrap_or_default();
    let words = words.replace('\n', "|");
    words
        .split([' ', '`'])
        .flat_map(|word| match word {
            "KEYS" => vec!["~lock:app:*"],
            "BOTH" => vec!["~lock:app:*", "~{lock:app:*}:lease"],
            word if word.starts_with(['~', '&', '+']) => vec![word],
            _ => Vec::new(),
        })
        .map(str::to_owned)
        .collect()
}
