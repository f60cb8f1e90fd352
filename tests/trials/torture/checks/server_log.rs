//! No holder is sure of a lock after the server's end of it.
//!
//! The server's write log has each end, as a time of its own clock. The last end that a token was
//! given is the latest possible end of its hold.

use std::{collections::HashMap, mem};

use super::{Checker, Evidence, Hold, Holds, Span, Violation};
use crate::clock::Nanos;

/// Ends are whole milliseconds, and a key exists until the end of its last one.
const WHOLE: i128 = 2_000_000;

pub(super) fn check(holds: &Holds, ends: &Ends, evidence: &Evidence<'_>) -> Vec<Violation> {
    let Some(ahead) = evidence.wall_is_ahead else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (lock, hold) in holds
        .0
        .iter()
        .flat_map(|(lock, holds)| holds.iter().map(move |hold| (lock, hold)))
    {
        let Some(token) = hold
            .granted
            .as_ref()
            .and_then(|granted| granted.token.as_ref())
        else {
            continue;
        };
        let Some(end) = ends.latest.get(token) else {
            continue;
        };
        let sure = i128::from(hold.sure_until) + ahead;
        let late = sure - i128::from(*end) * 1_000_000 - WHOLE;
        if hold.sure_until > 0 && late > 0 {
            let span = Span {
                from: hold.asked.at,
                to: hold.sure_until,
            };
            let what = format!(
                "{} of worker {} was sure of the lock {} µs after the server's end of it",
                hold.asked.job,
                hold.asked.worker,
                late / 1_000
            );
            let violation = Violation::new(Checker::ServerLog, lock, span, what);
            found.push(violation.of_workers(&[hold.asked.worker]));
        }
    }
    found
}

/// The ends of each token, in milliseconds of the server's clock.
#[derive(Default)]
pub(super) struct Ends {
    latest: HashMap<String, i64>,
    /// For permits, the end that was set with the grant.
    first: HashMap<String, i64>,
    /// The token in each key.
    holds: HashMap<String, String>,
    /// The tokens counted in a companion, and whether it is gone: then the lock's own end applies
    /// to all of them.
    companions: HashMap<String, (Vec<String>, bool)>,
}

impl Ends {
    pub(super) fn of(evidence: &Evidence<'_>) -> Self {
        let mut ends = Self::default();
        for log in evidence.server_logs {
            ends.read(log);
        }
        ends
    }

    /// Returns the earliest time at which the server may have granted a permit, by our clock.
    pub(super) fn permit_granted(&self, hold: &Hold, evidence: &Evidence<'_>) -> Option<Nanos> {
        let token = hold.granted.as_ref()?.token.as_ref()?;
        let end = i128::from(*self.first.get(token)?) * 1_000_000;
        let at = end - i128::from(hold.asked.lease) - evidence.wall_is_ahead? - WHOLE;
        Nanos::try_from(at).ok()
    }

    fn read(&mut self, log: &[u8]) {
        let mut rest = log;
        while let Some((words, after)) = command(rest) {
            rest = after;
            let word = |at: usize| words.get(at).map_or("", String::as_str);
            match word(0).to_uppercase().as_str() {
                "SET" => {
                    self.is_gone(word(1));
                    self.holds.insert(word(1).to_owned(), word(2).to_owned());
                    let end = words
                        .iter()
                        .position(|word| word.eq_ignore_ascii_case("pxat"));
                    if let Some(end) = end.and_then(|at| words.get(at + 1)) {
                        self.ends(word(2), end);
                    }
                }
                "PEXPIREAT" => {
                    let token = self.holds.get(word(1)).cloned();
                    self.ends(&token.unwrap_or_default(), word(2));
                    self.all_end(word(1), word(2));
                }
                // A key that moves with its slot keeps its expiry. Its value is the type and length
                // of a string, then the token.
                "RESTORE" | "RESTORE-ASKING" => {
                    if let Some(token) = word(3).strip_prefix("\0$").and_then(|text| text.get(..36))
                    {
                        self.holds.insert(word(1).to_owned(), token.to_owned());
                        self.ends(token, word(2));
                    }
                }
                "ZADD" => self.permit(&words),
                "DEL" | "UNLINK" => self.is_gone(word(1)),
                // Without an expiry there is no end that could be passed.
                "PERSIST" => {
                    let token = self.holds.get(word(1)).cloned();
                    let never = i64::MAX.to_string();
                    self.ends(&token.unwrap_or_default(), &never);
                    self.all_end(word(1), &never);
                }
                "HSET" | "HMSET" => self.fields(&words),
                _ => {}
            }
        }
    }

    /// Reads a field for each reader, writer or reentrant level, named after its token.
    fn fields(&mut self, words: &[String]) {
        let Some(key) = words.get(1) else {
            return;
        };
        for pair in words.get(2..).unwrap_or_default().chunks(2) {
            if let [field, end] = pair
                && let Some((_, token)) = field.split_once(':')
            {
                self.ends(token, end);
                let companion = self.companions.entry(key.clone()).or_default();
                if mem::take(&mut companion.1) {
                    companion.0.clear();
                }
                companion.0.push(token.to_owned());
            }
        }
    }

    /// Reads the end of a permit and its token, which are the last two words.
    fn permit(&mut self, words: &[String]) {
        let Some([end, token]) = words.get(words.len().saturating_sub(2)..) else {
            return;
        };
        self.ends(token, end);
        if let Ok(end) = end.parse() {
            // A replica's log repeats the command.
            let first = self.first.entry(token.clone()).or_insert(end);
            *first = (*first).min(end);
        }
    }

    fn is_gone(&mut self, companion: &str) {
        if let Some((_, is_gone)) = self.companions.get_mut(companion) {
            *is_gone = true;
        }
    }

    /// Renewing a lock does not touch its companion.
    fn all_end(&mut self, lock: &str, end: &str) {
        let companion = self.companions.get(&format!("{{{lock}}}:lease"));
        let tokens = companion.filter(|(_, is_gone)| *is_gone);
        for token in tokens.map_or_else(Vec::new, |(tokens, _)| tokens.clone()) {
            self.ends(&token, end);
        }
    }

    fn ends(&mut self, token: &str, end: &str) {
        if let Ok(end) = end.parse::<i64>() {
            let latest = self.latest.entry(token.to_owned()).or_default();
            *latest = (*latest).max(end.min(i64::MAX / 2));
        }
    }
}

/// Returns the next command of a log, and the rest.
fn command(log: &[u8]) -> Option<(Vec<String>, &[u8])> {
    let (count, mut rest) = number(log, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, text) = number(rest, b'$')?;
        let word = text.get(..length)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        rest = text.get(length + 2..)?;
    }
    Some((words, rest))
}

fn number(text: &[u8], sign: u8) -> Option<(usize, &[u8])> {
    let text = text.strip_prefix(&[sign])?;
    let end = text.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()?;
    Some((number, text.get(end + 2..)?))
}
