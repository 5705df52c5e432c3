//! The two tables of a round, without the product's code: one for locks and records, one for effects.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
    TableStatus,
};
use tokio::time::{sleep, timeout};

use crate::checker::Row;

/// How long a table takes until it can be used or is gone, at most.
const LONGEST: Duration = Duration::from_mins(2);

pub(crate) async fn create(client: &Client, name: &str) {
    // A run that was ended left it there.
    if client.delete_table().table_name(name).send().await.is_ok() {
        let until_it_is_gone = async {
            while client.describe_table().table_name(name).send().await.is_ok() {
                sleep(Duration::from_millis(500)).await;
            }
        };
        timeout(LONGEST, until_it_is_gone).await.unwrap();
    }
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let table = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    let table = table.attribute_definitions(id.build().unwrap()).key_schema(key.build().unwrap());
    table.send().await.unwrap();
    let until_it_can_be_used = async {
        loop {
            let described = client.describe_table().table_name(name).send().await.unwrap();
            if described.table().and_then(TableDescription::table_status) == Some(&TableStatus::Active) {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    timeout(LONGEST, until_it_can_be_used).await.unwrap();
}

/// Deletes a table of an earlier round, which only costs memory.
pub(crate) async fn delete(client: &Client, name: &str) {
    client.delete_table().table_name(name).send().await.unwrap();
}

/// Returns all rows.
pub(crate) async fn scan(client: &Client, name: &str) -> Vec<Row> {
    let mut pages = client.scan().table_name(name).consistent_read(true).into_paginator().items().send();
    let mut rows = Vec::new();
    while let Some(item) = pages.next().await {
        let item = item.unwrap();
        let text = |name| item.get(name).and_then(|value: &AttributeValue| value.as_s().ok()).cloned();
        let number = |name| item.get(name).and_then(|value: &AttributeValue| value.as_n().ok()?.parse().ok());
        rows.push(Row {
            id: text("id").unwrap_or_default(),
            status: text("status"),
            data: text("data"),
            commits: number("commits"),
            committed: text("committed"),
            counted: number("counted"),
        });
    }
    rows
}
