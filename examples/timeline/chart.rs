//! The picture. Its colours differ for the colour-blind too, what is wrong has a row of its own, and in dark mode paper and
//! ink change places.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::bars::{Bar, Scene, Span};

const WIDTH: i32 = 760;
const LEFT: i32 = 110;
const RIGHT: i32 = 20;
const TITLE: i32 = 34;
const ROW: i32 = 26;
const AXIS: i32 = 34;
const LEGEND: i32 = 34;
const FONT: &str = "sans-serif";

const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 35, 40);
const WAITS: RGBColor = RGBColor(160, 165, 170);
const HOLDS: RGBColor = RGBColor(0, 114, 178);
const BELIEVES: RGBColor = RGBColor(230, 159, 0);
const COLLISION: RGBColor = RGBColor(213, 94, 0);

/// Follows the reader's setting, where the viewer of the picture knows it.
const DARK_MODE: &str = "<style>@media (prefers-color-scheme: dark) { \
     [fill='#FFFFFF'] { fill: #0D1117 } [fill='#1F2328'] { fill: #E6EDF3 } [stroke='#1F2328'] { stroke: #E6EDF3 } \
     }</style>\n";

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The text of an SVG file: the scenes one below the other, on one scale of time.
pub(crate) fn draw(scenes: &[Scene]) -> anyhow::Result<String> {
    let height = scenes.iter().map(height).sum::<i32>() + LEGEND;
    let length_ms = scenes
        .iter()
        .map(|scene| scene.length_ms)
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    {
        let size = (WIDTH.try_into()?, height.try_into()?);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&PAPER)?;
        let mut top = 0;
        for scene in scenes {
            draw_scene(&area, scene, length_ms, top)?;
            top += self::height(scene);
        }
        draw_legend(&area, top)?;
        area.present()?;
    }
    let (head, rest) = text.split_once(">\n").unwrap_or(("", &text));
    Ok(format!("{head}>\n{DARK_MODE}{rest}"))
}

fn height(scene: &Scene) -> i32 {
    TITLE + ROW * rows(scene) + AXIS
}

fn rows(scene: &Scene) -> i32 {
    let collisions = usize::from(!scene.collisions.is_empty());
    i32::try_from(scene.rows.len() + collisions).unwrap_or(0)
}

fn draw_scene(area: &Area<'_>, scene: &Scene, length_ms: u64, top: i32) -> anyhow::Result<()> {
    let x = |at: u64| LEFT + scaled(at, length_ms);
    let bar = |span: &Span, row: i32| {
        let y = top + TITLE + ROW * row;
        [(x(span.from), y + 4), (x(span.to), y + ROW - 4)]
    };
    label(area, &scene.title, (12, top + TITLE / 2), HPos::Left, 16)?;
    for (row, index) in scene.rows.iter().zip(0..) {
        let middle = top + TITLE + ROW * index + ROW / 2;
        label(area, &row.holder, (LEFT - 12, middle), HPos::Right, 14)?;
        for (kind, span) in &row.bars {
            area.draw(&Rectangle::new(bar(span, index), color(*kind).filled()))?;
        }
        for &told in &row.told {
            let line = [(x(told), middle - ROW / 2), (x(told), middle + ROW / 2)];
            area.draw(&PathElement::new(line, INK.stroke_width(3)))?;
            label(area, "told", (x(told) + 6, middle), HPos::Left, 13)?;
        }
    }
    if !scene.collisions.is_empty() {
        let last = rows(scene) - 1;
        let middle = top + TITLE + ROW * last + ROW / 2;
        label(area, "two at work", (LEFT - 12, middle), HPos::Right, 14)?;
        for span in &scene.collisions {
            area.draw(&Rectangle::new(bar(span, last), COLLISION.filled()))?;
        }
    }
    draw_axis(area, length_ms, top + TITLE + ROW * rows(scene))
}

fn draw_axis(area: &Area<'_>, length_ms: u64, y: i32) -> anyhow::Result<()> {
    let line = [(LEFT, y), (WIDTH - RIGHT, y)];
    area.draw(&PathElement::new(line, INK))?;
    let step = [50, 100, 250, 500, 1_000, 5_000]
        .into_iter()
        .find(|step| length_ms / step <= 8)
        .unwrap_or(60_000);
    let mut at = 0;
    while at <= length_ms {
        let x = LEFT + scaled(at, length_ms);
        area.draw(&PathElement::new([(x, y), (x, y + 4)], INK))?;
        label(area, &format!("{at} ms"), (x, y + 13), HPos::Center, 12)?;
        at += step;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, top: i32) -> anyhow::Result<()> {
    let entries = [
        (WAITS, "waits"),
        (HOLDS, "holds the lock"),
        (BELIEVES, "believes so, and does not"),
        (COLLISION, "two at work"),
    ];
    let y = top + LEGEND / 2;
    for ((color, text), x) in entries.into_iter().zip([LEFT, 200, 340, 550]) {
        let square = [(x, y - 6), (x + 12, y + 6)];
        area.draw(&Rectangle::new(square, color.filled()))?;
        label(area, text, (x + 18, y), HPos::Left, 13)?;
    }
    Ok(())
}

fn label(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    points: u32,
) -> anyhow::Result<()> {
    let style = TextStyle::from((FONT, points)).color(&INK);
    let style = style.pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// How far to the right of the beginning a moment is.
fn scaled(at: u64, length: u64) -> i32 {
    let width = u64::from((WIDTH - LEFT - RIGHT).unsigned_abs());
    i32::try_from(at * width / length.max(1)).unwrap_or(0)
}

fn color(bar: Bar) -> RGBColor {
    match bar {
        Bar::Waits => WAITS,
        Bar::Holds => HOLDS,
        Bar::Believes => BELIEVES,
    }
}
