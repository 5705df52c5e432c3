//! The program `lambda-lock`.
fn main() {}
