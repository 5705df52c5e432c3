//! The two tables of a round, without the product's code: one for locks and records, one for effects.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{self, BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};

use crate::checker::Row;

/// Returns a client of the table itself, past the proxy.
pub(crate) fn client(endpoint: &str) -> Client {
    let config = config::Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "chaos"));
    Client::from_conf(config.build())
}

pub(crate) async fn create(client: &Client, name: &str) {
    // A run that was ended left it there.
    let _there_may_be_none = client.delete_table().table_name(name).send().await;
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let table = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    let table = table.attribute_definitions(id.build().unwrap()).key_schema(key.build().unwrap());
    table.send().await.unwrap();
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
