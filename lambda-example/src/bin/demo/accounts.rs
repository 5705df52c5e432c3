//! Several keys, all or none: transfers between accounts, each of which needs the locks of two.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anstream::println;
use lambda_lock::Locks;
use lambda_runtime::Error;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Cloud;
use crate::scene::{Scene, expect, short, table};

const ACCOUNTS: [&str; 3] = ["anna", "ben", "cleo"];
const BALANCE: i64 = 100;

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "transfer",
    title: "Six transfers need two accounts each",
    world: "Anna, Ben and Cleo have 100 each, and each of them sends 10 to both others, all at once. A transfer reads \
            two balances, and writes them a little later.",
    should: "A transfer locks both accounts or neither, so no two of them wait for each other, and no balance is lost. \
             In the end, everybody has 100 again.",
    guide: "recipes/keys",
    play: |cloud| Box::pin(transfers(cloud)),
}];

async fn transfers(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("transfer");
    let ledger = Arc::new(Ledger(Mutex::new(ACCOUNTS.map(|account| (account, BALANCE)).into())));
    let mut transfers = JoinSet::new();
    for (number, from) in ACCOUNTS.iter().enumerate() {
        for step in 1..ACCOUNTS.len() {
            let to = ACCOUNTS[(number + step) % ACCOUNTS.len()];
            let (host, table, prefix, ledger) =
                (cloud.host(), cloud.table.clone(), prefix.clone(), Arc::clone(&ledger));
            transfers.spawn(async move {
                let locks = Locks::builder(host.client(), table).key_prefix(prefix).build()?;
                let both = locks.acquire_all([*from, to]).wait(Duration::from_secs(30)).await?;
                ledger.transfer(from, to, 10).await;
                let fence = both.fence_of(from);
                both.release().await?;
                Ok::<_, Error>((fence, format!("{from} to {to}"), host.requests()))
            });
        }
    }
    let mut answers = transfers.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    answers.sort_unstable();
    let mut table = table(["transfer", "fence", "requests"]);
    for (fence, transfer, requests) in answers {
        table.add_row([transfer, short(fence.unwrap_or_default()), requests.to_string()]);
    }
    println!("{table}");
    let balances = ledger.balances();
    expect(balances.values().all(|balance| *balance == BALANCE), format!("the balances are {balances:?}"))?;
    Ok("All six transfers were made, and everybody has 100.".to_owned())
}

/// Balances that are read, and written later, as two rows without a transaction.
struct Ledger(Mutex<BTreeMap<&'static str, i64>>);

impl Ledger {
    async fn transfer(&self, from: &'static str, to: &'static str, amount: i64) {
        let balances = self.balances();
        sleep(Duration::from_millis(30)).await;
        let (from_balance, to_balance) = (balances[from] - amount, balances[to] + amount);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend([(from, from_balance), (to, to_balance)]);
    }

    fn balances(&self) -> BTreeMap<&'static str, i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
