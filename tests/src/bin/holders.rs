//! The function of the template `holders`, for the test that deploys it.

#![allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]

include!("../../../templates/holders/template/src/main.rs");
