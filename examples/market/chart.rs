//! The result at a glance: the sales of each strategy under each load, and the wait of a buyer.

use std::{fs, path::Path};

use anyhow::Context;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use crate::{
    drawing::{self, Area, Axis, BLUE, GREY, INK, LIGHT_BLUE, RED, SMALL, WIDTH, label},
    simulation::Outcome,
    table::{number, per_second},
    trade::Strategy,
};

const LEFT: i32 = 60;
const RIGHT: i32 = WIDTH - 20;
const LEGEND: i32 = 34;
const PANEL: i32 = 232;
const TITLE: i32 = 22;
/// How much of a bar's place it takes.
const FILLED: i32 = 90;

/// Writes an SVG of two panels, one below the other.
pub(crate) fn draw(outcomes: &[Outcome], file: &Path) -> anyhow::Result<()> {
    let text = drawing::svg(LEGEND + 2 * PANEL, |area| draw_panels(area, outcomes))?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn draw_panels(area: &Area<'_>, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let drawn = |strategy: &Strategy| {
        let mut cells = outcomes.iter().map(|outcome| outcome.cell);
        cells.any(|cell| cell.strategy == *strategy)
    };
    let entries = Strategy::ALL.into_iter().filter(drawn);
    let entries = entries.map(|strategy| (color(strategy), in_words(strategy)));
    drawing::legend(area, &entries.collect::<Vec<_>>(), (12, LEGEND - 14))?;

    let sold = |outcome: &Outcome| Some(per_second(outcome.sales.bought, outcome.seconds));
    draw_panel(
        area,
        LEGEND,
        "Items sold per second",
        outcomes,
        (&sold, &number),
    )?;
    let wait = |outcome: &Outcome| outcome.waits().map(|waits| waits.mean_ms);
    let millis = |wait| format!("{wait:.2}");
    let title = "Mean wait per purchase, in ms";
    draw_panel(area, LEGEND + PANEL, title, outcomes, (&wait, &millis))
}

/// What a panel shows, and how it is written.
type Shown<'a> = (
    &'a dyn Fn(&Outcome) -> Option<f64>,
    &'a dyn Fn(f64) -> String,
);

/// Draws a group of bars for each load: one bar for each strategy, with its value above it.
fn draw_panel(
    area: &Area<'_>,
    top: i32,
    title: &str,
    outcomes: &[Outcome],
    (value, as_text): Shown<'_>,
) -> anyhow::Result<()> {
    let title_at = (12, top + TITLE / 2);
    let right_of = (HPos::Left, VPos::Center);
    label(area, title, title_at, right_of, (drawing::TITLE, INK))?;
    let values = outcomes.iter().filter_map(value);
    let axis = Axis {
        left: LEFT,
        right: RIGHT,
        bottom: top + PANEL - 32,
        top: top + TITLE + 24,
        highest: values.fold(0.001, f64::max),
    };
    axis.draw(area, as_text)?;

    let groups: Vec<_> = outcomes
        .chunk_by(|a, b| a.cell.load == b.cell.load)
        .collect();
    // A place for each bar, and one between two loads.
    let places = i32::try_from(outcomes.len() + groups.len())?;
    let place = (RIGHT - LEFT) / places.max(1);
    let mut x = LEFT + place / 2;
    for group in groups {
        let from = x;
        for outcome in group {
            let value = value(outcome);
            let corner = (x + place * FILLED / 100, axis.y(value.unwrap_or(0.0)));
            let bar = Rectangle::new(
                [(x, axis.bottom), corner],
                color(outcome.cell.strategy).filled(),
            );
            area.draw(&bar)?;
            let text = value.map_or("none".to_owned(), as_text);
            let at = (x + place * FILLED / 200, corner.1 - 2);
            label(area, &text, at, (HPos::Center, VPos::Bottom), (SMALL, INK))?;
            x += place;
        }
        let load = group.first().map(|outcome| outcome.cell.load.in_words());
        let at = (i32::midpoint(from, x), axis.bottom + 6);
        let below = (HPos::Center, VPos::Top);
        label(area, &load.unwrap_or_default(), at, below, (SMALL, INK))?;
        x += place;
    }
    Ok(())
}

/// The name of a strategy, and who advises it.
fn in_words(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Watch => "WATCH (book)",
        Strategy::MarketLock => "market lock (book)",
        Strategy::ItemLock => "item lock (recommended)",
        Strategy::TwoLocks => "two locks",
    }
}

fn color(strategy: Strategy) -> RGBColor {
    match strategy {
        Strategy::Watch => RED,
        Strategy::MarketLock => GREY,
        Strategy::ItemLock => BLUE,
        Strategy::TwoLocks => LIGHT_BLUE,
    }
}
