//! The access list that docs/guarantees.md names.

use std::{fs, path::Path};

/// The rules of the row that is for this.
pub fn rules(what: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guarantees.md");
    // What is named in the first column may be a link.
    let text = fs::read_to_string(page).unwrap().replace(['[', ']'], "");
    let (_, list) = text.split_once("## The smallest access list").unwrap();
    let row = list
        .lines()
        .find(|line| line.starts_with(&format!("| {what}")));
    // In a table a `|` that ends no cell is escaped.
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
