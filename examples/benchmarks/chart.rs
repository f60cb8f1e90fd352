//! Pairs a second by threads, a line for each way of locking.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::{coord::Shift, prelude::*};

use crate::pairs::{Contender, THREADS};

const SIZE: (u32, u32) = (760, 420);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
/// Differ for the colour-blind, too.
const COLORS: [RGBColor; 4] = [
    RGBColor(150, 150, 150),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes an SVG.
pub(crate) fn draw(all: &[Contender], file: &Path) -> anyhow::Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    draw_lines(&root, all)
        .and_then(|()| root.present().map_err(|error| anyhow!("{error}")))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn draw_lines(root: &Area<'_>, all: &[Contender]) -> anyhow::Result<()> {
    root.fill(&WHITE)?;
    let speeds = all.iter().flat_map(|contender| &contender.came);
    let highest = speeds.map(|(speed, _)| *speed).fold(1.0, f64::max);
    // Each number of threads is as far from the next: most of them are small.
    let last = THREADS.len() - 1;
    let mut chart = ChartBuilder::on(root)
        .caption("Pairs of acquire and release a second", (FONT, 20, &INK))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0..last, 0.0..1.15 * highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(THREADS.len())
        .x_label_formatter(&|place| {
            THREADS
                .get(*place)
                .map_or_else(String::new, usize::to_string)
        })
        .x_desc("threads, each with a lock of its own")
        .y_label_formatter(&|speed| format!("{speed:.0}"))
        .label_style((FONT, 14, &INK))
        .draw()?;
    for (contender, color) in all.iter().zip(COLORS) {
        let points = contender.came.iter().map(|(speed, _)| *speed).enumerate();
        chart
            .draw_series([PathElement::new(
                points.clone().collect::<Vec<_>>(),
                color.stroke_width(3),
            )])?
            .label(contender.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
        chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 14, &INK))
        .draw()?;
    Ok(())
}
