//! How much later than promised something may be seen to happen, on a machine that others use.

use std::{
    fs,
    num::NonZero,
    sync::Once,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

const BEAT: Duration = Duration::from_millis(5);
/// What a busy machine lets any thread wait for.
const USUAL: Duration = Duration::from_millis(30);
/// What no machine that only is busy lets a thread wait for.
const LONG: Duration = Duration::from_millis(100);
/// Longer than a test takes.
const LATELY: Duration = Duration::from_secs(20);
/// After so many beats it is counted how many threads want a processor.
const COUNTED: u32 = 20;
/// For each thread that is ready to run on a processor beside one that runs and one that waits: what a server, its client and the threads
/// between them wait for it in all until one has heard of what another did.
const CROWDED: Duration = Duration::from_millis(40);

static HEART: Mutex<Heart> = Mutex::new(Heart {
    late: Vec::new(),
    last: None,
    crowd: 0.0,
});

/// Of a thread that only sleeps.
struct Heart {
    /// When it beat late, and by how much.
    late: Vec<(Instant, Duration)>,
    last: Option<Instant>,
    /// How many threads of the machine were ready to run in the last seconds, for each processor.
    crowd: f64,
}

/// 250 ms, what the threads of a test wait for each other where many want a processor, as long as the machine has stood still lately, and
/// twice as long as the caller's thread, which is that of one test, has waited for a processor, up to a second: whoever answers it
/// waits as well.
pub fn slack() -> Duration {
    let heart = HEART.lock();
    let lately = heart.late.iter().filter(|(at, _)| at.elapsed() < LATELY);
    let stood_still: Duration = lately.map(|(_, late)| *late).sum();
    // It may stand still, and not have beaten yet.
    let stands_still = heart.last.map_or(Duration::ZERO, lateness);
    let waited = Duration::from_secs(1).min(2 * waited_for_a_processor());
    let crowded = CROWDED.mul_f64((heart.crowd - 2.0).clamp(0.0, 25.0));
    Duration::from_millis(250) + crowded + stood_still + stands_still + waited
}

/// How many threads of the machine are ready to run, for each processor. Linux says so.
fn ready_to_run() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let threads = load.split([' ', '/']).nth(3);
    let threads: f64 = threads.and_then(|it| it.parse().ok()).unwrap_or(0.0);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    threads / u32::try_from(processors).map_or(1.0, f64::from)
}

/// By the caller's thread, so far. Linux says so.
pub fn waited_for_a_processor() -> Duration {
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
        thread::spawn(|| {
            HEART.lock().crowd = ready_to_run();
            let mut last = Instant::now();
            for beat in (0..COUNTED).cycle() {
                thread::sleep(BEAT);
                let late = lateness(last);
                last = Instant::now();
                let mut heart = HEART.lock();
                heart.last = Some(last);
                if !late.is_zero() {
                    heart.late.push((last, late));
                }
                if beat == 0 {
                    heart.crowd = 0.8 * heart.crowd + 0.2 * ready_to_run();
                }
            }
        });
    });
}
