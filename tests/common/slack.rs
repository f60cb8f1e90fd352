//! How much later than promised something may be seen to happen, on a machine that others use.

use std::{
    fs,
    sync::Once,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

const BEAT: Duration = Duration::from_millis(5);
/// What a busy machine lets any thread wait for.
const USUAL: Duration = Duration::from_millis(30);
/// What no machine that only is busy lets a thread wait for.
const LONG: Duration = Duration::from_millis(150);
/// Longer than a test takes.
const LATELY: Duration = Duration::from_secs(20);

static HEART: Mutex<Heart> = Mutex::new(Heart {
    late: Vec::new(),
    last: None,
});

/// Of a thread that only sleeps.
struct Heart {
    /// When it beat late, and by how much.
    late: Vec<(Instant, Duration)>,
    last: Option<Instant>,
}

/// 250 ms, as long as the machine has stood still lately, and twice as long as the caller's thread, which is that of one test, has waited
/// for a processor, up to a second: whoever answers it waits as well.
pub fn slack() -> Duration {
    let heart = HEART.lock();
    let lately = heart.late.iter().filter(|(at, _)| at.elapsed() < LATELY);
    let stood_still: Duration = lately.map(|(_, late)| *late).sum();
    // It may stand still, and not have beaten yet.
    let stands_still = heart.last.map_or(Duration::ZERO, lateness);
    let waited = Duration::from_secs(1).min(2 * waited_for_a_processor());
    Duration::from_millis(250) + stood_still + stands_still + waited
}

/// By the caller's thread, so far. Linux says so.
fn waited_for_a_processor() -> Duration {
    let counts = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counts.split(' ').nth(1).and_then(|it| it.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// How often the machine has stood still so far, for long enough to be seen.
pub fn standstills() -> usize {
    let heart = HEART.lock();
    let late = heart.late.iter().filter(|(_, late)| *late > LONG);
    late.count()
}

fn lateness(last: Instant) -> Duration {
    let late = last.elapsed().saturating_sub(BEAT);
    if late > USUAL { late } else { Duration::ZERO }
}

/// Looks from now on whether the machine stands still.
pub fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        thread::spawn(|| -> ! {
            let mut last = Instant::now();
            loop {
                thread::sleep(BEAT);
                let late = lateness(last);
                last = Instant::now();
                let mut heart = HEART.lock();
                heart.last = Some(last);
                if !late.is_zero() {
                    heart.late.push((last, late));
                }
            }
        });
    });
}
