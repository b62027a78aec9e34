//! Charts: bars if there is one point per subject, lines if there is an axis; whiskers show the
//! spread.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::rounds::{Series, Spread, Table};

const SIZE: (u32, u32) = (900, 480);

/// A palette for any kind of colour vision (Okabe and Ito).
const COLOURS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Draws one measure as SVG.
pub fn draw(scenario: &str, table: &Table) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|e| anyhow!("draw: {e}"))?;
        let caption = format!("{scenario}: {} ({})", table.measure, table.unit);
        let drawn = if table.axis.is_empty() {
            bars(&area, &caption, table)
        } else {
            lines(&area, &caption, table)
        };
        drawn.map_err(|e| anyhow!("draw {caption}: {e}"))?;
        area.present().map_err(|e| anyhow!("draw: {e}"))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn top(table: &Table) -> f64 {
    let spreads = table.series.iter().filter_map(|s| Spread::of(&s.values));
    spreads.map(|s| s.max).fold(f64::MIN_POSITIVE, f64::max) * 1.15
}

fn bars(area: &Area<'_>, caption: &str, table: &Table) -> Drawn {
    let count = table.series.len();
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(20)
        .y_label_area_size(220)
        .build_cartesian_2d(0.0..top(table), 0.0..count as f64)?;
    let name = |y: &f64| {
        let at = y.floor() as usize;
        let named = (y - y.floor() - 0.5).abs() < 0.01;
        table
            .series
            .get(at)
            .filter(|_| named)
            .map_or(String::new(), |s| s.subject.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(2 * count + 1)
        .y_label_formatter(&name)
        .x_desc(table.unit)
        .draw()?;
    for (at, series) in table.series.iter().enumerate() {
        let Some(spread) = Spread::of(&series.values) else {
            continue;
        };
        let colour = COLOURS[at % COLOURS.len()];
        let y = at as f64;
        let bar = [(0.0, y + 0.2), (spread.median, y + 0.8)];
        chart.draw_series([Rectangle::new(bar, colour.filled())])?;
        let whisker = vec![(spread.min, y + 0.5), (spread.max, y + 0.5)];
        chart.draw_series([PathElement::new(whisker, BLACK.stroke_width(2))])?;
        let label = format!("{:.3}", spread.median);
        let place = (spread.max + top(table) * 0.005, y + 0.6);
        chart.draw_series([Text::new(label, place, ("sans-serif", 14))])?;
    }
    Ok(())
}

fn lines(area: &Area<'_>, caption: &str, table: &Table) -> Drawn {
    let mut points: Vec<u32> = table.series.iter().map(|s| s.at).collect();
    points.sort_unstable();
    points.dedup();
    let place = |at: u32| points.iter().position(|&p| p == at).unwrap_or(0) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.2..points.len() as f64 - 0.8, 0.0..top(table))?;
    let name = |x: &f64| {
        let whole = (x - x.round()).abs() < 0.01;
        points
            .get(x.round() as usize)
            .filter(|_| whole)
            .map_or(String::new(), u32::to_string)
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(points.len() * 5)
        .x_label_formatter(&name)
        .x_desc(table.axis)
        .y_desc(table.unit)
        .draw()?;
    let mut subjects: Vec<&str> = Vec::new();
    for series in &table.series {
        if !subjects.contains(&series.subject.as_str()) {
            subjects.push(&series.subject);
        }
    }
    for (at, subject) in subjects.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let of_subject = |s: &&Series| s.subject == *subject;
        let spreads: Vec<(f64, Spread)> = table
            .series
            .iter()
            .filter(of_subject)
            .filter_map(|s| Some((place(s.at), Spread::of(&s.values)?)))
            .collect();
        let line = spreads.iter().map(|(x, s)| (*x, s.median));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(*subject)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour));
        chart.draw_series(spreads.iter().map(|(x, s)| {
            PathElement::new(vec![(*x, s.min), (*x, s.max)], colour.stroke_width(1))
        }))?;
        chart.draw_series(
            spreads
                .iter()
                .map(|(x, s)| Circle::new((*x, s.median), 3, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}
