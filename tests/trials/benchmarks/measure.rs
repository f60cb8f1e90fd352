//! Measures two ways to do the same work, in turns, so that a drift of the machine's speed affects
//! both.

use std::{
    thread,
    time::{Duration, Instant},
};

use redis::Connection;

/// The figures of one comparison: medians over the rounds.
pub(crate) struct Comparison {
    pub(crate) ours_per_second: f64,
    pub(crate) reference_per_second: f64,
    /// The median of the rounds' ratios, not the ratio of the medians.
    pub(crate) ratio: f64,
}

/// The rounds of a measurement, and their length.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) turn: Duration,
}

/// The work that one thread repeats on its own connection.
pub(crate) type Work<'a> = &'a (dyn Fn(&mut Connection, usize) -> anyhow::Result<()> + Sync);

/// Runs both on the same connections, with a thread for each, in some rounds after a warm-up round.
pub(crate) fn compare(
    connections: &mut [Connection],
    effort: Effort,
    ours: Work<'_>,
    reference: Work<'_>,
) -> anyhow::Result<Comparison> {
    let mut rounds = Vec::new();
    for round in 0..=effort.rounds {
        // Alternate which one goes first.
        let (first, second) = if round % 2 == 0 {
            (ours, reference)
        } else {
            (reference, ours)
        };
        let first = turns_per_second(connections, effort.turn, first)?;
        let second = turns_per_second(connections, effort.turn, second)?;
        if round > 0 {
            rounds.push(if round % 2 == 0 {
                (first, second)
            } else {
                (second, first)
            });
        }
    }
    Ok(Comparison {
        ours_per_second: median(rounds.iter().map(|(ours, _)| *ours)),
        reference_per_second: median(rounds.iter().map(|(_, reference)| *reference)),
        ratio: median(rounds.iter().map(|(ours, reference)| ours / reference)),
    })
}

fn turns_per_second(
    connections: &mut [Connection],
    turn: Duration,
    work: Work<'_>,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let turns = thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter_mut()
            .enumerate()
            .map(|(number, conn)| {
                scope.spawn(move || {
                    let mut turns = 0_u32;
                    while started.elapsed() < turn {
                        work(conn, number)?;
                        turns += 1;
                    }
                    anyhow::Ok(turns)
                })
            })
            .collect();
        let mut turns = 0;
        for thread in threads {
            turns += thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(turns)
    })?;
    Ok(f64::from(turns) / started.elapsed().as_secs_f64())
}

pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
