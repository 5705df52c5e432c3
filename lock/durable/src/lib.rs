#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod error;
mod held;
mod lease;
mod lock;
mod name;
mod outcome;
mod refusal;
mod retry;

pub use claim::Fences;
pub use error::{Error, ErrorKind};
pub use held::Held;
pub use lock::{DurableLock, LockContext};
pub use name::execution_name;
pub use retry::retry_take_over;
