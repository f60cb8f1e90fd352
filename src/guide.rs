//! The pages of `docs/`: what the locks promise, how they work, and why they are as they are.
//!
//! This module exists in the documentation only.

// A page links to what a repository's web page can show, to files: `[what locks promise][guarantees.md]`, and at its end
// `[guarantees.md]: guarantees.md`. Of two definitions of one label Markdown takes the first. So each page is preceded here
// by definitions of the same labels that lead to where the same thing stands in rustdoc.
//
// A new page is a line in `pages!` and one in `links!`; a new link is a line in `links!`, with the label that pages use: a
// page's path below docs/, a script's path below src/recipes/, or an item's name, `` [`Lock::acquire`]: crate::Lock::acquire ``.
// Files, functions and tests that a page names are in src/guide/links.md. No file stands beside a page of rustdoc, so
// src/guide/pictures.md has the pictures themselves, as text; tests/docs/pictures.rs writes it.
// tests/docs/links.rs says what is missing, .ci/links follows every link in what rustdoc has written.

macro_rules! links {
    () => {
        r"
[course.md]: crate::guide::course
[book.md]: crate::guide::book
[README.md]: crate
[zh/README.md]: crate::guide::zh_readme
[zh/course.md]: crate::guide::zh_course
[zh/seed-map.md]: crate::guide::zh_seed_map
[guarantees.md]: crate::guide::guarantees
[recipes.md]: crate::guide::recipes
[waiting.md]: crate::guide::waiting
[three-problems.md]: crate::guide::three_problems
[lockrun.md]: crate::guide::lockrun
[design.md]: crate::guide::design
[servers.md]: crate::guide::servers
[quorum.md]: crate::guide::quorum
[seed-map.md]: crate::guide::seed_map
[benchmarks.md]: crate::guide::benchmarks
[verification.md]: crate::guide::verification
[changelog.md]: crate::guide::changelog
[files.md]: crate::guide::files
[glossary.md]: crate::guide::glossary
[design.md#how-is-it-known-that-nobody-sleeps-beside-a-free-lock]: crate::guide::design#how-is-it-known-that-nobody-sleeps-beside-a-free-lock
[design.md#why-is-a-forked-childs-copy-of-a-lease-left-alone]: crate::guide::design#why-is-a-forked-childs-copy-of-a-lease-left-alone
[design.md#why-does-a-process-stay-away-after-its-turns-and-for-how-long]: crate::guide::design#why-does-a-process-stay-away-after-its-turns-and-for-how-long
[recipes.md#read_write]: crate::guide::recipes#read_write
[recipes.md#the-watchdog]: crate::guide::recipes#the-watchdog
[waiting.md#within-a-process]: crate::guide::waiting#within-a-process
[`list_item`]: crate::list_item
[`purchase_item`]: crate::purchase_item
[`purchase_item_with_lock`]: crate::purchase_item_with_lock
[`purchase_item_with_market_lock`]: crate::purchase_item_with_market_lock
[`acquire_lock`]: crate::acquire_lock
[`acquire_lock_with_timeout`]: crate::acquire_lock_with_timeout
[`release_lock`]: crate::release_lock
[`simple/acquire.lua`]: crate::guide::scripts#simpleacquirelua
[`mutex/acquire.lua`]: crate::guide::scripts#mutexacquirelua
[`mutex/acquire_unfenced.lua`]: crate::guide::scripts#mutexacquire_unfencedlua
[`mutex/release.lua`]: crate::guide::scripts#mutexreleaselua
[`mutex/renew.lua`]: crate::guide::scripts#mutexrenewlua
[`once/finish.lua`]: crate::guide::scripts#oncefinishlua
[`once/last_run.lua`]: crate::guide::scripts#oncelast_runlua
[`once/mark.lua`]: crate::guide::scripts#oncemarklua
[`once/unless_run.lua`]: crate::guide::scripts#onceunless_runlua
[`reentrant/acquire.lua`]: crate::guide::scripts#reentrantacquirelua
[`companion.lua`]: crate::guide::scripts#companionlua
[`reentrant/levels.lua`]: crate::guide::scripts#reentrantlevelslua
[`reentrant/release.lua`]: crate::guide::scripts#reentrantreleaselua
[`reentrant/renew.lua`]: crate::guide::scripts#reentrantrenewlua
[`read_write/acquire_read.lua`]: crate::guide::scripts#read_writeacquire_readlua
[`read_write/acquire_write.lua`]: crate::guide::scripts#read_writeacquire_writelua
[`read_write/holders.lua`]: crate::guide::scripts#read_writeholderslua
[`read_write/release.lua`]: crate::guide::scripts#read_writereleaselua
[`read_write/renew.lua`]: crate::guide::scripts#read_writerenewlua
[`article/two_key/acquire_read.lua`]: crate::guide::scripts#articletwo_keyacquire_readlua
[`article/two_key/acquire_write.lua`]: crate::guide::scripts#articletwo_keyacquire_writelua
[`article/two_key/readers.lua`]: crate::guide::scripts#articletwo_keyreaderslua
[`article/two_key/release_read.lua`]: crate::guide::scripts#articletwo_keyrelease_readlua
[`article/one_hash/acquire_read.lua`]: crate::guide::scripts#articleone_hashacquire_readlua
[`article/one_hash/acquire_write.lua`]: crate::guide::scripts#articleone_hashacquire_writelua
[`article/one_hash/holders.lua`]: crate::guide::scripts#articleone_hashholderslua
[`article/one_hash/release_read.lua`]: crate::guide::scripts#articleone_hashrelease_readlua
[`article/one_hash/release_write.lua`]: crate::guide::scripts#articleone_hashrelease_writelua
[`inspect/force_release.lua`]: crate::guide::scripts#inspectforce_releaselua
[`inspect/inspect.lua`]: crate::guide::scripts#inspectinspectlua
[`inspect/look.lua`]: crate::guide::scripts#inspectlooklua
"
    };
}

macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(
            #[doc = links!()]
            #[doc = include_str!("guide/links.md")]
            #[doc = include_str!("guide/pictures.md")]
            #[doc = include_str!($page)]
            pub mod $name {}
        )*
    };
}

pages! {
    course: "../docs/course.md",
    book: "../docs/book.md",
    zh_readme: "../docs/zh/README.md",
    zh_course: "../docs/zh/course.md",
    zh_seed_map: "../docs/zh/seed-map.md",
    guarantees: "../docs/guarantees.md",
    recipes: "../docs/recipes.md",
    waiting: "../docs/waiting.md",
    three_problems: "../docs/three-problems.md",
    lockrun: "../docs/lockrun.md",
    servers: "../docs/servers.md",
    quorum: "../docs/quorum.md",
    design: "../docs/design.md",
    seed_map: "../docs/seed-map.md",
    benchmarks: "../docs/benchmarks.md",
    verification: "../docs/verification.md",
    files: "../docs/files.md",
    errors: "../docs/errors.md",
    glossary: "../docs/glossary.md",
    changelog: "../docs/changelog.md",
}

macro_rules! scripts {
    ($($script:literal,)*) => {
        /// The scripts of the recipes, as the server gets them.
        ///
        $(
            #[doc = concat!("\n# `", $script, "`\n\n```lua")]
            #[doc = include_str!(concat!("recipes/", $script))]
            #[doc = "```"]
        )*
        pub mod scripts {}
    };
}

scripts! {
    "simple/acquire.lua",
    "companion.lua",
    "mutex/acquire.lua",
    "mutex/acquire_unfenced.lua",
    "mutex/release.lua",
    "mutex/renew.lua",
    "once/finish.lua",
    "once/last_run.lua",
    "once/mark.lua",
    "once/unless_run.lua",
    "reentrant/acquire.lua",
    "reentrant/levels.lua",
    "reentrant/release.lua",
    "reentrant/renew.lua",
    "read_write/acquire_read.lua",
    "read_write/acquire_write.lua",
    "read_write/holders.lua",
    "read_write/release.lua",
    "read_write/renew.lua",
    "article/two_key/acquire_read.lua",
    "article/two_key/acquire_write.lua",
    "article/two_key/readers.lua",
    "article/two_key/release_read.lua",
    "article/one_hash/acquire_read.lua",
    "article/one_hash/acquire_write.lua",
    "article/one_hash/holders.lua",
    "article/one_hash/release_read.lua",
    "article/one_hash/release_write.lua",
    "inspect/force_release.lua",
    "inspect/inspect.lua",
    "inspect/look.lua",
}
