//! The names that Lambda accepts for operations: the service of these tests refuses others.

use std::time::Duration;

use lambda_lock_durable::LockContext as _;
use serde_json::{Value, json};

use crate::Table;
use crate::service::Service;
use crate::turns::arn;

#[tokio::test(start_paused = true)]
async fn any_key_and_any_name_of_a_step_become_names_that_lambda_accepts() {
    let table = Table::new().await;
    let service = Service::new(&table.engine);
    let texts = ["köln".to_owned(), "k".repeat(2000), "a\tb".to_owned(), "😀".repeat(300)];
    for (number, text) in (1..).zip(texts) {
        let (locks, name) = (table.locks.clone(), text.clone());
        let arn = arn(number);
        let ended = service.execute(&arn, Duration::ZERO, move |_: Value, ctx| {
            let (locks, text) = (locks.clone(), name.clone());
            async move {
                let lock = ctx.lock(&locks, text.clone());
                let done = lock.run(move |held| async move { Ok(held.step(text, |_| async { Ok(1) }).await?) });
                Ok(json!(done.await?))
            }
        });
        let ended = ended.await;
        assert_eq!(ended.response["Status"], "SUCCEEDED", "{text}: {ended:?}");
        assert!(!table.has_holder(&text).await);
    }
}
