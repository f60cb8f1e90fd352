//! The pictures of the pages are in rustdoc as well, where no file stands beside a page.

use std::{env, fmt::Write, fs};

use crate::{files, in_the_project};

/// A picture as the address of itself.
fn address_of(svg: &str) -> String {
    let mut address = String::from("data:image/svg+xml,");
    for byte in svg.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/=,;".contains(&byte) {
            address.push(char::from(byte));
        } else {
            write!(address, "%{byte:02X}").unwrap();
        }
    }
    address
}

/// With `LEASEHOLD_PICTURES=write` in the environment it writes the file.
#[test]
fn the_guide_has_the_pictures_of_the_pages() {
    let mut pictures = files("docs", "svg");
    pictures.sort();
    let mut expected = String::new();
    for picture in pictures {
        let name = picture.file_name().unwrap().to_str().unwrap();
        let address = address_of(&fs::read_to_string(&picture).unwrap());
        writeln!(expected, "[{name}]: {address}").unwrap();
    }
    // A page follows.
    expected.push('\n');
    let guide = in_the_project("src/guide/pictures.md");
    if env::var_os("LEASEHOLD_PICTURES").is_some() {
        fs::write(&guide, &expected).unwrap();
    }
    assert!(
        fs::read_to_string(guide).is_ok_and(|found| found == expected),
        "a picture has changed: LEASEHOLD_PICTURES=write cargo test --test docs pictures"
    );
}
