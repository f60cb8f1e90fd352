//! What `INSPECT` answers.

use redis::Value;

use super::{Companion, Held, MILLI, Nanos, Now, Store};

impl Store {
    pub(super) fn inspected(&self, key: &str, now: Now) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let pair = |field: &str, value: String| [text(field), text(&value)];
        let stored = self.locks.get(key);
        let (kind, fields) = match stored.map(|stored| &stored.what) {
            None => ("none", Vec::new()),
            Some(Held::Mutex(token)) => ("string", vec![text(token)]),
            Some(Held::Reentrant(entered)) => (
                "hash",
                pair(&entered.owner, entered.count().to_string()).to_vec(),
            ),
            Some(Held::ReadWrite(ends)) => {
                let millis = |end: &Nanos| (end / MILLI).to_string();
                let fields = ends.iter().map(|(field, end)| pair(field, millis(end)));
                let kind = pair("kind", "rw".to_owned());
                ("hash", [kind].into_iter().chain(fields).flatten().collect())
            }
        };
        let left = stored.map_or(-2, |stored| now.millis_until(stored.end));
        let companion = self.companions.get(key).map(|companion| {
            let Companion {
                fence,
                since,
                reserved,
                ..
            } = companion;
            let numbers = [fence, since, reserved].map(|number| text(&number.to_string()));
            let [fence, since, reserved] = numbers;
            vec![
                fence,
                text(&companion.token),
                text(&companion.owner),
                since,
                reserved,
            ]
        });
        Value::Array(vec![
            Value::SimpleString(kind.to_owned()),
            Value::Int(left),
            Value::Array(fields),
            Value::Array(companion.unwrap_or_default()),
            text(&now.millis().to_string()),
        ])
    }
}
