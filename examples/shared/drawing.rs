//! SVG pictures, drawn at the width at which a page shows them. Their colours differ for the
//! colour-blind too, and dark mode swaps paper and ink.

use anyhow::Context;
use plotters::{
    coord::{
        Shift,
        ranged1d::{BoldPoints, Ranged},
        types::RangedCoordf64,
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

pub(crate) const WIDTH: i32 = 700;
/// The font sizes, in pixels.
pub(crate) const TITLE: f64 = 15.0;
pub(crate) const SMALL: f64 = 12.5;

pub(crate) const INK: RGBColor = RGBColor(31, 35, 40);
pub(crate) const GREY: RGBColor = RGBColor(160, 165, 170);
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const LIGHT_BLUE: RGBColor = RGBColor(86, 180, 233);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(crate) const RED: RGBColor = RGBColor(213, 94, 0);

const PAPER: RGBColor = WHITE;
const FONT: &str = "sans-serif";
/// By how much plotters writes a font smaller than it was asked for.
const SMALLER: f64 = 1.24;
/// The mean width of a small character in a wide font.
const CHARACTER: i32 = 8;

/// Follows the reader's setting, where the viewer of the picture knows it.
const DARK_MODE: &str = "<style>@media (prefers-color-scheme: dark) { \
     [fill='#FFFFFF'] { fill: #0D1117 } [fill='#1F2328'] { fill: #E6EDF3 } [stroke='#1F2328'] { stroke: #E6EDF3 } \
     }</style>\n";

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The text of an SVG file.
pub(crate) fn svg(
    height: i32,
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let size = (WIDTH.try_into()?, height.try_into()?);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&PAPER)?;
        draw(&area)?;
        area.present()?;
    }
    let (head, rest) = text.split_once(">\n").context("no SVG")?;
    Ok(format!("{head}>\n{DARK_MODE}{rest}"))
}

/// A line of text beside, or above or below, a point.
pub(crate) fn label(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    side: (HPos, VPos),
    (pixels, color): (f64, RGBColor),
) -> anyhow::Result<()> {
    let style = TextStyle::from((FONT, pixels * SMALLER)).color(&color);
    let style = style.pos(Pos::new(side.0, side.1));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// Squares of colour with their meaning, in one line.
pub(crate) fn legend(
    area: &Area<'_>,
    entries: &[(RGBColor, &str)],
    (mut x, y): (i32, i32),
) -> anyhow::Result<()> {
    for (color, text) in entries {
        let square = [(x, y - 6), (x + 12, y + 6)];
        area.draw(&Rectangle::new(square, color.filled()))?;
        let (side, style) = ((HPos::Left, VPos::Center), (SMALL, INK));
        label(area, text, (x + 18, y), side, style)?;
        x += 38 + CHARACTER * i32::try_from(text.chars().count())?;
    }
    Ok(())
}

/// A vertical axis that starts at zero.
pub(crate) struct Axis {
    /// Where the lines across begin and end.
    pub(crate) left: i32,
    pub(crate) right: i32,
    /// Where zero and the highest value are.
    pub(crate) bottom: i32,
    pub(crate) top: i32,
    pub(crate) highest: f64,
}

impl Axis {
    pub(crate) fn y(&self, value: f64) -> i32 {
        RangedCoordf64::from(0.0..self.highest).map(&value, (self.bottom, self.top))
    }

    pub(crate) fn draw(
        &self,
        area: &Area<'_>,
        as_text: impl Fn(f64) -> String,
    ) -> anyhow::Result<()> {
        for value in RangedCoordf64::from(0.0..self.highest).key_points(BoldPoints(6)) {
            let y = self.y(value);
            let style = INK.mix(if value == 0.0 { 1.0 } else { 0.2 });
            area.draw(&PathElement::new([(self.left, y), (self.right, y)], style))?;
            let side = (HPos::Right, VPos::Center);
            label(
                area,
                &as_text(value),
                (self.left - 6, y),
                side,
                (SMALL, INK),
            )?;
        }
        Ok(())
    }
}
