//! Parses a node's reply to `CLUSTER SLOTS`.

use std::{collections::HashMap, ops::RangeInclusive};

use redis::Value;

use crate::pool::{Address, AddressMap};

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Parses `host:port`, with or without brackets around the host.
pub(super) fn read_address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    Some(Address::new(inner.unwrap_or(host), port.parse().ok()?))
}

/// A node, by its permanent id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: String,
    /// `None`: the node announces none.
    pub(super) address: Option<Address>,
}

/// A master with its replicas, and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardLayout {
    pub(super) master: Node,
    pub(super) replicas: Vec<Node>,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

/// The shards, according to one node.
pub(super) type Layout = Vec<ShardLayout>;

/// Parses the reply of the node at this address. `None`: it is not valid.
pub(super) fn read(
    answer: Value,
    asked: &Address,
    address_map: Option<&AddressMap>,
) -> Option<Layout> {
    let mut layout = Layout::new();
    for range in redis::from_redis_value::<Vec<Value>>(answer).ok()? {
        let mut parts = parts_of(range)?;
        let (first, last) = (read_number(parts.next()?)?, read_number(parts.next()?)?);
        if first > last || last >= SLOTS {
            return None;
        }
        let mut nodes = parts.map(|node| read_node(node, asked, address_map));
        let master = nodes.next()??;
        let replicas = nodes.collect::<Option<Vec<_>>>()?;
        match layout.iter_mut().find(|it| it.master.id == master.id) {
            Some(shard) => shard.slots.push(first..=last),
            None => layout.push(ShardLayout {
                master,
                replicas,
                slots: vec![first..=last],
            }),
        }
    }
    Some(layout)
}

/// Parses a node. The node that was asked may return an empty host for itself, meaning the address
/// where it was asked. `?` stands for a host that has no name: its IP address may follow the id.
fn read_node(node: Value, asked: &Address, address_map: Option<&AddressMap>) -> Option<Node> {
    let mut parts = parts_of(node)?;
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let port = read_number(parts.next()?)?;
    let id = redis::from_redis_value(parts.next()?).ok()?;
    let more = parts.next().unwrap_or(Value::Nil);
    let more: HashMap<String, String> = redis::from_redis_value(more).unwrap_or_default();
    let host = match host.as_deref().unwrap_or_default() {
        "" => Some(&*asked.host),
        "?" => more.get("ip").map(|ip| &**ip).filter(|ip| !ip.is_empty()),
        host => Some(host),
    };
    let said = host
        .filter(|_| port != 0)
        .map(|host| Address::new(host, port));
    let address = said.map(|said| AddressMap::reached(address_map, said));
    Some(Node { id, address })
}

fn parts_of(value: Value) -> Option<std::vec::IntoIter<Value>> {
    let parts: Vec<Value> = redis::from_redis_value(value).ok()?;
    Some(parts.into_iter())
}

/// Checked here because redis-rs truncates a number that is too large.
fn read_number(value: Value) -> Option<u16> {
    let number: i64 = redis::from_redis_value(value).ok()?;
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn layout(answer: &str, address_map: Option<&AddressMap>) -> Option<Layout> {
        let answer = redis::parse_redis_value(answer.as_bytes()).unwrap();
        read(answer, &Address::new("asked", 1), address_map)
    }

    fn node(host: &str, port: u16, id: &str) -> String {
        format!(
            "*3\r\n${}\r\n{host}\r\n:{port}\r\n${}\r\n{id}\r\n",
            host.len(),
            id.len()
        )
    }

    #[test]
    fn ranges_of_one_master_are_one_group() {
        let (a, b, c) = (
            node("10.0.0.1", 1, "a"),
            node("h", 2, "b"),
            node("::1", 3, "c"),
        );
        let text = format!(
            "*3\r\n*4\r\n:0\r\n:99\r\n{a}{b}*3\r\n:100\r\n:16382\r\n{c}*4\r\n:16383\r\n:16383\r\n{a}{b}"
        );
        let found = layout(&text, None).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].slots, [0..=99, 16_383..=16_383]);
        assert_eq!(found[0].master.address, Some(Address::new("10.0.0.1", 1)));
        assert_eq!(found[0].replicas[0].id, "b");
        assert_eq!(found[1].master.address, Some(Address::new("::1", 3)));
    }

    #[test]
    fn an_empty_host_is_the_asked_node_and_a_question_mark_is_no_host() {
        let nil = "*3\r\n$-1\r\n:5\r\n$1\r\nd\r\n";
        let (a, b) = (node("", 7, "a"), node("?", 8, "b"));
        let text = format!("*1\r\n*5\r\n:0\r\n:1\r\n{a}{b}{nil}");
        let found = layout(&text, None).unwrap();
        assert_eq!(found[0].master.address, Some(Address::new("asked", 7)));
        assert_eq!(found[0].replicas[0].address, None);
        assert_eq!(found[0].replicas[1].address, Some(Address::new("asked", 5)));
    }

    /// By RESP2 and RESP3, with a host name beside it and without.
    #[test]
    fn the_ip_beside_a_question_mark_is_the_address() {
        let ip = "$2\r\nip\r\n$8\r\n10.0.0.9\r\n";
        let name = "$8\r\nhostname\r\n$1\r\nh\r\n";
        let known = Some(Address::new("10.0.0.9", 7));
        for (metadata, address) in [
            (format!("*2\r\n{ip}"), known.clone()),
            (format!("%1\r\n{ip}"), known.clone()),
            (format!("*4\r\n{name}{ip}"), known.clone()),
            (String::from("*2\r\n$2\r\nip\r\n$0\r\n\r\n"), None),
            (format!("*2\r\n{name}"), None),
            (String::from("*0\r\n"), None),
            (String::from("$1\r\nx\r\n"), None),
        ] {
            let node = node("?", 7, "a").replacen("*3", "*4", 1);
            let text = format!("*1\r\n*3\r\n:0\r\n:1\r\n{node}{metadata}");
            let found = layout(&text, None).unwrap();
            assert_eq!(found[0].master.address, address, "{metadata}");
        }
    }

    #[test]
    fn every_address_passes_through_the_address_map() {
        let map = AddressMap(Arc::new(|host, port| (format!("{host}.nat"), port + 1)));
        let text = format!(
            "*1\r\n*4\r\n:0\r\n:1\r\n{}{}",
            node("a", 1, "x"),
            node("", 2, "y")
        );
        let found = layout(&text, Some(&map)).unwrap();
        assert_eq!(found[0].master.address, Some(Address::new("a.nat", 2)));
        assert_eq!(
            found[0].replicas[0].address,
            Some(Address::new("asked.nat", 3))
        );
    }

    #[test]
    fn nonsensical_answers_are_rejected() {
        let a = node("a", 1, "a");
        for text in [
            "+OK\r\n".to_owned(),
            "*1\r\n:1\r\n".to_owned(),
            "*1\r\n*2\r\n:0\r\n:1\r\n".to_owned(),
            format!("*1\r\n*3\r\n:2\r\n:1\r\n{a}"),
            format!("*1\r\n*3\r\n:0\r\n:16384\r\n{a}"),
            format!("*1\r\n*3\r\n:-1\r\n:1\r\n{a}"),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n".to_owned(),
            format!(
                "*1\r\n*3\r\n:0\r\n:1\r\n{}",
                node("a", 1, "a").replace(":1\r\n$", ":70000\r\n$")
            ),
        ] {
            assert_eq!(layout(&text, None), None, "{text}");
        }
        assert_eq!(layout("*0\r\n", None), Some(Vec::new()));
    }

    #[test]
    fn an_address_is_parsed_with_and_without_brackets() {
        for (text, host, port) in [
            ("10.0.0.1:7000", "10.0.0.1", 7_000),
            ("::1:7000", "::1", 7_000),
            ("[::1]:7000", "::1", 7_000),
            (":7000", "", 7_000),
        ] {
            assert_eq!(read_address(text), Some(Address::new(host, port)));
        }
        assert_eq!(read_address("a"), None);
        assert_eq!(read_address("a:"), None);
        assert_eq!(read_address("a:70000"), None);
    }
}
