//! Pairs of acquire and release by threads, a line for each way of locking.

use std::{fs, path::Path};

use anyhow::Context;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use crate::{
    drawing::{self, Area, Axis, BLUE, GREY, INK, LIGHT_BLUE, ORANGE, SMALL, WIDTH, label},
    pairs::{Contender, THREADS},
};

const HEIGHT: i32 = 360;
const LEFT: i32 = 50;
const RIGHT: i32 = WIDTH - 30;
const TOP: i32 = 80;
const BOTTOM: i32 = HEIGHT - 54;
const COLORS: [RGBColor; 4] = [GREY, BLUE, ORANGE, LIGHT_BLUE];

/// Writes an SVG.
pub(crate) fn draw(all: &[Contender], file: &Path) -> anyhow::Result<()> {
    let text = drawing::svg(HEIGHT, |area| draw_lines(area, all))?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn draw_lines(area: &Area<'_>, all: &[Contender]) -> anyhow::Result<()> {
    let title = "Pairs of acquire and release per second; by hand is 1";
    let right_of = (HPos::Left, VPos::Center);
    label(area, title, (12, 22), right_of, (drawing::TITLE, INK))?;
    let entries: Vec<_> = all.iter().zip(COLORS).collect();
    let entries = entries
        .iter()
        .map(|(contender, color)| (*color, contender.name));
    drawing::legend(area, &entries.collect::<Vec<_>>(), (12, 50))?;

    let ratios = all.iter().flat_map(|contender| &contender.came);
    let axis = Axis {
        left: LEFT,
        right: RIGHT,
        bottom: BOTTOM,
        top: TOP,
        highest: ratios.map(|(_, ratio)| *ratio).fold(1.0, f64::max),
    };
    axis.draw(area, |ratio| format!("{ratio:.1}"))?;
    let below = (HPos::Center, VPos::Top);
    for threads in THREADS {
        let x = x(threads);
        area.draw(&PathElement::new([(x, BOTTOM), (x, BOTTOM + 4)], INK))?;
        label(
            area,
            &threads.to_string(),
            (x, BOTTOM + 8),
            below,
            (SMALL, INK),
        )?;
    }
    let middle = i32::midpoint(LEFT, RIGHT);
    let threads = "threads, each with its own lock";
    label(area, threads, (middle, BOTTOM + 28), below, (SMALL, INK))?;

    for (contender, color) in all.iter().zip(COLORS) {
        let points = THREADS.iter().zip(&contender.came);
        let points: Vec<_> = points
            .map(|(threads, (_, ratio))| (x(*threads), axis.y(*ratio)))
            .collect();
        area.draw(&PathElement::new(points.clone(), color.stroke_width(3)))?;
        for point in points {
            area.draw(&Circle::new(point, 4, color.filled()))?;
        }
    }
    Ok(())
}

/// Where a number of threads is: to scale, from zero on.
fn x(threads: usize) -> i32 {
    let most = THREADS.into_iter().max().unwrap_or(1);
    let width = usize::try_from(RIGHT - LEFT).unwrap_or(0);
    LEFT + i32::try_from(threads * width / most).unwrap_or(0)
}
