//! The lessons, by chapter.

mod bazaar;
mod book_semaphore;
mod callers_clock;
mod client_under_watch;
mod counted_twice;
mod deadlock;
mod expire_0;
mod expire_half;
mod flushall;
mod ghost;
mod hung_holder;
mod keepttl;
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
mod reader_shortens;
mod reentry_shortens;
mod refresh_revives;
mod same_millisecond;
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

pub(crate) const CHAPTERS: &[(&str, &[Trap])] = &[
    (
        "The book's lock",
        &[
            no_end::TRAP,
            overrun::TRAP,
            expire_0::TRAP,
            not_ttl::TRAP,
            late_expire::TRAP,
            no_try::TRAP,
            late_waiter::TRAP,
            polling::TRAP,
            wrong_type::TRAP,
            two_kinds::TRAP,
        ],
    ),
    (
        "The options of SET",
        &[no_nx::TRAP, xx::TRAP, keepttl::TRAP, pxat_past::TRAP],
    ),
    (
        "The reentrant lock",
        &[
            counted_twice::TRAP,
            expire_half::TRAP,
            reentry_shortens::TRAP,
            nil_is_zero::TRAP,
        ],
    ),
    (
        "Readers and writers",
        &[
            second_reader::TRAP,
            reader_shortens::TRAP,
            same_millisecond::TRAP,
            callers_clock::TRAP,
            starving_writer::TRAP,
        ],
    ),
    (
        "The semaphore",
        &[
            over_limit::TRAP,
            ghost::TRAP,
            short_sweep::TRAP,
            slow_clock::TRAP,
            seconds_and_millis::TRAP,
            keys_for_ever::TRAP,
            lock_inside::TRAP,
            refresh_revives::TRAP,
        ],
    ),
    ("Several at once", &[deadlock::TRAP]),
    (
        "The market",
        &[
            overdraft::TRAP,
            prices_in_doubles::TRAP,
            no_multi::TRAP,
            no_rollback::TRAP,
            mixed_ways::TRAP,
            two_names::TRAP,
        ],
    ),
    (
        "Connections",
        &[
            watch_left::TRAP,
            stale_answer::TRAP,
            client_under_watch::TRAP,
        ],
    ),
    (
        "Time and loss",
        &[
            sigstop::TRAP,
            untold::TRAP,
            hung_holder::TRAP,
            flushall::TRAP,
        ],
    ),
];
