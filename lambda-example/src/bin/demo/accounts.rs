//! Several keys, all or none: transfers between accounts, each of which needs the locks of two.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lambda_lock::{Backoff, Locks, Wait};
use lambda_runtime::Error;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Cloud, expect, table};

const ACCOUNTS: [&str; 3] = ["anna", "ben", "cleo"];
const BALANCE: i64 = 100;

pub(crate) async fn show(cloud: &Cloud) -> Result<(), Error> {
    println!("Transfers in a circle and back, all at once; each locks the two accounts, in any order");
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
                let wait = Wait::backoff(Backoff::new().base(Duration::from_millis(50))).up_to(Duration::from_secs(30));
                let both = locks.acquire_all([*from, to]).wait(wait).await?;
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
        table.add_row([transfer, fence.unwrap_or_default().to_string(), requests.to_string()]);
    }
    println!("{table}");
    let balances = ledger.balances();
    println!("balances: {balances:?}");
    expect(balances.values().all(|balance| *balance == BALANCE), format!("the balances are {balances:?}"))
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
