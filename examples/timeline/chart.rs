//! The picture: scenes one below the other. Conflicts have a row of their own.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use crate::{
    bars::{Bar, Row, Scene, Span},
    drawing::{self, Area, BLUE, GREY, INK, ORANGE, RED, SMALL, WIDTH, label},
};

const LEFT: i32 = 84;
const RIGHT: i32 = 30;
const TITLE: i32 = 36;
const ROW: i32 = 26;
const AXIS: i32 = 34;
const LEGEND: i32 = 36;

const LEFT_OF: (HPos, VPos) = (HPos::Right, VPos::Center);
const RIGHT_OF: (HPos, VPos) = (HPos::Left, VPos::Center);

/// The text of an SVG file: the scenes on one scale of time.
pub(crate) fn draw(scenes: &[Scene]) -> anyhow::Result<String> {
    let height = scenes.iter().map(height).sum::<i32>() + LEGEND;
    let lengths = scenes.iter().map(|scene| scene.length_ms);
    let length_ms = lengths.max().unwrap_or(0);
    drawing::svg(height, |area| {
        let mut top = 0;
        for scene in scenes {
            draw_scene(area, scene, length_ms, top)?;
            top += self::height(scene);
        }
        drawing::legend(area, &legend(scenes), (LEFT, top + LEGEND / 2))
    })
}

/// The bars that occur, and the conflicts.
fn legend(scenes: &[Scene]) -> Vec<(RGBColor, &'static str)> {
    let rows = || scenes.iter().flat_map(|scene| &scene.rows);
    let occurs = |bar| rows().any(|row| row.bars.iter().any(|(kind, _)| *kind == bar));
    let all = [
        (Bar::Waits, "waits"),
        (Bar::Holds, "holds the lock"),
        (Bar::Believes, "thinks it still holds it"),
    ];
    let occurring = all.into_iter().filter(|(bar, _)| occurs(*bar));
    let mut legend: Vec<_> = occurring.map(|(bar, text)| (color(bar), text)).collect();
    if scenes.iter().any(|scene| !scene.conflicts.is_empty()) {
        legend.push((RED, "two work at once"));
    }
    legend
}

fn height(scene: &Scene) -> i32 {
    TITLE + ROW * rows(scene) + AXIS
}

fn rows(scene: &Scene) -> i32 {
    let conflicts = usize::from(!scene.conflicts.is_empty());
    i32::try_from(scene.rows.len() + conflicts).unwrap_or(0)
}

fn draw_scene(area: &Area<'_>, scene: &Scene, length_ms: u64, top: i32) -> anyhow::Result<()> {
    let title = (12, top + TITLE / 2);
    label(area, &scene.title, title, RIGHT_OF, (drawing::TITLE, INK))?;
    let mut y = top + TITLE;
    for row in &scene.rows {
        draw_row(area, row, length_ms, y)?;
        y += ROW;
    }
    if !scene.conflicts.is_empty() {
        let name = (LEFT - 10, y + ROW / 2);
        label(area, "conflict", name, LEFT_OF, (SMALL, INK))?;
        for span in &scene.conflicts {
            draw_bar(area, *span, RED, length_ms, y)?;
        }
        y += ROW;
    }
    draw_axis(area, length_ms, y)
}

fn draw_row(area: &Area<'_>, row: &Row, length_ms: u64, y: i32) -> anyhow::Result<()> {
    let middle = y + ROW / 2;
    label(
        area,
        &row.holder,
        (LEFT - 10, middle),
        LEFT_OF,
        (SMALL, INK),
    )?;
    for (kind, span) in &row.bars {
        draw_bar(area, *span, color(*kind), length_ms, y)?;
    }
    for &(at, name) in &row.marks {
        let x = x(at, length_ms);
        let line = [(x, y), (x, y + ROW)];
        area.draw(&PathElement::new(line, INK.stroke_width(3)))?;
        // Bars have the same colour in dark mode, and paper has not.
        let is_on_bar = row.bars.iter().any(|(_, span)| span.contains(at));
        let style = (SMALL, if is_on_bar { BLACK } else { INK });
        label(area, name, (x + 6, middle), RIGHT_OF, style)?;
    }
    Ok(())
}

fn draw_bar(
    area: &Area<'_>,
    span: Span,
    color: RGBColor,
    length_ms: u64,
    y: i32,
) -> anyhow::Result<()> {
    let from = (x(span.from, length_ms), y + 4);
    let to = (x(span.to, length_ms), y + ROW - 4);
    area.draw(&Rectangle::new([from, to], color.filled()))?;
    Ok(())
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
        let x = x(at, length_ms);
        area.draw(&PathElement::new([(x, y), (x, y + 4)], INK))?;
        let below = (HPos::Center, VPos::Center);
        label(area, &format!("{at} ms"), (x, y + 14), below, (SMALL, INK))?;
        at += step;
    }
    Ok(())
}

fn x(at: u64, length_ms: u64) -> i32 {
    let width = u64::from((WIDTH - LEFT - RIGHT).unsigned_abs());
    LEFT + i32::try_from(at * width / length_ms.max(1)).unwrap_or(0)
}

fn color(bar: Bar) -> RGBColor {
    match bar {
        Bar::Waits => GREY,
        Bar::Holds => BLUE,
        Bar::Believes => ORANGE,
    }
}
