//! The parts of the Redis protocol that the proxy needs: the end of a request or a reply, and a
//! request's name.

/// The length of the first request or reply in the bytes, or `None` if it is incomplete.
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = line_length(bytes)?;
    let number = || number_in(bytes.get(1..line)?);
    match bytes.first()? {
        b'$' | b'!' | b'=' => match number()? {
            length if length < 0 => Some(line),
            length => {
                let end = line + usize::try_from(length).ok()? + 2;
                (bytes.len() >= end).then_some(end)
            }
        },
        b'*' | b'~' | b'>' => after_elements(bytes, line, number()?),
        b'%' => after_elements(bytes, line, number()? * 2),
        _ => Some(line),
    }
}

/// The upper-case name of a request.
pub fn command_name(request: &[u8]) -> String {
    word(request, 0)
}

/// A word of the request in upper case, counted from 0.
pub fn word(request: &[u8], nth: usize) -> String {
    let text = || {
        let mut at = line_length(request)?;
        for _ in 0..nth {
            at += frame_length(request.get(at..)?)?;
        }
        let head = at + line_length(request.get(at..)?)?;
        let length = number_in(request.get(at + 1..head)?)?;
        request.get(head..head + usize::try_from(length).ok()?)
    };
    String::from_utf8_lossy(text().unwrap_or_default()).to_uppercase()
}

/// True for a reply that answers no command: a push, or a message to a subscriber.
pub fn is_push(reply: &[u8]) -> bool {
    [&b">"[..], b"*3\r\n$7\r\nmessage", b"*4\r\n$8\r\npmessage"]
        .iter()
        .any(|start| reply.starts_with(start))
}

fn after_elements(bytes: &[u8], line: usize, elements: i64) -> Option<usize> {
    (0..elements).try_fold(line, |end, _| Some(end + frame_length(bytes.get(end..)?)?))
}

fn line_length(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .map(|at| at + 2)
}

fn number_in(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.trim_end().parse().ok()
}
