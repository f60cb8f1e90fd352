//! The lessons, by chapter.

mod bazaar;
mod book_semaphore;
mod client_under_watch;
mod counted_twice;
mod deadlock;
mod expire_0;
mod expire_half;
mod flushall;
mod ghost;
mod hung_holder;
mod keys_for_ever;
mod late_expire;
mod late_waiter;
mod lock_inside;
mod mixed_ways;
mod nil_is_zero;
mod no_end;
mod no_multi;
mod no_nx;
mod no_rollback;
mod no_try;
mod not_ttl;
mod over_limit;
mod overdraft;
mod overrun;
mod polling;
mod prices_in_doubles;
mod pxat_past;
mod reentry_shortens;
mod refresh_revives;
mod second_reader;
mod seconds_and_millis;
mod short_sweep;
pub(crate) mod sigstop;
mod slow_clock;
mod stale_answer;
mod starving_writer;
mod two_kinds;
mod two_names;
mod untold;
mod watch_left;
mod wrong_type;
mod xx;

use crate::trap::Trap;

/// Collects the traps of the lessons.
macro_rules! chapters {
    ($($title:literal: $($lesson:ident)+;)+) => {
        pub(crate) const CHAPTERS: &[(&str, &[Trap])] =
            &[$(($title, &[$($lesson::TRAP),+])),+];
    };
}

chapters! {
    "The book's lock": no_end overrun expire_0 not_ttl late_expire no_try late_waiter polling
        wrong_type two_kinds;
    "The options of SET": no_nx xx pxat_past;
    "The reentrant lock": counted_twice expire_half reentry_shortens nil_is_zero;
    "Readers and writers": second_reader starving_writer;
    "The semaphore": over_limit ghost short_sweep slow_clock seconds_and_millis keys_for_ever
        lock_inside refresh_revives;
    "Several at once": deadlock;
    "The market": overdraft prices_in_doubles no_multi no_rollback mixed_ways two_names;
    "Connections": watch_left stale_answer client_under_watch;
    "Time and loss": sigstop untold hung_holder flushall;
}
