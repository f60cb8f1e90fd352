//! Which of a cluster's slots a key is in.

/// The number of slots.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: by the text in its first pair of braces, if there is any, or else by all of
/// it.
pub(super) fn slot_of(key: &str) -> u16 {
    crc16(hashed_part(key).as_bytes()) % SLOTS
}

fn hashed_part(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    tag.unwrap_or(key)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ BY_BYTE[usize::from(high ^ byte)]
    })
}

/// The checksum of each byte.
static BY_BYTE: [u16; 256] = {
    let mut by_byte = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
            bit += 1;
        }
        by_byte[byte as usize] = crc;
        byte += 1;
    }
    by_byte
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_standards_example() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_what_stands_in_the_first_braces_counts() {
        for (key, part) in [
            ("lock:report", "lock:report"),
            ("{lock:report}:lease", "lock:report"),
            ("lock:{shop}:report", "shop"),
            ("lock:{shop}{other}", "shop"),
            ("a{}b{c}", "a{}b{c}"),
            ("a{b", "a{b"),
            ("a}b{c}", "c"),
            ("{{a}}", "{a"),
            ("", ""),
        ] {
            assert_eq!(hashed_part(key), part, "{key}");
            assert!(slot_of(key) < SLOTS);
        }
        // As a server answers to CLUSTER KEYSLOT.
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("lock:{foo}"), 12_182);
    }
}
