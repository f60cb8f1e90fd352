//! The result at a glance: the sales of each strategy under each load, and the wait of a buyer.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    options::Cell,
    simulation::Outcome,
    table::{number, per_second},
    trade::Strategy,
};

const SIZE: (u32, u32) = (1_000, 440);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const BAR_WIDTH: f64 = 0.9;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Label = Text<'static, (f64, f64), String>;

/// Writes an SVG of two panels.
pub(crate) fn draw(outcomes: &[Outcome], file: &Path) -> anyhow::Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    draw_panels(&root, outcomes)
        .and_then(|()| root.present().map_err(|error| anyhow!("{error}")))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn draw_panels(root: &Area<'_>, outcomes: &[Outcome]) -> anyhow::Result<()> {
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);

    let sold = bars(outcomes, |outcome| {
        Some(per_second(outcome.sales.bought, outcome.seconds))
    });
    draw_panel(&left, "Sold per second", &sold, number)?;

    let waits = bars(outcomes, |outcome| {
        outcome.waits().map(|waits| waits.mean_ms)
    });
    let millis = |wait| format!("{wait:.2}");
    draw_panel(&right, "Mean wait per purchase, in ms", &waits, millis)
}

/// Draws a group of bars for each load: one bar for each strategy, with its value above it.
fn draw_panel(
    area: &Area<'_>,
    title: &str,
    bars: &[Bar],
    as_text: impl Fn(f64) -> String,
) -> anyhow::Result<()> {
    let width = bars.last().map_or(1.0, |bar| bar.left + 1.4);
    let highest = bars.iter().map(Bar::height).fold(0.001, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20, &INK))
        .margin(15)
        .build_cartesian_2d(0.0..width, -0.1 * highest..1.3 * highest)?;

    for strategy in Strategy::ALL {
        let bars = bars.iter().filter(|bar| bar.cell.strategy == strategy);
        if bars.clone().next().is_none() {
            continue;
        }
        let style = color(strategy).filled();
        chart
            .draw_series(bars.map(|bar| Rectangle::new(bar.corners(), style)))?
            .label(strategy.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
    }
    chart.draw_series(bars.iter().map(|bar| {
        let text = bar.value.map_or("nothing sold".to_owned(), &as_text);
        label(text, (bar.middle(), bar.height()), VPos::Bottom)
    }))?;
    chart.draw_series(names_of_loads(bars, -0.02 * highest))?;
    chart.draw_series([PathElement::new([(0.0, 0.0), (width, 0.0)], INK)])?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 14, &INK))
        .draw()?;
    Ok(())
}

/// Returns one label below each group.
fn names_of_loads(bars: &[Bar], height: f64) -> impl Iterator<Item = Label> {
    bars.chunk_by(|a, b| a.cell.load == b.cell.load)
        .filter_map(move |group| {
            let (first, last) = (group.first()?, group.last()?);
            let middle = f64::midpoint(first.middle(), last.middle());
            Some(label(
                first.cell.load.in_words(),
                (middle, height),
                VPos::Top,
            ))
        })
}

/// A cell's value and position.
struct Bar {
    cell: Cell,
    left: f64,
    /// `None` if nothing was bought.
    value: Option<f64>,
}

/// Places the bars side by side, with a gap between two loads.
fn bars(outcomes: &[Outcome], value: impl Fn(&Outcome) -> Option<f64>) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    for outcome in outcomes {
        let left = bars.last().map_or(0.5, |last| {
            let gap = if last.cell.load == outcome.cell.load {
                0.0
            } else {
                1.0
            };
            last.left + 1.0 + gap
        });
        bars.push(Bar {
            cell: outcome.cell,
            left,
            value: value(outcome),
        });
    }
    bars
}

impl Bar {
    fn height(&self) -> f64 {
        self.value.unwrap_or(0.0)
    }

    fn middle(&self) -> f64 {
        self.left + BAR_WIDTH / 2.0
    }

    fn corners(&self) -> [(f64, f64); 2] {
        [(self.left, 0.0), (self.left + BAR_WIDTH, self.height())]
    }
}

fn label(text: String, at: (f64, f64), side: VPos) -> Label {
    let style = TextStyle::from((FONT, 14)).color(&INK);
    Text::new(text, at, style.pos(Pos::new(HPos::Center, side)))
}

/// Colours that colour-blind readers can also tell apart.
fn color(strategy: Strategy) -> RGBColor {
    match strategy {
        Strategy::Watch => RGBColor(213, 94, 0),
        Strategy::MarketLock => RGBColor(150, 150, 150),
        Strategy::ItemLock => RGBColor(0, 114, 178),
        Strategy::TwoLocks => RGBColor(86, 180, 233),
    }
}
