//! The first words of commands in the bytes that redis-rs has packed.

/// The name of each packed command, and its first argument, or nothing.
pub(super) fn first_words(packed: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        let words = number(&mut rest, b'*')?;
        let mut first: [&[u8]; 2] = [&[]; 2];
        for at in 0..words {
            let length = number(&mut rest, b'$')?;
            let word = rest.get(..length)?;
            rest = rest.get(length + 2..)?;
            if let Some(place) = first.get_mut(at) {
                *place = word;
            }
        }
        Some((first[0], first[1]))
    })
}

/// Takes a sign, a number and the end of the line.
fn number(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let line = rest.iter().position(|byte| *byte == b'\r')?;
    let (head, tail) = rest.split_at(line);
    *rest = tail.get(2..)?;
    let digits = head.strip_prefix(&[sign])?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_known_by_their_first_words() {
        let mut packed = redis::cmd("get").arg("a\r\n$1").get_packed_command();
        packed.extend(redis::cmd("PING").get_packed_command());
        packed.extend(
            redis::cmd("HGET")
                .arg("users:1")
                .arg("funds")
                .get_packed_command(),
        );
        let words: Vec<_> = first_words(&packed).collect();
        let expected: [(&[u8], &[u8]); 3] =
            [(b"get", b"a\r\n$1"), (b"PING", b""), (b"HGET", b"users:1")];
        assert_eq!(words, expected);
        assert_eq!(first_words(b"*1\r\n$9\r\nGE").count(), 0);
        assert_eq!(first_words(b"nonsense").count(), 0);
    }
}
