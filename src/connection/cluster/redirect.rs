//! What a node of a cluster answers that does not do what it was asked for.

use redis::RedisError;

use super::{known::ShardId, layout::Address, map::Map};

/// Nothing was done; this is why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another node has the slot.
    Moved {
        slot: u16,
        to: Address,
        /// Whose node it is, if that is known.
        shard: Option<ShardId>,
    },
    /// The slot is on its way to this node, and the key may be there already: `ASKING` goes before the command.
    Ask { slot: u16, to: Address },
    /// The keys of the command are on both ends of that way.
    TryAgain,
    /// Nobody serves the slot now, or the node cannot say.
    Down,
}

impl Redirect {
    /// What an error says, if it is one of these. The map learns from it.
    pub(super) fn learnt(map: &Map, error: &RedisError) -> Option<Self> {
        let found = match error.code()? {
            "TRYAGAIN" => return Some(Self::TryAgain),
            "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => None,
            code @ ("MOVED" | "ASK") => error.redirect_node().and_then(|(said, slot)| {
                let to = map.reached(said)?;
                Some(if code == "ASK" {
                    Self::Ask { slot, to }
                } else {
                    let shard = map.moved(slot, &to);
                    Self::Moved { slot, to, shard }
                })
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
        let (slot, to) = (7, Address::new("::1", 9));
        let moved = Redirect::Moved {
            slot,
            to: to.clone(),
            shard: None,
        };
        assert_eq!(learnt("-MOVED 7 ::1:9\r\n"), Some(moved));
        assert_eq!(
            learnt("-ASK 7 [::1]:9\r\n"),
            Some(Redirect::Ask { slot, to })
        );
        assert_eq!(learnt("-TRYAGAIN later\r\n"), Some(Redirect::TryAgain));
        for line in [
            "-CLUSTERDOWN Hash slot not served\r\n",
            "-LOADING not yet\r\n",
            "-MASTERDOWN no\r\n",
            // To nowhere.
            "-MOVED 7 :9\r\n",
            "-MOVED 7\r\n",
            "-MOVED x y\r\n",
            "-ASK\r\n",
        ] {
            assert_eq!(learnt(line), Some(Redirect::Down), "{line}");
        }
        for line in ["-ERR no\r\n", "-CROSSSLOT no\r\n", "-NOSCRIPT no\r\n"] {
            assert_eq!(learnt(line), None, "{line}");
        }
    }
}
