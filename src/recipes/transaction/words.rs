//! The first words of commands in the bytes that redis-rs has packed.

/// The name of each packed command, and its first argument, or nothing. `None`: some of it is not
/// packed as redis-rs packs commands. The server may still execute it: a line of text is a command
/// as well.
pub(super) fn first_words(packed: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let (mut rest, mut commands) = (packed, Vec::new());
    while !rest.is_empty() {
        let words = number(&mut rest, b'*')?;
        let mut first: [&[u8]; 2] = [&[]; 2];
        for at in 0..words {
            let length = number(&mut rest, b'$')?;
            let word = rest.get(..length)?;
            rest = rest.get(length.checked_add(2)?..)?;
            if let Some(place) = first.get_mut(at) {
                *place = word;
            }
        }
        commands.push((first[0], first[1]));
    }
    Some(commands)
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
        let words = first_words(&packed).unwrap();
        let expected: [(&[u8], &[u8]); 3] =
            [(b"get", b"a\r\n$1"), (b"PING", b""), (b"HGET", b"users:1")];
        assert_eq!(words, expected);
        for nonsense in [
            b"*1\r\n$9\r\nGE".as_slice(),
            b"PING\r\n",
            b"*1\r\n$4\r\nPING\r\nUNWATCH\r\n",
            b"*1\r\n$18446744073709551615\r\nPING\r\n",
            b"\r\n",
        ] {
            assert_eq!(first_words(nonsense), None);
        }
    }
}
