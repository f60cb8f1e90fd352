//! The pictures on the pages match the output of the examples, except for times and other numbers.
//! The code on the pages matches that of the examples and the library, and their links are defined.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path, sync::Mutex, thread};

use crate::common::{example, examples::printed, wait::at_once};

/// On a busy machine a lease of 300 ms may end before the next line, which sometimes changes a
/// picture. Only a picture that differs is produced again.
const RUNS: usize = 10;
/// Many run at once, because they mostly wait.
const AT_ONCE: usize = 8;

const PROBLEMS: [&str; 3] = [
    "problem_1_overrun",
    "problem_2_crash",
    "problem_3_two_holders",
];

/// The pages of README and docs, including the translations.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("README.md")];
    for folder in ["docs", "docs/zh"] {
        let Ok(entries) = fs::read_dir(root.join(folder)) else {
            continue;
        };
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    let texts = files.iter().map(fs::read_to_string);
    texts.collect::<Result<_, _>>().unwrap()
}

/// The text without the parts that differ from run to run: numbers, and the spaces that align them.
fn lasting(text: &str) -> String {
    let mut lasting = String::new();
    for line in text.lines() {
        for word in line.split_whitespace() {
            let mut in_number = false;
            for sign in word.chars() {
                if !sign.is_ascii_digit() {
                    lasting.push(sign);
                } else if !in_number {
                    lasting.push('#');
                }
                in_number = sign.is_ascii_digit();
            }
            lasting.push(' ');
        }
        lasting.push('\n');
    }
    lasting
}

/// A browser makes its readers scroll a wider one.
fn assert_narrow(picture: &str) {
    let is_narrow = |line: &str| line.chars().count() <= 100;
    assert!(picture.lines().all(is_narrow), "{picture}");
}

/// The output of an example, scene by scene, from its column headers on.
fn scenes(name: &str, args: &[&str]) -> Vec<String> {
    let text = printed(|| {
        let mut command = example(name);
        command.args(args);
        command
    });
    assert_narrow(&text);
    let heads = text.split("\ntime ").skip(1);
    heads
        .map(|scene| lasting(&format!("time {}", scene.split("\n\n").next().unwrap())))
        .collect()
}

/// The pictures on a page, in order.
fn pictures(page: &str) -> Vec<String> {
    let blocks = page.split("```text\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let pictures = blocks.filter(|block| block.starts_with("time "));
    let pictures = pictures.inspect(|picture| assert_narrow(picture));
    pictures.map(lasting).collect()
}

/// The traps that a page shows how to run.
fn traps_named_on(page: &str) -> BTreeSet<&str> {
    let commands = page.split("--example traps -- ").skip(1);
    commands
        .filter_map(|rest| {
            rest.split(|sign: char| !sign.is_alphanumeric() && sign != '-')
                .next()
        })
        .filter(|name| !["all", "NAME", ""].contains(name))
        .collect()
}

/// The output of these examples, scene by scene.
fn scenes_of<'a>(programs: impl Iterator<Item = (&'a str, Option<&'a str>)> + Send) -> Vec<String> {
    let (left, printed) = (Mutex::new(programs), Mutex::default());
    thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                while let Some((name, trap)) = { left.lock().unwrap().next() } {
                    let scenes = scenes(name, trap.as_slice());
                    Vec::extend(&mut printed.lock().unwrap(), scenes);
                }
            });
        }
    });
    printed.into_inner().unwrap()
}

#[test]
fn every_picture_on_a_page_is_printed_by_an_example() {
    let pages = pages();
    let traps: BTreeSet<_> = pages.iter().flat_map(|page| traps_named_on(page)).collect();
    let mut printed = BTreeSet::new();
    let all: BTreeSet<_> = pages.iter().flat_map(|page| pictures(page)).collect();
    let are_shown = (0..RUNS).any(|_| {
        let problems = PROBLEMS.iter().map(|name| (*name, None));
        let traps = traps.iter().map(|trap| ("traps", Some(*trap)));
        printed.extend(scenes_of(problems.chain(traps)));
        printed.is_superset(&all)
    });
    let missing = || all.difference(&printed).collect::<Vec<_>>();
    assert!(
        are_shown,
        "no example prints\n{:#?}\nThey print\n{printed:#?}",
        missing()
    );
}

#[test]
fn three_problems_shows_the_whole_output_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/three-problems.md")).unwrap();
    let shown = pictures(&page);
    // The first scene that is missing from the page, or out of order.
    let differs = |name| {
        let mut left = shown.iter();
        let mut scenes = scenes(name, &[]).into_iter();
        scenes.find(|scene| !left.any(|picture| picture == scene))
    };
    at_once(PROBLEMS, |name| {
        let differences: Vec<_> = (0..RUNS).map_while(|_| differs(name)).collect();
        assert!(
            differences.len() < RUNS,
            "{name} prints, in this order\n{differences:#?}"
        );
    });
}

/// The text of the Rust and Lua files in a folder, without line breaks and indentation. It includes
/// the examples in their documentation.
fn code_below(folder: &Path) -> Vec<String> {
    let mut code = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            code.extend(code_below(&path));
        } else if path
            .extension()
            .is_some_and(|end| end == "rs" || end == "lua")
        {
            let text = fs::read_to_string(path).unwrap();
            let lines = text.lines().map(str::trim_start);
            let lines = lines.map(|line| {
                let documented = line.strip_prefix("///");
                documented
                    .or_else(|| line.strip_prefix("//!"))
                    .unwrap_or(line)
            });
            code.push(flat(&lines.collect::<Vec<_>>().join("\n")));
        }
    }
    code
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn code_quoted_on_pages_exists_in_the_library_or_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = code_below(&root.join("src"));
    code.extend(code_below(&root.join("examples")));
    for page in [
        "README.md",
        "docs/guide.md",
        "docs/course.md",
        "docs/zh/README.md",
        "docs/zh/course.md",
    ] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let mut quotes = 0;
        for block in text.split("```").skip(1).step_by(2) {
            let (language, block) = block.split_once('\n').unwrap();
            if language == "lua" || language.starts_with("rust") {
                let code_of_page = flat(block);
                assert!(
                    code.iter().any(|file| file.contains(&code_of_page)),
                    "{page} quotes {block}"
                );
                quotes += 1;
            }
        }
        assert!(quotes >= 1, "{page}");
    }
}

#[test]
fn a_chinese_page_has_the_code_and_the_output_of_the_english_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join("docs/zh")).unwrap() {
        let chinese = entry.unwrap().path();
        let name = chinese.file_name().unwrap();
        let english = match name.to_str() {
            Some("README.md") => root.join(name),
            _ => root.join("docs").join(name),
        };
        let [chinese, english] = [&chinese, &english].map(|page| fs::read_to_string(page).unwrap());
        let blocks = |page: &str| -> Vec<String> {
            let blocks = page.split("```").skip(1).step_by(2);
            blocks.map(str::to_owned).collect()
        };
        assert_eq!(blocks(&chinese), blocks(&english), "{}", name.display());
    }
}

/// `src/docs/links.md` defines each link of such a page once more, for rustdoc.
#[test]
fn rustdoc_can_follow_each_link_of_a_page_in_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [modules, links, pictures] = ["mod.rs", "links.md", "pictures.md"]
        .map(|file| fs::read_to_string(root.join("src/docs").join(file)).unwrap());
    let links = links + &pictures;
    let pages = modules.split("\"../../").skip(1);
    let pages: Vec<_> = pages.filter_map(|page| page.split('"').next()).collect();
    assert!(pages.contains(&"docs/guarantees.md"), "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(root.join(page)).unwrap();
        for prose in text.split("```").step_by(2) {
            for target in prose.split("](").skip(1) {
                let is_within = target.starts_with('#') || target.starts_with("https://");
                let target = target.split(')').next();
                assert!(
                    is_within,
                    "{page}: {target:?} needs a definition at the end"
                );
            }
        }
        let definitions = text.lines().filter_map(|line| line.split_once("]: "));
        let is_label = |text: &str| text.starts_with('[') && !text.contains("][");
        for (label, _) in definitions.filter(|(label, _)| is_label(label)) {
            let defined = links
                .lines()
                .any(|line| line.starts_with(&format!("{label}]: ")));
            assert!(defined, "{page}: {label}] is missing in src/docs/links.md");
        }
    }
}

/// A `data:` URL has the whole picture, with escapes for the characters that end a URL in Markdown.
fn data_url(picture: &str) -> String {
    let mut url = "data:image/svg+xml,".to_owned();
    for byte in flat(picture).bytes() {
        let sign = char::from(byte);
        if sign.is_ascii_alphanumeric() || "/:=,;-_.~@".contains(sign) {
            url.push(sign);
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[test]
fn a_picture_in_the_documentation_is_that_of_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let mut modules = read("src/docs/mod.rs");
    modules.retain(|sign| !sign.is_whitespace());
    let mut expected = BTreeSet::new();
    for page in modules.split("include_str!(\"../../").skip(1) {
        let page = read(page.split('"').next().unwrap());
        let embedded = page.split("![").skip(1);
        let embedded = embedded.filter_map(|rest| rest.split_once("][")?.1.split_once(']'));
        for (name, _) in embedded {
            let url = data_url(&read(&format!("docs/{name}")));
            expected.insert(format!("[{name}]: {url}"));
        }
    }
    assert!(!expected.is_empty());
    let defined = read("src/docs/pictures.md");
    let defined: BTreeSet<_> = defined.lines().map(str::to_owned).collect();
    let lines: Vec<_> = expected.into_iter().collect();
    assert!(
        lines.iter().eq(&defined),
        "src/docs/pictures.md should be:\n{}",
        lines.join("\n")
    );
}
