//! The answers by which a node of a cluster says that it cannot execute a call.

use redis::RedisError;

use super::map::Map;

/// Nothing was done; this is why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another node has the slot.
    Moved,
    /// The slot is on its way to another node (`ASK`, `TRYAGAIN`): a later attempt may succeed.
    Moving,
    /// No node serves the slot now, or the node cannot say.
    Down,
}

impl Redirect {
    /// Reads an error, if it is one of these, and enters it in the map.
    pub(super) fn learnt(map: &Map, error: &RedisError) -> Option<Self> {
        let found = match error.code()? {
            "ASK" | "TRYAGAIN" => return Some(Self::Moving),
            "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => None,
            "MOVED" => error.redirect_node().and_then(|(said, slot)| {
                let to = map.reached(said)?;
                map.moved(slot, &to);
                Some(Self::Moved)
            }),
            _ => return None,
        };
        if found.is_none() {
            map.doubt_all();
        }
        Some(found.unwrap_or(Self::Down))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn learnt(line: &str) -> Option<Redirect> {
        let client = redis::Client::open("redis://127.0.0.1/").unwrap();
        let map = Map::new(client, Vec::new(), None, Duration::from_secs(1));
        let answer = redis::parse_redis_value(line.as_bytes()).unwrap();
        Redirect::learnt(&map, &answer.extract_error().unwrap_err())
    }

    #[test]
    fn each_answer_is_told_from_the_others() {
        assert_eq!(learnt("-MOVED 7 ::1:9\r\n"), Some(Redirect::Moved));
        for line in ["-ASK 7 [::1]:9\r\n", "-ASK\r\n", "-TRYAGAIN later\r\n"] {
            assert_eq!(learnt(line), Some(Redirect::Moving), "{line}");
        }
        for line in [
            "-CLUSTERDOWN Hash slot not served\r\n",
            "-LOADING not yet\r\n",
            "-MASTERDOWN no\r\n",
            // To nowhere.
            "-MOVED 7 :9\r\n",
            "-MOVED 7\r\n",
            "-MOVED x y\r\n",
        ] {
            assert_eq!(learnt(line), Some(Redirect::Down), "{line}");
        }
        for line in ["-ERR no\r\n", "-CROSSSLOT no\r\n", "-NOSCRIPT no\r\n"] {
            assert_eq!(learnt(line), None, "{line}");
        }
    }
}
