//! A command as its bytes on the wire, which are written once and then sent as they are.
//!
//! redis-rs keeps a command as its words and puts them together each time it is sent. A call of a
//! script has the same words each time, alone or among others.

use redis::{Cmd, ConnectionLike, FromRedisValue, RedisResult, Value};

use crate::exchange::leave;

/// Room for what most commands need.
pub(super) const USUAL: usize = 320;
/// Room before the words for the line that says how many they are: a `*`, at most five digits, and
/// the line's end.
const HEAD: usize = 8;

/// The bytes of a command.
#[derive(Clone)]
pub(crate) struct Packed {
    /// Room for the head, and the words.
    bytes: Vec<u8>,
    /// Where in its room the head begins.
    from: usize,
    words: u16,
}

impl Packed {
    /// With room for so many bytes.
    pub(crate) fn with_capacity(room: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEAD + room);
        bytes.extend_from_slice(b"*******\n");
        Self {
            bytes,
            from: 0,
            words: 0,
        }
    }

    /// A command with this name, and words to come.
    pub(crate) fn command(name: &str) -> Self {
        Self::with_capacity(USUAL).arg(name)
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "words are short, or references"
    )]
    pub(crate) fn arg(mut self, arg: impl Word) -> Self {
        arg.push_to(&mut self);
        self
    }

    /// Sends it: one round trip. A connection that is finished by the answer is left so that its
    /// next user can see it.
    pub(crate) fn send<T: FromRedisValue>(&self, conn: &mut dyn ConnectionLike) -> RedisResult<T> {
        answer_to(self.as_bytes(), conn)
            .and_then(|answer| Ok(T::from_redis_value(answer)?))
            .inspect_err(|error| leave(conn, error))
    }

    /// What is sent.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.from..).unwrap_or_default()
    }

    /// One word more.
    pub(crate) fn push(&mut self, word: &[u8]) {
        self.bytes.push(b'$');
        self.put_digits(word.len() as u64);
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
        self.words += 1;
        self.write_head();
    }

    fn write_head(&mut self) {
        let mut digits = [0; 20];
        let digits = decimal(self.words.into(), &mut digits);
        self.from = HEAD - 3 - digits.len();
        let head = [b"*", digits, b"\r\n"].into_iter().flatten();
        let room = self.bytes.iter_mut().skip(self.from);
        for (place, byte) in room.zip(head) {
            *place = *byte;
        }
    }

    fn put_digits(&mut self, number: u64) {
        let mut digits = [0; 20];
        self.bytes.extend_from_slice(decimal(number, &mut digits));
    }

    /// For a transaction, which is of commands of redis-rs.
    pub(crate) fn to_cmd(&self) -> Cmd {
        let mut command = Cmd::new();
        for word in self.words() {
            command.arg(word);
        }
        command
    }

    /// The words again.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.get(HEAD..).unwrap_or_default();
        std::iter::from_fn(move || {
            let line_end = rest.iter().position(|byte| *byte == b'\r')?;
            let digits = std::str::from_utf8(rest.get(1..line_end)?).ok()?;
            let word_at = line_end + 2;
            let word_end = word_at + digits.parse::<usize>().ok()?;
            let word = rest.get(word_at..word_end)?;
            rest = rest.get(word_end + 2..)?;
            Some(word)
        })
    }
}

/// What the server says to it; a refusal is an error.
pub(super) fn answer_to(command: &[u8], conn: &mut dyn ConnectionLike) -> RedisResult<Value> {
    conn.req_packed_command(command)?.extract_error()
}

/// What can be among the words of a command.
pub(crate) trait Word {
    fn push_to(&self, packed: &mut Packed);
}

impl Word for &str {
    fn push_to(&self, packed: &mut Packed) {
        packed.push(self.as_bytes());
    }
}

impl Word for String {
    fn push_to(&self, packed: &mut Packed) {
        packed.push(self.as_bytes());
    }
}

impl Word for u64 {
    fn push_to(&self, packed: &mut Packed) {
        let mut digits = [0; 20];
        packed.push(decimal(*self, &mut digits));
    }
}

impl Word for u8 {
    fn push_to(&self, packed: &mut Packed) {
        u64::from(*self).push_to(packed);
    }
}

/// Several words.
impl<const COUNT: usize, W: Word> Word for [W; COUNT] {
    fn push_to(&self, packed: &mut Packed) {
        for word in self {
            word.push_to(packed);
        }
    }
}

/// The digits of a number, at the end of the room that is lent for them.
fn decimal(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut from = room.len();
    for place in room.iter_mut().rev() {
        *place = b"0123456789"[(number % 10) as usize];
        from -= 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    room.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(words: &[Vec<u8>]) -> Packed {
        let mut packed = Packed::with_capacity(0);
        for word in words {
            packed.push(word);
        }
        packed
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_redis_rs(words in proptest::collection::vec(any::<Vec<u8>>(), 1..130)) {
            let mut command = Cmd::new();
            for word in &words {
                command.arg(word);
            }
            let packed = packed(&words);
            prop_assert_eq!(packed.as_bytes(), command.get_packed_command());
            prop_assert!(packed.words().eq(words.iter().map(|word| &**word)));
        }

        #[test]
        fn a_number_is_its_digits(number in any::<u64>()) {
            let mut packed = Packed::with_capacity(0);
            number.push_to(&mut packed);
            let digits = number.to_string();
            prop_assert_eq!(packed.words().next(), Some(digits.as_bytes()));
        }
    }

    #[test]
    fn the_least_and_the_greatest_number() {
        assert_eq!(decimal(0, &mut [0; 20]), b"0");
        assert_eq!(decimal(u64::MAX, &mut [0; 20]), b"18446744073709551615");
    }
}
