//! The pages of the folder `docs`, for whoever reads them beside the API.
//!
//! | you want to | read |
//! |---|---|
//! | use a lock in a program | [`guide`], [`recipes`], [`errors`] |
//! | know what you can rely on | [`guarantees`] |
//! | run a command on one host of several | [`lockrun`] |
//! | choose or operate a server | [`servers`] |
//! | learn why locks are hard | [`course`] |
//! | port the code of *Redis in Action* | [`book`] |
//!
//! # In the repository
//!
//! Some links lead to files that only the repository has: the tests, the scripts, and the pages on
//! the design of the crate.

// Exists for rustdoc alone. A page defines its relative links at its end, for the repository;
// `links.md` defines them first, for rustdoc, which takes the first definition. rustdoc publishes
// no files, so `pictures.md` defines a picture as a `data:` URL that contains it.

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/book.md")]
pub mod book {}

#[doc = include_str!("links.md")]
#[doc = include_str!("pictures.md")]
#[doc = include_str!("../../docs/course.md")]
pub mod course {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/errors.md")]
pub mod errors {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/guide.md")]
pub mod guide {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/lockrun.md")]
pub mod lockrun {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/recipes.md")]
pub mod recipes {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/servers.md")]
pub mod servers {}
