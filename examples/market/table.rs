//! The table, next to the book's figures, and the verdict on the invariants.

use std::time::Duration;

use crate::{
    book::{self, Figure},
    options::Cell,
    simulation::Outcome,
};

/// The figures that may be compared between runs.
const STABLE: [&str; 3] = [
    "Stable from run to run: rows with locks have no retries; rows with WATCH have some at each load,",
    "and with 5 listers WATCH retries more often than it buys. All other figures depend on the machine",
    "and its load: compare them only within a run.",
];

/// Returns the whole report as text.
pub(crate) fn table(outcomes: &[Outcome], seconds: Duration) -> String {
    let ours = format!("this run, {} s a cell", seconds.as_secs_f64());
    let mut lines = vec![
        "Counts are per second, the book's too; waits are per purchase.".to_owned(),
        String::new(),
        format!("{:14}{ours:^45} | {:^34}", "", "the book, 60 s a cell"),
        line(
            "",
            &["listed", "bought", "retries", "mean wait", "p99 wait"],
            &["listed", "bought", "retries", "mean wait"],
        ),
    ];
    for load in outcomes.chunk_by(|a, b| a.cell.load == b.cell.load) {
        lines.extend(load.first().map(|outcome| outcome.cell.load.in_words()));
        lines.extend(load.iter().map(|outcome| {
            let way = format!("  {}", outcome.cell.strategy.name());
            line(&way, &our_figures(outcome), &book_figures(outcome.cell))
        }));
    }
    lines.push(String::new());
    lines.extend(STABLE.map(str::to_owned));
    lines.push(String::new());
    lines.extend(verdict(outcomes));
    lines.join("\n") + "\n"
}

fn line<T: AsRef<str>, U: AsRef<str>>(way: &str, ours: &[T; 5], book: &[U; 4]) -> String {
    let [listed, bought, retries, mean, p99] = ours.each_ref().map(AsRef::as_ref);
    let ours = format!("{listed:>7}{bought:>8}{retries:>8}{mean:>11}{p99:>11}");
    let [listed, bought, retries, wait] = book.each_ref().map(AsRef::as_ref);
    let book = format!("{listed:>7}{bought:>8}{retries:>8}{wait:>11}");
    format!("{way:14}{ours} | {book}")
}

fn our_figures(outcome: &Outcome) -> [String; 5] {
    let sales = &outcome.sales;
    let [listed, bought, retries] = [outcome.listed, sales.bought, sales.retries]
        .map(|count| per_second(count, outcome.seconds));
    let waits = outcome.waits();
    let millis = |wait: Option<f64>| wait.map_or("-".to_owned(), |ms| format!("{ms:.2} ms"));
    [
        number(listed),
        number(bought),
        number(retries),
        millis(waits.map(|waits| waits.mean_ms)),
        millis(waits.map(|waits| waits.p99_ms)),
    ]
}

fn book_figures(cell: Cell) -> [String; 4] {
    let Some(row) = book::row(cell) else {
        return ["-"; 4].map(str::to_owned);
    };
    let scaled = |count: u32| number(f64::from(count) / book::SECONDS);
    let scaled_figure = |figure| match figure {
        Figure::Is(count) => scaled(count),
        Figure::Below(count) => format!("<{}", scaled(count)),
    };
    let wait = match row.wait_ms {
        Figure::Is(ms) => format!("{ms} ms"),
        Figure::Below(ms) => format!("<{ms} ms"),
    };
    [
        scaled(row.listed),
        scaled_figure(row.bought),
        scaled_figure(row.retries),
        wait,
    ]
}

/// Returns the count per second.
pub(crate) fn per_second(count: u64, seconds: Duration) -> f64 {
    // No run counts anything up to 2^32.
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds.as_secs_f64()
}

/// Formats small values with one decimal.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Reports whether all money and goods were found in Redis after each cell.
fn verdict(outcomes: &[Outcome]) -> Vec<String> {
    let broken: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| {
            let Outcome { cell, audit, .. } = outcome;
            let (load, way) = (cell.load.in_words(), cell.strategy.name());
            audit
                .violations
                .iter()
                .map(move |violation| format!("BROKEN: {load}, {way}: {violation}"))
        })
        .collect();
    if !broken.is_empty() {
        return broken;
    }
    let items: u64 = outcomes.iter().map(|outcome| outcome.audit.items).sum();
    vec![
        "Read back from Redis after each cell: the sum of funds is unchanged, no user's funds are"
            .to_owned(),
        format!("negative, and each of the {items} items is in exactly one place."),
    ]
}
