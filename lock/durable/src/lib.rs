#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod error;
mod held;
mod lock;
mod name;

pub use claim::Fences;
pub use error::{Error, ErrorKind};
pub use held::Held;
pub use lock::{DurableLock, LockContext};
pub use name::execution_name;
