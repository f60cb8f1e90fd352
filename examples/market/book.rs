//! The book's measurements: the nine rows of its table 6.3, which repeats those of 6.1 and 6.2.
//!
//! Compare the shape, not the figures: the book used other hardware and Python, and not all of its
//! figures agree (27,000 purchases at 14 ms each take longer than one buyer's 60 seconds).

use crate::{
    options::{Cell, Load},
    trade::Strategy,
};

/// The duration of the book's cells, in seconds.
pub(crate) const SECONDS: f64 = 60.0;

/// A row of the book, counted in 60 seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) listed: u32,
    pub(crate) bought: Figure,
    pub(crate) retries: Figure,
    pub(crate) wait_ms: Figure,
}

/// A number as the book prints it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    /// An exact number, such as 14.
    Is(u32),
    /// An upper bound, such as "<200".
    Below(u32),
}

/// The book's row for a cell, if it has one.
pub(crate) fn row(cell: Cell) -> Option<Row> {
    use Figure::{Below, Is};
    use Strategy::{ItemLock, MarketLock, Watch};

    let Load { listers, buyers } = cell.load;
    let (listed, bought, retries, wait_ms) = match (listers, buyers, cell.strategy) {
        (1, 1, Watch) => (145_000, Is(27_000), Is(80_000), Is(14)),
        (1, 1, MarketLock) => (51_000, Is(50_000), Is(0), Is(1)),
        (1, 1, ItemLock) => (113_000, Is(110_000), Is(0), Below(1)),
        (5, 1, Watch) => (331_000, Below(200), Is(50_000), Is(150)),
        (5, 1, MarketLock) => (68_000, Is(13_000), Below(10), Is(5)),
        (5, 1, ItemLock) => (192_000, Is(36_000), Is(0), Below(2)),
        (5, 5, Watch) => (206_000, Below(600), Is(161_000), Is(498)),
        (5, 5, MarketLock) => (21_000, Is(20_500), Is(0), Is(14)),
        (5, 5, ItemLock) => (116_000, Is(111_000), Is(0), Below(3)),
        _ => return None,
    };
    Some(Row {
        listed,
        bought,
        retries,
        wait_ms,
    })
}
